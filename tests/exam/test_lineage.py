"""Heads followed through receipts: which head of a reshaped model was which head of the original."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attnworks.core.errors import AttnworksError, UsageError
from attnworks.exam.lineage import HeadMap, Lineage, lineage_of, read_lineage
from attnworks.reshape.receipt import BeforeAfter, HealReport, Losses, Receipt


def receipt(step: int, **heads: tuple[int, tuple[int | None, ...]]) -> Receipt:
    """The receipt of a reshape; enc_0=(4, (1, 3)) keeps heads 1 and 3 of four."""
    return Receipt(
        reshape="prune", asked={"heads": "some"}, text={}, objective="mlm", done={},
        healing=HealReport(steps=0, learning_rate=0.1, batch_tokens=64, seed=0),
        parameters=BeforeAfter(before=9, after=8),
        flops=BeforeAfter(before=9, after=8), length=9, loss=Losses(before=1.0, predicted=1.0, after=1.0), seconds=1.0,
        numbers=("float32", "cpu"), fingerprint=(f"{step}" * 16, f"{step + 1}" * 16), version="0",
        heads={slot.replace("_", "."): HeadMap(before=n, after=after) for slot, (n, after) in heads.items()},
    )  # fmt: skip


def test_nothing_was_done() -> None:
    assert lineage_of([], {"enc.0": 3}) is None


def test_cut_twice() -> None:
    """4 heads: the first goes, then the second of those that are left, which was number 2."""
    done = [receipt(0, enc_0=(4, (1, 2, 3))), receipt(1), receipt(2, enc_0=(3, (0, 2)), enc_1=(2, ()))]
    found = lineage_of(done, {"enc.0": 2, "enc.1": 0, "enc.2": 5})
    assert found is not None and found.heads == {"enc.0": ("enc.0.1", "enc.0.3"), "enc.1": ()}
    assert found.counts == {"enc.0": 4, "enc.1": 2} and found.unrecorded == ()
    assert found.original == "0" * 16 and found.reshapes == tuple(one.title for one in done)


def test_a_new_head_is_named_after_the_model_that_it_was_added_to() -> None:
    done = [receipt(0, enc_0=(2, (0, 1, None))), receipt(1, enc_0=(3, (0, 2)))]
    first, both = lineage_of(done[:1], {"enc.0": 3}), lineage_of(done, {"enc.0": 2})
    assert first is not None and first.heads["enc.0"] == ("enc.0.0", "enc.0.1", f"enc.0.2+{'1' * 12}")
    assert both is not None and both.heads["enc.0"] == ("enc.0.0", f"enc.0.2+{'1' * 12}")


@pytest.mark.parametrize(
    ("done", "now"),
    [
        ([receipt(0, enc_0=(4, (1, 2)))], 3),
        ([receipt(0, enc_0=(4, (1, 2))), receipt(1, enc_0=(3, (0, 1)))], 2),
        ([receipt(0, enc_0=(4, (1, 2))), receipt(1, enc_0=(9, (0, 8)))], 2),
    ],
)
def test_heads_that_changed_without_a_receipt(done: list[Receipt], now: int) -> None:
    found = lineage_of(done, {"enc.0": now})
    assert found is not None and found.unrecorded == ("enc.0",) and not found.heads and not found.counts


def test_the_work_does_not_depend_on_the_number_of_heads_that_a_receipt_claims() -> None:
    """Only heads that are left are named: 2**62 names would never be done."""
    found = lineage_of([receipt(0, enc_0=(2**62, (5, 0)))], {"enc.0": 2})
    assert found is not None and found.heads == {"enc.0": ("enc.0.5", "enc.0.0")} and found.counts == {"enc.0": 2**62}


def test_names_are_compared_once_each() -> None:
    """Comparing every name with every other would take minutes for forged lists."""
    names = tuple(CountedName(f"enc.0.{head}") for head in range(300))
    CountedName.compared = 0
    Lineage(original="f", reshapes=(), counts={"enc.0": 300}, heads={"enc.0": names})
    assert CountedName.compared <= 300


class CountedName(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_it_is_read_as_it_was_written() -> None:
    found = lineage_of([receipt(0, enc_0=(4, (3, None)))], {"enc.0": 2})
    assert found is not None
    model = {"heads": {"enc.0": 2}, "lineage": json.loads(json.dumps(found.to_json()))}
    assert read_lineage(model) == found and read_lineage({"heads": {}}) is None


GOOD: dict[str, Any] = {
    "original": "f", "reshapes": ["prune"], "counts": {"enc.0": 3}, "heads": {"enc.0": ["enc.0.0", "enc.0.2"]},
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"heads": {"enc.0": ["enc.0.0", "enc.0.0"]}},
        {"heads": {"enc.0": ["enc.0.0", "enc.1.0"]}},
        {"heads": {"enc.0": ["enc.0.0", "<b>"]}},
        {"heads": {"enc.0": ["enc.0.0"]}},
        {"heads": {"enc.1": ["enc.1.0"]}},
        {"heads": [1]},
        {"counts": {}},
        {"unrecorded": ["enc.0"]},
        {"more": 1},
    ],
)
def test_a_malformed_lineage_is_refused(change: dict[str, Any]) -> None:
    model = {"heads": {"enc.0": 2}}
    assert isinstance(read_lineage({**model, "lineage": GOOD}), Lineage)
    with pytest.raises(AttnworksError) as error:
        read_lineage({**model, "lineage": {**GOOD, **change}})
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="the lineage of heads"):
        read_lineage({**model, "lineage": "prune"})
