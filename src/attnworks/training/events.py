"""What a training run tells those who watch it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable


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
