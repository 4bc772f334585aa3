"""Gates on heads: factors of their outputs before W_O, to be differentiated or closed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.models.modes import held_still
from attnworks.text.tokens import TextBatch
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.subject import Spectator, Subject
from attnworks.training.objectives.contract import TextObjective


class OpenGates(Spectator):
    """A gate of one on every head of every sentence, so that dL / d gate says what each head does to each loss."""

    def __init__(self) -> None:
        self.gates: dict[Slot, Float[Tensor, "b h"]] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        gate = torch.ones(trace.Y.shape[:2], dtype=trace.Y.dtype, device=trace.Y.device, requires_grad=True)
        self.gates[trace.slot] = gate
        return trace.Y * gate[:, :, None, None]


class HeadsOff(Spectator):
    """Heads, of any layers, whose outputs are zero."""

    def __init__(self, heads: Iterable[tuple[Slot, int]]) -> None:
        self.off: dict[Slot, list[int]] = {}
        for slot, head in heads:
            self.off.setdefault(slot, []).append(head)

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot not in self.off:
            return None
        Y = trace.Y.clone()
        Y[:, self.off[trace.slot]] = 0.0
        return Y


class CountHeads(Spectator):
    """How many heads each attention layer has."""

    def __init__(self) -> None:
        self.heads: dict[Slot, int] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.heads[trace.slot] = trace.heads
        return None


def gate_gradients(
    subject: Subject, objective: TextObjective, batch: TextBatch, rows: Tensor
) -> dict[Slot, Float[Tensor, "b h"]]:
    """dL / d gate of every head, for each sentence, at gates of one; zero where the loss does not feel a layer.

    Objectives that are relative are asked for their losses, as the distance of a model to itself has no slope.
    """
    gates, able = OpenGates(), subject.abilities
    scores = objective.reads_scores and (able.vocabulary or able.classes is not None)
    with held_still(subject.model), torch.enable_grad():
        outputs = subject.run(objective.prepare(batch), gates, scores=scores)
        loss = objective.losses(outputs, batch, rows).sum()
        found = torch.autograd.grad(loss, list(gates.gates.values()), allow_unused=True)
    return {
        slot: torch.zeros_like(gate) if grad is None else grad
        for (slot, gate), grad in zip(gates.gates.items(), found, strict=True)
    }
