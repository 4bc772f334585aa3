"""One cell of the long-range table: a small classifier with one mechanism, trained and tested on one task."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from statistics import NormalDist, median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from attnworks.core.errors import UsageError
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.models.layers import Output
from attnworks.models.transformer import Transformer
from attnworks.studies.tasks import TASKS, Batch, Task
from attnworks.studies.tasks.contract import Readout
from attnworks.training.loop import DivergedError, schedule

LAYERS, WIDTH, HEADS, HIDDEN = 2, 64, 4, 128
FIRST_LENGTH, GROWING = 16, 0.6
MOST_SEQUENCES = 64


class Classifier(nn.Module):
    """scores = M r + b, where r is the mean of the encoder's real positions ("mean") or its last real one ("last").

    Holds when: every sequence has a real token, and its real tokens come first.
    """

    def __init__(self, config: TransformerConfig, classes: int, readout: Readout = "mean") -> None:
        super().__init__()
        self.encoder = Transformer(config)
        self.readout = readout
        self.output = Output(classes, config.d_e, bias=True)

    def forward(
        self, tokens: Int[Tensor, "b n"], padding: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b classes"]:
        X = self.encoder.encode(tokens, padding)
        return self.output(last_real(X, padding) if self.readout == "last" else mean_real(X, padding))


def mean_real(X: Float[Tensor, "b n e"], padding: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b e"]:
    if padding is None:
        return X.mean(1)
    share = padding.to(X.dtype) / padding.sum(1, keepdim=True)
    return torch.einsum("bn,bne->be", share, X)


def last_real(X: Float[Tensor, "b n e"], padding: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b e"]:
    if padding is None:
        return X[:, -1]
    return X[torch.arange(len(X), device=X.device), padding.sum(1) - 1]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How each cell is trained and tested.

    steps, minutes   where training ends, whichever comes first
    length, batch    tokens of a sequence and sequences of a step, at full length
    first            tokens of the first sequences
    held_out         sequences of the test
    """

    steps: int = 600
    minutes: float | None = None
    length: int = 512
    batch: int = 16
    learning_rate: float = 2e-3
    held_out: int = 1024
    first: int = FIRST_LENGTH

    def __post_init__(self) -> None:
        for name in ("steps", "length", "batch", "learning_rate", "held_out", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(
                    asked=f"{name}={value}",
                    expected="a number above 0",
                    got=str(value),
                    remedy=f"choose another {name}",
                )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one mechanism did on one task.

    accuracy, low, high   on held-out sequences, with a 95 % interval over sequences
    seconds               of all steps, with the drawing of their batches
    seconds_per_step      median over the steps at full length, without that; None if there was none
    step_bytes            peak memory of forward and backward pass of a step at full length, above the model itself
    """

    task: str
    mechanism: str
    seed: int
    accuracy: float
    low: float
    high: float
    chance: float
    loss: float
    steps: int
    seconds: float
    seconds_per_step: float | None
    step_bytes: int
    parameters: int


@dataclass(frozen=True)
class Progress:
    """After a step: which cell it belongs to, its number, how much of the cell is done, its length and its loss."""

    task: str
    mechanism: str
    seed: int
    step: int
    done: float
    length: int
    loss: float


def classifier(task: Task, mechanism: str, seed: int) -> Classifier:
    """A new model; for one task and seed all mechanisms start from the same weights, wherever their shapes agree."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        common, model = (Classifier(_config(task, name), task.classes, task.readout) for name in ("dense", mechanism))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    shared = {name: tensor for name, tensor in common.state_dict().items() if shapes.get(name) == tensor.shape}
    model.load_state_dict(shared, strict=False)
    return model


def _config(task: Task, mechanism: str) -> TransformerConfig:
    per_head = WIDTH // HEADS
    return TransformerConfig(
        vocabulary=task.vocabulary,
        d_e=WIDTH,
        d_ff=HIDDEN,
        attention=AttentionConfig(heads=HEADS, d_k=per_head, d_v=per_head, mechanism=mechanism),
        encoder_layers=LAYERS,
        decoder_layers=0,
        norm="pre",
        tie="target",
        dropout=0.0,
    )


def lengths(task: Task, settings: Settings) -> list[int]:
    """Lengths in training, doubling up to the full one.

    At full length the first gradients are the sum of very many positions that do not matter, and little is learned in
    minutes; on short sequences the same model finds what to look for at once, and keeps it as they grow.
    """
    growing, length = [], max(settings.first, task.shortest)
    while length < settings.length:
        growing.append(length)
        length *= 2
    return [*growing, settings.length]


class Training(NamedTuple):
    """The last loss, steps and seconds of a training, and the seconds of each step at full length."""

    loss: float
    steps: int
    seconds: float
    at_full_length: list[float]


def train(
    model: Classifier,
    task_name: str,
    mechanism: str,
    seed: int,
    settings: Settings,
    watch: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Training | None:
    """Adam over growing lengths; None if it was stopped on the way."""
    task = TASKS[task_name]
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    rate = schedule("cosine", settings.learning_rate, settings.steps // 12, settings.steps)
    stages = lengths(task, settings)
    work = sum(_tokens(settings, _length_at(stages, number / settings.steps)) for number in range(settings.steps))
    limit = math.inf if settings.minutes is None else 60 * settings.minutes
    at_full_length: list[float] = []
    step, seconds, tokens, loss = 0, 0.0, 0, math.nan
    while step < settings.steps and seconds < limit:
        if should_stop():
            return None
        began = time.perf_counter()
        progress = max(step / settings.steps, seconds / limit)
        length = _length_at(stages, progress)
        for group in optimiser.param_groups:
            group["lr"] = rate(round(progress * settings.steps))
        batch = _batch(task, seed, step, settings, length)
        drawn = time.perf_counter()
        loss = _step(model, optimiser, batch)
        ended = time.perf_counter()
        if not math.isfinite(loss):
            raise _diverged(task_name, mechanism, step)
        if length == settings.length:
            at_full_length.append(ended - drawn)
        step, seconds, tokens = step + 1, seconds + ended - began, tokens + _tokens(settings, length)
        done = min(1.0, max(tokens / work, seconds / limit))
        watch(Progress(task_name, mechanism, seed, step, done, length, loss))
    return Training(loss, step, seconds, at_full_length)


def train_cell(
    task_name: str,
    mechanism: str,
    seed: int,
    settings: Settings,
    watch: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Cell | None:
    """Train and test; None if it was stopped on the way. Batches depend on task, seed and step alone."""
    task = TASKS[task_name]
    model = classifier(task, mechanism, seed)
    step_bytes = peak_bytes(lambda: _loss(model, _batch(task, seed, 0, settings, settings.length)).backward())
    training = train(model, task_name, mechanism, seed, settings, watch, should_stop)
    if training is None:
        return None
    loss, step, seconds, at_full_length = training
    right = count_right(model, task, seed, settings)
    low, high = wilson(right, settings.held_out)
    return Cell(
        task=task_name,
        mechanism=mechanism,
        seed=seed,
        accuracy=right / settings.held_out,
        low=low,
        high=high,
        chance=1 / task.classes,
        loss=loss,
        steps=step,
        seconds=seconds,
        seconds_per_step=median(at_full_length) if at_full_length else None,
        step_bytes=step_bytes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def wilson(right: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    p, z = right / of, NormalDist().inv_cdf(0.975)
    centre, spread = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + (z / (2 * of)) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / of) for sign in (-1, 1))
    return max(0.0, min(low, p)), min(1.0, max(high, p))


def _length_at(stages: list[int], done: float) -> int:
    """Equally many steps for each shorter length, then the full one."""
    return stages[min(len(stages) - 1, int(done / GROWING * (len(stages) - 1)))]


def _size(settings: Settings, length: int) -> int:
    """Sequences for as many tokens as at full length, up to a number beyond which more do not help."""
    return max(settings.batch, min(MOST_SEQUENCES, settings.batch * settings.length // length))


def _tokens(settings: Settings, length: int) -> int:
    return _size(settings, length) * length


def _batch(task: Task, seed: int, step: int, settings: Settings, length: int) -> Batch:
    return task.batch(seed, step, size=_size(settings, length), length=length)


def _loss(model: Classifier, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch.tokens, batch.padding), batch.labels)


def _step(model: Classifier, optimiser: torch.optim.Optimizer, batch: Batch) -> float:
    optimiser.zero_grad()
    loss = _loss(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss.item()


@torch.no_grad()
def count_right(model: Classifier, task: Task, seed: int, settings: Settings) -> int:
    """Right answers on the test stream of the seed."""
    right, seen, step = 0, 0, 0
    while seen < settings.held_out:
        size = min(settings.batch, settings.held_out - seen)
        batch = task.batch(seed, step, split="test", size=size, length=settings.length)
        right += int((model(batch.tokens, batch.padding).argmax(-1) == batch.labels).sum())
        seen, step = seen + size, step + 1
    return right


def _diverged(task: str, mechanism: str, step: int) -> DivergedError:
    return DivergedError(
        asked=f"step {step + 1} of {mechanism} on {task}",
        expected="a finite loss",
        got="none",
        remedy="leave the mechanism out, or run with a lower --lr",
    )


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes of CPU tensors that `run` holds at once, above those that were there before.

    torch's profiler logs every block that its allocator gives out or takes back, also inside kernels; the highest
    running sum is the peak. Unlike the resident size of the process, it does not depend on what malloc keeps for later
    or on what ran before, so that cells repeat exactly. What libraries take besides torch's allocator is not seen here;
    `attention/benchmark/memory.py` sees it, but needs a process for each run and counts in pages.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to standard error
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        run()
    with tempfile.TemporaryDirectory() as folder:
        log.export_chrome_trace(str(Path(folder) / "trace.json"))
        events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
    return peak_of((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")


def peak_of(changes: Iterable[tuple[float, int]]) -> int:
    """The highest running sum of (moment, bytes); what has one moment counts in the order in which it was logged."""
    return max(accumulate((size for _, size in sorted(changes, key=itemgetter(0))), initial=0))
