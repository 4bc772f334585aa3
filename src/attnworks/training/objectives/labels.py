"""Cross-entropy of the classes that whole sentences are known to belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.tokens import TextBatch
from attnworks.training.objectives.contract import TEXT_OBJECTIVES, Outputs, TextObjective
from attnworks.training.objectives.language import scores_of

NAMED = 6
LARGEST_LABELS = 2**30
"""Bytes that are read of a file of labels."""
"""Names of classes that an error lists."""


@TEXT_OBJECTIVES.register("labels")
class ClassLabels(TextObjective):
    """L = -log softmax(scores)[label] of each sentence; labels[r] is the class of sentence r of the corpus."""

    name = "labels"
    words = "how surprised the model is by the known class of each sentence"

    def __init__(self, labels: Sequence[int]) -> None:
        self.labels = torch.tensor(labels, dtype=torch.int64)

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        scores = scores_of(outputs)
        wide = torch.promote_types(scores.dtype, torch.float32)
        gold = self.labels[rows.cpu()].to(scores.device)
        return F.cross_entropy(scores.to(wide), gold, reduction="none")


def read_labels(
    path: str | Path, classes: int, names: Mapping[int, str] | None = None, sentences: int | None = None
) -> list[int]:
    """One label per line: a name of `names` (class -> name) or, if it is none, the number of a class.

    sentences    how many lines there have to be
    """
    numbers = {name: number for number, name in (names or {}).items()}
    lines = _lines(Path(path))
    if sentences is not None and len(lines) != sentences:
        raise UsageError(
            asked=f"labels from {path}",
            expected=f"{sentences:,}, one line per sentence",
            got=f"{len(lines):,} lines",
            remedy="give the file that belongs to this text",
        )
    labels = []
    for line, text in enumerate(lines, 1):
        label = numbers.get(text, int(text) if text.isascii() and text.isdigit() else -1)
        if not 0 <= label < classes:
            listed = ", ".join(list(numbers)[:NAMED]) + (", ..." if len(numbers) > NAMED else "")
            raise UsageError(
                asked=f"label in line {line} of {path}",
                expected=f"a number from 0 to {classes - 1}" + (f" or one of {listed}" if numbers else ""),
                got=repr(text),
                remedy="correct the line, or examine the model that these labels are for",
            )
        labels.append(label)
    return labels


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_LABELS).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(
            asked=f"labels from {path}",
            expected="a text file in UTF-8",
            got="other bytes" if isinstance(failure, UnicodeDecodeError) else failure.strerror or "nothing readable",
            remedy="give the path of a file with one label per line, as in labels:FILE",
        ) from None
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []
