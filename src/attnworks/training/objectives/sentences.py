"""One number per sentence: distance of embeddings, cross-entropy of known classes, or a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.tokens import TextBatch
from attnworks.training.objectives.contract import TEXT_OBJECTIVES, Outputs, TextObjective
from attnworks.training.objectives.language import scores_of

NAMED = 6
LARGEST_LABELS = 2**30
"""Bytes that are read of a file of labels."""
OwnFunction = Callable[[Outputs, TextBatch], Tensor]


@TEXT_OBJECTIVES.register("embedding")
class SentenceEmbedding(TextObjective):
    """losses: <u, e>;   distance: 1 - cos(e, e_whole);   e = m / |m|, m = mean of `hidden` over real tokens.

    u is a unit vector drawn for each sentence from the seed and the number of the sentence in the corpus.
    The distance to the model's own embedding is smallest at the model itself, where its gradient vanishes. The gradient
    of <u, e> does not: over all u of d coordinates, |d<u, e>/dg| averages to |de/dg| Gamma(d/2) / (sqrt(pi)
    Gamma((d + 1)/2)), which is near sqrt(2 / (pi d)) |de/dg|. Its values and its sign have no meaning of their own.
    Source: mean pooling and cosine of Reimers and Gurevych 2019; u is ours.
    Departs: the distance to an embedding of zeros is 1, between two of them 0.
    """

    name = "embedding"
    words = "how far the sentence embedding turns"
    reads_scores = False
    relative = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        e = embeddings(outputs, batch)
        return (e * self.directions(rows, e.shape[-1]).to(e)).sum(-1)

    def distance(self, outputs: Outputs, whole: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        """1 - cos as |e - e_whole|^2 / 2, which keeps its digits where a head changes little."""
        e, e_whole = embeddings(outputs, batch), embeddings(whole, batch)
        pointing = e.detach().any(-1).long() + e_whole.detach().any(-1)
        return (e - e_whole).square().sum(-1) / pointing.clamp_min(1)

    def directions(self, rows: Int[Tensor, " b"], width: int) -> Float[Tensor, "b e"]:
        """u of these sentences, in float64."""
        drawn = [np.random.default_rng([self.seed, row]).standard_normal(width) for row in rows.tolist()]
        return F.normalize(torch.from_numpy(np.stack(drawn)), dim=-1)


def embeddings(outputs: Outputs, batch: TextBatch) -> Float[Tensor, "b e"]:
    """The mean of `hidden` over the real tokens of the side that is read last, normalised, at least in float32."""
    real = batch.sides("decoder")[0].real.unsqueeze(-1)
    wide = torch.promote_types(outputs.hidden.dtype, torch.float32)
    total = outputs.hidden.to(wide).masked_fill(~real, 0.0).sum(-2)
    return F.normalize(total / real.sum(-2).clamp_min(1), dim=-1, eps=torch.finfo(wide).tiny)


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


class OwnCallable(TextObjective):
    """What function(outputs, batch) gives: one finite loss per sentence, to be small; all else is refused."""

    name = "own"
    words = "a function of your own"

    def __init__(self, function: OwnFunction) -> None:
        self.function = function
        self.asked = f"losses of {getattr(function, '__name__', type(function).__name__)}"

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        losses = self.function(outputs, batch)
        self._check_shape(losses, len(batch))
        differentiable = outputs.hidden.requires_grad and torch.is_grad_enabled()
        if differentiable and not losses.requires_grad:
            raise self._refusal("losses that follow from the outputs", "a tensor without gradient", "do not detach it")
        if not bool(losses.isfinite().all()):
            first = int((~losses.isfinite()).long().argmax())
            got = f"{losses[first].item()} for sentence {int(rows[first])}"
            raise self._refusal("finite numbers", got, "see that padding and logarithms of zero are left out")
        return losses.to(torch.promote_types(losses.dtype, torch.float32))

    def _check_shape(self, losses: object, number: int) -> None:
        expected = f"a tensor of {number} floats, one per sentence"
        remedy = "average over the tokens of each sentence, not over sentences"
        if not isinstance(losses, Tensor):
            raise self._refusal(expected, type(losses).__name__, remedy)
        if losses.shape != (number,) or not losses.is_floating_point():
            got = f"shape {list(losses.shape)} of {str(losses.dtype).removeprefix('torch.')}"
            raise self._refusal(expected, got, remedy)

    def _refusal(self, expected: str, got: str, remedy: str) -> UsageError:
        return UsageError(asked=self.asked, expected=expected, got=got, remedy=remedy)
