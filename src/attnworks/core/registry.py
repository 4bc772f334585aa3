"""Plug-ins by name, in one Registry for each kind. The error for an unknown name lists the known ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, cast

from attnworks.core.errors import UnknownNameError, UsageError

_T = TypeVar("_T")
_Entry = TypeVar("_Entry")


class Registry(Generic[_T]):
    """The plug-ins of one kind, by name.

    >>> colours = Registry[str]("colour")
    >>> colours.register("red")("#f00")
    '#f00'
    >>> colours["red"]
    '#f00'
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, _T] = {}

    def register(self, name: str) -> Callable[[_Entry], _Entry]:
        def add(entry: _Entry) -> _Entry:
            if name in self._entries:
                asked = f"register {self.kind} {name!r}"
                raise UsageError(asked, "a new name", "one that is taken", "choose another name")
            self._entries[name] = cast(_T, entry)
            return entry

        return add

    def __getitem__(self, name: str) -> _T:
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
    """The error for a name that is not registered; it suggests the closest known one."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    expected = f"one of {', '.join(known)}" if known else "nothing, as there is none to choose from"
    remedy = f"did you mean {close[0]!r}?" if close else "choose a name from that list" if known else "leave it out"
    return UnknownNameError(f"{kind} {name!r}", expected, "an unknown name", remedy)
