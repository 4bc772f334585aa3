"""Training for a few steps after a change, so that the rest of the model adapts to it."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.checks import number
from attnworks.core.display import Progress, silent
from attnworks.core.errors import UsageError
from attnworks.models.modes import cast, inference_mode
from attnworks.text.tokens import Batch
from attnworks.traces.layer import StreamTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook, Subject
from attnworks.training.fit import Fit, cosine_to_zero

OBJECTIVE, DISTIL = "objective", "distil"
HEALING_TARGETS = (OBJECTIVE, DISTIL)
WARMUP_DIVISOR = 10
"""The learning rate reaches its peak after a tenth of the steps."""
LOWER_THE_RATE = "lower the rate of healing"


def heal(
    text_loss: TextLoss,
    subject: Subject,
    *,
    steps: int,
    rate: float,
    seed: int = 0,
    by: str = OBJECTIVE,
    tell: Progress = silent,
) -> None:
    """Train with Adam on the calibration text. The learning rate rises for a tenth of the steps, then falls to zero.

    Training lowers the loss, or with by="distil" the distance of the streams from those of the original model. The
    result depends on the seed only.
    """
    check_rate(rate)
    model = subject.model
    learnable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learnable:
        remedy = "call model.requires_grad_(True)"
        raise UsageError("healing", "a model with weights to train", "a model whose weights are all frozen", remedy)
    dtype = learnable[0].dtype
    if torch.finfo(dtype).bits < 32:
        cast(model, torch.float32)  # steps of healing are too small for half precision
    fit = Fit(
        model=model,
        optimizer=torch.optim.Adam(learnable, lr=rate, betas=(0.9, 0.98)),
        learning_rate=cosine_to_zero(rate, max(1, steps // WARMUP_DIVISOR), steps),
        remedy=LOWER_THE_RATE,
    )
    order = np.random.default_rng(seed)
    queue: list[int] = []

    def loss() -> Tensor:
        batch, rows = text_loss.text.batch(queue.pop())
        batch = batch.to(subject.device)
        if by == DISTIL:
            return stream_distance(text_loss, subject, batch)
        return text_loss.losses(subject, batch, rows).mean()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            for step in range(steps):
                queue = queue or order.permutation(len(text_loss.text.batches)).tolist()
                fit.step(step, [loss], name=f"healing, step {step + 1} of {steps}")
                tell("healing", step + 1, steps)
        finally:
            cast(model.eval(), dtype)
            fit.optimizer.zero_grad(set_to_none=True)


def stream_distance(text_loss: TextLoss, subject: Subject, batch: Batch) -> Float[Tensor, ""]:
    """Mean over blocks of sum |x - x'|^2 / sum |x'|^2 over real tokens, x' being the stream of the original model."""
    read, now, then = text_loss.objective.prepare(batch), _Streams(), _Streams()
    subject.run(read, now)
    with inference_mode(text_loss.original.model):
        text_loss.original.run(read, then)
    apart = [(x - whole).square().sum() / whole.square().sum() for x, whole in zip(now.X, then.X, strict=True)]
    return torch.stack(apart).mean()


class _Streams(LayerHook):
    """Collects the output of each block at real tokens, at least in float32, in which squares do not overflow."""

    def __init__(self) -> None:
        self.X: list[Tensor] = []

    def stream(self, stream: StreamTrace) -> None:
        if stream.depth:
            wide = torch.promote_types(stream.X.dtype, torch.float32)
            self.X.append(stream.X[stream.tokens.real].to(wide))


def check_rate(rate: float) -> None:
    number("healing with learning rate", rate, 0, above=True, remedy="3e-4 is usual")
