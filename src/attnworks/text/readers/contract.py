"""What every reader promises, and the registry of corpora by name.

Splits by a stable hash of the source: about 90 % training, 5 % validation, 5 % test.

Distinct sources are sorted by a hash of seed and words. The first 5 % are for validation, the last 5 % for test (at
least one source each if there are three), up to 2,000 pairs each; everything else is for training. A source with
several translations goes to one split with all of them, so that no source ever occurs in two splits, and sentences that
are added to a corpus hardly move the others. Training pairs are shuffled by the seed: files are often sorted by length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from hashlib import blake2b
from itertools import chain
from random import Random
from typing import NamedTuple

from attnworks.core.registry import Registry
from attnworks.text.lines import Report, Tally
from attnworks.text.pair import Pair

CORPORA: Registry[Reader] = Registry("corpus")
MOST_HELD_OUT = 2_000
ONE_IN = 20
Source = tuple[str, ...]


class Bounds(NamedTuple):
    """How many training pairs are wanted at most (None: all there are), and the seed of splits and order."""

    pairs: int | None = None
    seed: int = 0


class Splits(NamedTuple):
    """What a reader returns. No source occurs in two splits."""

    train: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair]
    report: Report


Reader = Callable[[str, Bounds], Splits]
"""(what follows the colon of `name:argument`, bounds) -> splits. Raises one-line errors only."""


def split_by_source(unit: str = "line") -> Callable[[Callable[[str, Tally], Iterable[Pair]]], Reader]:
    """Make a reader of a function that yields pairs and counts, in units of lines, rows or entries, what it leaves."""

    def decorate(read: Callable[[str, Tally], Iterable[Pair]]) -> Reader:
        @wraps(read)
        def reader(argument: str, bounds: Bounds) -> Splits:
            tally = Tally(unit)
            train, valid, test = split(read(argument, tally), bounds.seed)
            return Splits(train[: bounds.pairs], valid, test, tally.report())

        return reader

    return decorate


def split(pairs: Iterable[Pair], seed: int = 0) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Training (shuffled), validation and test pairs."""
    translations: dict[Source, list[Pair]] = {}
    for pair in pairs:
        translations.setdefault(pair.source, []).append(pair)
    in_order = sorted(translations, key=lambda source: _hash(seed, source))
    quota = max(1, len(in_order) // ONE_IN) if len(in_order) >= 3 else 0
    valid = _hold_out(in_order[:quota], translations)
    test = _hold_out(in_order[::-1][:quota], translations)
    train = list(chain.from_iterable(translations[source] for source in in_order if source in translations))
    Random(seed).shuffle(train)
    return train, valid, test


def _hold_out(sources: Sequence[Source], translations: dict[Source, list[Pair]]) -> list[Pair]:
    """Take sources out of the translations; those that would pass the limit stay."""
    held: list[Pair] = []
    for source in sources:
        if len(held) + len(translations[source]) <= MOST_HELD_OUT:
            held += translations.pop(source)
    return held


def _hash(seed: int, source: Source) -> bytes:
    return blake2b(f"{seed}\0{' '.join(source)}".encode(), digest_size=8).digest()
