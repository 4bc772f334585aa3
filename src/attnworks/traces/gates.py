"""Gates on heads: factors of their outputs before W_O, to be differentiated or closed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.subject import Spectator


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
