"""Multi-head attention, and the observation of one layer that is given to observers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Attended, Context, Mask, Mechanism
from attnworks.attention.heads import HeadGroups, HeadWidths, Scoring, fold_scores, fold_values
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models.config import AttentionConfig
from attnworks.models.stepping import KeysValues

QKV = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Observation:
    """What one attention layer computed.

    slot      enc.0, dec.1 (self-attention) or cross.1
    X, Z      the inputs of the queries, and of the keys and values
    scoring   how each head computes its weights
    weigh     computes the weights, which the fused kernel does not return
    """

    slot: Slot
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
        """The factor of the scores Q K^T, or None if it is not the same in all heads."""
        return self.scoring.scale

    @cached_property
    def P(self) -> Float[Tensor, "b h i j"]:
        """The attention weights, computed at the first access."""
        return self.weigh()


Observer = Callable[[Observation], Tensor | None]
"""Receives the observation of an attention layer; a tensor that it returns replaces Y."""


class MultiHead(nn.Module):
    """u = sum_h P_h (Z W_V,h + 1 b_V,h^T) W_O,h + 1 b_O^T with P_h = softmax((X W_Q,h)(Z W_K,h)^T / sqrt(k)).

    Source: Conti 2024, section 1.2.2 (S4.31, S4.32) and eq. 7 (S4.44); cross-attention S4.59.
    Departs: d_k and d_v need not be d_e / heads, nor the same in all heads; any registered mechanism may replace the
    softmax, per head. In an encoder, global tokens of a mechanism may attend with a second set of projections W_Qg,
    W_Kg, W_Vg (S4.87).
    Shapes: W_Q, W_K [q e k] for the q heads whose weights depend on content (heads that attend by position alone have
    none), W_V [h e v], W_O [h v e]; with unequal widths W_Q, W_K, W_V [e w] and W_O [w e], heads one after the other.
    """

    def __init__(self, d_e: int, config: AttentionConfig, slot: Slot | None = None) -> None:
        super().__init__()
        h, d_k, d_v = config.geometry
        self.config, self.slot = config, slot or Slot("encoder", 0)
        self.context = Context(scale=config.scale)
        groups = HeadGroups(tuple(config.mechanism_groups()), d_k, d_v)
        widths = config.d_k if isinstance(config.d_k, int) else [config.d_k[head] for head in groups.content_heads]
        self.key_widths = keys = HeadWidths(len(groups.content_heads), widths, d_k)
        self.value_widths = values = HeadWidths(h, config.d_v, d_v)
        self.W_Q, self.W_K, self.W_V = (_side_by_side(d_e, widths.shape) for widths in (keys, keys, values))
        self.W_O = nn.Parameter(torch.empty(*values.shape, d_e))
        self.b_Q, self.b_K, self.b_V, self.b_O = (
            nn.Parameter(torch.zeros(shape)) if config.bias else None
            for shape in (keys.shape, keys.shape, values.shape, (d_e,))
        )
        self.mechanisms = groups
        self.has_global_projections = self.slot.kind == "encoder" and any(
            mechanism.has_global_projections for mechanism in groups.mechanisms
        )
        if not isinstance(config.d_k, int) or not isinstance(config.d_v, int):
            _check_unequal_widths(config, groups, self.has_global_projections)
        self.global_widths = HeadWidths(h, d_k, d_k), HeadWidths(h, d_v, d_v)
        if self.has_global_projections:
            self.W_Qg, self.W_Kg, self.W_Vg = (_side_by_side(d_e, (h, width)) for width in (d_k, d_k, d_v))
            self.b_Qg, self.b_Kg, self.b_Vg = (
                nn.Parameter(torch.zeros(h, width)) if config.bias else None for width in (d_k, d_k, d_v)
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform, each projection taken as one d_e x (heads * width) matrix."""
        of_globals = (self.W_Qg, self.W_Kg, self.W_Vg) if self.has_global_projections else ()
        d_e = self.W_O.shape[-1]
        for W in (self.W_Q, self.W_K, self.W_V, self.W_O, *of_globals):
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
        global_qkv = self.project_global(X) if self.has_global_projections and not mask.causal else None
        Y = self.attend(Q, K, V, mask, global_qkv).Y
        if observe is not None and self.config.heads:
            weigh = partial(self._weigh, Q, K, V, mask, global_qkv)
            Q, K = self.mechanisms.every_head(Q), self.mechanisms.every_head(K)
            edited = observe(Observation(self.slot, X, Z, Q, K, V, mask, Y, self.scoring, weigh))
            Y = Y if edited is None else edited
        return self.output(Y)

    def queries(self, X: Float[Tensor, "b i e"]) -> Float[Tensor, "b q i k"]:
        """The queries of the heads whose weights depend on content."""
        return _project(X, self.W_Q, self.b_Q, self.key_widths)

    def keys_values(self, Z: Float[Tensor, "b j e"]) -> tuple[Float[Tensor, "b q j k"], Float[Tensor, "b h j v"]]:
        K = _project(Z, self.W_K, self.b_K, self.key_widths)
        return K, _project(Z, self.W_V, self.b_V, self.value_widths)

    def project_global(self, X: Float[Tensor, "b i e"]) -> QKV:
        """Q, K and V from the second set of projections, for global tokens."""
        keys, values = self.global_widths
        Q, K = _project(X, self.W_Qg, self.b_Qg, keys), _project(X, self.W_Kg, self.b_Kg, keys)
        return Q, K, _project(X, self.W_Vg, self.b_Vg, values)

    def attend(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, global_qkv: QKV | None = None, *, weights: bool = False
    ) -> Attended:
        return self.mechanisms(Q, K, V, mask, replace(self.context, global_qkv=global_qkv), weights=weights)

    def step(self, x: Float[Tensor, "n 1 e"], past: KeysValues | None) -> tuple[Float[Tensor, "n 1 e"], KeysValues]:
        """Self-attention of the next position, and the keys and values of all positions up to it."""
        K, V = self.keys_values(x)
        past = KeysValues(K, V) if past is None else past.append(K, V)
        return self.output(self.attend(self.queries(x), past.K, past.V, Mask(causal=True)).Y), past

    def read_memory(
        self, x: Float[Tensor, "n 1 e"], memory: KeysValues, real: Bool[Tensor, "s j"] | None
    ) -> Float[Tensor, "n 1 e"]:
        """Cross-attention of n = sentences x beams rows; the beams of a sentence are queries of one sequence."""
        Q = self.queries(x.reshape(memory.K.shape[0], -1, x.shape[-1]))  # [s h beams k]
        return self.output(self.attend(Q, memory.K, memory.V, Mask(real)).Y).reshape(x.shape)

    def output(self, Y: Float[Tensor, "b h i v"]) -> Float[Tensor, "b i e"]:
        return F.linear(self.value_widths.join(Y.transpose(1, 2)), self.W_O.flatten(0, -2).mT, self.b_O)

    @property
    def scoring(self) -> Scoring:
        return self.mechanisms.scoring(self.config.geometry.d_k, self.context)

    def folded(self) -> tuple[Float[Tensor, "h e f"], Float[Tensor, "h f e"], Float[Tensor, " e"]]:
        """W_QK, W_VO and the bias that b_V and b_O come to (S0.6, S0.17); W_QK = 0 for heads that ignore content."""
        W_Q, W_K, W_V, W_O = self.head_first()
        return fold_scores(W_Q, W_K), *fold_values(W_V, W_O, self.head_first_biases()[2], self.b_O)

    def head_first(
        self,
    ) -> tuple[Float[Tensor, "h e k"], Float[Tensor, "h e k"], Float[Tensor, "h e v"], Float[Tensor, "h v e"]]:
        """W_Q, W_K, W_V, W_O of all heads, with zeros for heads that ignore content and beyond the width of a head."""
        W_Q, W_K = (self.mechanisms.whole(self.key_widths.of_heads(W)) for W in (self.W_Q, self.W_K))
        W_O = self.W_O if self.W_O.dim() == 3 else self.value_widths.of_heads(self.W_O.mT).mT
        return W_Q, W_K, self.value_widths.of_heads(self.W_V), W_O

    def head_first_biases(
        self,
    ) -> tuple[Float[Tensor, "h k"] | None, Float[Tensor, "h k"] | None, Float[Tensor, "h v"] | None]:
        """b_Q, b_K and b_V of all heads, with the same zeros."""
        if self.b_Q is None or self.b_K is None or self.b_V is None:
            return None, None, None
        b_Q, b_K = (self.mechanisms.whole(b if b.dim() == 2 else self.key_widths.cut(b)) for b in (self.b_Q, self.b_K))
        return b_Q, b_K, self.b_V if self.b_V.dim() == 2 else self.value_widths.cut(self.b_V)

    def _weigh(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, global_qkv: QKV | None) -> Tensor:
        P = self.attend(Q, K, V, mask, global_qkv, weights=True).P
        assert P is not None
        return P


def tie_layers(model: nn.Module) -> None:
    """Let each mechanism share parameters with the first one of the same spec in the model."""
    first: dict[object, Mechanism] = {}
    for layer in model.modules():
        if isinstance(layer, MultiHead):
            for spec, mechanism in zip(layer.mechanisms.specs, layer.mechanisms.mechanisms, strict=True):
                same = spec.name, frozenset(spec.options.items())
                mechanism.share_with(first.setdefault(same, mechanism))


def _side_by_side(d_e: int, shape: tuple[int, ...]) -> nn.Parameter:
    """A parameter [h e k] or [e w], in memory as [h k e] or [w e], so that a product with it needs no copy."""
    return nn.Parameter(torch.empty(*shape, d_e).mT)


def _project(X: Tensor, W: Tensor, b: Tensor | None, widths: HeadWidths) -> Tensor:
    """X [b i e] times all heads W [h e k] or [e w] at once -> [b h i k]."""
    columns = W.mT.flatten(0, -2)
    return widths.cut(F.linear(X, columns, None if b is None else b.flatten())).transpose(1, 2)


def _check_unequal_widths(config: AttentionConfig, groups: HeadGroups, has_global_projections: bool) -> None:
    if has_global_projections or groups.bound_to_width():
        expected = "a mechanism with one set of projections that columns of zeros do not change"
        remedy = "give all heads of the layer the same widths, or dense attention"
        raise UsageError("heads of unequal widths", expected, str(config.mechanism), remedy)
