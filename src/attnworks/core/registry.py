"""Name -> plug-in. Each kind of plug-in has one Registry; an unknown name lists the known ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, cast

from attnworks.core.errors import UnknownNameError, UsageError

T = TypeVar("T")
Entry = TypeVar("Entry")


class Registry(Generic[T]):
    """The plug-ins of one kind, by name.

    >>> colours = Registry[str]("colour")
    >>> colours.register("red")("#f00")
    '#f00'
    >>> colours["red"]
    '#f00'
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        def add(entry: Entry) -> Entry:
            if name in self._entries:
                raise UsageError(
                    asked=f"register {self.kind} {name!r}",
                    expected="a new name",
                    got="one that is taken",
                    remedy=f"choose a name other than {', '.join(self)}",
                )
            self._entries[name] = cast(T, entry)
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown_name(self.kind, name, self)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not there, with the closest known one as remedy."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return UnknownNameError(
        asked=f"{kind} {name!r}",
        expected=f"one of {', '.join(known)}" if known else "nothing, as there is none to choose from",
        got="an unknown name",
        remedy=f"did you mean {close[0]!r}?" if close else "choose a name from that list" if known else "leave it out",
    )
