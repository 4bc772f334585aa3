"""A traced forward pass with attention and norms frozen: what is left is linear, and splits into paths."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.models.anatomy import Part
from attnworks.traces.forward import BlockTrace, ForwardTrace, PartTrace
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import maps_of
from attnworks.traces.paths import FrozenNorm, Hop, PathStep, Source

NORM_ROUNDING = 1e-6
"""Relative error of norms that compute in float32 whatever the type of their input."""


class FrozenStep(NamedTuple):
    """A step of the stream, the layer it belongs to, and the parts that its branches stand for."""

    step: PathStep
    layer: int
    parts: tuple[PartTrace, ...]


def frozen_steps(forward: ForwardTrace) -> list[FrozenStep]:
    """The steps from the entry of the first block to the exit of the last. Rows at padding are zero.

    Self-attention is a hop; MLPs are sources of length zero and cross-attention one of length one, as they were in the
    real forward pass.
    """
    return [step for block in forward.blocks for step in _block_steps(block, forward.tokens.real.unsqueeze(-1))]


def frozen_norm(norm: nn.Module, stream: Float[Tensor, "b i e"]) -> FrozenNorm:
    """The norm with the scale of each row as it is at `stream`: linear(stream) + beta = norm(stream).

    LayerNorm and RMSNorm of any package, with eps at any place: 1 / scale is computed from the norm's output. The norm
    subtracts the mean if its output does not change when its input is shifted. Another norm is refused.
    Source: D1, S0.11 (a norm is linear once its scale is frozen).
    """
    wide = torch.promote_types(stream.dtype, torch.float32)
    e, real = stream.shape[-1], norm(stream).detach().to(wide)
    gamma, beta = _parameter(norm, "weight", "gamma"), _parameter(norm, "bias", "beta")
    gamma = real.new_ones(e) if gamma is None else gamma.to(wide)
    beta = None if beta is None else beta.to(wide)
    probe = (torch.arange(e, device=stream.device) % 5).to(stream.dtype)
    noticed = (norm(probe + 10) - norm(probe)).detach().to(wide).norm()
    centred = bool(noticed <= 0.1 * gamma.norm())
    Z = stream.to(wide)
    direction = FrozenNorm(real.new_ones(*Z.shape[:-1], 1), gamma, beta, centred).linear(Z)
    squares = direction.square().sum(-1, keepdim=True)
    along = ((real if beta is None else real - beta) * direction).sum(-1, keepdim=True)
    inverse = torch.where(squares > 0, along / torch.where(squares > 0, squares, 1.0), 0.0)
    frozen = FrozenNorm(inverse, gamma, beta, centred)
    recomposed = frozen.linear(Z) if beta is None else frozen.linear(Z) + beta
    error = (recomposed - real).abs().max()
    if not error <= max(tolerance(stream.dtype).rtol, NORM_ROUNDING) * real.abs().max().clamp_min(1.0):
        expected = "LayerNorm or RMSNorm: a factor per row times z (less its mean) times weight, plus bias"
        got, remedy = f"another function, {error.item():.1e} away from it", "leave out measures of paths for this model"
        raise UsageError(f"freezing {type(norm).__name__}", expected, got, remedy)
    return frozen


def whole_maps(trace: LayerTrace) -> Float[Tensor, "b h i j"]:
    """P of all sentences and heads of a layer at once, zero in rows and columns of padding."""
    (b, h, i, _), j = trace.Q.shape, trace.K.shape[2]
    P = torch.zeros(b, h, i, j, dtype=torch.promote_types(trace.Q.dtype, torch.float32), device=trace.Q.device)
    for maps in maps_of(trace):
        own_i, own_j = maps.P.shape[-2:]
        P[maps.sentences, maps.heads, :own_i, :own_j] = maps.P
    return P


def _block_steps(block: BlockTrace, real: Tensor) -> list[FrozenStep]:
    anatomy = block.anatomy
    by_role = {part.role: part for part in anatomy.parts}
    branches = [_branch(block, by_role[traced.role], traced, real) for traced in block.parts]
    if anatomy.parallel:
        return [FrozenStep(PathStep(tuple(branches), anatomy.skip), anatomy.layer, block.parts)]
    steps: list[FrozenStep] = []
    for traced, branch in zip(block.parts, branches, strict=True):
        norm = by_role[traced.role].norm if anatomy.norm == "post" else None
        if norm is not None:
            total = traced.stream + traced.output if anatomy.skip else traced.output
            norm = frozen_norm(norm, total.masked_fill(~real, 0.0))
        steps.append(FrozenStep(PathStep((branch,), anatomy.skip, norm), anatomy.layer, (traced,)))
    return steps


def _branch(block: BlockTrace, part: Part, traced: PartTrace, real: Tensor) -> Hop | Source:
    attention = traced.attention
    wide = torch.promote_types(traced.output.dtype, torch.float32)
    if attention is None or part.role == "cross":
        output = traced.output.detach().to(wide).masked_fill(~real, 0.0)
        return Source(output) if attention is None else Source(output, length=1, paths=attention.heads)
    if (W := attention.weights) is None:
        expected, remedy = "a layer whose weights are known", "leave out measures of paths"
        raise UsageError(f"paths through {attention.slot}", expected, "none", remedy)
    norm = None
    if block.anatomy.norm == "pre" and part.norm is not None:
        norm = frozen_norm(part.norm, traced.stream.masked_fill(~real, 0.0))
    b_V, b_O = (None if b is None else b.detach().to(wide) for b in (W.b_V, W.b_O))
    return Hop(partial(whole_maps, attention), W.W_V.detach().to(wide), W.W_O.detach().to(wide), b_V, b_O, norm)


def _parameter(norm: Any, *names: str) -> Tensor | None:
    """The first of these parameters that the norm has."""
    found = (getattr(norm, name, None) for name in names)
    return next((value.detach() for value in found if value is not None), None)
