"""Byte-level text in two languages: is the end in the language of the title?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnworks.studies.tasks.contract import TASKS, Drawn, LongRangeTask, Split, draw_lengths, padded
from attnworks.text.grammar import pairs

SENTENCES = {"train": 3000, "test": 500}
LINE_BREAK = b"\n"


@dataclass(frozen=True)
class ByteText(LongRangeTask):
    """A title in English or Italian and two paragraphs of sentences; label 1 if the second is mostly in its language.

    Sentences are those of the embedded grammar. Title and second paragraph draw their languages independently, so that
    no letter is evidence for either label: a linear classifier of bags of bytes stays at chance, one half. The first
    paragraph ends in the middle and mixes both languages evenly, so that title and end are at least a quarter of the
    text apart.

    dominance   probability that a sentence of the second paragraph is in the dominant language of that paragraph

    Splits: sentences are of the same split of the grammar; texts have an even number of bytes in training, an odd one
    in test.
    """

    dominance: float = 0.9

    vocabulary = 256
    classes = 2
    readout = "mean"
    min_length = 32

    def draw(self, random: np.random.Generator, split: Split, size: int, length: int) -> Drawn:
        lengths = draw_lengths(random, split, size, length)
        drawn = [self._text(random, _languages(split), tokens) for tokens in lengths]
        rows = [np.frombuffer(text, dtype=np.uint8) for text, _ in drawn]
        return *padded(rows, length), np.array([label for _, label in drawn])

    def _text(self, random: np.random.Generator, languages: list[list[bytes]], length: int) -> tuple[bytes, int]:
        """Exactly `length` bytes, and their label; the title takes at most a quarter."""
        titled, dominant = random.integers(0, 2, 2).tolist()
        title = languages[titled][random.integers(len(languages[titled]))][: length // 4 - 1] + LINE_BREAK
        middle = length // 2
        between, _ = _paragraph(random, languages, middle - len(title) - 1, 0.5)
        italian = self.dominance if dominant else 1 - self.dominance
        end, amounts = _paragraph(random, languages, length - middle, italian)
        return title + between + LINE_BREAK + end, int(titled == (amounts[1] > amounts[0]))


def _paragraph(
    random: np.random.Generator, languages: list[list[bytes]], length: int, italian: float
) -> tuple[bytes, list[int]]:
    """Sentences of exactly `length` bytes, the last one cut, and the number of bytes in English and in Italian."""
    parts: list[bytes] = []
    amounts = [0, 0]
    while (left := length - sum(amounts)) > 0:
        language = int(random.random() < italian)
        parts.append(languages[language][random.integers(len(languages[language]))][:left])
        amounts[language] += len(parts[-1])
    return b"".join(parts), amounts


@lru_cache
def _languages(split: Split) -> list[list[bytes]]:
    """The same statements in English and in Italian."""
    drawn = (pair.words for pair in pairs(SENTENCES[split], split=split))
    return [[" ".join((*words, "")).encode() for words in side] for side in zip(*drawn, strict=True)]


TASKS.register("bytes")(ByteText())
