"""A model run with edits: gates on heads, heads off, or without skip connections, MLPs or norms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.checks import choice
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.models.anatomy import BlockAnatomy, Part
from attnworks.models.modes import eval_mode, frozen_weights
from attnworks.text.tokens import Batch
from attnworks.traces.layer import LayerTrace, first, stream_read
from attnworks.traces.subject import LayerHook, Subject
from attnworks.training.objectives.contract import Objective

REMOVABLE_PARTS = ("skip", "mlp", "norm")


class OpenGatesHook(LayerHook):
    """Multiplies every head of every sentence by a gate of one, so that dL / d gate can be computed.

    off    heads whose gates are zero
    """

    def __init__(self, off: Iterable[HeadId] = ()) -> None:
        self.gates: dict[Slot, Float[Tensor, "b h"]] = {}
        self.off = HeadsOffHook(off).off

    def attention(self, trace: LayerTrace) -> Tensor | None:
        gate = torch.ones(trace.Y.shape[:2], dtype=trace.Y.dtype, device=trace.Y.device)
        gate[:, self.off.get(trace.slot, [])] = 0.0
        self.gates[trace.slot] = gate.requires_grad_()
        return trace.Y * gate[:, :, None, None]


class HeadsOffHook(LayerHook):
    """Sets the outputs of these heads to zero."""

    def __init__(self, heads: Iterable[HeadId]) -> None:
        self.off: dict[Slot, list[int]] = {}
        for slot, head in heads:
            self.off.setdefault(slot, []).append(head)

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot not in self.off:
            return None
        Y = trace.Y.clone()
        Y[:, self.off[trace.slot]] = 0.0
        return Y


class CountHeadsHook(LayerHook):
    """Counts the heads of each attention layer."""

    def __init__(self) -> None:
        self.heads: dict[Slot, int] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.heads[trace.slot] = trace.heads
        return None


def gate_gradients(
    subject: Subject, objective: Objective, batch: Batch, rows: Tensor
) -> dict[Slot, Float[Tensor, "b h"]]:
    """dL / d gate of every head, for each sentence, at gates of one; zero where the loss does not depend on a layer.

    L is `losses` also of relative objectives, since the distance of a model to itself has gradient zero.
    """
    gates = OpenGatesHook()
    logits = objective.reads_logits and subject.has_logits
    with eval_mode(subject.model), frozen_weights(subject.model), torch.enable_grad():
        outputs = subject.run(objective.prepare(batch), gates, logits=logits)
        loss = objective.losses(outputs, batch, rows).sum()
        found = torch.autograd.grad(loss, list(gates.gates.values()), allow_unused=True)
    return {
        slot: torch.zeros_like(gate) if grad is None else grad
        for (slot, gate), grad in zip(gates.gates.items(), found, strict=True)
    }


@contextmanager
def without_parts(subject: Subject, removed: Collection[str]) -> Iterator[None]:
    """Within this context the subject runs without these parts of every block, and its anatomy does not list them.

    norm    returns its input
    mlp     adds nothing to the stream, and its post-norm is removed too
    skip    the stream, which the block will add, is subtracted from each branch. This is exact up to the rounding of
            one sum; run such networks in float64, where differences of 1e-7 between tokens still have digits
    Source: Xie 2021, section 2 (S0.15-S0.20); the rank post (S1.16).
    Holds when: dropout is off. Norms outside of the blocks, as after the embedding or the last block, stay.
    """
    for name in removed:
        choice("part to run without", name, REMOVABLE_PARTS)
    before = subject.blocks
    if removed and before is None:
        asked, got = f"{subject.name} without {', '.join(removed)}", type(subject.model).__name__
        remedy = "leave --without out, or examine a model of a known family"
        raise UsageError(asked, "a model whose blocks are known", got, remedy)
    if not removed or before is None:
        yield
        return
    normed = [part.branch for block in before for part in block.parts if part.ends_in_norm]
    if "norm" in removed and normed:
        expected, got = (
            "norms of what parts read, or of sums",
            f"a norm of what a part adds ({type(normed[0]).__name__})",
        )
        raise UsageError(f"{subject.name} without norm", expected, got, "remove skip or mlp only")
    try:
        with ExitStack() as hooks:
            for block in {block.module: block for block in before}.values():
                _ReducedBlock(block, frozenset(removed)).install(hooks)
            subject.blocks = tuple(_reduced_anatomy(block, removed) for block in before)
            yield
    finally:
        subject.blocks = before


def _reduced_anatomy(block: BlockAnatomy, removed: Collection[str]) -> BlockAnatomy:
    parts = [part for part in block.parts if part.role != "mlp" or "mlp" not in removed]
    norm = block.norm
    if "norm" in removed:
        parts, norm = [replace(part, norm=None) for part in parts], None
    return replace(block, parts=tuple(parts), norm=norm, skip=block.skip and "skip" not in removed)


class _ReducedBlock:
    """Removes parts of one block by hooks. It tracks the stream through the block, which skip connections add.

    `first` is the part that began the present step: the skip connection of a step is taken from this part alone.

    Its hooks on parts are registered while the block runs, after those of others, which see the original outputs.
    """

    def __init__(self, block: BlockAnatomy, removed: frozenset[str]) -> None:
        self.block, self.removed = block, removed
        self.stream: Tensor | None = None
        self.first: Part | None = None
        self.passed = 0
        self.handles: list[Any] = []

    def install(self, hooks: ExitStack) -> None:
        module = self.block.module
        hooks.enter_context(module.register_forward_pre_hook(self._entered, with_kwargs=True))
        hooks.enter_context(module.register_forward_hook(lambda *_: self._release()))
        hooks.callback(self._release)

    def _entered(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._release()
        self.stream = stream_read(args, kwargs)
        for part in self.block.parts:
            self.handles.append(part.branch.register_forward_hook(self._branch(part)))
            if part.norm is not None:
                self.handles.append(part.norm.register_forward_hook(self._norm(part)))

    def _release(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles, self.stream, self.first, self.passed = [], None, None, 0

    def _branch(self, part: Part):
        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            Y = first(output)
            x = self._stream_for(Y)
            if part.role == "mlp" and "mlp" in self.removed:
                return _with_first(output, part.output_for(Y.new_zeros(Y.shape) if self.block.skip else x))
            if self.first is None or part.step != self.first.step:
                self.first = part
            begins = part is self.first
            added, skip = part.summand(Y), self.block.skip and "skip" not in self.removed
            self._advance(added if begins and not skip else x + added)
            if self.block.skip and not skip and begins:
                return _with_first(output, part.output_for(added - x))
            return output

        return hook

    def _norm(self, part: Part):
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            post = self.block.norm == "post"
            gone = "norm" in self.removed or (post and part.role == "mlp" and "mlp" in self.removed)
            given = args[0] if gone else output
            if post:
                self._advance(given)
            return given

        return hook

    def _stream_for(self, Y: Tensor) -> Tensor:
        """The stream to which Y will be added; if the branch runs on pieces of the sequence, the next piece of it."""
        assert self.stream is not None
        if Y.numel() == self.stream.numel():
            return self.stream.reshape(Y.shape)
        begin, self.passed = self.passed, self.passed + Y.shape[-2]
        return self.stream[..., begin : self.passed, :]

    def _advance(self, x: Tensor) -> None:
        """Set the stream to x. Pieces are ignored: only the last part of a block runs on pieces."""
        if self.stream is not None and x.numel() == self.stream.numel():
            self.stream = x


def _with_first(output: Any, Y: Tensor) -> Any:
    return (Y, *output[1:]) if isinstance(output, tuple) else Y
