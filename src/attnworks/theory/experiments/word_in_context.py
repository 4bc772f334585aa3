"""A word moved by its context: attention over three words in the plane.

Source: the geometric picture of Conti 2024, section 3 (S4.121): a word c between a and b moves towards the one in its
sentence, further if W_q and W_k change the scores, and W_v moves the result. The document has no
numbers; those here are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.contract import Context
from attnworks.attention.dense import Dense
from attnworks.attention.mask import Mask
from attnworks.core.checks import number
from attnworks.theory.experiments import figures
from attnworks.theory.experiments.contract import ResultTable, TheoryExperiment
from attnworks.theory.experiments.figures import BLUE, GREY, ORANGE

_WORD = "bank"
_WORD_POINTS = {"river": (-1.0, 0.2), "money": (1.0, 0.2), _WORD: (0.1, 0.9)}
_SENTENCES = (("river", _WORD), ("money", _WORD), ("river", "money", _WORD))

_IDENTITY = ((1.0, 0.0), (0.0, 1.0))
_MIRROR = ((1.0, 0.0), (0.0, -1.0))
_TURN = ((0.9, 0.5), (-0.6, 1.0))

_SPACE_TITLES = {
    "no maps": "no maps",
    "W_q and W_k": "W_q and W_k: which tokens to attend to",
    "W_q, W_k and W_v": "W_v: what they add",
}


@dataclass(frozen=True)
class ContextRow:
    """Where attention moves the word in a sentence.

    weights    the attention weight of each word of the sentence
    values     where W_v puts the words: the corners of the hull that it cannot leave
    lands      sum of weights times values
    """

    space: str
    sentence: str
    weights: dict[str, float]
    values: dict[str, tuple[float, float]]
    lands: tuple[float, float]

    @property
    def moved(self) -> float:
        """The distance from where the word would be alone."""
        (x, y), (to_x, to_y) = self.values[_WORD], self.lands
        return ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5


@dataclass(frozen=True, kw_only=True)
class ContextExperiment(TheoryExperiment[ContextRow]):
    """sharpness multiplies the scores of the spaces that W_q and W_k deform."""

    sharpness: float = 4.0

    def __post_init__(self) -> None:
        number("sharpness", self.sharpness, 0.0, 1000.0)

    @property
    def spaces(self) -> dict[str, tuple[Float[Tensor, "2 2"], ...]]:
        """W_q, W_k and W_v, multiplied on the right.

        The mirror makes a key of the word unlike its own query, so that it attends to its neighbours.
        """
        plain, mirror, turn = (torch.tensor(W, dtype=torch.float64) for W in (_IDENTITY, _MIRROR, _TURN))
        return {
            "no maps": (plain, plain, plain),
            "W_q and W_k": (self.sharpness * plain, mirror, plain),
            "W_q, W_k and W_v": (self.sharpness * plain, mirror, turn),
        }

    def run(self) -> list[ContextRow]:
        """Every sentence in every space, by dense attention."""
        return [_row(space, sentence, *maps) for space, maps in self.spaces.items() for sentence in _SENTENCES]

    def tables(self, rows: Sequence[ContextRow]) -> list[ResultTable]:
        table = ResultTable(f"Where “{_WORD}” lands", "maps", "sentence", "weights", "from", "to", "distance", left=3)
        for row in rows:
            weights = ", ".join(f"{word} {weight:.2f}" for word, weight in row.weights.items())
            start = row.values[_WORD]
            table.add_row(row.space, row.sentence, weights, _point(start), _point(row.lands), f"{row.moved:.2f}")
        return [table]

    def sentences(self, rows: Sequence[ContextRow]) -> list[str]:
        apart_by_space: list[str] = []
        for space in dict.fromkeys(row.space for row in rows):
            one, other = [row for row in rows if row.space == space][:2]
            apart = ((one.lands[0] - other.lands[0]) ** 2 + (one.lands[1] - other.lands[1]) ** 2) ** 0.5
            apart_by_space.append(f"{space}: {apart:.2f}")
        return [f"How far apart two sentences take the same word, with {'; with '.join(apart_by_space)}."]

    def draw(self, rows: Sequence[ContextRow], folder: Path) -> None:
        """The words as points, the hull that the word cannot leave, and where each sentence takes it."""
        figure, (axes,) = figures.panels(1, len(_SPACE_TITLES), 4.6, 2.9, folder)
        for axis, (space, words) in zip(axes, _SPACE_TITLES.items(), strict=True):
            figures.title(axis, words)
            axis.set(xlim=(-1.65, 1.65), ylim=(-0.7, 1.2), aspect="equal", xticks=[], yticks=[])
            axis.grid(False)
            axis.spines[:].set_visible(False)
            _draw_space(axis, [row for row in rows if row.space == space])
        figures.note(axes[0], "it cannot leave this triangle", 0.0, 0.2, GREY, (0, 5), ha="center")
        figures.save_figure(figure, folder)


def _point(point: tuple[float, float]) -> str:
    return f"({point[0]:.2f}, {point[1]:.2f})"


def _row(space: str, words: tuple[str, ...], W_q: Tensor, W_k: Tensor, W_v: Tensor) -> ContextRow:
    X = torch.tensor([[[_WORD_POINTS[word] for word in words]]], dtype=torch.float64)
    attended = Dense().attend(X @ W_q, X @ W_k, X @ W_v, Mask(), Context(), weights=True)
    assert attended.P is not None
    at = words.index(_WORD)
    return ContextRow(
        space,
        " ".join(words),
        dict(zip(words, attended.P[0, 0, at].tolist(), strict=True)),
        {word: (x, y) for word, (x, y) in zip(words, (X @ W_v)[0, 0].tolist(), strict=True)},
        (attended.Y[0, 0, at, 0].item(), attended.Y[0, 0, at, 1].item()),
    )


_SENTENCE_COLOURS = (BLUE, ORANGE, "#555555")


def _draw_space(axis: Any, rows: Sequence[ContextRow]) -> None:
    points = {word: point for row in rows for word, point in row.values.items()}
    x, y = points[_WORD]
    middle = fmean(point[0] for point in points.values()), fmean(point[1] for point in points.values())
    axis.fill(*zip(*points.values(), strict=True), facecolor="#f2f2f2", edgecolor="#cccccc", linewidth=1.0, zorder=0)
    for word, point in points.items():
        axis.plot(*point, "o", color="#222222", markersize=6)
        _beside(axis, word, point, (point[0] - middle[0], point[1] - middle[1]), fontsize=10.5)
    for row, colour in zip(rows, _SENTENCE_COLOURS, strict=True):
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 5, "shrinkB": 0}
        axis.annotate("", row.lands, points[_WORD], arrowprops=arrow)
        taken = " + ".join(f"{weight:.0%} {word}" for word, weight in row.weights.items() if word != _WORD)
        if len(row.weights) == 2:
            along, down = row.lands[0] - x, row.lands[1] - y
            outwards = (-down, along) if along * (middle[1] - y) - down * (middle[0] - x) < 0 else (down, -along)
            _beside(axis, f"“{row.sentence}”\n{taken}", row.lands, outwards, fontsize=figures.SMALL_FONT, color=colour)
        else:
            words = f"“{row.sentence}”: {taken}"
            axis.annotate(
                words, (0.5, 0.0), xycoords="axes fraction", fontsize=figures.SMALL_FONT, color=colour, ha="center"
            )


def _beside(axis: Any, text: str, point: Any, direction: tuple[float, float], **style: Any) -> None:
    """Text some way from a point, in a direction."""
    x, y = (9 * part / (math.hypot(*direction) or 1.0) for part in direction)
    sideways = "center" if abs(x) < 4 else "left" if x > 0 else "right"
    upright = "center" if abs(y) < 4 else "bottom" if y > 0 else "top"
    axis.annotate(text, point, (x, y), textcoords="offset points", ha=sideways, va=upright, in_layout=False, **style)
