"""A mechanism as text: parsed, written, built, and refused with a reason."""

from __future__ import annotations

import pytest
import torch

from attnworks import attention
from attnworks.attention import MECHANISMS, Geometry, MechanismSpec
from attnworks.attention.bahdanau import Bahdanau
from attnworks.attention.contract import option_names, parse_many
from attnworks.attention.dense import Dense
from attnworks.attention.luong import LuongMultiplicative
from attnworks.core.errors import UnknownNameError, UsageError
from tests.helpers import unchecked


class Optioned(Dense):
    """A mechanism with options of every kind."""

    name = "optioned"

    def __init__(self, *, window: int = 1, rate: float = 0.5, kind: str = "a", shared: bool = False) -> None:
        super().__init__()
        self.options = (window, rate, kind, shared)


@pytest.fixture
def optioned(monkeypatch: pytest.MonkeyPatch) -> type[Optioned]:
    monkeypatch.setitem(MECHANISMS._entries, "optioned", Optioned)
    return Optioned


def test_a_bare_name() -> None:
    assert MechanismSpec.parse("dense") == MechanismSpec("dense", {})
    assert str(MechanismSpec("dense")) == "dense"


def test_option_values_are_read_as_json_or_text(optioned: type[Optioned]) -> None:
    spec = MechanismSpec.parse("optioned:window=64,rate=2.5e-1,kind=b,shared=true")
    assert spec == MechanismSpec("optioned", {"window": 64, "rate": 0.25, "kind": "b", "shared": True})
    built = spec.build(Geometry(2, 11, 13))
    assert isinstance(built, optioned) and built.options == (64, 0.25, "b", True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 64},
        {"window": -3, "rate": 0.25},
        {"shared": True},
        {"shared": False, "kind": "b"},
        {"kind": None},
        {"kind": "64"},
        {"kind": "true"},
    ],
)
@pytest.mark.usefixtures("optioned")
def test_what_is_written_reads_back_the_same(options: dict[str, object]) -> None:
    spec = MechanismSpec("optioned", options)
    again = MechanismSpec.parse(str(spec))
    assert again == spec
    assert [type(value) for value in again.options.values()] == [type(value) for value in options.values()]


def test_the_written_form_is_short() -> None:
    assert str(MechanismSpec("bahdanau-additive", {"d_a": 64})) == "bahdanau-additive:d_a=64"


@pytest.mark.parametrize("value", [[1, 2], "a,b", {}])
def test_values_that_cannot_be_written_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="true, false, null or a word"):
        MechanismSpec("bahdanau-additive", {"d_a": value})


@pytest.mark.parametrize("value", ["true", "-3", "0", "2.5", "wide"])
def test_a_width_that_is_none(value: str) -> None:
    with unchecked(), pytest.raises(UsageError, match="a whole number from 1"):
        MechanismSpec.parse(f"bahdanau-additive:d_a={value}").build(Geometry(2, 3, 5))


def test_options_are_keyword_arguments_that_the_geometry_does_not_settle() -> None:
    assert option_names(Dense) == ()
    assert option_names(LuongMultiplicative) == ()
    assert option_names(Bahdanau) == ("d_a",)
    assert option_names(Optioned) == ("window", "rate", "kind", "shared")


def test_parameters_take_their_sizes_from_the_geometry() -> None:
    multiplicative = MechanismSpec.parse("luong-multiplicative").build(Geometry(3, 5, 7))
    assert {name: tuple(p.shape) for name, p in multiplicative.named_parameters()} == {"W_a": (3, 5, 5)}
    additive = MechanismSpec.parse("bahdanau-additive:d_a=11").build(Geometry(3, 5, 7))
    shapes = {name: tuple(p.shape) for name, p in additive.named_parameters()}
    assert shapes == {"W_q": (3, 5, 11), "W_k": (3, 5, 11), "v_a": (3, 11)}
    default = MechanismSpec.parse("bahdanau-additive").build(Geometry(3, 5, 7))
    assert {tuple(p.shape) for p in default.parameters()} == {(3, 5, 5), (3, 5)}
    assert not list(MechanismSpec.parse("dense").build(Geometry(3, 5, 7)).parameters())


def test_two_builds_share_no_parameters() -> None:
    spec = MechanismSpec.parse("luong-multiplicative")
    (first,), (second,) = (list(spec.build(Geometry(3, 5, 7)).parameters()) for _ in range(2))
    assert first is not second and not torch.equal(first, second)


def test_get_and_names() -> None:
    assert attention.get("dense") is Dense
    assert attention.names() == tuple(sorted(attention.names()))
    assert all(attention.get(name) is MECHANISMS[name] for name in attention.names())


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("dense", ["dense"]),
        ("dense, optioned:window=3,kind=b , luong-dot", ["dense", "optioned:window=3,kind=b", "luong-dot"]),
        ("optioned,window=7,rate=0.5,dense", ["optioned:window=7,rate=0.5", "dense"]),
        ("optioned:window=7,optioned:window=11", ["optioned:window=7", "optioned:window=11"]),
        ("dense,optioned,rate=2.5e-1,dense,optioned:rate=0.25", ["dense", "optioned:rate=0.25"]),
    ],
)
@pytest.mark.usefixtures("optioned")
def test_lists_of_mechanisms(text: str, specs: list[str]) -> None:
    assert parse_many(text) == [MechanismSpec.parse(spec) for spec in specs]


# --- what cannot be read ----------------------------------------------------------------------------------------------


def test_an_unknown_mechanism_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError) as caught:
        MechanismSpec.parse("dens")
    text = str(caught.value)
    assert text.startswith("mechanism 'dens': expected one of bahdanau-additive, ")
    assert text.endswith(", got an unknown name; did you mean 'dense'?")
    assert all(name in text for name in attention.names())


@pytest.mark.parametrize("text", ["", "dense,,luong-dot", "dense,dens", "window=3"])
def test_a_list_with_something_else_is_refused(text: str) -> None:
    with pytest.raises(UnknownNameError, match="expected one of bahdanau-additive"):
        parse_many(text)


def test_an_unknown_option_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError) as caught:
        MechanismSpec.parse("bahdanau-additive:d_q=3")
    assert str(caught.value) == (
        "option of mechanism 'bahdanau-additive' 'd_q': expected one of d_a, got an unknown name; did you mean 'd_a'?"
    )


def test_what_the_geometry_settles_is_no_option() -> None:
    for option in ("heads=2", "d_k=3"):
        with pytest.raises(UnknownNameError, match="option of mechanism 'luong-multiplicative'"):
            MechanismSpec.parse(f"luong-multiplicative:{option}")


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="expected each option once, got window 2 times; keep one window="):
        MechanismSpec.parse("window:window=4,window=8")


def test_an_option_of_a_mechanism_without_options_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="option of mechanism 'dense' 'window'"):
        MechanismSpec.parse("dense:window=3")


@pytest.mark.parametrize("part", ["window", "window=", "=3", "3=3", "", "win dow=3"])
@pytest.mark.usefixtures("optioned")
def test_a_malformed_option_is_refused(part: str) -> None:
    text = f"optioned:kind=b,{part}"
    with pytest.raises(UsageError) as caught:
        MechanismSpec.parse(text)
    assert str(caught.value) == (
        f"mechanism {text!r}: expected name:option=value,option=value, got {part!r}; write it like window:window=64"
    )
