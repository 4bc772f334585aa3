"""Which heads are meant by 3.2,4.*: the grammar, its order, and its errors in one line."""

from __future__ import annotations

import pytest

from attnworks.core.errors import UsageError
from attnworks.reshape.heads import Head, choose_heads

ENCODER = {"enc.0": 3, "enc.1": 2, "enc.10": 1}
BOTH = {"enc.0": 2, "dec.0": 3}


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("0.2", [("enc.0", 2)]),
        ("enc.0.2", [("enc.0", 2)]),
        ("1.*", [("enc.1", 0), ("enc.1", 1)]),
        ("*.1", [("enc.0", 1), ("enc.1", 1)]),
        ("10.0", [("enc.10", 0)]),
        ("1.0", [("enc.1", 0)]),
        ("1.*, 0.2 ,1.0", [("enc.0", 2), ("enc.1", 0), ("enc.1", 1)]),
        ("[01].0", [("enc.0", 0), ("enc.1", 0)]),
        ("*", [(layer, head) for layer, heads in ENCODER.items() for head in range(heads)]),
    ],
)
def test_one_side(asked: str, chosen: list[Head]) -> None:
    assert choose_heads(asked, ENCODER) == chosen


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("dec.0.2,enc.*", [("enc.0", 0), ("enc.0", 1), ("dec.0", 2)]),
        ("*.0.1", [("enc.0", 1), ("dec.0", 1)]),
        ("dec.*", [("dec.0", head) for head in range(3)]),
    ],
)
def test_both_sides(asked: str, chosen: list[Head]) -> None:
    assert choose_heads(asked, BOTH) == chosen


@pytest.mark.parametrize(
    ("asked", "layers", "expected", "got", "remedy"),
    [
        ("7.0", ENCODER, "enc.10.0 to enc.10.", "'7.0'", "for instance 10."),
        ("0.3", ENCODER, "enc.0.0 to enc.0.2, ", "'0.3'", "enc.0.* or none"),
        ("0.0,", ENCODER, "heads of self-attention", "''", "or none"),
        ("", ENCODER, "heads of self-attention", "''", "or none"),
        ("0", ENCODER, "heads of self-attention", "'0'", "or none"),
        ("dec.0.0", {"enc.0": 2}, "(enc.0.0 to enc.0.1)", "'dec.0.0'", "for instance 0.1, enc.0.* or none"),
        ("0.1", BOTH, "enc.0.0 to enc.0.1, dec.0.0 to dec.0.2", "'0.1'", "for instance dec.0.2, enc.0.*"),
        ("enc.0.0,cross.0.0", BOTH, "self-attention", "cross-attention, which has no positions", "dec.0.2"),
        ("enc.0.0\n", {"dec.0": 1}, "dec.0.0 to dec.0.0", "'enc.0.0'", "0.0, dec.0.*"),
    ],
)
def test_heads_that_are_not_there(asked: str, layers: dict[str, int], expected: str, got: str, remedy: str) -> None:
    with pytest.raises(UsageError) as error:
        choose_heads(asked, layers)
    line = str(error.value)
    assert "\n" not in line and all(part in line for part in (expected, f"got {got}", remedy))


def test_a_model_whose_layers_share_their_weights_has_none() -> None:
    with pytest.raises(UsageError):
        choose_heads("*", {})
