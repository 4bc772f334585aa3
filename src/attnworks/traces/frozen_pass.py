"""A traced forward pass with attention and norms frozen: what is left is linear, and splits into paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.models.anatomy import ATTENTION_ROLES, Part, ValueWeights
from attnworks.traces.forward import FLOAT32_ROUNDING, BlockTrace, ForwardTrace, PartTrace
from attnworks.traces.layer import LayerTrace, first
from attnworks.traces.maps import maps_of
from attnworks.traces.paths import FrozenNorm, Hop, PathStep, Source

REMEDY = "leave out measures of paths for this model"


@dataclass(frozen=True, eq=False)
class FrozenOutput:
    """What attention adds to the stream: after(sum_h Y_h W_O,h + b_O), where `after` is a frozen norm, if any."""

    W_O: Float[Tensor, "h v e"]
    b_O: Float[Tensor, " e"] | None = None  # noqa: N815
    after: FrozenNorm | None = None

    def linear(self, Z: Float[Tensor, "*b e"]) -> Float[Tensor, "*b e"]:
        return Z if self.after is None else self.after.linear(Z)

    def transposed(self, G: Float[Tensor, "*b e"]) -> Float[Tensor, "*b e"]:
        return G if self.after is None else self.after.transposed(G)


class FrozenStep(NamedTuple):
    """A step of the stream, the layer it belongs to, and the parts that its branches stand for.

    outputs    what follows the heads of each part; None for a part without attention
    """

    step: PathStep
    layer: int
    parts: tuple[PartTrace, ...]
    outputs: tuple[FrozenOutput | None, ...]


def frozen_steps(forward: ForwardTrace) -> list[FrozenStep]:
    """The steps from the entry of the first block to the exit of the last. Rows at padding are zero.

    Self-attention is a hop; MLPs, what takes the place of attention, and attention without heads are sources of length
    zero and cross-attention one of length one, as they were in the real forward pass.
    """
    real = forward.tokens.real.unsqueeze(-1)
    _check_stream(forward, real)
    return [step for block in forward.blocks for step in _block_steps(block, real)]


def _check_stream(forward: ForwardTrace, real: Tensor) -> None:
    """An error unless every block reads what the block before it gave, at the tokens of the batch."""
    asked = f"paths through the {forward.kind}"
    if any(block.entry.shape[:-1] != real.shape[:-1] for block in forward.blocks):
        raise UsageError(asked, "a stream with a row for each token", "one with other rows", REMEDY)
    for before, block in pairwise(forward.blocks):
        if not _close(before.exit, block.entry, real):
            got = f"one that changes before layer {block.anatomy.layer}"
            raise UsageError(asked, "a stream that each block reads as the block before gave it", got, REMEDY)


def frozen_norm(norm: nn.Module, stream: Float[Tensor, "b i e"]) -> FrozenNorm:
    """The norm with the scale of each row as it is at `stream`: linear(stream) + beta = norm(stream).

    LayerNorm and RMSNorm of any package, with eps at any place and gamma = weight or 1 + weight: 1 / scale is computed
    from the norm's output. The norm subtracts the mean if its output does not change when its input is shifted. Another
    norm is refused.
    Source: D1, S0.11 (a norm is linear once its scale is frozen).
    """
    wide = torch.promote_types(stream.dtype, torch.float32)
    e, real = stream.shape[-1], first(norm(stream)).detach().to(wide)
    gamma, beta = _gamma(norm, stream.new_zeros(e)).to(wide), _parameter(norm, "bias", "beta")
    beta = None if beta is None else beta.to(wide)
    probe = (torch.arange(e, device=stream.device) % 5).to(stream.dtype)
    noticed = (first(norm(probe + 10)) - first(norm(probe))).detach().to(wide).norm()
    centred = bool(noticed <= 0.1 * gamma.norm())
    Z = stream.to(wide)
    direction = FrozenNorm(real.new_ones(*Z.shape[:-1], 1), gamma, beta, centred).linear(Z)
    squares = direction.square().sum(-1, keepdim=True)
    along = ((real if beta is None else real - beta) * direction).sum(-1, keepdim=True)
    inverse = torch.where(squares > 0, along / torch.where(squares > 0, squares, 1.0), 0.0)
    frozen = FrozenNorm(inverse, gamma, beta, centred)
    recomposed = frozen.linear(Z) if beta is None else frozen.linear(Z) + beta
    error = (recomposed - real).abs().max()
    if not error <= max(tolerance(stream.dtype).rtol, FLOAT32_ROUNDING) * real.abs().max().clamp_min(1.0):
        expected = "LayerNorm or RMSNorm: a factor per row times z (less its mean) times weight, plus bias"
        got = f"another function, {error.item():.1e} away from it"
        raise UsageError(f"freezing {type(norm).__name__}", expected, got, REMEDY)
    return frozen


def _gamma(norm: nn.Module, zeros: Float[Tensor, " e"]) -> Float[Tensor, " e"]:
    """What a norm multiplies each channel by, up to a number: of the candidates, what its output is proportional to."""
    weight = _parameter(norm, "weight", "gamma")
    if weight is None or weight.shape != zeros.shape:
        return torch.ones_like(zeros)
    signs = torch.ones_like(zeros)
    signs[1::2] = -1.0
    signs[-1] -= signs.sum()  # a mean of zero
    given = ((first(norm(signs)) - first(norm(zeros))).detach() / signs).double()
    return min((weight, 1.0 + weight), key=lambda gamma: _off(gamma.double(), given))


def _off(gamma: Float[Tensor, " e"], given: Float[Tensor, " e"]) -> float:
    """How far a vector is from being a multiple of another one, relative to its size."""
    factor = (gamma * given).sum() / given.square().sum().clamp_min(torch.finfo(given.dtype).tiny)
    return ((gamma - factor * given).norm() / gamma.norm().clamp_min(torch.finfo(given.dtype).tiny)).item()


def whole_maps(trace: LayerTrace) -> Float[Tensor, "b h i j"]:
    """P of all sentences and heads of a layer at once, zero in rows and columns of padding."""
    (b, h, i, _), j = trace.Q.shape, trace.K.shape[2]
    P = torch.zeros(b, h, i, j, dtype=torch.promote_types(trace.Q.dtype, torch.float32), device=trace.Q.device)
    for maps in maps_of(trace):
        own_i, own_j = maps.P.shape[-2:]
        P[maps.sentences, maps.heads, :own_i, :own_j] = maps.P
    return P


def _block_steps(block: BlockTrace, real: Tensor) -> Iterator[FrozenStep]:
    anatomy = block.anatomy
    for _, group in groupby(block.parts, key=lambda traced: traced.part.step):
        parts = tuple(group)
        outputs = tuple(_frozen_output(traced, real) for traced in parts)
        branches = tuple(_branch(block, *part, real) for part in zip(parts, outputs, strict=True))
        last, norm = parts[-1], None
        if anatomy.norm == "post" and last.part.norm is not None:
            added = torch.stack([traced.output for traced in parts]).sum(0)
            total = last.stream + added if anatomy.skip else added
            norm = frozen_norm(last.part.norm, total.masked_fill(~real, 0.0))
        yield FrozenStep(PathStep(branches, anatomy.skip, norm), anatomy.layer, parts, outputs)


def _branch(block: BlockTrace, traced: PartTrace, output: FrozenOutput | None, real: Tensor) -> Hop | Source:
    attention, part = traced.attention, traced.part
    wide = torch.promote_types(traced.output.dtype, torch.float32)
    if attention is None or output is None or part.role == "cross":
        added = traced.output.detach().to(wide).masked_fill(~real, 0.0)
        return Source(added) if attention is None else Source(added, length=1, paths=attention.heads)
    W, norm = _weights(part, attention), None
    stream = traced.stream.masked_fill(~real, 0.0)
    if block.anatomy.norm == "pre" and part.norm is not None:
        norm = frozen_norm(part.norm, stream)
        stream = first(part.norm(stream))
    W_V, b_V = W.W_V.detach().to(wide), None if W.b_V is None else W.b_V.detach().to(wide)
    asked, expected = f"paths through {attention.slot}", "values that are a linear map of the stream or its norm"
    if W_V.shape[1] != stream.shape[-1]:
        raise UsageError(asked, expected, "values that the layer computes from something else", REMEDY)
    V = torch.einsum("bie,hev->bhiv", stream.to(wide), W_V)
    V = V if b_V is None else V + b_V.unsqueeze(1)
    if not _close(V, attention.shared(attention.V, slice(None)), real.unsqueeze(1)):
        raise UsageError(asked, expected, "values that the layer computes in another way", REMEDY)
    return Hop(partial(whole_maps, attention), W_V, output.W_O, b_V, output.b_O, norm, output.after)


def _frozen_output(traced: PartTrace, real: Tensor) -> FrozenOutput | None:
    """What follows the heads of an attention layer, checked against what the layer adds; None for other parts."""
    attention, part = traced.attention, traced.part
    if attention is None:
        if part.role not in ATTENTION_ROLES or _without_heads(part):
            return None
        raise UsageError("paths through attention", "attention that is observed", "a layer that is not", REMEDY)
    W, wide = _weights(part, attention), torch.promote_types(traced.output.dtype, torch.float32)
    W_O, b_O = W.W_O.detach().to(wide), None if W.b_O is None else W.b_O.detach().to(wide)
    bias = None if part.bias is None else part.bias.detach().to(wide)
    asked, expected = f"paths through {attention.slot}", "a layer that adds its heads times W_O, or a norm of that"
    if tuple(W_O.shape) != (*attention.Y.shape[1::2], traced.output.shape[-1]):
        raise UsageError(asked, expected, "one whose W_O is for heads of another width", REMEDY)
    Z = torch.einsum("bhiv,hve->bie", attention.Y.to(wide), W_O)
    Z = Z if b_O is None else Z + b_O
    if part.ends_in_norm and part.branch is not part.output:
        after = frozen_norm(part.branch, Z.masked_fill(~real, 0.0))
        beta = _sum(None if after.beta is None else part.factor * after.beta, bias)
        found = FrozenOutput(W_O, b_O, FrozenNorm(part.factor * after.inverse, after.gamma, beta, after.centred))
        added = found.linear(Z) if beta is None else found.linear(Z) + beta
    else:
        found = FrozenOutput(part.factor * W_O, _sum(None if b_O is None else part.factor * b_O, bias))
        added = part.summand(Z)
    if not _close(added, traced.output, real):
        got = "one that changes its heads before W_O, or its output after it, in another way, such as by a gate"
        raise UsageError(asked, expected, got, REMEDY)
    return found


def _without_heads(part: Part) -> bool:
    """Whether all heads of an attention layer were cut, so that it adds its bias alone."""
    return part.weights is not None and not len(part.weights().W_Q)


def _weights(part: Part, attention: LayerTrace) -> ValueWeights:
    if attention.weights is not None:
        W = attention.weights
        return ValueWeights(W.W_V, W.W_O, W.b_V, W.b_O)
    if (found := part.value_weights()) is None:
        raise UsageError(f"paths through {attention.slot}", "a layer with known W_V and W_O", "one without", REMEDY)
    return found


def _close(got: Tensor, expected: Tensor, real: Tensor) -> bool:
    """Whether two tensors are equal at real tokens, up to rounding."""
    got, expected = (T.masked_fill(~real, 0.0) for T in (got, expected))
    error, size = (got - expected).abs().max(), expected.abs().max()
    allowed = max(tolerance(expected.dtype).rtol, FLOAT32_ROUNDING) * size.clamp_min(1.0)
    return bool(error <= allowed)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _parameter(norm: Any, *names: str) -> Tensor | None:
    """The first of these parameters that the norm has."""
    found = (getattr(norm, name, None) for name in names)
    return next((value.detach() for value in found if value is not None), None)
