"""The output of a block as a sum: the stream that it read, and outputs of its modules, through norms of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.hf.evidence.block_runs import BlockRun, ModuleRun
from attnworks.hf.evidence.reach import vjp

DEEPEST = 30
"""How many modules and norms inside each other are looked through."""
ROUNDING_STEPS = 4
"""Rounding errors that a sum may have, in units of its largest summand."""
NO_SUM = "its output is not its input plus outputs of its modules"
SEED = 3


class NoSumError(Exception):
    """Why a tensor is no sum of the stream and outputs of modules, in words."""


@dataclass(frozen=True, eq=False)
class Term:
    """A run of a module whose output is added, multiplied by a number."""

    run: ModuleRun
    factor: float


@dataclass(frozen=True, eq=False)
class StreamSum:
    """norm(stream * x + sum of factor * output + bias), where x is the entry of the block or the sum before.

    bias    the path of a parameter that the block adds itself
    """

    stream: float
    terms: tuple[Term, ...]
    bias: str | None = None
    norm: ModuleRun | None = None

    def times(self, factor: float) -> StreamSum:
        if factor == 1.0:
            return self
        if self.norm is not None or self.bias is not None:
            raise NoSumError(f"a sum is multiplied by {factor:g} after its norm or bias")
        terms = tuple(replace(term, factor=factor * term.factor) for term in self.terms)
        return replace(self, stream=factor * self.stream, terms=terms)

    def plus(self, terms: tuple[Term, ...], bias: str | None) -> StreamSum:
        if bias is not None and self.bias is not None:
            raise NoSumError(f"the block adds {self.bias} and {bias}")
        return replace(self, terms=self.terms + terms, bias=self.bias or bias)


def stream_sums(T: Tensor, block: BlockRun, depth: int = 0) -> list[StreamSum]:
    """T as sums of sums, beginning with the one that holds the entry. Modules that add what they read are looked into.

    Raises: NoSumError.
    """
    if depth == DEEPEST:
        raise NoSumError("its sums lie too deep inside each other")
    found = _summands(T, block)
    if found.entry is not None:
        return [StreamSum(found.entry, found.terms, found.bias)]
    reason = NoSumError(NO_SUM)
    for term in found.terms:
        try:
            inner = _inside(term.run, block, depth + 1)
        except NoSumError as error:
            reason = reason if str(error) == NO_SUM else error
            continue
        others = tuple(other for other in found.terms if other is not term)
        return _continued(inner, term.factor, others, found.bias)
    raise reason


def _inside(run: ModuleRun, block: BlockRun, depth: int) -> list[StreamSum]:
    """The output of a module as sums; if it is a norm, of what it read."""
    try:
        return stream_sums(run.output, block, depth)
    except NoSumError:
        if not run.may_be_norm or run.input is None or run.input.shape[-1] != block.entry.shape[-1]:
            raise
    sums = stream_sums(run.input, block, depth)
    if sums[-1].norm is not None:
        sums.append(StreamSum(1.0, ()))
    return [*sums[:-1], replace(sums[-1], norm=run)]


def _continued(sums: list[StreamSum], factor: float, terms: tuple[Term, ...], bias: str | None) -> list[StreamSum]:
    """factor * sums + terms + bias."""
    if sums[-1].norm is not None and (terms or bias is not None or factor != 1.0):
        return [*sums, StreamSum(factor, terms, bias)]
    return [*sums[:-1], sums[-1].times(factor).plus(terms, bias)]


class _Summands(NamedTuple):
    """entry * x + terms + bias = T."""

    entry: float | None
    terms: tuple[Term, ...]
    bias: str | None


def _summands(T: Tensor, block: BlockRun) -> _Summands:
    """What T is a sum of. The Jacobian of T by a summand is a number times the identity, which random signs show."""
    signs = torch.randint(0, 2, T.shape, generator=torch.Generator().manual_seed(SEED)).to(T) * 2 - 1
    runs = [run for run in block.runs if run.output.numel() == T.numel() and run.output.shape[-1] == T.shape[-1]]
    pieces = [leaf for run in runs for leaf in run.leaves]
    first, *others = vjp(T, [block.entry, *pieces], signs)
    back = iter(others)
    entry = _factors([first], signs)
    found = [(run, _factors([next(back) for _ in run.leaves], signs)) for run in runs]
    terms = tuple(Term(run, factor) for run, factors in found if (factor := _number(factors)) is not None)
    summands = [term.factor * term.run.value.reshape(T.shape) for term in terms]
    if (stream := _number(entry)) is not None:
        summands.append(stream * block.entry.detach().reshape(T.shape))
    by_channel = [block.relative(run.path) for run, factors in found if _are_of_channels(factors)]
    reason = f"{by_channel[0]} is multiplied by a factor for each channel" if by_channel else NO_SUM
    reason = "it multiplies the stream by a factor for each channel" if _are_of_channels(entry) else reason
    if not summands:
        raise NoSumError(reason)
    rest = T.detach() - torch.stack(summands).sum(0)
    eps = max(torch.finfo(dtype).eps for dtype in (T.dtype, torch.float32))  # some blocks add in float32
    allowed = ROUNDING_STEPS * eps * max(summand.abs().max().item() for summand in summands)
    if rest.abs().max() <= allowed:
        return _Summands(stream, terms, None)
    if (bias := _bias(rest, allowed, block)) is None:
        raise NoSumError(reason)
    return _Summands(stream, terms, bias)


def _factors(back: Sequence[Tensor | None], signs: Float[Tensor, "*a e"]) -> Float[Tensor, "*a e"] | None:
    """The diagonal of a Jacobian if it is diagonal, from its product with these signs in pieces along the sequence."""
    found = [piece for piece in back if piece is not None]
    if len(found) < len(back):
        return None
    return (found[0] if len(found) == 1 else torch.cat(found, -2)).reshape(signs.shape) * signs


def _number(factors: Float[Tensor, "*a e"] | None) -> float | None:
    """The number that all factors are; None if they differ or are zero."""
    if factors is None:
        return None
    factor = factors.flatten()[0]
    same = bool(((factors - factor).abs() <= ROUNDING_STEPS * torch.finfo(factors.dtype).eps * factor.abs()).all())
    return float(factor) if same and factor != 0 else None


def _are_of_channels(factors: Float[Tensor, "*a e"] | None) -> bool:
    """Whether every row has the same factors, which differ between channels."""
    if factors is None or _number(factors) is not None or not bool(factors.any()):
        return False
    rows = factors.flatten(0, -2)
    return bool(((rows - rows[0]).abs() <= ROUNDING_STEPS * torch.finfo(rows.dtype).eps * rows.abs()).all())


def _bias(rest: Float[Tensor, "*a e"], allowed: float, block: BlockRun) -> str | None:
    """The path of the parameter that is added to every row."""
    for name, parameter in block.module.named_parameters():
        if parameter.shape == rest.shape[-1:] and bool(((rest - parameter).abs() <= allowed).all()):
            return f"{block.path}.{name}"
    return None
