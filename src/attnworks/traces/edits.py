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
from attnworks.models.modes import eval_mode
from attnworks.text.tokens import Batch
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import LayerHook, Subject, first
from attnworks.training.objectives.contract import Objective

REMOVABLE_PARTS = ("skip", "mlp", "norm")


class OpenGatesHook(LayerHook):
    """A gate of one on every head of every sentence, so that dL / d gate says what each head does to each loss."""

    def __init__(self) -> None:
        self.gates: dict[Slot, Float[Tensor, "b h"]] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        gate = torch.ones(trace.Y.shape[:2], dtype=trace.Y.dtype, device=trace.Y.device, requires_grad=True)
        self.gates[trace.slot] = gate
        return trace.Y * gate[:, :, None, None]


class HeadsOffHook(LayerHook):
    """Heads, of any layers, whose outputs are zero."""

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
    """How many heads each attention layer has."""

    def __init__(self) -> None:
        self.heads: dict[Slot, int] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.heads[trace.slot] = trace.heads
        return None


def gate_gradients(
    subject: Subject, objective: Objective, batch: Batch, rows: Tensor
) -> dict[Slot, Float[Tensor, "b h"]]:
    """dL / d gate of every head, for each sentence, at gates of one; zero where the loss does not feel a layer.

    Objectives that are relative are asked for their losses, as the distance of a model to itself has no slope.
    """
    gates = OpenGatesHook()
    logits = objective.reads_logits and subject.has_logits
    with eval_mode(subject.model), torch.enable_grad():
        outputs = subject.run(objective.prepare(batch), gates, logits=logits)
        loss = objective.losses(outputs, batch, rows).sum()
        found = torch.autograd.grad(loss, list(gates.gates.values()), allow_unused=True)
    return {
        slot: torch.zeros_like(gate) if grad is None else grad
        for (slot, gate), grad in zip(gates.gates.items(), found, strict=True)
    }


@contextmanager
def without_parts(subject: Subject, removed: Collection[str]) -> Iterator[None]:
    """Run the subject without these parts of every block, for a while; its anatomy says so meanwhile.

    norm    gives back what it is given
    mlp     leaves the stream as it is, and its post-norm goes with it
    skip    the branch takes away the stream that the block will add to it; exact up to the rounding of one sum, so that
            such networks are best run in float64, where differences of 1e-7 between tokens still mean something
    Source: Xie 2021, section 2 (S0.15-S0.20); the rank post (S1.16).
    Holds when: dropout is off. Norms outside of the blocks, as after the embedding or the last block, stay.
    """
    for name in removed:
        choice("part to run without", name, REMOVABLE_PARTS)
    before = subject.blocks
    if removed and before is None:
        raise UsageError(
            f"{subject.name} without {', '.join(removed)}",
            "a model whose blocks are known",
            type(subject.model).__name__,
            "leave --without out, or examine a model of a known family",
        )
    if not removed or before is None:
        yield
        return
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
    """One block with parts taken out by hooks; it follows the stream through the block to know what skips add.

    Parts are hooked while the block runs, so that hooks from before see what the branches really give.
    """

    def __init__(self, block: BlockAnatomy, removed: frozenset[str]) -> None:
        self.block, self.removed = block, removed
        self.stream: Tensor | None = None
        self.passed = 0
        self.handles: list[Any] = []

    def install(self, hooks: ExitStack) -> None:
        module = self.block.module
        hooks.callback(module.register_forward_pre_hook(self._entered, with_kwargs=True).remove)
        hooks.callback(module.register_forward_hook(self._left).remove)
        hooks.callback(self._release)

    def _entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        self._release()
        self.stream = args[0] if args else kwargs["hidden_states"]
        for part in self.block.parts:
            self.handles.append(part.branch.register_forward_hook(self._branch(part)))
            if part.norm is not None:
                self.handles.append(part.norm.register_forward_hook(self._norm(part)))

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        self._release()

    def _release(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles, self.stream, self.passed = [], None, 0

    def _branch(self, part: Part):
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            del module, args
            Y = first(output)
            x = self._stream_for(Y)
            if part.role == "mlp" and "mlp" in self.removed:
                return _with_first(output, Y.new_zeros(Y.shape) if self.block.skip else x)
            if self.block.skip and "skip" in self.removed:
                self._advance(Y.new_zeros(Y.shape) if self.block.parallel else Y)
                return _with_first(output, Y - x)
            if not self.block.parallel:
                self._advance(x + Y if self.block.skip else Y)
            return output

        return hook

    def _norm(self, part: Part):
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            del module
            post = self.block.norm == "post"
            gone = "norm" in self.removed or (post and part.role == "mlp" and "mlp" in self.removed)
            given = args[0] if gone else output
            if post:
                self._advance(given)
            return given

        return hook

    def _stream_for(self, Y: Tensor) -> Tensor:
        """The stream that a branch's output meets; where the branch runs on pieces of the sequence, the next piece."""
        assert self.stream is not None
        if Y.numel() == self.stream.numel():
            return self.stream.reshape(Y.shape)
        begin, self.passed = self.passed, self.passed + Y.shape[-2]
        return self.stream[..., begin : self.passed, :]

    def _advance(self, x: Tensor) -> None:
        """The stream is now x. Only the last part of a block runs on pieces, after which none is asked for."""
        if self.stream is not None and x.numel() == self.stream.numel():
            self.stream = x


def _with_first(output: Any, Y: Tensor) -> Any:
    return (Y, *output[1:]) if isinstance(output, tuple) else Y
