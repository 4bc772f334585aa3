"""The registry of plug-ins: what is there, what is not, what is taken."""

from __future__ import annotations

import pytest

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.registry import Registry, unknown_name


@pytest.fixture
def colours() -> Registry[str]:
    registry = Registry[str]("colour")
    registry.register("red")("#f00")
    registry.register("green")("#0f0")
    registry.register("blue")("#00f")
    return registry


def test_a_registered_entry_is_found_and_returned_unchanged(colours: Registry[str]) -> None:
    assert colours.register("grey")("#888") == "#888"
    assert colours["grey"] == "#888" and colours["red"] == "#f00"


def test_register_decorates_a_class_without_changing_it() -> None:
    shapes = Registry[type]("shape")

    @shapes.register("round")
    class Round:
        pass

    assert shapes["round"] is Round and Round.__name__ == "Round"


def test_names_come_sorted(colours: Registry[str]) -> None:
    assert list(colours) == ["blue", "green", "red"]
    assert len(colours) == 3
    assert "red" in colours and "pink" not in colours


def test_two_registries_share_nothing(colours: Registry[str]) -> None:
    other = Registry[str]("colour")
    assert len(other) == 0 and "red" not in other
    other.register("red")("rouge")
    assert colours["red"] == "#f00"


def test_a_near_miss_is_told_the_nearest_name(colours: Registry[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        colours["gren"]
    assert str(caught.value) == (
        "colour 'gren': expected one of blue, green, red, got an unknown name; did you mean 'green'?"
    )


def test_a_far_miss_is_told_the_list(colours: Registry[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        colours["xyzzy"]
    assert str(caught.value) == (
        "colour 'xyzzy': expected one of blue, green, red, got an unknown name; choose a name from that list"
    )


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(UnknownNameError, match="as there is none to choose from"):
        Registry[str]("colour")["red"]


def test_an_unknown_name_is_a_lookup_error(colours: Registry[str]) -> None:
    with pytest.raises(LookupError):
        colours["pink"]


def test_a_taken_name_is_refused_and_the_first_entry_stays(colours: Registry[str]) -> None:
    with pytest.raises(UsageError) as caught:
        colours.register("red")("#e00")
    assert str(caught.value) == (
        "register colour 'red': expected a new name, got one that is taken; choose another name"
    )
    assert colours["red"] == "#f00"


def test_a_name_with_a_line_break_still_gives_one_line(colours: Registry[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        colours["re\nd"]
    assert len(str(caught.value).splitlines()) == 1


def test_unknown_name_sorts_what_it_lists_and_takes_any_iterable() -> None:
    error = unknown_name("option", "windo", (name for name in ("window", "globals", "block")))
    assert str(error) == (
        "option 'windo': expected one of block, globals, window, got an unknown name; did you mean 'window'?"
    )


def test_of_many_names_the_nearest_ten_are_listed_first_to_last() -> None:
    names = [f"measure.number_{place}" for place in range(40)]
    text = str(unknown_name("reading", "entropy", [*names, "saturation.entropy"]))
    assert text.startswith("reading 'entropy': expected one of saturation.entropy, measure.")
    assert text.endswith(" and 31 more, got an unknown name; did you mean 'saturation.entropy'?")
    assert text.count(",") == 10
