"""`grammar` or `grammar:SEED`: English-Italian pairs from a parallel grammar, with gold structure; needs no file.

Without SEED the corpus is drawn by the seed of the run.

Every pair is drawn from (seed, split, index) with a random stream of its own, so that `pairs(n)` is a prefix of
`pairs(n + k)` and any seed gives an infinite stream. The Italian text is a function of the English text. Splits are
disjoint across all seeds, by lemma combination (see `attnworks.text.grammar.plans`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import count, islice
from random import Random

from attnworks.core.checks import choice, integer
from attnworks.core.errors import UsageError
from attnworks.text.corpora import CORPORA, Corpus, CorpusLimits
from attnworks.text.grammar.plans import SPLITS, SentencePlan
from attnworks.text.grammar.sentences import render
from attnworks.text.grammar.texts import TextDrawer
from attnworks.text.passages import Passage, ReadReport

TRAINING_PAIRS = 30_000
HELD_OUT_PAIRS = 1_000


def texts(seed: int, split: str = "train") -> Iterator[tuple[SentencePlan, ...]]:
    """The endless stream of plans of texts of a seed and a split."""
    choice("split of the grammar corpus", split, SPLITS)
    return _texts(seed, split)


def _texts(seed: int, split: str) -> Iterator[tuple[SentencePlan, ...]]:
    random = Random()
    drawer = TextDrawer(random, split)
    stream = int.from_bytes(blake2b(f"{seed}/{split}".encode(), digest_size=16).digest(), "big")
    for index in count(stream):
        random.seed(index)
        yield drawer.text()


def generate(seed: int, split: str = "train") -> Iterator[Passage]:
    """The endless stream of pairs of a seed and a split (`train`, `valid` or `test`)."""
    return (render(*text) for text in texts(seed, split))


def pairs(n: int, seed: int = 0, split: str = "train") -> list[Passage]:
    """The first n pairs of a seed and a split."""
    integer("the number of pairs", n, 0)
    was_enabled = gc.isenabled()
    gc.disable()  # the cycle collector would search all pairs again and again, and they hold no cycles
    try:
        return list(islice(generate(seed, split), n))
    finally:
        if was_enabled:
            gc.enable()


@CORPORA.register("grammar")
def _grammar(argument: str, limits: CorpusLimits) -> Corpus:
    """30,000 training pairs unless limited, 1,000 for validation and 1,000 for test."""
    try:
        seed = int(argument) if argument else limits.seed
    except ValueError:
        asked = f"corpus 'grammar:{argument}'"
        raise UsageError(asked, "grammar or grammar:SEED", repr(argument), "write for example grammar:7") from None
    train = pairs(TRAINING_PAIRS if limits.pairs is None else limits.pairs, seed, "train")
    valid, test = (list(_held_out(HELD_OUT_PAIRS, seed, split)) for split in ("valid", "test"))
    return Corpus(train, valid, test, ReadReport(len(train) + len(valid) + len(test)))


@lru_cache(maxsize=8)
def _held_out(number: int, seed: int, split: str) -> tuple[Passage, ...]:
    """Cached: drawing 1,000 pairs of a small split takes about a second, and a corpus is often opened again."""
    return tuple(pairs(number, seed, split))


def grammar_passages(n: int) -> list[Passage]:
    """The default text: the first n test pairs of the grammar, English as source and Italian as target."""
    return pairs(integer("passages", n, 1), 0, "test")
