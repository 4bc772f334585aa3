"""Byte-level text in two languages: is the end in the language of the title?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnworks.studies.tasks.contract import TASKS, LongRangeTask, Split, draw_lengths, padded
from attnworks.text.grammar import pairs

SENTENCES = {"train": 3000, "test": 500}
LINE_BREAK = b"\n"


@dataclass(frozen=True)
class ByteText(LongRangeTask):
    """A title in English or Italian and two paragraphs of sentences; label 1 if the second is mostly in its language.

    Sentences are those of the embedded grammar. Title and second paragraph draw their languages apart, so no letter
    speaks for either label: a linear classifier of bags of bytes stays at chance, one half. The first paragraph, up to
    the middle, mixes both languages evenly: title and end have to meet over at least a quarter of the text.

    dominance   chance of a sentence in the second paragraph to be in the language that shall dominate there

    Splits: sentences come from those of the grammar; and texts are even numbers of bytes in training, odd ones in test.
    """

    dominance: float = 0.9

    vocabulary = 256
    classes = 2
    readout = "mean"
    min_length = 32

    def draw(
        self, random: np.random.Generator, split: Split, size: int, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        end, amounts = _paragraph(
            random, languages, length - middle, self.dominance if dominant else 1 - self.dominance
        )
        return title + between + LINE_BREAK + end, int(titled == (amounts[1] > amounts[0]))


def _paragraph(
    random: np.random.Generator, languages: list[list[bytes]], length: int, italian: float
) -> tuple[bytes, list[int]]:
    """Sentences of exactly `length` bytes, the last one cut, and how many bytes are in English and in Italian."""
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
