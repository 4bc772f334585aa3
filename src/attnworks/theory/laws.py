"""Claims that can be checked on any model: each is a law of one attention layer, or of a stack of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.sketched import sketch_error_formula
from attnworks.attention.softmax import jacobian_norm
from attnworks.core.errors import UsageError
from attnworks.core.registry import Registry
from attnworks.exam.linalg import bounds
from attnworks.exam.linalg.bounds import LARGEST_ROW_RANGE
from attnworks.exam.linalg.residual import composite, relative_residual, residual
from attnworks.exam.linalg.spectrum import cumulative_energy, numerical_rank, singular_values
from attnworks.exam.measures.bounds import bounds_refusal, rounding
from attnworks.models.counting import layer_flops
from attnworks.theory.random_projection import published_rows
from attnworks.theory.sides import Sides, at_most, less, more, same
from attnworks.traces.forward import FLOAT32_ROUNDING, ForwardTrace
from attnworks.traces.frozen_pass import frozen_steps, whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.paths import paths_by_length

_Check = Callable[..., Sides | str]
"""Both sides of a claim, or why it does not apply."""

_PROJECTION_ERROR = 0.5
"""The relative error that the random projection should have."""
_SINK_REASON = "its softmax has a sink logit"
"""Why a claim about softmax over keys does not apply: with a sink the weights of the keys sum to less than one."""
_NEAR_DIAGONAL_TOKENS = 2
"""Tokens to each side that are near the diagonal."""
_LEADING_PARTS = 8
"""The first of this number of equal parts of the singular values is measured."""


@dataclass(frozen=True, eq=False)
class LawLayer:
    """One attention layer on one sentence, in float64 and without padding."""

    trace: LayerTrace

    @cached_property
    def P(self) -> Float[Tensor, "h i j"]:
        """The attention maps of all heads: softmax of the scores, or the weights that the layer reports."""
        if self.trace.scale is not None or self.trace.weigh is None:
            return whole_maps(self.trace)[0].double()  # a model may compute scores in float32
        return self.trace.weigh()[0].double()

    @property
    def no_weights(self) -> str | None:
        """Why its maps are not weights, as a sentence; None where they are."""
        if self.trace.scale is None and not same(self.P.clamp_min(0.0).sum(-1), 1.0).holds:
            return "its maps are no weights, but mixtures of any sign"
        return None

    @cached_property
    def V(self) -> Float[Tensor, "h j v"]:
        """The values of all heads."""
        return self.trace.shared(self.trace.V, slice(None))[0]

    @cached_property
    def sizes(self) -> bounds.HeadSizes:
        """Norms of the weights of all heads."""
        W = self.trace.weights
        assert W is not None
        return bounds.head_sizes(W.W_Q, W.W_K, W.W_V, W.W_O)

    @cached_property
    def X(self) -> Float[Tensor, "i e"]:
        """The input of the layer, for queries and for keys."""
        assert self.trace.X is not None
        return self.trace.X[0]

    @cached_property
    def output(self) -> Float[Tensor, "i e"]:
        """The sum of what all heads write, without the bias."""
        assert self.trace.weights is not None
        return torch.einsum("hiv,hve->ie", self.trace.Y[0], self.trace.weights.W_O)

    @cached_property
    def rounding(self) -> float:
        assert self.trace.weights is not None
        return float(rounding(self.trace, self.trace.weights))


@dataclass(frozen=True)
class Law:
    """A claim about one attention layer, or about a stack of them.

    description    what stands on the two sides
    check          function of a `LawLayer` or of a `ForwardTrace`: both sides, or why the claim does not apply there
    """

    id: str
    description: str
    check: _Check


LAYER_LAWS = Registry[Law]("law of layers")
STACK_LAWS = Registry[Law]("law of stacks")


def _law(laws: Registry[Law], id: str, description: str) -> Callable[[_Check], _Check]:
    """Register a function that gives the two sides of claim `id`, or a sentence that says why it does not apply."""

    def register(check: _Check) -> _Check:
        laws.register(id)(Law(id, description, check))
        return check

    return register


_layer_law, _stack_law = partial(_law, LAYER_LAWS), partial(_law, STACK_LAWS)
"""For functions of a `LawLayer`, and of a `ForwardTrace`."""


def _map_law(id: str, description: str) -> Callable[[_Check], _Check]:
    """As `_layer_law`, for claims about attention maps, which do not apply where the maps are not weights."""
    return lambda check: _layer_law(id, description)(lambda layer: layer.no_weights or check(layer))


# --- rank collapse ----------------------------------------------------------------------------------------------------


@_layer_law("D6", "distance of the most distant rows of the output, and its bound")
def _diameter_within_bound(layer: LawLayer) -> Sides | str:
    if reason := bounds_refusal(layer.trace):
        return reason
    assert layer.trace.scale is not None
    bound = bounds.diameter_bound(bounds.row_diameter(layer.X), layer.sizes, layer.trace.scale)
    return at_most(bounds.row_diameter(layer.output), bound, slack=layer.rounding)


@_layer_law("D5", "composite residual of the output, and its repaired bound")
def _composite_within_bound(layer: LawLayer) -> Sides | str:
    if reason := bounds_refusal(layer.trace):
        return reason
    W, scale, R = layer.trace.weights, layer.trace.scale, residual(layer.X)
    assert W is not None and scale is not None
    if bounds.logit_row_range(R, W.W_Q, W.W_K, scale) > LARGEST_ROW_RANGE:
        return f"scores vary by more than {LARGEST_ROW_RANGE:.3f} within a row"
    bound = bounds.composite_bound(composite(R), layer.sizes, scale, bounds.mean_factor(torch.tensor(float(len(R)))))
    return at_most(composite(residual(layer.output)), bound, slack=layer.rounding * math.prod(R.shape) ** 0.5)


@_layer_law("S0.17", "composite residual of the output, and its bound as printed (one head)")
def _one_head_within_printed_bound(layer: LawLayer) -> Sides | str:
    if layer.trace.heads > 1:
        return "it is about layers of one head"
    return _printed_bound(layer)


@_layer_law("S1.14", "composite residual of the output, and its bound as printed (several heads)")
def _heads_within_printed_bound(layer: LawLayer) -> Sides | str:
    if layer.trace.heads == 1:
        return "it is about layers of several heads"
    return _printed_bound(layer)


def _printed_bound(layer: LawLayer) -> Sides | str:
    if reason := bounds_refusal(layer.trace):
        return reason
    assert layer.trace.scale is not None
    R = residual(layer.X)
    bound = bounds.published_bound(composite(R), bounds.published_factor(layer.sizes, layer.trace.scale))
    return at_most(composite(residual(layer.output)), bound, slack=layer.rounding * math.prod(R.shape) ** 0.5)


@_layer_law("S0.36", "c rho^2, which must be below one for the printed bound to fall with depth")
def _printed_bound_falls(layer: LawLayer) -> Sides | str:
    if reason := bounds_refusal(layer.trace):
        return reason
    assert layer.trace.scale is not None
    return less(bounds.published_factor(layer.sizes, layer.trace.scale) * composite(residual(layer.X)) ** 2, 1.0)


@_map_law("S0.29", "rank of the attention map, and of the scores before the softmax")
def _softmax_raises_no_rank(layer: LawLayer) -> Sides | str:
    if layer.trace.scale is None:
        return "its weights are no softmax of scaled dot products"
    if layer.trace.mask.causal or layer.trace.mask.dense is not None:
        return "its mask changes the rank by itself"
    Q, K = layer.trace.Q[0], layer.trace.shared(layer.trace.K, slice(None))[0]
    if min(layer.P.shape[-2:]) <= Q.shape[-1]:
        return "no more tokens than columns of keys, so that scores may have full rank"
    ranks = [numerical_rank(singular_values(M)) for M in (layer.P, Q @ K.mT)]
    return at_most(ranks[0], ranks[1])


@_stack_law("S0.19", "relative residual after the last block, and before the first")
def _stack_loses_rank(forward: ForwardTrace) -> Sides | str:
    if len(forward.blocks[0].entry[0]) == 1:
        return "a single token cannot be compared with others"
    entry, exit = (relative_residual(X) for X in (forward.blocks[0].entry, forward.blocks[-1].exit))
    return less(exit, entry)


@_stack_law("D1", "the sum over all path lengths, and the output of the last block")
def _paths_add_up(forward: ForwardTrace) -> Sides | str:
    for block in forward.blocks:
        if any(getattr(part.attention, "has_global_projections", False) for part in block.anatomy.parts):
            return "its global tokens have projections of their own"
        for part in block.parts:
            if part.attention is not None and (reason := LawLayer(part.attention).no_weights):
                return reason
    try:
        steps = [frozen.step for frozen in frozen_steps(forward)]
    except UsageError as error:
        return f"{error.asked} needs {error.expected}"
    exit = forward.blocks[-1].exit
    return same(
        paths_by_length(forward.blocks[0].entry, steps).sum(0), exit, slack=FLOAT32_ROUNDING * float(exit.abs().max())
    )


# --- maps -------------------------------------------------------------------------------------------------------------


@_layer_law("S0.1", "what the heads give, and softmax(Q K^T times the scale, with the mask) V")
def _output_of_softmax(layer: LawLayer) -> Sides | str:
    if layer.trace.scale is None:
        return "its weights are no softmax of scaled dot products"
    if layer.trace.heads == 0:
        return "it has no heads"
    if layer.trace.sink is not None:
        return _SINK_REASON
    Y = layer.trace.Y[0]
    return same(layer.P @ layer.V, Y, slack=FLOAT32_ROUNDING * float(layer.V.abs().max()))


@_layer_law("S1.5", "sum of a row of the attention map, and one")
def _rows_sum_to_one(layer: LawLayer) -> Sides | str:
    if layer.trace.sink is not None:
        return _SINK_REASON
    if layer.trace.scale is not None:
        return "it is a softmax, which sums to one by itself"
    return same(layer.P.sum(-1), 1.0)


@_map_law("S4.47", "norm of the softmax Jacobian of a row, and one half")
def _jacobian_at_most_half(layer: LawLayer) -> Sides | str:
    if layer.trace.sink is not None:
        return _SINK_REASON
    return at_most(jacobian_norm(layer.P), 0.5)


@_map_law("S4.105", "energy in the first eighth of the singular values of a head, and one half")
def _first_values_carry_most(layer: LawLayer) -> Sides | str:
    n = min(layer.P.shape[-2:])
    if n < 2 * _LEADING_PARTS:
        return f"fewer than {2 * _LEADING_PARTS} tokens, too few for an eighth of the singular values"
    return more(cumulative_energy(singular_values(layer.P))[:, math.ceil(n / _LEADING_PARTS) - 1], 0.5)


@_map_law("S4.130", "spectral norm of a head's map, and the square root of its number of queries")
def _norm_at_most_root(layer: LawLayer) -> Sides:
    return at_most(torch.linalg.matrix_norm(layer.P, ord=2), layer.P.shape[-2] ** 0.5)


@_map_law("S4.132", "share of a head's weight within two tokens of the diagonal, and one half")
def _never_spread(layer: LawLayer) -> Sides | str:
    if layer.trace.slot.kind == "cross":
        return "maps between two sequences have no diagonal"
    i, j = layer.P.shape[-2:]
    seen = layer.trace.mask.allowed(i, j)
    even = torch.ones(i, j, dtype=torch.float64) if seen is None else seen[0].expand(-1, i, j).double()
    if bool((_near_the_diagonal(even / even.sum(-1, keepdim=True).clamp_min(1.0)) > 0.5).any()):
        return "so few tokens that even weights are mostly near the diagonal"
    return more(_near_the_diagonal(layer.P), 0.5)


def _near_the_diagonal(P: Float[Tensor, "*h i j"]) -> Float[Tensor, "*h"]:
    return (P - P.triu(_NEAR_DIAGONAL_TOKENS + 1) - P.tril(-_NEAR_DIAGONAL_TOKENS - 1)).sum((-2, -1)) / P.shape[-2]


@_map_law("S0.28", "relative error of a projection to 5 ln n / (eps^2 - eps^3) keys, and eps = 1/2")
def _projection_replaces_attention(layer: LawLayer) -> Sides | str:
    n = layer.P.shape[-1]
    k = published_rows(n, _PROJECTION_ERROR)
    if n == 1 or k >= n:
        return "the projection would have no fewer rows than there are keys"
    return at_most(sketch_error_formula(layer.P, layer.V, k), _PROJECTION_ERROR)


@_layer_law(
    "S4.69", "share of attention and its projections in the FLOPs of a block with a feed-forward of 4d, and one half"
)
def _attention_costs_most(layer: LawLayer) -> Sides | str:
    if layer.trace.X is None or layer.trace.scale is None or layer.trace.slot.kind == "cross":
        return "it is about dense self-attention of a known width"
    flops = layer_flops(layer.P.shape[-2], layer.trace.X.shape[-1])
    return more(1 - flops["feed-forward"] / sum(flops.values()), 0.5)
