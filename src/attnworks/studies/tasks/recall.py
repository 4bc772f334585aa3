"""Associative recall: pairs of a key and a value among noise, and at the end a key; the label is its value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnworks.core.errors import UsageError
from attnworks.studies.tasks.contract import TASKS, Drawn, LongRangeTask, Split


@dataclass(frozen=True)
class Recall(LongRangeTask):
    """noise .. (k_3,v_9) .. noise .. (k_1,v_4) .. noise .. k_3 -> v_9.

    A pair is one token and the query another, so that one attention layer that reaches far enough can answer. (Key and
    value as two tokens would need two layers that work together. Small models do not learn that within minutes: with
    two pairs in eight tokens their accuracy is still at chance after 1500 steps.) All pairs have different keys and are
    in the first half, so that the answer is at least half the sequence away.

    keys, values    the number of different keys and values
    pairs           the number of pairs of a sequence; fewer in a short one, as many as fit
    noise           the number of different tokens in between

    Splits: token ids of a sequence sum to an even number in training and to an odd one in test.
    """

    keys: int = 16
    values: int = 16
    pairs: int = 8
    noise: int = 16

    readout = "last"
    min_length = 8

    def __post_init__(self) -> None:
        if min(self.keys, self.values, self.pairs) < 1 or self.noise < 2:
            expected = "at least one key, value and pair, and two kinds of noise"
            raise UsageError("a recall task", expected, str(self), "for instance Recall(noise=16)")
        object.__setattr__(self, "classes", self.values)
        object.__setattr__(self, "vocabulary", self.noise + self.keys + self.keys * self.values)

    def draw(self, random: np.random.Generator, split: Split, size: int, length: int) -> Drawn:
        half = length // 2
        pairs = min(self.pairs, self.keys, half)
        rows = np.arange(size)[:, None]
        tokens = random.integers(0, self.noise, (size, length))
        keys = random.random((size, self.keys)).argsort(1)[:, :pairs]
        values = random.integers(0, self.values, (size, pairs))
        places = random.random((size, half)).argsort(1)[:, :pairs]  # [size, pairs], as keys and values
        tokens[rows, places] = self.noise + self.keys + keys * self.values + values
        tokens[:, -1] = self.noise + keys[:, 0]
        wrong = tokens.sum(1) % 2 != (split == "test")  # these belong to the other split: change one noise token
        tokens[wrong, -2] = np.where(tokens[wrong, -2] == 0, 1, tokens[wrong, -2] - 1)
        return tokens, np.full(size, length), values[:, 0]


TASKS.register("recall")(Recall())
