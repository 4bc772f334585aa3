"""Errors: one line, four parts, and a built-in class that old `except` clauses catch."""

from __future__ import annotations

import pickle

import pytest

from attnworks.core import errors
from attnworks.core.errors import (
    AttnworksError,
    DivergedError,
    FolderError,
    MissingExtraError,
    UnknownNameError,
    UnsafeFileError,
    UsageError,
)

PARTS = {"asked": "prune 3 heads", "expected": "at most 2", "got": "3", "remedy": "ask for fewer"}
CLASSES = [AttnworksError, UsageError, UnknownNameError, FolderError, UnsafeFileError, DivergedError, MissingExtraError]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_message_names_what_was_asked_expected_and_got_and_a_remedy(kind: type[AttnworksError]) -> None:
    error = kind(**PARTS)
    assert str(error) == "prune 3 heads: expected at most 2, got 3; ask for fewer"
    assert {part: getattr(error, part) for part in PARTS} == PARTS


@pytest.mark.parametrize("kind", CLASSES)
def test_the_message_is_one_line_whatever_it_is_given(kind: type[AttnworksError]) -> None:
    error = kind("load\n  'a\tb'", " x\r\n", "\u2028y\x0b z", "do\n\nthis")
    assert str(error) == "load 'a b': expected x, got y z; do this"
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "parents"),
    [
        (UsageError, (AttnworksError, ValueError)),
        (DivergedError, (AttnworksError, ArithmeticError)),
        (UnknownNameError, (AttnworksError, LookupError)),
        (FolderError, (AttnworksError, OSError)),
        (UnsafeFileError, (FolderError, OSError)),
        (MissingExtraError, (AttnworksError, ImportError)),
    ],
)
def test_each_error_is_also_the_built_in_one(kind: type[AttnworksError], parents: tuple[type[Exception], ...]) -> None:
    for parent in parents:
        with pytest.raises(parent):
            raise kind(**PARTS)


def test_an_unknown_name_is_no_key_error() -> None:
    # KeyError shows the repr of its message, with quotes and escapes.
    assert not issubclass(UnknownNameError, KeyError)


def test_no_part_may_be_left_out() -> None:
    for part in PARTS:
        with pytest.raises(TypeError, match=part):
            UsageError(**{name: text for name, text in PARTS.items() if name != part})


def test_every_error_of_the_module_is_tested_here() -> None:
    found = {thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, AttnworksError)}
    assert found == set(CLASSES)


@pytest.mark.parametrize("kind", [UsageError, UnknownNameError, FolderError, UnsafeFileError, MissingExtraError])
def test_errors_cross_process_boundaries(kind: type[AttnworksError]) -> None:
    error = kind("a", "b", "c", "d")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error) and again.remedy == "d"
