"""The training loop, and learning rates by step."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from attnworks.core.errors import AttnworksError
from attnworks.core.team import Team
from attnworks.text.batches import BatchOrder, Example, collate
from attnworks.training.events import StepDone
from attnworks.training.objectives.contract import Objective

ScheduleKind = Literal["warmup", "cosine", "constant"]


def schedule(kind: ScheduleKind, peak: float, warmup: int, steps: int | None = None) -> Callable[[int], float]:
    """The learning rate of step s = 0, 1, ..., as a pure function.

    warmup      rises linearly for `warmup` steps, then falls with 1 / sqrt(s): the schedule of the 2017 Transformer,
                peak * min((s+1) / w, sqrt(w / (s+1)))
    cosine      rises the same way, then falls along half a cosine to a tenth of the peak at `steps`
    constant    rises the same way, then stays
    """
    warmup = max(1, warmup)

    def rate(step: int) -> float:
        rise = (step + 1) / warmup
        if rise < 1 or kind == "constant":
            return peak * min(1.0, rise)
        if kind == "warmup" or steps is None:
            return peak / math.sqrt(rise)
        done = min(1.0, (step + 1 - warmup) / max(1, steps - warmup))
        return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)

    return rate


class DivergedError(AttnworksError, ArithmeticError):
    """The loss is no number any more."""


class Loop:
    """Takes one optimiser step at a time; step s of a seed is always the same step.

    Which sentences, which learning rate and which dropout are pure functions of (seed, s), so that a run that was
    stopped and resumed makes the same steps as one that was not.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        examples: Sequence[Example],
        order: BatchOrder,
        optimiser: torch.optim.Optimizer,
        learning_rate: Callable[[int], float],
        *,
        accumulate: int = 1,
        clip: float = 1.0,
        seed: int = 0,
        device: str = "cpu",
        dtype: str = "float32",
        team: Team | None = None,
    ) -> None:
        self.model, self.objective, self.examples, self.order = model, objective, examples, order
        self.optimiser, self.learning_rate = optimiser, learning_rate
        self.accumulate, self.clip, self.seed, self.device = accumulate, clip, seed, device
        self.team = team or Team()
        self.autocast = (
            torch.autocast(device.partition(":")[0], torch.bfloat16)
            if dtype == "bfloat16"
            else contextlib.nullcontext()
        )

    @property
    def steps_per_epoch(self) -> float:
        return self.order.per_epoch / self.accumulate

    def step(self, step: int) -> StepDone:
        """Step number `step`, from 0: forward and backward over its batches, clip, update."""
        began = time.perf_counter()
        torch.manual_seed(_mixed(self.seed, step, self.team.rank))
        self.model.train()
        rate = self.learning_rate(step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        batches = [self.order.rows(step * self.accumulate + micro) for micro in range(self.accumulate)]
        terms = sum(len(self.examples[row].target) + 1 for rows in batches for row in rows)
        tokens = terms + sum(len(self.examples[row].source) for rows in batches for row in rows)
        self.optimiser.zero_grad(set_to_none=True)
        loss = 0.0
        for rows in batches:
            loss += self._backward(rows, terms)
        self.team.add_gradients(self.model)
        (loss,) = self.team.add([loss])
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.clip))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise _diverged(step, loss, norm, batches)
        self.optimiser.step()
        return StepDone(
            step=step + 1,
            epoch=(step + 1) / self.steps_per_epoch,
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            tokens=tokens,
            seconds=time.perf_counter() - began,
        )

    def _backward(self, rows: list[int], terms: int) -> float:
        """Add the gradients of this process's share of a batch; its part of the mean loss."""
        own = self.team.share(rows)
        if not own:
            return 0.0
        batch = collate([self.examples[row] for row in own], own).to(self.device)
        with self.autocast:
            loss = self.objective(self.model, batch).total / terms
        loss.backward()
        return loss.item()


def _mixed(seed: int, step: int, rank: int) -> int:
    """One number out of three, far apart for neighbours."""
    mixed = seed
    for part in (step, rank):
        mixed = (mixed * 6364136223846793005 + part * 1442695040888963407 + 1) % 2**63
    return mixed


def _diverged(step: int, loss: float, norm: float, batches: list[list[int]]) -> DivergedError:
    rows = [row for rows in batches for row in rows]
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return DivergedError(
        asked=f"training step {step + 1}",
        expected="a finite loss and gradient",
        got=f"loss {loss:g} and gradient norm {norm:g} on the batch of training pairs {shown}",
        remedy="resume from the last checkpoint with a lower --lr, a longer --warmup or a smaller --clip",
    )
