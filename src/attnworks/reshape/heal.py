"""Training for a few steps after a change, so that the rest of the model adapts to it."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.checks import LARGEST_FLOAT
from attnworks.core.errors import AttnworksError, UsageError
from attnworks.models.modes import cast, evaluating
from attnworks.reshape.progress import Watch, silently
from attnworks.text.tokens import TextBatch
from attnworks.traces.layer import StreamTrace
from attnworks.traces.subject import Spectator, Subject
from attnworks.traces.text import Judge

OBJECTIVE, DISTIL = "objective", "distil"
LESSONS = (OBJECTIVE, DISTIL)
CLIP = 1.0
WARM_UP = 10
"""The full rate is reached after one WARM_UP-th of the steps."""


class NotHealedError(AttnworksError, ArithmeticError):
    """The loss is no number any more."""


def heal(
    judge: Judge,
    subject: Subject,
    *,
    steps: int,
    rate: float,
    seed: int = 0,
    by: str = OBJECTIVE,
    watch: Watch = silently,
) -> None:
    """Adam on the judge's text; the rate rises for a tenth of the steps, then falls to zero along a cosine.

    What falls is the loss, or (by="distil") the distance of the streams from those of the judge's original model. The
    same for a seed.
    """
    check_rate(rate)
    model = subject.model
    device = next(model.parameters()).device
    learnable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learnable:
        raise UsageError(
            asked="healing",
            expected="a model with weights to train",
            got="one that is frozen",
            remedy="call model.requires_grad_(True), or do without healing",
        )
    dtype = learnable[0].dtype
    if torch.finfo(dtype).bits < 32:
        cast(model, torch.float32)  # steps of healing are smaller than what half precision can tell apart
    optimiser = torch.optim.Adam(learnable, lr=rate, betas=(0.9, 0.98))
    order = np.random.default_rng(seed)
    queue: list[int] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.train()
        try:
            for step in range(steps):
                queue = queue or order.permutation(len(judge.text.batches)).tolist()
                for group in optimiser.param_groups:
                    group["lr"] = rate * _warmth(step, steps)
                batch, rows = judge.text.batch(queue.pop())
                optimiser.zero_grad(set_to_none=True)
                batch = batch.to(device)
                losses = stream_distance(judge, subject, batch) if by == DISTIL else judge.losses(subject, batch, rows)
                loss = losses.mean()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                if not (math.isfinite(float(loss.detach())) and math.isfinite(float(norm))):
                    got = f"loss {float(loss.detach()):g} and gradient norm {float(norm):g}"
                    raise not_healed(f"step {step + 1} of {steps}", got)
                optimiser.step()
                watch("healing", step + 1, steps)
        finally:
            cast(model.eval(), dtype)
            optimiser.zero_grad(set_to_none=True)


def stream_distance(judge: Judge, subject: Subject, batch: TextBatch) -> Float[Tensor, ""]:
    """Mean over blocks of sum |x - x'|^2 / sum |x'|^2 over real tokens, x' being the stream of the original model."""
    read, now, then = judge.objective.prepare(batch), _Streams(), _Streams()
    subject.run(read, now)
    with evaluating(judge.original.model):
        judge.original.run(read, then)
    apart = [(x - whole).square().sum() / whole.square().sum() for x, whole in zip(now.X, then.X, strict=True)]
    return torch.stack(apart).mean()


class _Streams(Spectator):
    """What left each block, at real tokens; at least in float32, in which squares do not overflow."""

    def __init__(self) -> None:
        self.X: list[Tensor] = []

    def stream(self, stream: StreamTrace) -> None:
        if stream.depth:
            wide = torch.promote_types(stream.X.dtype, torch.float32)
            self.X.append(stream.X[stream.tokens.real].to(wide))


def check_rate(rate: float) -> None:
    if not 0 < rate <= LARGEST_FLOAT:
        raise UsageError(
            asked=f"healing at a rate of {rate}",
            expected="a number above 0",
            got=str(rate),
            remedy="3e-4 is usual",
        )


def not_healed(when: str, got: str) -> NotHealedError:
    return NotHealedError(
        asked=f"healing, {when}",
        expected="a finite loss and gradient",
        got=got,
        remedy="lower the rate of healing",
    )


def _warmth(step: int, steps: int) -> float:
    warm = max(1, steps // WARM_UP)
    return (step + 1) / warm if step < warm else (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2
