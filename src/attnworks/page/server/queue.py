"""One thread for all answers, with a short queue that refuses questions it could not answer in time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from attnworks.core.display import counted
from attnworks.core.errors import AttnworksError

_T = TypeVar("_T")

MAX_WAIT_SECONDS = 0.7
"""A question is refused if its answer is expected later than this."""
MAX_OPEN_QUESTIONS = 64
"""Questions in the queue, even if each is quick."""
TIME_DECAY = 0.9
"""Factor by which the expected time of a kind of question falls with every answer."""

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class BusyError(AttnworksError):
    """The queue is full."""


class Worker:
    """Answers questions one after the other, in their order. A waiting question that is cancelled is not begun."""

    def __init__(self, patience: float = MAX_WAIT_SECONDS) -> None:
        self.patience = patience
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attnworks")
        self._lock = threading.Lock()
        self._expected: dict[str, float] = {}
        self._open: dict[Future[Any], float] = {}
        self._stopped = False

    def submit(self, kind: str, work: Callable[[], _T]) -> Future[_T]:
        """The future result, or BusyError at once. A question to an idle worker is never refused.

        The first question of a kind is expected to take MAX_WAIT_SECONDS.
        """
        with self._lock:
            own, count = self._expected.get(kind, self.patience), len(self._open)
            too_long = count > 0 and sum(self._open.values()) + own > self.patience
            if self._stopped or count >= MAX_OPEN_QUESTIONS or too_long:
                got = "one that stops" if self._stopped else f"{counted(count, 'question')} before this one"
                raise BusyError("an answer", "a server with time for it", got, "ask again in a second")
            future = self._thread.submit(self._timed, kind, work)
            self._open[future] = own
        future.add_done_callback(self._close)
        return future

    def stop(self) -> None:
        """Finish the running question, cancel waiting ones and refuse new ones."""
        with self._lock:
            self._stopped = True
            waiting = list(self._open)
        for future in waiting:
            future.cancel()

    def close(self, seconds: float | None = None) -> bool:
        """`stop`, and wait at most this many seconds for the end; False if a question still runs then."""
        self.stop()
        with self._lock:
            running = list(self._open)
        self._thread.shutdown(wait=seconds is None)
        return not wait(running, seconds).not_done

    def _timed(self, kind: str, work: Callable[[], _T]) -> _T:
        """Time the work; work that raises an error is not counted, as errors are quick."""
        began = time.perf_counter()
        done = work()
        taken = time.perf_counter() - began
        with self._lock:
            self._expected[kind] = max(taken, TIME_DECAY * self._expected.get(kind, 0.0))
        return done

    def _close(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.pop(future, None)


class RecentItems(Generic[_K, _V]):
    """A cache of the last few values by key.

    >>> squares = RecentItems(2)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 1, 3)], list(squares)
    ([1, 4, 1, 9], [1, 3])
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """The value of this key, made now if it is not in the cache."""
        if key not in self._kept:
            self.put(key, make())
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, key: _K, value: _V) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)

    def __iter__(self):
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
