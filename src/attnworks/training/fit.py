"""The fitting loop of training, healing and the studies, and learning rates by step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from attnworks.core.errors import DivergedError
from attnworks.core.team import Team
from attnworks.text.tokens import BatchOrder, RowPair, collate_pairs
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


def cosine_to_zero(peak: float, warmup: int, steps: int) -> Callable[[int], float]:
    """The learning rate of step s = 0, ..., steps - 1: it rises linearly to the peak, then falls along half a cosine.

    It would be zero at step `steps`, and is the peak at s = warmup - 1 and at s = warmup.
    """

    def rate(step: int) -> float:
        if step < warmup:
            return peak * ((step + 1) / warmup)
        return peak * ((1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2)

    return rate


class FitStep(NamedTuple):
    """The loss of a step over the whole team, its learning rate, and the norm of its gradient before clipping."""

    loss: float
    learning_rate: float
    gradient_norm: float


@dataclass(kw_only=True)
class Fit:
    """Takes one optimizer step at a time. The optimizer may be replaced between two steps.

    learning_rate    the learning rate by the number of the step
    clip             the largest norm of the gradient
    remedy           what to do if the loss diverges, for the message of the error
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    clip: float = 1.0
    team: Team = field(default_factory=Team)
    remedy: str = "lower the learning rate"

    def step(
        self,
        number: int,
        losses: Iterable[Callable[[], Tensor]],
        *,
        name: str,
        batch: str = "",
        seed: int | None = None,
    ) -> FitStep:
        """Step `number`, from 0: add the gradients of all `losses` over the team, clip, update.

        name, batch    of the step and its batch, for the message of `DivergedError`, which is raised instead of an
                       update with a loss or gradient that is not finite
        seed           of torch's random numbers in this step; None leaves the generator as it is
        """
        if seed is not None:
            torch.manual_seed(seed)
        self.model.train()
        rate = self.learning_rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for part in losses:
            value = part()
            value.backward()
            loss += value.item()
        self.team.add_gradients(self.model)
        (loss,) = self.team.add([loss])
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.clip))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            got = f"loss {loss:g} and gradient norm {norm:g}{batch}"
            raise DivergedError(name, "a finite loss and gradient", got, self.remedy)
        self.optimizer.step()
        return FitStep(loss, rate, norm)


@dataclass(kw_only=True)
class CorpusFit(Fit):
    """Fits a model to a corpus; step s of a seed is always the same step.

    Its sentences, learning rate and dropout are pure functions of (seed, s). A run that was stopped and resumed
    therefore makes the same steps as one that was not.

    accumulate    batches of one step; the loss is the mean over all their target tokens
    """

    objective: Objective
    pairs: Sequence[RowPair]
    order: BatchOrder
    accumulate: int = 1
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    remedy: str = "resume from the last checkpoint with a lower learning_rate, a longer warmup or a smaller clip"

    @property
    def steps_per_epoch(self) -> float:
        return self.order.per_epoch / self.accumulate

    def train_step(self, step: int) -> StepDone:
        """Step number `step`, from 0."""
        began = time.perf_counter()
        batches = [self.order.rows(step * self.accumulate + micro) for micro in range(self.accumulate)]
        rows = [row for batch in batches for row in batch]
        terms = sum(len(self.pairs[row][1]) for row in rows)
        shares = filter(None, map(self.team.share, batches))
        done = self.step(
            step,
            (partial(self._loss, share, terms) for share in shares),
            name=f"training step {step + 1}",
            batch=f" on the batch of training pairs {', '.join(map(str, rows[:5]))}{', ...' * (len(rows) > 5)}",
            seed=_mix_seed(self.seed, step, self.team.rank),
        )
        return StepDone(
            step=step + 1,
            epoch=(step + 1) / self.steps_per_epoch,
            tokens=terms + sum(len(self.pairs[row][0]) for row in rows),
            seconds=time.perf_counter() - began,
            **done._asdict(),
        )

    def _loss(self, rows: list[int], terms: int) -> Tensor:
        """The part of these pairs in the mean over `terms` target tokens."""
        batch = collate_pairs([self.pairs[row] for row in rows], rows).to(self.device)
        device = self.device.partition(":")[0]
        with torch.autocast(device, torch.bfloat16) if self.dtype == "bfloat16" else nullcontext():
            return self.objective.total(self.model, batch).total / terms


def _mix_seed(seed: int, step: int, rank: int) -> int:
    """One seed out of three numbers. Seeds of neighbouring steps and ranks are far apart."""
    mixed = seed
    for part in (step, rank):
        mixed = (mixed * 6364136223846793005 + part * 1442695040888963407 + 1) % 2**63
    return mixed
