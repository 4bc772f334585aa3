"""Everything that decides how a run goes, in one frozen record that the run folder keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attnworks.core.errors import UsageError
from attnworks.text.vocabulary import VocabularyKind
from attnworks.training.loop import ScheduleKind


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train.

    preset              which model; its vocabulary sizes come from the corpus
    corpus, pairs       where sentences come from, and at most how many pairs to train on
    mechanism           attention for every layer where it is defined, instead of the preset's own
    vocabulary          words or byte pairs, at most `vocabulary_size` kinds a side
    batch_tokens        largest padded side of a batch; `accumulate` batches make one step
    epochs, steps, minutes    where to stop, whichever comes first
    validate_every      steps between validations, each of which leaves a checkpoint
    keep_every          steps between checkpoints that are never deleted
    patience            stop after this many validations without a better loss
    grow_until          widths to grow to, where growing pays: d_k=64, d_v=32, heads=8, comma-separated
    grow_every          steps between growths
    grow_by             widths to add each time in all; an eighth of what is missing at the start if None
    score_sentences     held-out sentences to translate for BLEU and chrF at each validation
    """

    preset: str
    corpus: str = "grammar"
    pairs: int | None = None
    mechanism: str | None = None
    vocabulary: VocabularyKind = "word"
    vocabulary_size: int = 32_000
    batch_tokens: int = 640
    accumulate: int = 1
    learning_rate: float = 7e-4
    schedule: ScheduleKind = "warmup"
    warmup: int = 300
    smoothing: float = 0.1
    dropout: float = 0.1
    clip: float = 1.0
    epochs: float | None = None
    steps: int | None = None
    minutes: float | None = None
    validate_every: int = 500
    keep_every: int | None = None
    patience: int | None = None
    score_sentences: int = 200
    grow_until: str | None = None
    grow_every: int = 500
    grow_by: int | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "accumulate", "validate_every", "grow_every"):
            _at_least(name, getattr(self, name), 1)
        _at_least("score_sentences", self.score_sentences, 0)
        for name in ("pairs", "steps", "keep_every", "patience", "threads", "grow_by"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("learning_rate", "clip", "epochs", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise _wrong(name, value, "a value above 0")
        if self.epochs == math.inf:
            raise _wrong("epochs", self.epochs, "a finite number")
        if not 0 <= self.seed < 2**63:
            raise _wrong("seed", self.seed, "a whole number from 0 up to, not including, 2^63")
        for name in ("smoothing", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "a value from 0 up to, not including, 1")
        self.goals()
        if self.schedule == "cosine" and self.epochs is None and self.steps is None:
            raise UsageError(
                asked="the cosine schedule",
                expected="epochs or steps, where it is to end",
                got="neither",
                remedy="set epochs or steps (minutes may be given too), or use the warmup schedule",
            )
        if self.epochs is None and self.steps is None and self.minutes is None:
            raise _wrong("epochs", "nothing", "epochs, steps or minutes: some place to stop")

    def goals(self) -> dict[str, int]:
        """d_k, d_v and heads to grow to, of those that are to grow."""
        goals: dict[str, int] = {}
        for part in self.grow_until.split(",") if self.grow_until is not None else ():
            name, _, number = part.strip().partition("=")
            if name not in ("d_k", "d_v", "heads") or not number.isdecimal() or not int(number):
                raise _wrong("grow_until", self.grow_until, "widths such as d_k=64, or d_k=64,d_v=32,heads=8")
            goals[name] = int(number)
        return goals


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise _wrong(name, value, f"at least {least}")


def _wrong(name: str, value: object, expected: str) -> UsageError:
    return UsageError(asked=f"training with {name}={value}", expected=expected, got=str(value), remedy=f"set {name}")
