"""Train L0 gates on heads of a frozen model, to rank the heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.places import HeadId
from attnworks.models.modes import eval_mode
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.surgery import PruneUnit, heads_off
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import LayerHook

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
GATE_STEPS, GATE_LEARNING_RATE = 150, 0.1
ANNEALED_SHARE = 0.67
"""The share of the steps in which the target falls from all units to those that stay."""
INITIAL_LOG_ALPHA = 2.0
"""The initial log alpha, at which 97 % of the gates are open."""


def hard_concrete(log_alpha: Float[Tensor, "*a"], u: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """z = min(1, max(0, s (zeta - gamma) + gamma)),   s = sigmoid((ln u - ln(1 - u) + log alpha) / beta).

    For u uniform in (0, 1), a gate that is 0 or 1 with some probability each, and has a gradient in between.
    Source: Louizos et al. 2018, eq. 10 and 11.
    """
    s = torch.sigmoid((torch.logit(u) + log_alpha) / BETA)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0.0, 1.0)


def chance_open(log_alpha: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """P(z != 0) = sigmoid(log alpha - beta ln(-gamma / zeta)). Source: Louizos et al. 2018, eq. 12."""
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


class L0GateHook(LayerHook):
    """Multiplies the output of every head by the gate of its unit, one for each sentence; other heads stay whole."""

    def __init__(self, units: Sequence[PruneUnit], gates: Float[Tensor, "b u"]) -> None:
        self.column = {head: column for column, unit in enumerate(units) for head in unit}
        self.gates = torch.cat([gates, torch.ones_like(gates[:, :1])], 1)

    def attention(self, trace: LayerTrace) -> Tensor | None:
        slot, whole = trace.slot, self.gates.shape[1] - 1
        columns = [self.column.get(HeadId(slot, head), whole) for head in range(trace.heads)]
        if min(columns, default=whole) == whole:
            return None
        return trace.Y * self.gates.to(trace.Y)[:, columns, None, None]  # [b h i v] * [b h 1 1]


def train_gates(
    context: ReshapeContext, units: Sequence[PruneUnit], cut: int, steps: int = GATE_STEPS
) -> Float[Tensor, " u"]:
    """The log alpha of every unit after training: the lower, the sooner the model does without it.

        min over log alpha, max over l_1, l_2 of   E[L] / D + l_1 (s - t) + l_2 (s - t)^2

    s is the mean of P(gate != 0), t falls from 1 to the share of units that stay, and D is what the loss changes by if
    all gates are closed (1 if it does not): so that one unit changes both terms by about as much, for any objective.
    Adam trains log alpha and l. The result depends on the seed only. The weights, their gradients and the state of
    torch's random numbers stay as they are.
    Source: Louizos et al. 2018; Voita et al. 2019; the Lagrangian, and the falling t, of Wang et al. 2020.
    Holds when: only the order is used. After few steps s is near t but need not reach it, as closed gates have almost
    no gradient; units worth a hundredth of the largest cannot be distinguished from those worth nothing.
    Departs: the model is frozen; one draw for each sentence instead of one for all; D.
    """
    text_loss, subject = context.calibration, context.subject
    drawn, order = torch.Generator().manual_seed(context.seed), np.random.default_rng(context.seed)
    log_alpha = torch.full((len(units),), INITIAL_LOG_ALPHA, dtype=torch.float64, requires_grad=True)
    multipliers = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": [log_alpha]}, {"params": [multipliers], "maximize": True}], lr=GATE_LEARNING_RATE
    )
    worth = abs(text_loss.mean(subject, heads_off(units)) - text_loss.mean(subject)) or 1.0
    queue: list[int] = []
    with eval_mode(subject.model), torch.enable_grad():
        for step in range(steps):
            context.tell("training gates", step, steps)
            queue = queue or order.permutation(len(text_loss.text.batches)).tolist()
            batch, rows = text_loss.text.batch(queue.pop())
            u = torch.rand(len(batch), len(units), generator=drawn, dtype=torch.float64)
            gated = L0GateHook(units, hard_concrete(log_alpha.expand_as(u), u))
            loss = text_loss.losses(subject, batch.to(subject.device), rows, gated).mean().cpu().double()
            target = 1 - cut / len(units) * min(1.0, (step + 1) / (ANNEALED_SHARE * steps))
            above = chance_open(log_alpha).mean() - target
            whole = loss / worth + multipliers @ torch.stack([above, above.square()])
            log_alpha.grad, multipliers.grad = torch.autograd.grad(whole, (log_alpha, multipliers))
            optimizer.step()
    return log_alpha.detach()
