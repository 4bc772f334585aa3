"""What was made lately, so that it need not be made again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The last few things that were asked for, by key.

    >>> squares = Recent(2)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 1, 3)], list(squares)
    ([1, 4, 1, 9], [1, 3])
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """What was made for this key, or else is made now."""
        if key not in self._kept:
            self.put(key, make())
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, key: K, value: V) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)

    def __iter__(self):
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
