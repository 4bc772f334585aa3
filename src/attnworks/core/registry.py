"""Plug-ins by name, in one Registry for each kind. The error for an unknown name lists the known ones."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Generic, TypeVar, cast

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.plugins import load_entry_points

LONG_LIST, NEAREST_NAMES = 30, 10
"""Of more names than the first, an error shows as many as the second, the closest first."""
_T = TypeVar("_T")
_Entry = TypeVar("_Entry")


class Registry(Generic[_T]):
    """The plug-ins of one kind, by name.

    entry_points  the group of entry points with further ones, loaded when a name is not found or all are listed; each
                  that cannot be loaded is one line on standard error (the logger "attnworks")
    built_in      modules with entries of this package, imported before a class from outside is registered, so that it
                  cannot take the name of one

    A name is taken once. Only a class of the same module and the same name replaces its former version, as after a
    second run of a notebook's cell.

    >>> colours = Registry[str]("colour")
    >>> colours.register("red")("#f00")
    '#f00'
    >>> colours["red"]
    '#f00'
    """

    def __init__(self, kind: str, entry_points: str | None = None, built_in: tuple[str, ...] = ()) -> None:
        self.kind, self.entry_points, self.built_in = kind, entry_points, built_in
        self._entries: dict[str, _T] = {}
        self._complete = entry_points is None

    def register(self, name: str) -> Callable[[_Entry], _Entry]:
        def add(entry: _Entry) -> _Entry:
            if _from_outside(entry):
                self.import_built_in()
            if name in self._entries and not _same_definition(self._entries[name], entry):
                asked = f"register {self.kind} {name!r}"
                raise UsageError(asked, "a new name", "one that is taken", "choose another name")
            self._entries[name] = cast(_T, entry)
            return entry

        return add

    def import_built_in(self) -> None:
        """Import every module of this package with entries."""
        for module in self.built_in:
            import_module(module)

    def __getitem__(self, name: str) -> _T:
        if name not in self:
            raise unknown_name(self.kind, name, self)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._load_entry_points()
        return name in self._entries

    def __len__(self) -> int:
        self._load_entry_points()
        return len(self._entries)

    def _load_entry_points(self) -> None:
        if not self._complete and self.entry_points is not None:
            self._complete = True  # first, as a plug-in may ask for names while it is imported
            for message in load_entry_points((self.entry_points,)):
                logging.getLogger("attnworks").warning("attnworks: %s", message)


def _from_outside(entry: object) -> bool:
    module = getattr(entry, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] != "attnworks"


def _same_definition(old: object, new: object) -> bool:
    """Whether two classes are versions of one: of the same module and the same name."""
    places = [(getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (old, new)]
    return places[0] == places[1] and None not in places[0]


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not registered; it suggests the closest known one, and shows a long list in part."""
    known = sorted(known)
    near = sorted(known, key=lambda other: (name not in other, -difflib.SequenceMatcher(a=other, b=name).ratio()))
    close = difflib.get_close_matches(name, known, n=1) or [other for other in near[:1] if name and name in other]
    shown = known if len(known) <= LONG_LIST else [*dict.fromkeys([*close, *near])][:NEAREST_NAMES]
    more = f" and {len(known) - len(shown)} more" if len(shown) < len(known) else ""
    expected = f"one of {', '.join(shown)}{more}" if known else "nothing, as there is none to choose from"
    remedy = f"did you mean {close[0]!r}?" if close else "choose a name from that list" if known else "leave it out"
    return UnknownNameError(f"{kind} {name!r}", expected, "an unknown name", remedy)
