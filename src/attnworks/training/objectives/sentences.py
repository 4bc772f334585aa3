"""Objectives of whole sentences: distance of embeddings, cross-entropy of known classes, a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.tokens import Batch
from attnworks.training.objectives.contract import OBJECTIVES, Choices, Objective, Outputs
from attnworks.training.objectives.language import logits_of

CLASSES_NAMED = 6
"""Names of classes that the message of an error lists."""
MAX_LABELS_BYTES = 2**30

LossFunction = Callable[[Outputs, Batch], Tensor]


@OBJECTIVES.register("embedding")
class SentenceEmbedding(Objective):
    """losses: <u, e>;   distance: 1 - cos(e, e_whole);   e = m / |m|, m = mean of `hidden` over real tokens.

    u is a unit vector drawn for each sentence from the seed and the number of the sentence in the corpus.
    The distance to the model's own embedding is smallest at the model itself, where its gradient vanishes. The gradient
    of <u, e> does not: over all u of d coordinates, |d<u, e>/dg| averages to |de/dg| Gamma(d/2) / (sqrt(pi)
    Gamma((d + 1)/2)), which is near sqrt(2 / (pi d)) |de/dg|. Its values and its sign alone have no meaning.
    Source: mean pooling and cosine of Reimers and Gurevych 2019, which has no u.
    Departs: the distance to an embedding of zeros is 1, between two of them 0.
    """

    name = "embedding"
    description = "how far the sentence embedding turns"
    reads_logits = False
    relative = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        e = embeddings(outputs, batch)
        return (e * self.directions(rows, e.shape[-1]).to(e)).sum(-1)

    def target(self, whole: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, "b e"]:
        """e_whole."""
        return embeddings(whole, batch)

    def distance(
        self, outputs: Outputs, target: Float[Tensor, "b e"], batch: Batch, rows: Tensor
    ) -> Float[Tensor, " b"]:
        return turned(embeddings(outputs, batch), target)

    def directions(self, rows: Int[Tensor, " b"], width: int) -> Float[Tensor, "b e"]:
        """u of these sentences, in float64."""
        drawn = [np.random.default_rng([self.seed, row]).standard_normal(width) for row in rows.tolist()]
        return F.normalize(torch.from_numpy(np.stack(drawn)), dim=-1)


def embeddings(outputs: Outputs, batch: Batch) -> Float[Tensor, "b e"]:
    """The mean of `hidden` over the real tokens of the side that is read last, normalised, at least in float32."""
    real = batch.sides("decoder")[0].real.unsqueeze(-1)
    wide = torch.promote_types(outputs.hidden.dtype, torch.float32)
    total = outputs.hidden.to(wide).masked_fill(~real, 0.0).sum(-2)
    return F.normalize(total / real.sum(-2).clamp_min(1), dim=-1, eps=torch.finfo(wide).tiny)


def turned(e: Float[Tensor, "b e"], e_whole: Float[Tensor, "b e"]) -> Float[Tensor, " b"]:
    """1 - cos of embeddings as |e - e_whole|^2 / 2, which keeps its digits where a head changes little."""
    pointing = e.detach().any(-1).long() + e_whole.detach().any(-1)
    return (e - e_whole).square().sum(-1) / pointing.clamp_min(1)


@OBJECTIVES.register("labels")
class ClassLabels(Objective):
    """L = -log softmax(logits)[label] of each sentence; labels[r] is the class of sentence r of the corpus."""

    name = "labels"
    description = "how surprised the model is by the known class of each sentence"
    chooses = True
    of_whole_texts = True

    def __init__(self, labels: Sequence[int]) -> None:
        self.labels = torch.tensor(labels, dtype=torch.int64)

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        choices = self.choices(outputs, batch, rows)
        wide = torch.promote_types(choices.logits.dtype, torch.float32)
        return F.cross_entropy(choices.logits[:, 0].to(wide), choices.gold[:, 0], reduction="none")

    def choices(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Choices:
        """One choice for each sentence."""
        logits = logits_of(outputs).unsqueeze(1)  # [b 1 classes]
        gold = self.labels[rows.cpu()].to(logits.device).unsqueeze(-1)
        return Choices(logits, gold, torch.ones_like(gold, dtype=torch.bool))


def read_labels(
    path: str | Path, classes: int, names: Mapping[int, str] | None = None, sentences: int | None = None
) -> list[int]:
    """One label per line: a name of `names` (class -> name) or, if it is none, the number of a class.

    sentences    how many lines there have to be
    """
    numbers = {name: number for number, name in (names or {}).items()}
    lines = _lines(Path(path))
    if sentences is not None and len(lines) != sentences:
        expected = f"{sentences:,}, one per sentence"
        raise UsageError(f"labels from {path}", expected, f"{len(lines):,}", "give the labels of this text")
    labels = []
    for line, text in enumerate(lines, 1):
        label = numbers.get(text, int(text) if text.isascii() and text.isdigit() else -1)
        if not 0 <= label < classes:
            listed = ", ".join(list(numbers)[:CLASSES_NAMED]) + (", ..." if len(numbers) > CLASSES_NAMED else "")
            expected = f"a number from 0 to {classes - 1}" + (f" or one of {listed}" if numbers else "")
            remedy = "correct the line, or examine the model that these labels are for"
            raise UsageError(f"label in line {line} of {path}", expected, repr(text), remedy)
        labels.append(label)
    return labels


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_LABELS_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as failure:
        got = "other bytes" if isinstance(failure, UnicodeDecodeError) else failure.strerror or "nothing readable"
        remedy = "give the path of a file with one label per line, as in labels:FILE"
        raise UsageError(f"labels from {path}", "a text file in UTF-8", got, remedy) from None
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


class FunctionObjective(Objective):
    """The losses that a function of the user gives for (outputs, batch): one finite number per sentence."""

    name = "own"
    description = "a function of your own"

    def __init__(self, function: LossFunction) -> None:
        self.function = function
        self.asked = f"losses of {getattr(function, '__name__', type(function).__name__)}"

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        losses: Any = self.function(outputs, batch)
        is_tensor = isinstance(losses, Tensor)
        if not is_tensor or losses.shape != (len(batch),) or not losses.is_floating_point():
            got = f"shape {list(losses.shape)} of {losses.dtype}" if is_tensor else type(losses).__name__
            remedy = "average over the tokens of each sentence, not over sentences"
            raise self._refusal(f"a tensor of {len(batch)} floats, one per sentence", got, remedy)
        differentiable = outputs.hidden.requires_grad and torch.is_grad_enabled()
        if differentiable and not losses.requires_grad:
            raise self._refusal("losses that follow from the outputs", "a tensor without gradient", "do not detach it")
        if not bool(losses.isfinite().all()):
            first = int((~losses.isfinite()).long().argmax())
            got = f"{losses[first].item()} for sentence {int(rows[first])}"
            raise self._refusal("finite numbers", got, "leave out padding and logarithms of zero")
        return losses.to(torch.promote_types(losses.dtype, torch.float32))

    def _refusal(self, expected: str, got: str, remedy: str) -> UsageError:
        return UsageError(self.asked, expected, got, remedy)
