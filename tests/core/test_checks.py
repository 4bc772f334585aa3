"""Checks of arguments: what passes, and the line that says why something does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnworks.core.checks import choice, each, integer, new_place, number, one_of_options, own_folder, text
from attnworks.core.errors import FolderError, UnknownNameError, UsageError


@pytest.mark.parametrize("value", [1, 5, 9])
def test_integers_of_the_range_pass(value: int) -> None:
    assert integer("size", value, 1, 9) == value
    assert integer("size", value, 1) == value


@pytest.mark.parametrize("value", [0, 10, 2.0, True, "3", None, float("nan")])
def test_other_values_are_no_integer_of_the_range(value: object) -> None:
    line = f"size={value!r}: expected a whole number from 1 to 9, got {value!r}; take 5"
    with pytest.raises(UsageError) as error:
        integer("size", value, 1, 9, remedy="take 5")
    assert str(error.value) == line


def test_an_integer_may_have_no_upper_end() -> None:
    with pytest.raises(UsageError, match=r"^size=0: expected a whole number from 1, got 0; choose a value"):
        integer("size", 0, 1)
    assert integer("size", 10**12, 1) == 10**12


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 1])
def test_numbers_of_the_range_pass(value: float) -> None:
    assert number("share", value, 0, 1) == value


@pytest.mark.parametrize("value", [-1e-9, 1.1, True, "0.5", None, float("nan"), float("inf")])
def test_other_values_are_no_number_of_the_range(value: object) -> None:
    with pytest.raises(UsageError, match="expected a number from 0 to 1, got"):
        number("share", value, 0, 1)


@pytest.mark.parametrize(
    ("value", "ends", "expected"),
    [
        (0, {"above": True}, "a number above 0"),
        (float("inf"), {"above": True}, "a number above 0"),
        (-1, {}, "a number from 0"),
        (0, {"high": 1, "above": True}, "a number above 0 and at most 1"),
        (1, {"high": 1, "below": True}, "a number from 0 and below 1"),
        (1, {"high": 1, "above": True, "below": True}, "a number above 0 and below 1"),
    ],
)
def test_an_open_end_is_not_part_of_the_range(value: float, ends: dict, expected: str) -> None:
    with pytest.raises(UsageError, match=f"expected {expected}, got"):
        number("share", value, 0, **ends)
    assert number("share", 0.5, 0, **ends) == 0.5


def test_an_option_of_the_command_line_stands_as_it_was_typed() -> None:
    with pytest.raises(UsageError, match=r"^--limit 0: expected a number above 0, got 0"):
        number("--limit", 0, 0, above=True)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as error:
        integer("size", "x" * 1000, 1)
    assert len(str(error.value)) < 250


def test_a_choice_is_one_of_the_names() -> None:
    assert choice("colour", "red", iter(("red", "green"))) == "red"
    with pytest.raises(UnknownNameError, match=r"^colour 'gren': expected one of green, red, .*did you mean 'green'"):
        choice("colour", "gren", iter(("red", "green")))


def test_text_is_a_string() -> None:
    assert text("layers", "auto", "") == "auto"
    with pytest.raises(UsageError, match=r'^layers: expected text, got list; layers="auto"$'):
        text("layers", ["enc.0"], 'layers="auto"')


def test_each_head_needs_a_value() -> None:
    each("d_k of each head", 8, 8, "widths")
    with pytest.raises(UsageError, match=r"^d_k of each head: expected 8 widths, got 3; give one for all heads"):
        each("d_k of each head", 3, 8, "widths")


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"--a": None, "--b": False}, "--a or --b, got neither"),
        ({"--a": 0, "--b": "x"}, "--a or --b, got both"),
        ({"--a": None, "--b": None, "--c": None}, "--a or --b or --c, got none of them"),
        ({"--a": 1, "--b": None, "--c": 1}, "--a or --b or --c, got --a and --c"),
    ],
)
def test_one_option_must_be_given(given: dict, got: str) -> None:
    with pytest.raises(UsageError, match=f"^to go: expected {got}; try --a$"):
        one_of_options("to go", given, "try --a")


def test_an_optional_choice_of_options_may_be_left_out() -> None:
    one_of_options("to go", {"--a": None, "--b": None}, "", optional=True)
    one_of_options("to go", {"--a": 0, "--b": None}, "")
    with pytest.raises(UsageError, match="got both"):
        one_of_options("to go", {"--a": 1, "--b": 1}, "", optional=True)


def test_a_new_place_is_one_where_nothing_is(tmp_path: Path) -> None:
    new_place(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=r"^train to .*: expected a path that does not exist yet, .*; go elsewhere$"):
        new_place(tmp_path / "file", "train to", "go elsewhere")
    with pytest.raises(FolderError, match="expected a folder"):
        new_place(tmp_path / "file" / "b")


def test_a_folder_is_new_or_of_the_same_study(tmp_path: Path) -> None:
    assert not own_folder(tmp_path / "none", "the study", ("results.json",))
    assert not own_folder(tmp_path, "the study", ("results.json",))
    (tmp_path / "results.json").touch()
    (tmp_path / ".results.json.0a.partial").touch()
    assert own_folder(tmp_path, "the study", ("results.json", "maps"))
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(FolderError, match=r"^the study in .*: .*, got a folder with thesis.txt"):
        own_folder(tmp_path, "the study", ("results.json",))
    with pytest.raises(FolderError, match="got a file"):
        own_folder(tmp_path / "thesis.txt", "the study", ("results.json",))
