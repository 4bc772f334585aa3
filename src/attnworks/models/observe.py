"""Looking into a forward pass: every attention layer shows its tensors to an observer, and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.heads import Scoring


@dataclass(frozen=True, eq=False)
class Observation:
    """What one attention layer computed.

    slot      enc.0, dec.1 (self-attention) or cross.1
    X, Z      what queries, and what keys and values, were projected from
    scoring   how each head gets its weights
    weigh     computes the weights, which the fused kernel never forms
    """

    slot: str
    X: Float[Tensor, "b i e"]
    Z: Float[Tensor, "b j f"]
    Q: Float[Tensor, "b h i k"]
    K: Float[Tensor, "b h j k"]
    V: Float[Tensor, "b h j v"]
    mask: Mask
    Y: Float[Tensor, "b h i v"]
    scoring: Scoring
    weigh: Callable[[], Tensor]

    @property
    def scale(self) -> float | None:
        """Of the scores scale Q K^T, or None if not all heads score by the same factor."""
        return self.scoring.scale

    @cached_property
    def P(self) -> Float[Tensor, "b h i j"]:
        """The attention weights, computed when they are first looked at."""
        return self.weigh()


Observer = Callable[[Observation], Tensor | None]
"""Sees an attention layer; a tensor that it returns takes the place of Y."""
