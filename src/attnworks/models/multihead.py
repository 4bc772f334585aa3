"""Multi-head attention with head-first weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.linalg.heads import fold_scores, fold_values
from attnworks.mechanisms import Attended, Context, Mask, Mechanism
from attnworks.models.config import AttentionConfig
from attnworks.models.head_groups import HeadGroups
from attnworks.models.observe import Observation, Observer

Second = tuple[Tensor, Tensor, Tensor]


class MultiHead(nn.Module):
    """u = sum_h P_h (Z W_V,h + 1 b_V,h^T) W_O,h + 1 b_O^T with P_h = softmax((X W_Q,h)(Z W_K,h)^T / sqrt(k)).

    Source: Conti 2024, section 1.2.2 (S4.31, S4.32) and eq. 7 (S4.44); cross-attention S4.59.
    Departs: d_k and d_v need not be d_e / heads; any registered mechanism may stand for the softmax, per head. In an
    encoder a mechanism may have its global tokens look around through a second set W_Qg, W_Kg, W_Vg (S4.87). W_Q and
    W_K have a slice for each head that looks at them; heads that attend by position alone have none.
    """

    def __init__(self, d_e: int, config: AttentionConfig, slot: str = "enc.0") -> None:
        super().__init__()
        h, d_k, d_v = config.geometry
        self.config, self.slot = config, slot
        self.context = Context(scale=config.scale)
        groups = HeadGroups(tuple(config.mechanism_groups()), d_k, d_v)
        looking = len(groups.looking)
        self.W_Q, self.W_K, self.W_V = (
            _head_first(heads, d_e, width) for heads, width in ((looking, d_k), (looking, d_k), (h, d_v))
        )
        self.W_O = nn.Parameter(torch.empty(h, d_v, d_e))
        self.b_Q, self.b_K, self.b_V, self.b_O = (
            nn.Parameter(torch.zeros(shape)) if config.bias else None
            for shape in ((looking, d_k), (looking, d_k), (h, d_v), (d_e,))
        )
        self.mechanisms = groups
        self.twice = slot.startswith("enc") and any(mechanism.projects_twice for mechanism in groups.mechanisms)
        if self.twice:
            self.W_Qg, self.W_Kg, self.W_Vg = (_head_first(h, d_e, width) for width in (d_k, d_k, d_v))
            self.b_Qg, self.b_Kg, self.b_Vg = (
                nn.Parameter(torch.zeros(h, width)) if config.bias else None for width in (d_k, d_k, d_v)
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform, each projection seen as one d_e x (heads * width) matrix."""
        second = (self.W_Qg, self.W_Kg, self.W_Vg) if self.twice else ()
        for W in (self.W_Q, self.W_K, self.W_V, self.W_O, *second):
            h, rows, columns = W.shape
            bound = (6 / (h * rows + columns if W is self.W_O else rows + h * columns)) ** 0.5
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
        if observe is not None:
            weigh = partial(self._weigh, Q, K, V, mask, second)
            Q, K = self.mechanisms.every_head(Q), self.mechanisms.every_head(K)
            edited = observe(Observation(self.slot, X, Z, Q, K, V, mask, Y, self.dot_scale, weigh))
            Y = Y if edited is None else edited
        return self.output(Y)

    def queries(self, X: Float[Tensor, "b i e"]) -> Float[Tensor, "b q i k"]:
        """Of the heads that look."""
        return _project(X, self.W_Q, self.b_Q)

    def keys_values(self, Z: Float[Tensor, "b j e"]) -> tuple[Float[Tensor, "b q j k"], Float[Tensor, "b h j v"]]:
        return _project(Z, self.W_K, self.b_K), _project(Z, self.W_V, self.b_V)

    def second(self, X: Float[Tensor, "b i e"]) -> Second:
        """Q, K and V as global tokens look around, of a layer that projects twice."""
        return (
            _project(X, self.W_Qg, self.b_Qg),
            _project(X, self.W_Kg, self.b_Kg),
            _project(X, self.W_Vg, self.b_Vg),
        )

    def attend(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, second: Second | None = None, *, weights: bool = False
    ) -> Attended:
        return self.mechanisms(Q, K, V, mask, replace(self.context, second=second), weights=weights)

    def output(self, Y: Float[Tensor, "b h i v"]) -> Float[Tensor, "b i e"]:
        return F.linear(Y.transpose(1, 2).flatten(2), self.W_O.flatten(0, 1).mT, self.b_O)

    @property
    def dot_scale(self) -> float | None:
        """The one factor of Q K^T in all heads, if that is how all of them score."""
        scales = {mechanism.dot_scale(self.config.d_k, self.context) for mechanism in self.mechanisms.mechanisms}
        return scales.pop() if len(scales) == 1 else None

    def folded(self) -> tuple[Float[Tensor, "h e f"], Float[Tensor, "h f e"], Float[Tensor, " e"]]:
        """W_QK, W_VO and the one bias that is left of b_V and b_O (S0.6, S0.17); W_QK = 0 of heads that do not look."""
        scores = fold_scores(*(self.mechanisms.whole(W) for W in (self.W_Q, self.W_K)))
        return scores, *fold_values(self.W_V, self.W_O, self.b_V, self.b_O)

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


def _head_first(heads: int, d_e: int, width: int) -> nn.Parameter:
    """A [h e k] parameter laid out in memory as h k e, so that all heads are one matrix product without a copy."""
    return nn.Parameter(torch.empty(heads, width, d_e).mT)


def _project(X: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """X [b i e] times all heads W [h e k] at once -> [b h i k]."""
    h, e, k = W.shape
    joined = F.linear(X, W.mT.reshape(h * k, e), None if b is None else b.flatten())
    return joined.unflatten(-1, (h, k)).transpose(1, 2)
