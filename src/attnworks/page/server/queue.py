"""One thread for all work, a short queue before it that refuses what would take too long, and recent results."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from attnworks.core.errors import AttnworksError

T = TypeVar("T")

PATIENCE = 0.7
"""Seconds that work may take from its arrival to its end, by what work like it took lately."""
MOST_OPEN = 64
"""Pieces of work, however quick."""
FORGETTING = 0.9
"""With every piece of work, the longest time of work of its kind fades by this factor."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BusyError(AttnworksError):
    """There is too much to do already."""


class Worker:
    """Does one thing after the other, those that came first before. Work that is cancelled in time is never begun."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attnworks")
        self._lock = threading.Lock()
        self._expected: dict[str, float] = {}
        self._open: dict[Future[Any], float] = {}
        self._stopped = False

    def offer(self, kind: str, work: Callable[[], T]) -> Future[T]:
        """The result to come, or BusyError at once; whoever comes when nothing is open is never sent away.

        Work of a kind that was never done is expected to take all the patience there is.
        """
        with self._lock:
            own = self._expected.get(kind, self.patience)
            count = len(self._open)
            if self._stopped or count >= MOST_OPEN or (count and sum(self._open.values()) + own > self.patience):
                raise BusyError(
                    asked="an answer",
                    expected="a server with time for it",
                    got="one that stops" if self._stopped else f"{count} question{'s' * (count != 1)} before this one",
                    remedy="ask again in a second",
                )
            future = self._thread.submit(self._timed, kind, work)
            self._open[future] = own
        future.add_done_callback(self._close)
        return future

    def stop(self) -> None:
        """Finish what runs, drop what waits, refuse what comes."""
        with self._lock:
            self._stopped = True
            waiting = list(self._open)
        for future in waiting:
            future.cancel()

    def close(self, seconds: float | None = None) -> bool:
        """The same, and wait for the end, at most this many seconds; False if something still runs then."""
        self.stop()
        with self._lock:
            running = list(self._open)
        self._thread.shutdown(wait=seconds is None)
        return not wait(running, seconds).not_done

    def _timed(self, kind: str, work: Callable[[], T]) -> T:
        """What is refused on the way is quick, and says nothing about the time that an answer takes."""
        began = time.perf_counter()
        done = work()
        taken = time.perf_counter() - began
        with self._lock:
            self._expected[kind] = max(taken, FORGETTING * self._expected.get(kind, 0.0))
        return done

    def _close(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.pop(future, None)


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
