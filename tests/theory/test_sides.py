"""Two sides and what stands between them: which entries are shown, what counts as equal, and what never holds."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UsageError
from attnworks.theory.sides import Sides, at_least, at_most, both, less, more, same

NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, NUMBERS)
def test_relations_are_those_of_numbers(left: float, right: float) -> None:
    assert Sides(left, "=", right).holds == (left == right)
    assert Sides(left, "<=", right).holds == (left <= right)
    assert Sides(left, ">=", right).holds == (left >= right)
    assert Sides(left, "<", right).holds == (left < right)
    assert Sides(left, ">", right).holds == (left > right)


@given(NUMBERS, NUMBERS, st.floats(0, 10))
def test_slack_forgives_what_is_loose_and_asks_more_of_what_is_strict(left: float, right: float, slack: float) -> None:
    assert Sides(left, "<=", right, slack).holds == (left - right <= slack)
    assert Sides(left, "<", right, slack).holds == (left - right < -slack)


@pytest.mark.parametrize("relation", ["=", "<=", ">=", "<", ">"])
def test_what_is_no_number_breaks_every_relation(relation: str) -> None:
    assert not Sides(math.nan, relation, 1.0).holds  # pyright: ignore[reportArgumentType]
    assert not Sides(1.0, relation, math.nan).holds  # pyright: ignore[reportArgumentType]


def test_infinities() -> None:
    assert same(math.inf, math.inf).holds
    assert not same(math.inf, 3.0).holds
    assert at_most(3.0, math.inf).holds
    assert not at_most(math.inf, 3.0).holds


def test_the_entries_shown_are_the_worst() -> None:
    left, right = torch.tensor([1.0, 5.0, 2.0]), torch.tensor([1.0, 7.0, 2.5])
    assert (same(left, right).left, same(left, right).right) == (5.0, 7.0)
    assert (at_most(left, right).left, at_most(left, right).right) == (1.0, 1.0)
    assert (at_least(left, right).left, at_least(left, right).right) == (5.0, 7.0)
    assert not more(left, right).holds and not less(left, right).holds


def test_an_entry_that_is_no_number_is_worst() -> None:
    assert not at_most(torch.tensor([0.0, math.nan, -5.0]), 1.0).holds


def test_rounding_is_forgiven_and_nothing_else() -> None:
    assert same(0.1 + 0.2, 0.3).holds
    assert not less(0.3, 0.1 + 0.2).holds
    assert not same(1.0, 1.0 + 1e-8).holds


def test_sides_without_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one number"):
        same(torch.zeros(0), 1.0)


def test_json_has_words_for_what_is_not_finite() -> None:
    told = json.loads(json.dumps(Sides(-math.inf, "<=", math.nan).to_json(), allow_nan=False))
    assert told == {"left": "-Infinity", "relation": "<=", "right": "NaN", "slack": 0.0, "holds": False}


def test_both_have_to_hold() -> None:
    right, wrong = same(1.0, 1.0), same(1.0, 2.0)
    assert both(right, at_most(1.0, 2.0)) is right
    assert both(right, wrong) is wrong and both(wrong, right) is wrong
