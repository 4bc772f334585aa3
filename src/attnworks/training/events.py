"""Events of a training run, and metrics.jsonl with one line per step, validation and growth."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from attnworks.core.display import counted
from attnworks.core.folders import disk_errors, free_name, read_file, write_file

METRICS_FILE = "metrics.jsonl"
MAX_METRICS_BYTES = 2**34


@dataclass(frozen=True)
class StepDone:
    """A step: its number from 1, mean loss per target token, learning rate, tokens of both sides, seconds."""

    step: int
    epoch: float
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Validated:
    """Held-out loss after a step, and translation scores if they could be computed."""

    step: int
    loss: float
    perplexity: float
    bleu: float | None
    chrf: float | None
    best: bool


@dataclass(frozen=True)
class Averaged:
    """The mean of the weights of these steps, its held-out loss, and whether that is below all others'."""

    step: int
    steps: list[int]
    loss: float
    best: bool


@dataclass(frozen=True)
class Tested:
    """The scores of the best weights on the user's own test pairs, at the end of a run."""

    step: int
    loss: float
    bleu: float | None
    chrf: float | None
    signature: str | None


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Grown:
    """An attempt of the model to grow after a step.

    done      layer or head -> what grew there
    fall      the predicted decrease of the loss
    reason    why the model did not grow; None if it did
    left_out  layer or head that was considered -> why nothing grew there
    """

    step: int
    done: dict[str, str]
    parameters: int
    fall: float = 0.0
    reason: str | None = None
    seconds: float = 0.0
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Remark:
    """A message about the run folder, at the step from which training continues."""

    step: int
    text: str


Event = StepDone | Validated | Averaged | Tested | Saved | Grown | Remark


Watcher = Callable[[Event], None]
KINDS = {
    StepDone: "training", Validated: "validation", Averaged: "average", Tested: "test", Grown: "growth"
}  # fmt: skip
"""Events that have lines in metrics.jsonl, and the kinds of these."""


class Metrics:
    """Appends events to metrics.jsonl. Lines of steps after `after`, which will be repeated, are dropped first.

    Lines that cannot be read are first copied to another file, so that none is lost; `remark` is a message about them.
    """

    def __init__(self, run: Path, after: int) -> None:
        self.path, self.remark = run / METRICS_FILE, None
        lines, damaged = read_metrics(self.path)
        if damaged:
            aside = free_name(self.path)
            write_file(aside, b"".join(line + b"\n" for line in damaged))
            number = counted(len(damaged), "damaged line")
            self.remark = f"{number} of {METRICS_FILE}: moved to {aside.name}; all others were kept"
        write_file(self.path, b"".join(_line(line) for line in lines if line["step"] <= after))

    def __call__(self, event: Event) -> None:
        if isinstance(event, Saved | Remark):
            return
        kind = KINDS[type(event)]
        with disk_errors(f"write {self.path}", remedy="free space, then resume"), self.path.open("ab") as file:
            file.write(_line({"kind": kind, **asdict(event)}))


def read_metrics(path: Path) -> tuple[list[dict], list[bytes]]:
    """The lines that can be read and those that cannot, without an incomplete last line, which a crash leaves."""
    if not os.path.lexists(path):
        return [], []
    lines, damaged = [], []
    texts = read_file(path, MAX_METRICS_BYTES).split(b"\n")
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict) and type(line.get("step")) is int:
            lines.append(line)
        elif text and number < len(texts):
            damaged.append(text)
    return lines, damaged


def _line(data: dict) -> bytes:
    return (json.dumps(data) + "\n").encode()
