"""Errors in one line: what was asked, what was expected, what was got, and a remedy."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import partial

_HARMLESS_FORMATS = "\u00ad\u200c\u200d\u200e\u200f"
"""Format characters of ordinary text: soft hyphen, joiners, marks of direction."""


class AttnworksError(Exception):
    """The parent of every error this package raises on purpose.

    Its text is one line: `asked: expected ..., got ...; remedy`. The command line prints it without a traceback.
    """

    def __init__(self, asked: str, expected: str, got: str, remedy: str) -> None:
        self.asked, self.expected, self.got, self.remedy = (_one_line(part) for part in (asked, expected, got, remedy))
        super().__init__(f"{self.asked}: expected {self.expected}, got {self.got}; {self.remedy}")

    def __reduce__(self) -> tuple[Callable[[], AttnworksError], tuple[()]]:
        """Pickling keeps the four parts."""
        return partial(type(self), self.asked, self.expected, self.got, self.remedy), ()


class UsageError(AttnworksError, ValueError):
    """A value, shape or option that cannot be used."""


class UnknownNameError(AttnworksError, LookupError):
    """A name that no plug-in, preset or field has."""


class FolderError(AttnworksError, OSError):
    """A folder that is missing, incomplete or changed, or that exists where a new one is needed."""

    def __str__(self) -> str:
        return self.args[0]


class UnsafeFileError(FolderError):
    """A file that could run code when opened."""


class DivergedError(AttnworksError, ArithmeticError):
    """A loss or gradient that is not finite."""


class MissingExtraError(AttnworksError, ImportError):
    """An optional dependency that is not installed."""


def printable(text: str, keep: str = "") -> str:
    """The text with every character escaped that could control a terminal or hide other text, except those of `keep`.

    Escaped are control characters (categories Cc, Zl, Zp), format characters such as marks that turn the direction of
    writing (Cf, without `_HARMLESS_FORMATS`) and half of a surrogate pair (Cs).

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or not _is_unsafe(c) else c.encode("unicode_escape").decode() for c in text)


def _is_unsafe(character: str) -> bool:
    category = unicodedata.category(character)
    return category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _HARMLESS_FORMATS)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def short_message(error: object) -> str:
    """The message of an error of another package, in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def short_number(value: float) -> str:
    """A number in at most 24 digits."""
    return text if len(text := str(value)) <= 24 else f"{text[:24]}..."
