"""One cell of the long-range table: a small classifier with one mechanism, trained and tested on one task."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
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

from attnworks.core.checks import number
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.models.layers import OutputLayer
from attnworks.models.transformer import Transformer
from attnworks.studies.tasks import TASKS, LongRangeTask, TaskBatch
from attnworks.studies.tasks.contract import Readout
from attnworks.training.fit import Fit, schedule

LAYERS, D_MODEL, HEADS, D_HIDDEN = 2, 64, 4, 128
FIRST_LENGTH = 16
"""Tokens of the first sequences in training."""
SHORT_LENGTHS_SHARE = 0.6
"""Share of the training steps in which sequences are shorter than the full length."""
MAX_SEQUENCES = 64
"""Sequences of a batch, at most, unless LongRangeSettings.batch_size is larger."""


class Classifier(nn.Module):
    """logits = M r + b, where r is the mean of the encoder's real positions ("mean") or its last real one ("last").

    Holds when: every sequence has a real token, and its real tokens come first.
    """

    def __init__(self, config: TransformerConfig, classes: int, readout: Readout = "mean") -> None:
        super().__init__()
        self.encoder = Transformer(config)
        self.readout = readout
        self.output = OutputLayer(classes, config.d_e, bias=True)

    def forward(self, tokens: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b c"]:
        X = self.encoder.encode(tokens, real)
        return self.output(last_real(X, real) if self.readout == "last" else mean_real(X, real))


def mean_real(X: Float[Tensor, "b n e"], real: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b e"]:
    if real is None:
        return X.mean(1)
    share = real.to(X.dtype) / real.sum(1, keepdim=True)
    return torch.einsum("bn,bne->be", share, X)


def last_real(X: Float[Tensor, "b n e"], real: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b e"]:
    if real is None:
        return X[:, -1]
    return X[torch.arange(len(X), device=X.device), real.sum(1) - 1]


@dataclass(frozen=True, kw_only=True)
class LongRangeSettings:
    """How each cell is trained and tested.

    steps, minutes   where training ends, whichever comes first
    length, batch_size    tokens of a sequence and sequences of a step, at full length
    first            tokens of the first sequences
    held_out         sequences of the test
    """

    steps: int = 600
    minutes: float | None = None
    length: int = 512
    batch_size: int = 16
    learning_rate: float = 2e-3
    held_out: int = 1024
    first: int = FIRST_LENGTH

    def __post_init__(self) -> None:
        for name in ("steps", "length", "batch_size", "learning_rate", "held_out", "minutes"):
            if (value := getattr(self, name)) is not None:
                number(name, value, 0, above=True)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The result of one mechanism on one task.

    accuracy, low, high   on held-out sequences, with a 95 % interval over sequences
    seconds               of all steps, including the generation of their batches
    seconds_per_step      median over the steps at full length, without that generation; None without such steps
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
class CellProgress:
    """A step of a cell: its number, the share of the cell that is done (0 to 1), its length and its loss."""

    task: str
    mechanism: str
    seed: int
    step: int
    done: float
    length: int
    loss: float


def new_classifier(task: LongRangeTask, mechanism: str, seed: int) -> Classifier:
    """A new model. With one task and seed all mechanisms start from the same weights, wherever their shapes agree."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        common, model = (Classifier(_config(task, name), task.classes, task.readout) for name in ("dense", mechanism))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    shared = {name: tensor for name, tensor in common.state_dict().items() if shapes.get(name) == tensor.shape}
    model.load_state_dict(shared, strict=False)
    return model


def _config(task: LongRangeTask, mechanism: str) -> TransformerConfig:
    d_head = D_MODEL // HEADS
    return TransformerConfig(
        vocabulary=task.vocabulary,
        d_e=D_MODEL,
        d_ff=D_HIDDEN,
        attention=AttentionConfig(heads=HEADS, d_k=d_head, d_v=d_head, mechanism=mechanism),
        encoder_layers=LAYERS,
        decoder_layers=0,
        norm="pre",
        tie="target",
        dropout=0.0,
    )


def training_lengths(task: LongRangeTask, settings: LongRangeSettings) -> list[int]:
    """The lengths of sequences in training, which double up to the full one.

    At full length the first gradients are sums over very many positions that do not matter, and a model learns little
    in minutes. On short sequences the same model learns the task at once, and still solves it as they get longer.
    """
    lengths = [max(settings.first, task.min_length)]
    while lengths[-1] < settings.length:
        lengths.append(2 * lengths[-1])
    return [*lengths[:-1], settings.length]


class _CellTraining(NamedTuple):
    """The last loss, steps and seconds of a training, and the seconds of each step at full length."""

    loss: float
    steps: int
    seconds: float
    full_length_seconds: list[float]


def train_cell_model(
    model: Classifier,
    task_name: str,
    mechanism: str,
    seed: int,
    settings: LongRangeSettings,
    tell: Callable[[CellProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> _CellTraining | None:
    """Train with Adam on sequences of increasing length; None if `should_stop` ended it early."""
    task = TASKS[task_name]
    fit = Fit(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), betas=(0.9, 0.98)),
        learning_rate=schedule("cosine", settings.learning_rate, settings.steps // 12, settings.steps),
        remedy="leave it out, or lower --learning-rate",
    )
    lengths = training_lengths(task, settings)
    all_tokens = sum(_tokens(settings, _length_at(lengths, step / settings.steps)) for step in range(settings.steps))
    limit = math.inf if settings.minutes is None else 60 * settings.minutes
    full_length_seconds: list[float] = []
    step, seconds, tokens, loss = 0, 0.0, 0, math.nan
    while step < settings.steps and seconds < limit:
        if should_stop():
            return None
        began = time.perf_counter()
        progress = max(step / settings.steps, seconds / limit)
        length = _length_at(lengths, progress)
        batch = _batch(task, seed, step, settings, length)
        drawn = time.perf_counter()
        name = f"step {step + 1} of {mechanism} on {task_name}"
        loss = fit.step(round(progress * settings.steps), [partial(_loss, model, batch)], name=name).loss
        ended = time.perf_counter()
        if length == settings.length:
            full_length_seconds.append(ended - drawn)
        step, seconds, tokens = step + 1, seconds + ended - began, tokens + _tokens(settings, length)
        done = min(1.0, max(tokens / all_tokens, seconds / limit))
        tell(CellProgress(task_name, mechanism, seed, step, done, length, loss))
    return _CellTraining(loss, step, seconds, full_length_seconds)


def train_cell(
    task_name: str,
    mechanism: str,
    seed: int,
    settings: LongRangeSettings,
    tell: Callable[[CellProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Cell | None:
    """Train and test a cell; None if `should_stop` ended it early. Batches depend on task, seed and step alone."""
    task = TASKS[task_name]
    model = new_classifier(task, mechanism, seed)
    step_bytes = peak_bytes(lambda: _loss(model, _batch(task, seed, 0, settings, settings.length)).backward())
    training = train_cell_model(model, task_name, mechanism, seed, settings, tell, should_stop)
    if training is None:
        return None
    right = count_correct(model, task, seed, settings)
    low, high = wilson(right, settings.held_out)
    return Cell(
        task=task_name,
        mechanism=mechanism,
        seed=seed,
        accuracy=right / settings.held_out,
        low=low,
        high=high,
        chance=1 / task.classes,
        loss=training.loss,
        steps=training.steps,
        seconds=training.seconds,
        seconds_per_step=median(training.full_length_seconds) if training.full_length_seconds else None,
        step_bytes=step_bytes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def wilson(right: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    p, z = right / of, NormalDist().inv_cdf(0.975)
    centre, spread = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + (z / (2 * of)) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / of) for sign in (-1, 1))
    return max(0.0, min(low, p)), min(1.0, max(high, p))


def _length_at(lengths: list[int], done: float) -> int:
    """The length when this share of training is done: the same number of steps for each short length, then the full."""
    return lengths[min(len(lengths) - 1, int(done / SHORT_LENGTHS_SHARE * (len(lengths) - 1)))]


def _size(settings: LongRangeSettings, length: int) -> int:
    """The number of sequences of a batch: as many tokens as at full length, but at most MAX_SEQUENCES."""
    return max(settings.batch_size, min(MAX_SEQUENCES, settings.batch_size * settings.length // length))


def _tokens(settings: LongRangeSettings, length: int) -> int:
    return _size(settings, length) * length


def _batch(task: LongRangeTask, seed: int, step: int, settings: LongRangeSettings, length: int) -> TaskBatch:
    return task.batch(seed, step, size=_size(settings, length), length=length)


def _loss(model: Classifier, batch: TaskBatch) -> torch.Tensor:
    return F.cross_entropy(model(batch.tokens, batch.real), batch.labels)


@torch.no_grad()
def count_correct(model: Classifier, task: LongRangeTask, seed: int, settings: LongRangeSettings) -> int:
    """The number of correct answers on the test sequences of the seed."""
    right, seen, step = 0, 0, 0
    while seen < settings.held_out:
        size = min(settings.batch_size, settings.held_out - seen)
        batch = task.batch(seed, step, split="test", size=size, length=settings.length)
        right += int((model(batch.tokens, batch.real).argmax(-1) == batch.labels).sum())
        seen, step = seen + size, step + 1
    return right


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes of CPU tensors that `run` allocates at once.

    torch's profiler logs every block that its allocator gives out or takes back, also inside kernels; the highest
    running sum is the peak. Unlike the resident size of the process, it does not depend on what malloc caches or on
    what ran before, so that cells repeat exactly. Memory that libraries take from elsewhere does not count here;
    `attention/benchmark/memory.py` counts it, but needs a process for each run and counts in pages.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes to standard error
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        run()
    with tempfile.TemporaryDirectory() as folder:
        log.export_chrome_trace(str(Path(folder) / "trace.json"))
        events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
    return running_peak((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")


def running_peak(changes: Iterable[tuple[float, int]]) -> int:
    """The highest running sum of (moment, bytes); entries of one moment count in their logged order."""
    return max(accumulate((size for _, size in sorted(changes, key=itemgetter(0))), initial=0))
