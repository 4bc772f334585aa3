"""The embedded corpus `grammar`: English-Italian pairs from a parallel grammar, with gold structure.

Every pair is drawn from (seed, split, index) with a random stream of its own, so that `pairs(n)` is a prefix of
`pairs(n + k)` and any seed gives an infinite stream. The Italian text is a function of the English text. Splits are
disjoint across all seeds, by lemma combination (see `attnworks.text.grammar.plans`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count, islice
from random import Random

from attnworks.core.errors import UsageError
from attnworks.text.grammar.plans import SPLITS, Sentence
from attnworks.text.grammar.sentences import render
from attnworks.text.grammar.texts import TextDrawer
from attnworks.text.pair import Pair

__all__ = ["SPLITS", "generate", "pairs", "texts"]


def texts(seed: int, split: str = "train") -> Iterator[tuple[Sentence, ...]]:
    """The endless stream of texts of a seed and a split, before they are put into words."""
    if split not in SPLITS:
        raise UsageError(
            asked="a split of the grammar corpus",
            expected=f"one of {', '.join(SPLITS)}",
            got=repr(split),
            remedy="choose one of these splits",
        )
    return _texts(seed, split)


def _texts(seed: int, split: str) -> Iterator[tuple[Sentence, ...]]:
    random = Random()
    drawer = TextDrawer(random, split)
    stream = int.from_bytes(blake2b(f"{seed}/{split}".encode(), digest_size=16).digest(), "big")
    for index in count(stream):
        random.seed(index)
        yield drawer.text()


def generate(seed: int, split: str = "train") -> Iterator[Pair]:
    """The endless stream of pairs of a seed and a split (`train`, `valid` or `test`)."""
    return (render(*text) for text in texts(seed, split))


def pairs(n: int, seed: int = 0, split: str = "train") -> list[Pair]:
    """The first n pairs of a seed and a split."""
    if n < 0:
        raise UsageError(
            asked="the number of pairs", expected="zero or more", got=str(n), remedy="ask for zero or more pairs"
        )
    with _collector_at_rest():
        return list(islice(generate(seed, split), n))


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Keeps the cycle collector from walking again and again over pairs, which hold no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
