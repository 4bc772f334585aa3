"""A word moved by its context: attention in the plane, where one can see it.

Source: the geometric story of Conti 2024, section 3 (S4.121): a word c between a and b moves towards the one it is
said with, further in a space that W_q and W_k have deformed for it, and W_v takes it elsewhere. The document has no
numbers; those here are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.contract import Context
from attnworks.attention.dense import Dense
from attnworks.attention.mask import Mask
from attnworks.models.config import within

WORD = "bank"
POINTS = {"river": (-1.0, 0.2), "money": (1.0, 0.2), WORD: (0.1, 0.9)}
SENTENCES = (("river", WORD), ("money", WORD), ("river", "money", WORD))

IDENTITY = ((1.0, 0.0), (0.0, 1.0))
MIRROR = ((1.0, 0.0), (0.0, -1.0))
TURN = ((0.9, 0.5), (-0.6, 1.0))


@dataclass(frozen=True, kw_only=True)
class Options:
    """sharpness multiplies the scores of the spaces that W_q and W_k deform."""

    sharpness: float = 4.0

    def __post_init__(self) -> None:
        within("sharpness", self.sharpness, 0.0, 1000.0)

    @property
    def spaces(self) -> dict[str, tuple[Float[Tensor, "2 2"], ...]]:
        """W_q, W_k and W_v, multiplied on the right.

        The mirror makes a key of the word unlike its own query, so that it looks at its neighbours.
        """
        plain, mirror, turn = (torch.tensor(W, dtype=torch.float64) for W in (IDENTITY, MIRROR, TURN))
        return {
            "no maps": (plain, plain, plain),
            "W_q and W_k": (self.sharpness * plain, mirror, plain),
            "W_q, W_k and W_v": (self.sharpness * plain, mirror, turn),
        }


@dataclass(frozen=True)
class Row:
    """What becomes of the word in a sentence.

    weights    how much of each word of the sentence it takes
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
        """How far it lands from where it would be alone."""
        (x, y), (to_x, to_y) = self.values[WORD], self.lands
        return ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5


def run(options: Options) -> list[Row]:
    """Every sentence in every space, by dense attention."""
    return [_row(space, sentence, *maps) for space, maps in options.spaces.items() for sentence in SENTENCES]


def _row(space: str, words: tuple[str, ...], W_q: Tensor, W_k: Tensor, W_v: Tensor) -> Row:
    X = torch.tensor([[[POINTS[word] for word in words]]], dtype=torch.float64)
    attended = Dense().attend(X @ W_q, X @ W_k, X @ W_v, Mask(), Context(), weights=True)
    assert attended.P is not None
    at = words.index(WORD)
    return Row(
        space,
        " ".join(words),
        dict(zip(words, attended.P[0, 0, at].tolist(), strict=True)),
        {word: (x, y) for word, (x, y) in zip(words, (X @ W_v)[0, 0].tolist(), strict=True)},
        (attended.Y[0, 0, at, 0].item(), attended.Y[0, 0, at, 1].item()),
    )
