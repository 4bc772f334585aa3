"""Events of a training run, and metrics.jsonl: one line per step, validation and growth."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from attnworks.core.folders import disk_errors, free_name, read_file, write_file

METRICS = "metrics.jsonl"
LARGEST_METRICS = 2**34


@dataclass(frozen=True)
class StepDone:
    """One optimiser step: its number (from 1), mean loss per target token, rate, tokens of both sides, seconds."""

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
class Saved:
    """A checkpoint is on disk."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Grown:
    """The model grew after a step, or did not.

    done      where -> what, in words
    fall      by how much the loss should fall
    reason    why it did not grow, in words
    left_out  where -> why nothing grew there, for places that were considered
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
    """Something about the run folder that its user should know, at the step from which training continues."""

    step: int
    text: str


Event = StepDone | Validated | Saved | Grown | Remark


@runtime_checkable
class Watcher(Protocol):
    def __call__(self, event: Event, /) -> None: ...


class Metrics:
    """Appends what happens. Lines of steps after `after`, which will be done again, are dropped first.

    Lines that cannot be read are first copied to a file beside it, so that none is lost; `remark` says so.
    """

    def __init__(self, run: Path, after: int) -> None:
        self.path, self.remark = run / METRICS, None
        lines, damaged = read_lines(self.path)
        if damaged:
            aside = free_name(self.path)
            write_file(aside, b"".join(line + b"\n" for line in damaged))
            number = f"{len(damaged)} damaged line{'s' * (len(damaged) > 1)}"
            self.remark = f"{number} of {METRICS}: moved to {aside.name}; all others were kept"
        write_file(self.path, b"".join(_line(line) for line in lines if line["step"] <= after))

    def __call__(self, event: Event) -> None:
        if isinstance(event, Saved | Remark):
            return
        kind = {Validated: "validation", Grown: "growth"}.get(type(event), "training")
        with disk_errors(f"write {self.path}", remedy="free space, then resume"), self.path.open("ab") as file:
            file.write(_line({"kind": kind, **asdict(event)}))


def read_lines(path: Path) -> tuple[list[dict], list[bytes]]:
    """All lines that can be read, and those that cannot; the half line that a crash leaves at the end is neither."""
    if not os.path.lexists(path):
        return [], []
    lines, damaged = [], []
    texts = read_file(path, LARGEST_METRICS).split(b"\n")
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
