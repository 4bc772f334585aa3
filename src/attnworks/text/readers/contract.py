"""What every reader promises, and the registry of corpora by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnworks.core.registry import Registry
from attnworks.text.pair import Pair
from attnworks.text.report import Report


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

CORPORA: Registry[Reader] = Registry("corpus")
