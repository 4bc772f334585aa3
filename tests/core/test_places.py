"""Which heads are meant by 3.2,4.*: the grammar, its order, and its errors in one line."""

from __future__ import annotations

import pytest

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot, select_heads

ENCODER = {Slot("encoder", 0): 3, Slot("encoder", 1): 2, Slot("encoder", 10): 1}
BOTH = {Slot("encoder", 0): 2, Slot("decoder", 0): 3}


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("0.2", ["enc.0.2"]),
        ("enc.0.2", ["enc.0.2"]),
        ("1.*", ["enc.1.0", "enc.1.1"]),
        ("*.1", ["enc.0.1", "enc.1.1"]),
        ("10.0", ["enc.10.0"]),
        ("1.0", ["enc.1.0"]),
        ("1.*, 0.2 ,1.0", ["enc.0.2", "enc.1.0", "enc.1.1"]),
        ("[01].0", ["enc.0.0", "enc.1.0"]),
        ("*", [f"{slot}.{head}" for slot, heads in ENCODER.items() for head in range(heads)]),
    ],
)
def test_one_side(asked: str, chosen: list[str]) -> None:
    assert select_heads(asked, ENCODER) == [HeadId.parse(name) for name in chosen]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("dec.0.2,enc.*", ["enc.0.0", "enc.0.1", "dec.0.2"]),
        ("*.0.1", ["enc.0.1", "dec.0.1"]),
        ("dec.*", [f"dec.0.{head}" for head in range(3)]),
    ],
)
def test_both_sides(asked: str, chosen: list[str]) -> None:
    assert select_heads(asked, BOTH) == [HeadId.parse(name) for name in chosen]


@pytest.mark.parametrize(
    ("asked", "layers", "expected", "got", "remedy"),
    [
        ("7.0", ENCODER, "enc.10.0 to enc.10.", "'7.0'", "for instance 10."),
        ("0.3", ENCODER, "enc.0.0 to enc.0.2, ", "'0.3'", "enc.0.* or none"),
        ("0.0,", ENCODER, "heads of self-attention", "''", "or none"),
        ("", ENCODER, "heads of self-attention", "''", "or none"),
        ("0", ENCODER, "heads of self-attention", "'0'", "or none"),
        ("dec.0.0", {Slot("encoder", 0): 2}, "(enc.0.0 to enc.0.1)", "'dec.0.0'", "for instance 0.1, enc.0.* or none"),
        ("0.1", BOTH, "enc.0.0 to enc.0.1, dec.0.0 to dec.0.2", "'0.1'", "for instance dec.0.2, enc.0.*"),
        ("enc.0.0,cross.0.0", BOTH, "self-attention", "cross-attention, which has no positions", "dec.0.2"),
        ("enc.0.0\n", {Slot("decoder", 0): 1}, "dec.0.0 to dec.0.0", "'enc.0.0'", "0.0, dec.0.*"),
    ],
)
def test_heads_that_are_not_there(asked: str, layers: dict[Slot, int], expected: str, got: str, remedy: str) -> None:
    with pytest.raises(UsageError) as error:
        select_heads(asked, layers)
    line = str(error.value)
    assert "\n" not in line and all(part in line for part in (expected, f"got {got}", remedy))


def test_a_model_whose_layers_share_their_weights_has_none() -> None:
    with pytest.raises(UsageError):
        select_heads("*", {})


@pytest.mark.parametrize("text", ["enc", "enc.", "enc.-1", "enc.01", "encoder.0", "enc.0.1", "dec. 1", ""])
def test_other_text_is_no_slot(text: str) -> None:
    with pytest.raises(ValueError):
        Slot.parse(text)


def test_names_are_read_as_they_are_written() -> None:
    for slot in (Slot("encoder", 10), Slot("decoder", 0), Slot("cross", 2)):
        assert Slot.parse(str(slot)) == slot and HeadId.parse(f"{slot}.3") == HeadId(slot, 3)
    assert Slot("decoder", 0).causal and Slot("cross", 0).crosses
    assert sorted([Slot("cross", 0), Slot("encoder", 10), Slot("encoder", 2)], key=lambda slot: slot.order)[:2] == [
        Slot("encoder", 2), Slot("encoder", 10)
    ]  # fmt: skip
