"""An order of units, the least needed first, which is computed as far as it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from attnworks.reshape.surgery import PruneUnit

HALVES = slice(0, None, 2), slice(1, None, 2)
"""The two halves of the sentences, which are in the order of their lengths."""
CERTAIN_SHARE = 0.5
"""Two halves of the text that agree by less than this, from chance at 0 to the same heads at 1, are too small."""
MIN_SENTENCES = 8
"""Fewer sentences are too few to rank by each half of them."""


class Agreement(NamedTuple):
    """How far two halves of the text would cut the same.

    same      share of the units that one half would cut which the other would cut too
    chance    the share that is expected of two random choices
    """

    same: float
    chance: float

    @property
    def above_chance(self) -> float:
        """(same - chance) / (1 - chance): 0 at chance, 1 if both halves cut the same units."""
        return (self.same - self.chance) / (1 - self.chance) if self.chance < 1 else 1.0

    @property
    def certain(self) -> bool:
        return self.above_chance >= CERTAIN_SHARE


class RankedText(NamedTuple):
    """How much text a ranking read.

    sentences    the number of sentences, passages or windows
    all_read     whether that is all of the calibration text, so that more text would make the ranking better
    """

    sentences: int
    all_read: bool


class Order:
    """Units in the order in which they are cut.

    coming     the units; they are computed while the order is read, and remembered
    by_half    the order by some of the sentences, for rankings that can be made by each half of them. For rankings that
               are refined as units go, it is the order of the first round
    text       the text that was ranked on; None for rankings that read none
    """

    def __init__(
        self,
        coming: Iterable[PruneUnit],
        by_half: Callable[[slice], Sequence[PruneUnit]] | None = None,
        text: RankedText | None = None,
    ) -> None:
        self._coming, self._known = iter(coming), list[PruneUnit]()
        self._by_half, self._text = by_half, text

    def __iter__(self) -> Iterator[PruneUnit]:
        place = 0
        while True:
            if place == len(self._known):
                following = next(self._coming, None)
                if following is None:
                    return
                self._known.append(following)
            yield self._known[place]
            place += 1

    @property
    def all_read(self) -> bool:
        """Whether the ranking read all of the calibration text, or none, so that there is no more to read."""
        return self._text is None or self._text.all_read

    def agreement(
        self, first: Callable[[Iterable[PruneUnit]], Collection[PruneUnit]], groups: Iterable[Collection[PruneUnit]]
    ) -> Agreement | None:
        """How far the halves agree on what goes; None where there is nothing to choose, or no halves.

        first     the units of an order that go
        groups    the units among which a choice is made: those of each layer, or all of them
        """
        if self._by_half is None or self._text is None or self._text.sentences < MIN_SENTENCES:
            return None
        one, other = ({*first(self._by_half(half))} for half in HALVES)
        sizes = [(len(one & {*group}), len(other & {*group}), len(group)) for group in groups]
        if not any(0 < cut < size for cut, _, size in sizes):
            return None
        most = max(len(one), len(other))
        return Agreement(len(one & other) / most, sum(cut * too / size for cut, too, size in sizes) / most)

    def warnings(self, agreement: Agreement | None) -> tuple[str, ...]:
        """That the calibration text is too small to rank heads, or that the ranking is uncertain."""
        if self._by_half is None or self._text is None:
            return ()
        if self._text.sentences < MIN_SENTENCES:
            read = f"two halves are compared from {MIN_SENTENCES} texts on, and {self._text.sentences} were read"
            return (f"The calibration text is too small to say how certain the ranking of heads is: {read}.",)
        if agreement is None or agreement.certain:
            return ()
        same, chance = (f"{100 * share:.0f} %" for share in agreement)
        halves = f"rankings by two halves of the text share {same} of the heads to cut, random rankings {chance}"
        if self.all_read:
            return (f"The calibration text is too small to rank heads: {halves}. Give more text.",)
        return (f"Which heads to cut is uncertain: {halves}.",)
