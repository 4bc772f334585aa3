"""Multi-head attention with head-first weights, and what it shows to an observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention import Attended, Context, Mask, Mechanism
from attnworks.attention.heads import HeadGroups, Scoring, Widths, fold_scores, fold_values
from attnworks.core.errors import UsageError
from attnworks.models.config import AttentionConfig

Second = tuple[Tensor, Tensor, Tensor]


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


class MultiHead(nn.Module):
    """u = sum_h P_h (Z W_V,h + 1 b_V,h^T) W_O,h + 1 b_O^T with P_h = softmax((X W_Q,h)(Z W_K,h)^T / sqrt(k)).

    Source: Conti 2024, section 1.2.2 (S4.31, S4.32) and eq. 7 (S4.44); cross-attention S4.59.
    Departs: d_k and d_v need not be d_e / heads, nor the same in all heads; any registered mechanism may stand for the
    softmax, per head. In an encoder a mechanism may have its global tokens look around through a second set W_Qg, W_Kg,
    W_Vg (S4.87). W_Q and W_K have a slice for each head that looks at them; heads that attend by position alone have
    none. Heads of unequal widths lie side by side in W_Q, W_K and W_V [e w], and one above the other in W_O [w e].
    """

    def __init__(self, d_e: int, config: AttentionConfig, slot: str = "enc.0") -> None:
        super().__init__()
        h, d_k, d_v = config.geometry
        self.config, self.slot = config, slot
        self.context = Context(scale=config.scale)
        groups = HeadGroups(tuple(config.mechanism_groups()), d_k, d_v)
        looking = config.d_k if isinstance(config.d_k, int) else [config.d_k[head] for head in groups.looking]
        self.key_widths = keys = Widths(len(groups.looking), looking, d_k)
        self.value_widths = values = Widths(h, config.d_v, d_v)
        self.W_Q, self.W_K, self.W_V = (_side_by_side(d_e, widths.shape) for widths in (keys, keys, values))
        self.W_O = nn.Parameter(torch.empty(*values.shape, d_e))
        self.b_Q, self.b_K, self.b_V, self.b_O = (
            nn.Parameter(torch.zeros(shape)) if config.bias else None
            for shape in (keys.shape, keys.shape, values.shape, (d_e,))
        )
        self.mechanisms = groups
        self.twice = slot.startswith("enc") and any(mechanism.projects_twice for mechanism in groups.mechanisms)
        if not isinstance(config.d_k, int) or not isinstance(config.d_v, int):
            _check_unequal_widths(config, groups, self.twice)
        self.second_widths = Widths(h, d_k, d_k), Widths(h, d_k, d_k), Widths(h, d_v, d_v)
        if self.twice:
            self.W_Qg, self.W_Kg, self.W_Vg = (_side_by_side(d_e, (h, width)) for width in (d_k, d_k, d_v))
            self.b_Qg, self.b_Kg, self.b_Vg = (
                nn.Parameter(torch.zeros(h, width)) if config.bias else None for width in (d_k, d_k, d_v)
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform, each projection seen as one d_e x (heads * width) matrix."""
        second = (self.W_Qg, self.W_Kg, self.W_Vg) if self.twice else ()
        d_e = self.W_O.shape[-1]
        for W in (self.W_Q, self.W_K, self.W_V, self.W_O, *second):
            bound = (6 / (d_e + W.numel() // d_e)) ** 0.5
            nn.init.uniform_(W, -bound, bound)

    def forward(
        self,
        X: Float[Tensor, "b i e"],
        Z: Float[Tensor, "b j e"] | None = None,
        mask: Mask | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b i e"]:
        Z, mask = X if Z is None else Z, Mask() if mask is None else mask
        Q = self.queries(X)
        K, V = self.keys_values(Z)
        second = self.second(X) if self.twice and not mask.causal else None
        Y = self.attend(Q, K, V, mask, second).Y
        if observe is not None and self.config.heads:
            weigh = partial(self._weigh, Q, K, V, mask, second)
            Q, K = self.mechanisms.every_head(Q), self.mechanisms.every_head(K)
            edited = observe(Observation(self.slot, X, Z, Q, K, V, mask, Y, self.scoring, weigh))
            Y = Y if edited is None else edited
        return self.output(Y)

    def queries(self, X: Float[Tensor, "b i e"]) -> Float[Tensor, "b q i k"]:
        """Of the heads that look."""
        return _project(X, self.W_Q, self.b_Q, self.key_widths)

    def keys_values(self, Z: Float[Tensor, "b j e"]) -> tuple[Float[Tensor, "b q j k"], Float[Tensor, "b h j v"]]:
        K = _project(Z, self.W_K, self.b_K, self.key_widths)
        return K, _project(Z, self.W_V, self.b_V, self.value_widths)

    def second(self, X: Float[Tensor, "b i e"]) -> Second:
        """Q, K and V as global tokens look around, of a layer that projects twice."""
        Q, K, V = self.second_widths
        return (
            _project(X, self.W_Qg, self.b_Qg, Q),
            _project(X, self.W_Kg, self.b_Kg, K),
            _project(X, self.W_Vg, self.b_Vg, V),
        )

    def attend(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, second: Second | None = None, *, weights: bool = False
    ) -> Attended:
        return self.mechanisms(Q, K, V, mask, replace(self.context, second=second), weights=weights)

    def output(self, Y: Float[Tensor, "b h i v"]) -> Float[Tensor, "b i e"]:
        return F.linear(self.value_widths.join(Y.transpose(1, 2)), self.W_O.flatten(0, -2).mT, self.b_O)

    @property
    def scoring(self) -> Scoring:
        return self.mechanisms.scoring(self.config.geometry.d_k, self.context)

    def folded(self) -> tuple[Float[Tensor, "h e f"], Float[Tensor, "h f e"], Float[Tensor, " e"]]:
        """W_QK, W_VO and the one bias that is left of b_V and b_O (S0.6, S0.17); W_QK = 0 of heads that do not look."""
        W_Q, W_K, W_V, W_O = self.head_first()
        return fold_scores(W_Q, W_K), *fold_values(W_V, W_O, self.head_first_biases()[2], self.b_O)

    def head_first(
        self,
    ) -> tuple[Float[Tensor, "h e k"], Float[Tensor, "h e k"], Float[Tensor, "h e v"], Float[Tensor, "h v e"]]:
        """W_Q, W_K, W_V and W_O of all heads: zero for heads that do not look, and beyond the width of a head."""
        W_Q, W_K = (self.mechanisms.whole(self.key_widths.of_heads(W)) for W in (self.W_Q, self.W_K))
        W_O = self.W_O if self.W_O.dim() == 3 else self.value_widths.of_heads(self.W_O.mT).mT
        return W_Q, W_K, self.value_widths.of_heads(self.W_V), W_O

    def head_first_biases(
        self,
    ) -> tuple[Float[Tensor, "h k"] | None, Float[Tensor, "h k"] | None, Float[Tensor, "h v"] | None]:
        """b_Q, b_K and b_V in the same way."""
        if self.b_Q is None or self.b_K is None or self.b_V is None:
            return None, None, None
        b_Q, b_K = (self.mechanisms.whole(b if b.dim() == 2 else self.key_widths.cut(b)) for b in (self.b_Q, self.b_K))
        return b_Q, b_K, self.b_V if self.b_V.dim() == 2 else self.value_widths.cut(self.b_V)

    def _weigh(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, second: Second | None) -> Tensor:
        P = self.attend(Q, K, V, mask, second, weights=True).P
        assert P is not None
        return P


def tie_layers(model: nn.Module) -> None:
    """Each mechanism may share parameters with the first of the same spec in the model."""
    first: dict[object, Mechanism] = {}
    for layer in model.modules():
        if isinstance(layer, MultiHead):
            for spec, mechanism in zip(layer.mechanisms.specs, layer.mechanisms.mechanisms, strict=True):
                same = spec.name, frozenset(spec.options.items())
                mechanism.tie(first.setdefault(same, mechanism))


def _side_by_side(d_e: int, shape: tuple[int, ...]) -> nn.Parameter:
    """A [h e k] or [e w] parameter laid out in memory as h k e or w e, so that a product with it needs no copy."""
    return nn.Parameter(torch.empty(*shape, d_e).mT)


def _project(X: Tensor, W: Tensor, b: Tensor | None, widths: Widths) -> Tensor:
    """X [b i e] times all heads W [h e k] or [e w] at once -> [b h i k]."""
    columns = W.mT.flatten(0, -2)
    return widths.cut(F.linear(X, columns, None if b is None else b.flatten())).transpose(1, 2)


def _check_unequal_widths(config: AttentionConfig, groups: HeadGroups, twice: bool) -> None:
    if twice or groups.bound_to_width():
        raise UsageError(
            asked="heads of unequal widths",
            expected="a mechanism that projects once, and to which columns of zeros are nothing",
            got=str(config.mechanism),
            remedy="give all heads of the layer the same widths, or dense attention",
        )
