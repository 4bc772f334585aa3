"""Multi-head attention with head-first weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.linalg.heads import fold_scores, fold_values
from attnworks.mechanisms import Attended, Context, Geometry, Mask, Mechanism
from attnworks.models.config import AttentionConfig
from attnworks.models.observe import Observation, Observer

Second = tuple[Tensor, Tensor, Tensor]


class MultiHead(nn.Module):
    """u = sum_h P_h (Z W_V,h + 1 b_V,h^T) W_O,h + 1 b_O^T with P_h = softmax((X W_Q,h)(Z W_K,h)^T / sqrt(k)).

    Source: Conti 2024, section 1.2.2 (S4.31, S4.32) and eq. 7 (S4.44); cross-attention S4.59.
    Departs: d_k and d_v need not be d_e / heads; any registered mechanism may stand for the softmax, per head. In an
    encoder a mechanism may have its global tokens look around through a second set W_Qg, W_Kg, W_Vg (S4.87).
    """

    def __init__(self, d_e: int, config: AttentionConfig, slot: str = "enc.0") -> None:
        super().__init__()
        self.head_order: Tensor
        h, d_k, d_v = config.geometry
        self.config, self.slot = config, slot
        self.context = Context(scale=config.scale)
        self.W_Q, self.W_K, self.W_V = (_head_first(h, d_e, width) for width in (d_k, d_k, d_v))
        self.W_O = nn.Parameter(torch.empty(h, d_v, d_e))
        self.b_Q, self.b_K, self.b_V, self.b_O = (
            nn.Parameter(torch.zeros(shape)) if config.bias else None
            for shape in ((h, d_k), (h, d_k), (h, d_v), (d_e,))
        )
        groups = tuple(config.mechanism_groups())
        self.specs, self.head_groups = tuple(spec for spec, _ in groups), tuple(heads for _, heads in groups)
        self.mechanisms = nn.ModuleList(spec.build(Geometry(len(heads), d_k, d_v)) for spec, heads in groups)
        self.twice = slot.startswith("enc") and any(mechanism.projects_twice for mechanism in self._mechanisms())
        if self.twice:
            self.W_Qg, self.W_Kg, self.W_Vg = (_head_first(h, d_e, width) for width in (d_k, d_k, d_v))
            self.b_Qg, self.b_Kg, self.b_Vg = (
                nn.Parameter(torch.zeros(h, width)) if config.bias else None for width in (d_k, d_k, d_v)
            )
        order = torch.tensor([head for heads in self.head_groups for head in heads]).argsort()
        self.register_buffer("head_order", order, persistent=False)
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
            edited = observe(Observation(self.slot, X, Z, Q, K, V, mask, Y, self.dot_scale, weigh))
            Y = Y if edited is None else edited
        return self.output(Y)

    def queries(self, X: Float[Tensor, "b i e"]) -> Float[Tensor, "b h i k"]:
        return _project(X, self.W_Q, self.b_Q)

    def keys_values(self, Z: Float[Tensor, "b j e"]) -> tuple[Float[Tensor, "b h j k"], Float[Tensor, "b h j v"]]:
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
        """Each mechanism on its own heads; one mechanism for all heads is the common, copy-free case."""
        if len(self.mechanisms) == 1:
            return self.mechanisms[0](Q, K, V, mask, replace(self.context, second=second), weights=weights)
        parts: list[Attended] = []
        for mechanism, heads in zip(self.mechanisms, self.head_groups, strict=True):
            own = _mask_of_heads(mask, heads)
            context = replace(self.context, second=second and tuple(T[:, heads] for T in second))
            parts.append(mechanism(Q[:, heads], K[:, heads], V[:, heads], own, context, weights=weights))
        Y = torch.cat([part.Y for part in parts], 1)[:, self.head_order]
        maps = [part.P for part in parts if part.P is not None]
        return Attended(Y, torch.cat(maps, 1)[:, self.head_order] if len(maps) == len(parts) else None)

    def output(self, Y: Float[Tensor, "b h i v"]) -> Float[Tensor, "b i e"]:
        return F.linear(Y.transpose(1, 2).flatten(2), self.W_O.flatten(0, 1).mT, self.b_O)

    @property
    def dot_scale(self) -> float | None:
        """The one factor of Q K^T in all heads, if that is how all of them score."""
        scales = {mechanism.dot_scale(self.config.d_k, self.context) for mechanism in self._mechanisms()}
        return scales.pop() if len(scales) == 1 else None

    def folded(self) -> tuple[Float[Tensor, "h e f"], Float[Tensor, "h f e"], Float[Tensor, " e"]]:
        """W_QK, W_VO and the one bias that is left of b_V and b_O (S0.6, S0.17)."""
        return fold_scores(self.W_Q, self.W_K), *fold_values(self.W_V, self.W_O, self.b_V, self.b_O)

    def _mechanisms(self) -> list[Mechanism]:
        return cast("list[Mechanism]", list(self.mechanisms))

    def _weigh(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, second: Second | None) -> Tensor:
        P = self.attend(Q, K, V, mask, second, weights=True).P
        assert P is not None
        return P


def tie_layers(model: nn.Module) -> None:
    """Each mechanism may share parameters with the first of the same spec in the model."""
    first: dict[object, Mechanism] = {}
    for layer in model.modules():
        if isinstance(layer, MultiHead):
            for spec, mechanism in zip(layer.specs, layer._mechanisms(), strict=True):
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


def _mask_of_heads(mask: Mask, heads: tuple[int, ...]) -> Mask:
    """The part of a dense per-head mask that belongs to these heads."""
    dense = mask.dense
    if dense is None or dense.dim() < 3 or dense.shape[-3] == 1:
        return mask
    return Mask(mask.padding, mask.causal, dense[..., list(heads), :, :])
