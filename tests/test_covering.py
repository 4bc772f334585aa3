"""The covering arrays by which tests leave out most of a product."""

from __future__ import annotations

from itertools import product

import pytest

from tests import covering as module
from tests.covering import covering, noted, pairs

FACTORS = [range(7), "abcd", (True, False), "xyz"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "thorough", False)


def never_together(number: int, letter: str, _: bool, other: str) -> bool:
    return not (number == 3 and letter == "c") and not (letter == "a" and other == "z") and number + len(other) > 1


def covered(rows: list[tuple[object, ...]]) -> set[object]:
    return {pair for row in rows for pair in pairs(row)}


def test_every_pair_is_there_in_few_rows() -> None:
    rows = covering(*FACTORS)
    assert covered(rows) == covered(list(product(*FACTORS)))
    assert 7 * 4 <= len(rows) <= 7 * 4 + 4 and len(set(rows)) == len(rows)


def test_rows_that_are_not_allowed_are_left_out_with_nothing_else() -> None:
    rows = covering(*FACTORS, allowed=never_together)
    wanted = [row for row in product(*FACTORS) if never_together(*row)]
    assert set(rows) <= set(wanted) and covered(rows) == covered(wanted)
    assert len(rows) < len(wanted) / 3


def test_the_same_factors_give_the_same_rows() -> None:
    assert covering(*FACTORS) == covering(*FACTORS)


def test_two_factors_and_nothing_allowed() -> None:
    assert sorted(covering("ab", "cd")) == sorted(product("ab", "cd"))
    assert covering("ab", "cd", allowed=lambda *_: False) == []


def test_the_full_product_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "thorough", True)
    assert covering(*FACTORS) == list(product(*FACTORS))


def test_a_failure_names_its_row() -> None:
    with pytest.raises(AssertionError) as caught, noted("dense", 3):
        raise AssertionError
    assert caught.value.__notes__ == ["with dense, 3"]


def test_one_factor_and_none() -> None:
    assert covering("ab") == [("a",), ("b",)] and covering() == [()]
