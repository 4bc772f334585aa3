"""An order of units, the least needed first, which is computed as far as it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from attnworks.reshape.surgery import PruneUnit

HALVES = slice(0, None, 2), slice(1, None, 2)
"""The two halves of the sentences, which are in the order of their lengths."""
CERTAIN_SHARE = 0.5
"""Two halves of the text that agree by less than this, from chance at 0 to the same heads at 1, are too small."""


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

    @property
    def warning(self) -> str:
        """That the text is too small, and what to do."""
        same, chance = (f"{100 * share:.0f} %" for share in (self.same, self.chance))
        found = f"two halves of it agree on {same} of the heads to cut, where {chance} is chance"
        return f"The calibration text is too small to rank heads: {found}. Give more text."


class Order:
    """Units in the order in which they are cut.

    coming     the units; they are computed while the order is read, and remembered
    halves     the order by each half of the sentences, where it is known: for rankings that are refined as units go,
               the order of the first round
    read_all   whether the ranking read all of the calibration text, so that more text would make it better
    """

    def __init__(
        self,
        coming: Iterable[PruneUnit],
        halves: tuple[Sequence[PruneUnit], Sequence[PruneUnit]] | None = None,
        *,
        read_all: bool = True,
    ) -> None:
        self._coming, self._known, self._halves = iter(coming), list[PruneUnit](), halves
        self._read_all = read_all

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

    def agreement(self, cut: int) -> Agreement | None:
        """How far the halves agree on the first `cut` units; None where there is nothing to choose, or no halves."""
        if self._halves is None or not 0 < cut < len(self._halves[0]):
            return None
        one, other = ({*half[:cut]} for half in self._halves)
        return Agreement(len(one & other) / cut, cut / len(self._halves[0]))

    def warnings(self, cut: int) -> tuple[str, ...]:
        """That the text is too small to choose `cut` units, if its halves disagree and all of it was read."""
        agreement = self.agreement(cut)
        return (agreement.warning,) if agreement is not None and not agreement.certain and self._read_all else ()
