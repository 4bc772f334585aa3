"""The recipe of a run: all its settings, which the run folder keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from attnworks.core.checks import integer, number
from attnworks.core.errors import UsageError
from attnworks.text.vocabulary import VocabularyKind
from attnworks.training.fit import ScheduleKind

PRESET_SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {"learning_rate": 4e-3},
    "small": {"learning_rate": 2e-3, "vocabulary": "bpe", "vocabulary_size": 8_000, "batch_tokens": 1_500},
    "base": {"vocabulary": "bpe", "vocabulary_size": 37_000, "batch_tokens": 2_500, "warmup": 4_000},
}
"""Preset -> its settings where they differ from the defaults of `Recipe`; docs/training.md has the measurements."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a run. `for_preset` has the defaults that suit a preset; those here are of no preset.

    preset              which model; its vocabulary sizes come from the corpus
    corpus, pairs       the corpus, and the largest number of pairs to train on
    valid, test         corpora of files that are held out as a whole, instead of a part of the corpus
    max_length          leave out training pairs with more tokens than this on one side; None leaves out none
    mechanism           attention of every layer that supports it, instead of that of the preset
    vocabulary          words or byte pairs, at most `vocabulary_size` different tokens for each side
    joint_vocabulary    one vocabulary, and one embedding, for both sides; None leaves it to the preset
    batch_tokens        padded tokens of a batch, on its larger side; `accumulate` batches make one step
    epochs, steps, minutes    when to stop, whichever comes first
    validate_every      steps between validations, each of which saves a checkpoint
    keep_every          steps between checkpoints that are never deleted
    average             at the end, average the weights of the last or best N validated checkpoints: last:N or best:N
    patience            stop after this many validations without a better loss
    grow_until          widths to grow to, where that lowers the loss: d_k=64, d_v=32, heads=8, comma-separated
    grow_every          steps between growths
    grow_by             widths to add in each growth; None adds an eighth of what is missing at the start
    score_sentences     held-out sentences to translate for BLEU and chrF at each validation
    """

    preset: str
    corpus: str = "grammar"
    pairs: int | None = None
    valid: str | None = None
    test: str | None = None
    max_length: int | None = None
    mechanism: str | None = None
    vocabulary: VocabularyKind = "word"
    vocabulary_size: int = 32_000
    joint_vocabulary: bool | None = None
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
    average: str | None = None
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
            integer(f"training with {name}", getattr(self, name), 1)
        integer("training with score_sentences", self.score_sentences, 0)
        for name in ("pairs", "steps", "keep_every", "patience", "threads", "grow_by", "max_length"):
            if getattr(self, name) is not None:
                integer(f"training with {name}", getattr(self, name), 1)
        for name in ("learning_rate", "clip", "epochs", "minutes"):
            value = getattr(self, name)
            if value is not None:
                number(f"training with {name}", value, 0, above=True)
        integer("training with seed", self.seed, 0, 2**63 - 1)
        for name in ("smoothing", "dropout"):
            number(f"training with {name}", getattr(self, name), 0, 1, below=True)
        self.goals()
        self.averaged()
        if self.schedule == "cosine" and self.epochs is None and self.steps is None:
            raise UsageError("the cosine schedule", "epochs or steps", "neither", "set one, or use schedule=warmup")
        if self.epochs is None and self.steps is None and self.minutes is None:
            raise UsageError("training without an end", "epochs, steps or minutes", "none of them", "set epochs")

    @classmethod
    def for_preset(cls, preset: str, **settings: Any) -> Recipe:
        """The settings that are not given are those of PRESET_SETTINGS."""
        return cls(preset=preset, **(PRESET_SETTINGS.get(preset, {}) | settings))

    def averaged(self) -> tuple[str, int] | None:
        """Which checkpoints to average, "last" or "best", and how many."""
        if self.average is None:
            return None
        which, _, count = self.average.partition(":")
        if which not in ("last", "best") or not count.isdecimal() or int(count) < 2:
            asked, expected = f"training with average={self.average}", "last:N or best:N, N from 2"
            raise UsageError(asked, expected, repr(self.average), "write for instance last:5")
        return which, int(count)

    def goals(self) -> dict[str, int]:
        """The widths to grow to, by their names: some of d_k, d_v and heads."""
        goals: dict[str, int] = {}
        for part in self.grow_until.split(",") if self.grow_until is not None else ():
            name, _, number = part.strip().partition("=")
            if name not in ("d_k", "d_v", "heads") or not number.isdecimal() or not int(number):
                asked, expected = f"training with grow_until={self.grow_until}", "widths such as d_k=64,d_v=32,heads=8"
                raise UsageError(asked, expected, repr(part), "set grow_until")
            goals[name] = int(number)
        return goals
