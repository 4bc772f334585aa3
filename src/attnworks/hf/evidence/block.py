"""The parts of one block: what it adds to the stream, in which order, and through which norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnworks.core.errors import short_message
from attnworks.core.notation import tolerance
from attnworks.core.places import Kind
from attnworks.hf.evidence.block_runs import BlockRun, ModuleRun
from attnworks.hf.evidence.readings import StreamReading, read_by
from attnworks.hf.evidence.stream_sums import NO_SUM, NoSumError, StreamSum, Term, stream_sums
from attnworks.hf.layout import BlockLayout, PartLayout
from attnworks.models.anatomy import BlockAnatomy, Part, Role
from attnworks.models.config import NormOrder
from attnworks.traces.forward import FLOAT32_ROUNDING, stream_identity_error


@dataclass(frozen=True, eq=False)
class FoundBlock:
    """A block whose kind and number are not known yet.

    mixes    whether a row depends on other rows in it
    ahead    whether a row depends on later rows
    """

    run: BlockRun
    layout: BlockLayout
    mixes: bool
    ahead: bool = False


@dataclass(frozen=True, eq=False)
class _Summand:
    """A term of the stream, and the norm of the sum that it ends."""

    term: Term
    reading: StreamReading
    bias: str | None
    norm: ModuleRun | None


def find_block(block: BlockRun, attention: Mapping[str, Kind]) -> FoundBlock:
    """The layout of a block by the evidence of its run; `attention` has the kinds of the modules that call it."""
    try:
        summands = _summands(block)
        layout = _layout(block, summands, attention)
        check_sum(layout, block, every_norm=False)
    except NoSumError as error:
        several = str(error) == NO_SUM and block.entry.dim() > 3
        problem = "it carries several streams at once" if several else str(error)
        layout = BlockLayout("encoder", 0, block.path, (), None, problem=problem)
        return FoundBlock(block, layout, any(path.startswith(f"{block.path}.") for path in attention))
    mixes = any(part.role != "mlp" for part in layout.parts)
    return FoundBlock(block, layout, mixes, any(summand.reading.ahead for summand in summands))


def check_sum(layout: BlockLayout, block: BlockRun, *, every_norm: bool = True) -> None:
    """Raises NoSumError if the parts of a layout do not add up to what the block gave, or norms read another stream.

    Without `every_norm`, only those of attention are looked at.
    """
    runs = {run.path: run for run in block.runs}
    if not all(part.branch in runs and (part.norm is None or part.norm in runs) for part in layout.parts):
        raise NoSumError("some of its parts did not run")
    parts = tuple(_as_part(part, block, runs) for part in layout.parts)
    anatomy = BlockAnatomy("encoder", 0, block.module, parts, layout.order)
    entry, exit = block.entry.detach(), _exit(block).detach()
    allowed = max(tolerance(exit.dtype).rtol, FLOAT32_ROUNDING)
    try:
        with torch.no_grad():
            error = stream_identity_error(anatomy, entry, exit, [runs[part.branch].value for part in layout.parts])
    except Exception as error:
        raise NoSumError(f"a norm of its sums reads more than the stream ({short_message(error)})") from error
    if not error <= allowed:
        raise NoSumError(f"its parts add up to its output with an error of {error:.1e} only")
    for part in layout.parts if layout.order == "pre" else ():
        read = None if part.norm is None else runs[part.norm].input
        if read is not None and (every_norm or part.attention is not None):
            before = [(other, made) for other, made in zip(layout.parts, parts, strict=True) if other.step < part.step]
            x = entry + sum(made.summand(runs[other.branch].value.reshape(entry.shape)) for other, made in before)
            if not (x - read.detach().reshape(x.shape)).abs().max() <= allowed * x.abs().max():
                raise NoSumError(f"{block.relative(part.norm or '')} does not read the stream")


def _exit(block: BlockRun) -> Tensor:
    if block.exit is None:
        raise NoSumError("its output has another shape than its input")
    return block.exit


def _as_part(part: PartLayout, block: BlockRun, runs: Mapping[str, ModuleRun]) -> Part:
    norm = None if part.norm is None else runs[part.norm].module
    bias = None if part.bias is None else block.module.get_parameter(block.relative(part.bias))
    return Part(part.role, runs[part.branch].module, norm, None, None, factor=part.factor, bias=bias)


def _summands(block: BlockRun) -> list[_Summand]:
    """What the block adds to the stream, in the order of its sums and runs."""
    sums = stream_sums(_exit(block), block)
    times = {run: time for time, run in enumerate(block.runs)}
    known: dict[ModuleRun, set[ModuleRun]] = {}
    before: set[ModuleRun] = set()
    for found in sums:
        _check_expressible(found, block)
        known |= {term.run: {term.run} for term in found.terms}
        before = before | {term.run for term in found.terms}
        if found.norm is not None:
            known[found.norm] = before
    summands: list[_Summand] = []
    for found in sums:
        terms = sorted(found.terms, key=lambda term: times[term.run])
        for term in terms:
            last = term is terms[-1]
            bias = found.bias if term is _owner_of_bias(found.bias, terms) else None
            reading = read_by(term.run, block, {run: parts for run, parts in known.items() if run is not term.run})
            summands.append(_Summand(term, reading, bias, found.norm if last else None))
    runs = Counter(run.path for run in block.runs)
    for summand in summands:
        if runs[summand.term.run.path] > 1:
            raise NoSumError(f"{block.relative(summand.term.run.path)} runs several times")
    return summands


def _owner_of_bias(bias: str | None, terms: Sequence[Term]) -> Term | None:
    """The term whose module holds the bias, or else the last one."""
    owners = [term for term in terms if bias is not None and bias.startswith(f"{term.run.path}.")]
    return next(iter(owners), terms[-1] if terms else None)


def _check_expressible(found: StreamSum, block: BlockRun) -> None:
    """Sums that a layout cannot express have a reason in words."""
    if found.stream != 1.0:
        raise NoSumError(f"it multiplies the stream by {found.stream:.3g}")
    if found.norm is not None and not found.terms:
        raise NoSumError(f"{block.relative(found.norm.path)} changes the stream before a part is added")
    if not found.terms:
        raise NoSumError("it adds nothing to the stream but a bias")


def _layout(block: BlockRun, summands: Sequence[_Summand], attention: Mapping[str, Kind]) -> BlockLayout:
    post = any(summand.norm is not None for summand in summands)
    pre = any(summand.reading.norm is not None for summand in summands)
    if pre and post:
        raise NoSumError("it has norms of parts and norms of sums")
    order: NormOrder | None = "post" if post else "pre" if pre else None
    callers = _attention_callers(summands, attention)
    steps = _steps(summands, callers)
    parts = [_part(summand, callers.get(summand), attention, steps[summand]) for summand in summands]
    parts.sort(key=lambda part: part.step)
    mixer = next((summand for summand in summands if summand not in callers and summand.reading.mixer), None)
    without = not any(part.role in ("self", "cross") for part in parts)
    return BlockLayout(
        kind="encoder",
        layer=0,
        path=block.path,
        parts=tuple(parts),
        order=order,
        mixer=_mixer_class(block, mixer) if without and mixer is not None else None,
    )


def _part(summand: _Summand, caller: str | None, attention: Mapping[str, Kind], step: int) -> PartLayout:
    norm, mixes = summand.norm or summand.reading.norm, summand.reading.mixer is not None
    role: Role = "mixer" if mixes else "mlp"
    if caller is not None:
        role = "cross" if attention[caller] == "cross" else "self"
    path = None if norm is None else norm.path
    return PartLayout(role, summand.term.run.path, path, caller, summand.term.factor, summand.bias, step)


def _attention_callers(summands: Sequence[_Summand], attention: Mapping[str, Kind]) -> dict[_Summand, str]:
    """The module that calls attention for each part that has one: it ran for the part, or the branch is inside it."""
    branches = [summand.term.run.path for summand in summands]
    found: dict[_Summand, str] = {}
    for summand in summands:
        inside = [path for path in attention if summand.term.run.path.startswith(f"{path}.")]
        ran = [run.path for run in summand.reading.inside if run.path in attention]
        ran = [path for path in ran if not any(branch.startswith(f"{path}.") for branch in branches)]
        callers = ran or [path for path in inside if path not in found.values()]
        if callers:
            found[summand] = callers[0]
    return found


def _steps(summands: Sequence[_Summand], callers: Collection[_Summand]) -> dict[_Summand, int]:
    """The step of each part: one after the last step that is in the stream that it reads.

    Parts that attention does not read come after it, even if they could be earlier.
    """
    steps: dict[ModuleRun, int] = {}
    for summand in summands:
        read = [steps[run] for run in summand.reading.parts if run in steps]
        own = steps[summand.term.run] = 1 + max(read, default=-1)
        if summand in callers:
            steps |= {run: max(step, own) for run, step in steps.items() if run not in summand.reading.parts}
    return {summand: steps[summand.term.run] for summand in summands}


def _mixer_class(block: BlockRun, summand: _Summand) -> str:
    """The class of the innermost module with others inside that computes rows from other rows."""
    assert summand.reading.mixer is not None
    modules, path = {run.path: run.module for run in block.runs}, summand.reading.mixer.path
    while path != summand.term.run.path and not (path in modules and any(True for _ in modules[path].children())):
        path = path.rpartition(".")[0]
        if path in ("", block.path):
            return type(summand.term.run.module).__name__
    return type(modules[path]).__name__
