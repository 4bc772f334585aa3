"""All layers of one stack on one batch, kept together for measures across depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from attnworks.data.text_batch import Kind, TextBatch
from attnworks.data.tokens import Tokens
from attnworks.hf.families import Role
from attnworks.models.anatomy import BlockAnatomy, Passage, run_watched, stream_identity_error
from attnworks.notation import tolerance
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.subject import Spectator, Subject


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


class _Keep(Spectator):
    def __init__(self) -> None:
        self.traces: dict[Slot, LayerTrace] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.traces[trace.slot] = trace
        return None


def record_forward(subject: Subject, batch: TextBatch) -> tuple[list[ForwardTrace], dict[tuple[Kind, int], float]]:
    """Every stack of one forward pass whose stream adds up, and how well each block's does.

    The error of a block is that of `stream_identity_error`; a stack with a block beyond tolerance is left out.
    """
    keep = _Keep()
    passages = run_watched(subject.blocks or (), lambda: subject.run(batch, keep))
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
    block: BlockAnatomy, passage: Passage, outputs: Sequence[Tensor | None], traces: dict[Slot, LayerTrace]
) -> BlockTrace:
    """What every part read follows from what the parts before it added."""
    x, parts = passage.entry, []
    for part, output in zip(block.parts, outputs, strict=True):
        if output is None:
            continue
        output = output.reshape(x.shape)
        slot = Slot("cross" if part.role == "cross" else block.kind, block.layer)
        read = passage.entry if block.parallel else x
        parts.append(PartTrace(part.role, read, output, traces.get(slot) if part.role != "mlp" else None))
        x = x + output if block.skip else output
        if block.norm == "post" and part.norm is not None:
            x = part.norm(x)
    return BlockTrace(block, passage.entry, passage.exit, tuple(parts))
