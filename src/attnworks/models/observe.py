"""Looking into a forward pass: every attention layer shows its tensors to an observer, and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from attnworks.mechanisms import Attended, Mask


@dataclass(frozen=True, eq=False)
class Observation:
    """What one attention layer computed.

    slot    enc.0, dec.1 (self-attention) or cross.1
    X, Z    what queries, and what keys and values, were projected from
    """

    slot: str
    X: Float[Tensor, "b i e"]
    Z: Float[Tensor, "b j f"]
    Q: Float[Tensor, "b h i k"]
    K: Float[Tensor, "b h j k"]
    V: Float[Tensor, "b h j v"]
    mask: Mask
    attended: Attended


Observer = Callable[[Observation], None]
