"""Plug-ins from outside the package: modules by name, and the entry points of installed packages."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType

from attnworks.core.errors import UsageError, short_message

ENTRY_POINTS = ("attnworks.mechanisms", "attnworks.measures", "attnworks.reshapes")
"""Groups of entry points; each names a module, which registers its classes when it is imported."""
VARIABLE = "ATTNWORKS_PLUGINS"
"""The environment variable with names of modules, comma-separated."""


_LEFT_OUT: set[str] = set()
"""Modules of the environment variable that failed."""


def load_plugin(name: str) -> ModuleType:
    """Import a module that registers mechanisms, measures or reshapes.

    It is looked for in the current folder first, as `python -m` does, then where Python finds modules. Whatever goes
    wrong while it is imported becomes a UsageError in one line that names the place.
    """
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        last = os.path.basename(name).removesuffix(".py")
        raise UsageError(
            f"plug-in {name!r}",
            "the name of a Python module, such as my_module",
            "a path" if os.sep in name else "another text",
            f"write {last}, in the folder of the file" if last.isidentifier() else "write it as in import",
        )
    try:
        with _current_folder_first():
            return import_module(name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(
            f"{error.name}."
        )  # fmt: skip
        raise UsageError(
            f"plug-in {name!r}",
            "a module that can be imported",
            f"{type(error).__name__}: {short_message(error)}{_place(error)}",
            "change to its folder, or install it" if missing else "correct the module, or leave it out",
        ) from error


def load_requested(named: Sequence[str] = ()) -> None:
    """Import the modules of the environment variable, then those named.

    One of the variable that fails is left out, with one line on standard error (the logger "attnworks"). One that is
    named is an error.
    """
    for name in requested_plugins(named):
        try:
            load_plugin(name)
        except UsageError as error:
            if name in named:
                raise
            if name not in _LEFT_OUT:
                import logging

                _LEFT_OUT.add(name)
                logging.getLogger("attnworks").warning("attnworks: %s; this plug-in of %s is left out", error, VARIABLE)


def load_entry_points(groups: Sequence[str] = ENTRY_POINTS) -> list[str]:
    """Load the plug-ins that installed packages declare in these groups; one line for each that cannot be loaded."""
    messages = []
    for group in groups:
        for point in entry_points(group=group):
            try:
                point.load()
            except (Exception, SystemExit) as error:
                package = "" if point.dist is None else f" of the package {point.dist.name}"
                failure = UsageError(
                    f"plug-in {point.name!r}{package}",
                    f"{point.value} to be importable",
                    f"{type(error).__name__}: {short_message(error)}{_place(error)}",
                    "it is left out; correct or uninstall it",
                )
                messages.append(str(failure))
    return messages


def has_entry_points(group: str) -> bool:
    """Whether any installed package declares a plug-in in this group."""
    return len(entry_points(group=group)) > 0


def requested_plugins(named: Sequence[str] = ()) -> list[str]:
    """The modules of the environment variable, then those named, each once."""
    told = (name.strip() for name in os.environ.get(VARIABLE, "").split(","))
    return list(dict.fromkeys(name for name in (*told, *named) if name))


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """The current folder before all others while the module is imported; afterwards behind them, for late imports."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)


def _place(error: BaseException) -> str:
    """The file and line where an import failed, unless its message has them."""
    if isinstance(error, SyntaxError):
        return f" in {error.filename}" if error.filename and error.filename not in str(error) else ""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((__file__, "<frozen", os.path.dirname(importlib.__file__)))
    ]
    outside = [frame for frame in frames if f"{os.sep}attnworks{os.sep}" not in frame.filename] or frames
    return f" ({outside[-1].filename}, line {outside[-1].lineno})" if outside else ""
