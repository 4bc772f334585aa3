"""All layers of one stack on one batch, kept together for measures across depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.core.places import Kind, Slot
from attnworks.models.anatomy import BlockAnatomy, Role
from attnworks.text.tokens import Batch, Tokens
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import LayerHook, Subject, first


@dataclass(frozen=True, eq=False)
class PartTrace:
    """One summand of a block: what it read from the stream, what it added, and its attention if it has any.

    stream    the residual stream that the part reads (before its norm, if the norm comes first)
    output    what the part adds to the stream
    """

    role: Role
    stream: Float[Tensor, "b i e"]
    output: Float[Tensor, "b i e"]
    attention: LayerTrace | None


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
    """Every stack of one forward pass whose stream adds up, and how well each block's does.

    The error of a block is that of `stream_identity_error`; a stack with a block beyond tolerance is left out.
    """
    keep = _TraceKeeper()
    passages = record_blocks(subject.blocks or (), lambda: subject.run(batch, keep))
    errors: dict[tuple[Kind, int], float] = {}
    stacks: dict[Kind, list[BlockTrace]] = {}
    for block, passage in passages:
        outputs = [passage.output(part.branch) for part in block.parts]
        errors[block.kind, block.layer] = stream_identity_error(block, passage.entry, passage.exit, outputs)
        stacks.setdefault(block.kind, []).append(_block_trace(block, passage, outputs, keep.traces))
    allowed = tolerance(next(subject.model.parameters()).dtype).rtol
    traces: list[ForwardTrace] = []
    kind: Kind
    for kind, blocks in stacks.items():
        if all(errors[kind, block.anatomy.layer] <= allowed for block in blocks):
            traces.append(ForwardTrace(kind, tuple(blocks), batch.sides(kind)[0]))
    return traces, errors


def _block_trace(
    block: BlockAnatomy, passage: BlockPass, outputs: Sequence[Tensor | None], traces: dict[Slot, LayerTrace]
) -> BlockTrace:
    """What every part read follows from what the parts before it added."""
    x, parts = passage.entry, []
    for part, output in zip(block.parts, outputs, strict=True):
        if output is None:
            continue
        output = output.reshape(x.shape)
        slot = block.slot(part)
        read = passage.entry if block.parallel else x
        parts.append(PartTrace(part.role, read, output, traces.get(slot) if part.role != "mlp" else None))
        x = x + output if block.skip else output
        if block.norm == "post" and part.norm is not None:
            x = part.norm(x)
    return BlockTrace(block, passage.entry, passage.exit, tuple(parts))


def record_blocks(blocks: Sequence[BlockAnatomy], run: Callable[[], object]) -> list[tuple[BlockAnatomy, BlockPass]]:
    """Every block that takes part in `run()`, one forward pass, with what passed through it."""
    passages: dict[nn.Module, list[BlockPass]] = {block.module: [] for block in blocks}
    hooks: list[Any] = []
    try:
        for module in passages:
            parts = next(block.parts for block in blocks if block.module is module)
            hooks += _hook_block(module, [part.branch for part in parts], passages[module])
        run()
    finally:
        for hook in hooks:
            hook.remove()
    _check_single_pass(blocks, passages)
    in_order = {module: iter(ran) for module, ran in passages.items()}
    return [(block, next(in_order[block.module])) for block in blocks if passages[block.module]]


class BlockPass:
    """One run of a block: the stream at its entry and exit, and what its branches gave."""

    def __init__(self, entry: Tensor) -> None:
        self.entry = self.exit = entry
        self.pieces: dict[nn.Module, list[Tensor]] = {}

    def output(self, branch: nn.Module) -> Tensor | None:
        """A branch may run on one piece of the sequence after the other; None if it did not run at all."""
        pieces = self.pieces.get(branch)
        return None if pieces is None else torch.cat(pieces, -2)


def _hook_block(module: nn.Module, branches: list[nn.Module], passages: list[BlockPass]) -> list[Any]:
    def entered(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs["hidden_states"]
        passages.append(BlockPass(stream.detach()))

    def gave(branch: nn.Module, _: Any, output: Any) -> None:
        passages[-1].pieces.setdefault(branch, []).append(first(output).detach())

    def left(_: nn.Module, __: Any, output: Any) -> None:
        passages[-1].exit = first(output).detach()

    return [
        module.register_forward_pre_hook(entered, with_kwargs=True),
        *(branch.register_forward_hook(gave) for branch in branches),
        module.register_forward_hook(left),
    ]


def _check_single_pass(blocks: Sequence[BlockAnatomy], passages: dict[nn.Module, list[BlockPass]]) -> None:
    """A side of the model may be left out, such as an encoder whose output is given, but nothing may run twice."""
    for module, times in Counter(block.module for block in blocks).items():
        if len(passages[module]) not in (0, times):
            raise UsageError(
                "the residual stream of one forward pass",
                f"{times} run(s) of each {type(module).__name__}",
                str(len(passages[module])),
                "let run() call the model once, without generating",
            )
    if not any(passages.values()):
        raise UsageError(
            "the residual stream of one forward pass", "a forward pass of the model", "none", "let run() call the model"
        )


def stream_identity_error(
    block: BlockAnatomy,
    entry: Float[Tensor, "*a e"],
    exit: Float[Tensor, "*a e"],
    branch_outputs: Sequence[Tensor | None],
) -> float:
    """max |exit - recomposed| / max |exit|, with x_0 = entry, x_p = norm_p(x_{p-1} + f_p) ("post") or x_{p-1} + f_p.

    Without skip x_p = f_p takes the place of the sum, or sum_p f_p where the parts are parallel.
    Source: S4.33 (post) and S3.6 (without norm). One output f_p per part; None for a part that did not run, such as
    cross-attention without anything to look at.
    Holds when: dropout is off, and nothing is clamped, as some models of Hugging Face do in float16.
    """
    x, adds = entry, block.skip
    for part, output in zip(block.parts, branch_outputs, strict=True):
        if output is None:
            continue
        x, adds = x + output.reshape(x.shape) if adds else output.reshape(x.shape), block.skip or block.parallel
        if block.norm == "post" and part.norm is not None:
            x = part.norm(x)
    error, size = (exit - x).detach().abs().max().item(), exit.detach().abs().max().item()
    return error / size if size else error
