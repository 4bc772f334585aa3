"""All layers of one stack on one batch, kept together for measures across depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.core.places import Kind, Slot
from attnworks.models.anatomy import ATTENTION_ROLES, BlockAnatomy, Part, Role
from attnworks.text.tokens import Batch, Tokens
from attnworks.traces.layer import LayerTrace, first, stream_read
from attnworks.traces.subject import LayerHook, Subject

FLOAT32_ROUNDING = 1e-6
"""Relative error of blocks and norms that compute in float32 whatever the type of their input."""


@dataclass(frozen=True, eq=False)
class PartTrace:
    """One summand of a block: what it read from the stream, what it added, and its attention if it has any.

    stream    the residual stream that the part reads (before its norm, if the norm comes first)
    output    what the part adds to the stream
    """

    part: Part
    stream: Float[Tensor, "b i e"]
    output: Float[Tensor, "b i e"]
    attention: LayerTrace | None

    @property
    def role(self) -> Role:
        return self.part.role


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """One block: the stream at its entry and exit, and its parts in the order of `anatomy.parts`."""

    anatomy: BlockAnatomy
    entry: Float[Tensor, "b i e"]
    exit: Float[Tensor, "b i e"]
    parts: tuple[PartTrace, ...]


@dataclass(frozen=True, eq=False)
class ForwardTrace:
    """A whole stack (encoder or decoder), whose residual-stream identity has been checked block by block."""

    kind: Kind
    blocks: tuple[BlockTrace, ...]
    tokens: Tokens


class _TraceKeeper(LayerHook):
    def __init__(self) -> None:
        self.traces: dict[Slot, LayerTrace] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.traces[trace.slot] = trace
        return None


def record_forward(subject: Subject, batch: Batch) -> tuple[list[ForwardTrace], dict[tuple[Kind, int], float]]:
    """Every stack of one forward pass whose parts add up to the stream, and the error of each block.

    The error is that of `stream_identity_error`. A stack with a block beyond tolerance is left out.
    """
    keep = _TraceKeeper()
    errors: dict[tuple[Kind, int], float] = {}
    stacks: dict[Kind, list[BlockTrace]] = {}
    for block, ran in record_blocks(subject.blocks or (), lambda: subject.run(batch, keep)):
        outputs = [ran.output(part.branch) for part in block.parts]
        errors[block.kind, block.layer] = stream_identity_error(block, ran.entry, ran.exit, outputs)
        stacks.setdefault(block.kind, []).append(_block_trace(block, ran, outputs, keep.traces))
    allowed = max(tolerance(next(subject.model.parameters()).dtype).rtol, FLOAT32_ROUNDING)
    traces = [
        ForwardTrace(kind, tuple(blocks), batch.sides(kind)[0])
        for kind, blocks in stacks.items()
        if all(errors[kind, block.anatomy.layer] <= allowed for block in blocks)
    ]
    return traces, errors


def _block_trace(
    block: BlockAnatomy, ran: BlockPass, outputs: Sequence[Tensor | None], traces: dict[Slot, LayerTrace]
) -> BlockTrace:
    """What each part read is computed from the outputs of the parts before it."""
    parts: list[PartTrace] = []
    for part, stream, added, _ in _sums(block, ran.entry, outputs):
        attention = traces.get(block.slot(part)) if part.role in ATTENTION_ROLES else None
        parts.append(PartTrace(part, stream, added, attention))
    return BlockTrace(block, ran.entry, ran.exit, tuple(parts))


def _sums(
    block: BlockAnatomy, entry: Tensor, outputs: Sequence[Tensor | None]
) -> Iterator[tuple[Part, Tensor, Tensor, Tensor]]:
    """Each part that ran, the stream that it read, what it added, and the stream after it."""
    x = stream = entry
    step = None
    for part, output in zip(block.parts, outputs, strict=True):
        if output is None:
            continue
        if part.step != step:
            stream = x
        added = part.summand(output.reshape(x.shape))
        x = x + added if block.skip or part.step == step else added
        if block.norm == "post" and part.norm is not None:
            x = first(part.norm(x))
        step = part.step
        yield part, stream, added, x


def record_blocks(blocks: Sequence[BlockAnatomy], run: Callable[[], object]) -> list[tuple[BlockAnatomy, BlockPass]]:
    """Every block that runs in `run()`, which is one forward pass, with its streams and the outputs of its branches."""
    passes: dict[nn.Module, list[BlockPass]] = {block.module: [] for block in blocks}
    with ExitStack() as hooks:
        for block in {block.module: block for block in blocks}.values():
            for handle in _hook_block(block, passes[block.module]):
                hooks.enter_context(handle)
        run()
    _check_single_pass(blocks, passes)
    in_order = {module: iter(ran) for module, ran in passes.items()}
    return [(block, next(in_order[block.module])) for block in blocks if passes[block.module]]


class BlockPass:
    """One run of a block: the stream at its entry and exit, and the outputs of its branches, in pieces.

    All are copies, since some blocks add to such tensors in place.
    """

    def __init__(self, entry: Tensor) -> None:
        self.entry = self.exit = entry
        self.pieces: dict[nn.Module, list[Tensor]] = {}

    def output(self, branch: nn.Module) -> Tensor | None:
        """The output of a branch, which may run on the sequence piece by piece; None if it did not run."""
        pieces = self.pieces.get(branch)
        return None if pieces is None else torch.cat(pieces, -2)


def _hook_block(block: BlockAnatomy, passes: list[BlockPass]) -> list[Any]:
    def entered(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        passes.append(BlockPass(stream_read(args, kwargs).detach().clone()))

    def gave(branch: nn.Module, _: Any, output: Any) -> None:
        passes[-1].pieces.setdefault(branch, []).append(first(output).detach().clone())

    def left(_: nn.Module, __: Any, output: Any) -> None:
        passes[-1].exit = first(output).detach().clone()

    return [
        block.module.register_forward_pre_hook(entered, with_kwargs=True),
        *(part.branch.register_forward_hook(gave) for part in block.parts),
        block.module.register_forward_hook(left),
    ]


def _check_single_pass(blocks: Sequence[BlockAnatomy], passes: dict[nn.Module, list[BlockPass]]) -> None:
    """One stack need not run, such as an encoder whose output is given, but no block may run twice."""
    asked = "the residual stream of one forward pass"
    for module, times in Counter(block.module for block in blocks).items():
        if (ran := len(passes[module])) not in (0, times):
            remedy = "let run() call the model once, without generating"
            raise UsageError(asked, f"{times} run(s) of each {type(module).__name__}", str(ran), remedy)
    if not any(passes.values()):
        raise UsageError(asked, "a forward pass of the model", "none", "let run() call the model")


def stream_identity_error(
    block: BlockAnatomy,
    entry: Float[Tensor, "*a e"],
    exit: Float[Tensor, "*a e"],
    branch_outputs: Sequence[Tensor | None],
) -> float:
    """max |exit - recomposed| / max |exit|, with x_0 = entry, x_p = norm_p(x_{p-1} + f_p) ("post") or x_{p-1} + f_p.

    Without skip the sum of the f_p of a step takes the place of x.
    Source: S4.33 (post) and S3.6 (without norm). One output f_p per part; None for a part that did not run, such as
    cross-attention without an encoder.
    Holds when: dropout is off, and nothing is clamped, as some models of Hugging Face do in float16.
    """
    x = [entry, *(after for _, _, _, after in _sums(block, entry, branch_outputs))][-1]
    error, size = (exit - x).detach().abs().max().item(), exit.detach().abs().max().item()
    return error / size if size else error
