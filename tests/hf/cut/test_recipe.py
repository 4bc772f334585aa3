"""Recipes as JSON: they come back as they were, and nothing else is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnworks.hf.cut.recipe import CutRecipe, from_ranges, heads_left, to_ranges

RECIPE = CutRecipe(
    attention="layers.0.attn",
    form="plain",
    of=7,
    heads=(0, 1, 5),
    outputs={"layers.0.attn.q": tuple(range(6)), "layers.0.attn.v": (3, 5)},
    output="layers.0.attn.o",
    inputs=(0, 1, 4),
    parameters={"layers.0.attn.sinks": (0, (0, 1, 5))},
    attributes={"layers.0.attn": {"num_heads": 3, "split": [2, 1]}},
    config={"layers.0.attn": {"num_attention_heads": 3}},
)


@given(st.lists(st.integers(0, 50), unique=True).map(sorted))
def test_ranges(numbers: list[int]) -> None:
    assert from_ranges(to_ranges(numbers)) == tuple(numbers)


def test_ranges_by_hand() -> None:
    assert to_ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and to_ranges([]) == ""


@pytest.mark.parametrize(
    "text",
    ["1,0", "0-", "-1", "3-1", "0,0", "0-2,2", "a", "0;1", "0-99999999999", "0-999999999", None, 3, ["0"]],
    ids=str,
)
def test_texts_that_are_no_ranges(text: object) -> None:
    with pytest.raises(ValueError, match="numbers"):
        from_ranges(text)


@pytest.mark.parametrize("recipe", [RECIPE, replace(RECIPE, form="stored", parameters={}, attributes={}, config={})])
def test_every_entry_comes_back(recipe: CutRecipe) -> None:
    assert CutRecipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@pytest.mark.parametrize(
    "change",
    [
        {"form": "magic"},
        {"of": True},
        {"of": 2},
        {"heads": "0-2,1"},
        {"attention": 3},
        {"outputs": ["layers.0.attn.q"]},
        {"outputs": {"layers.0.attn.q": 3}},
        {"inputs": None},
        {"parameters": {"sinks": "0-2"}},
        {"parameters": {"sinks": ["0", "0-2"]}},
        {"attributes": {"layers.0.attn": {"__class__": 3}}},
        {"attributes": {"layers.0.attn": {"num_heads": True}}},
        {"attributes": {"layers.0.attn": {"num_heads": 0}}},
        {"attributes": {"layers.0.attn": {"num_heads": 10**9}}},
        {"attributes": {"layers.0.attn": 3}},
        {"config": {"layers.0.attn": {"a b": 3}}},
        {"selects_positions": 1},
        {"more": 1},
    ],
    ids=str,
)
def test_other_entries_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        CutRecipe.from_json({**RECIPE.to_json(), **change})


@pytest.mark.parametrize("entry", [None, [], "plain", {}, {"form": "plain"}], ids=str)
def test_entries_that_are_no_recipe(entry: object) -> None:
    with pytest.raises(ValueError, match=r"in place of names|a cut with the entries"):
        CutRecipe.from_json(entry)


def test_heads_that_several_cuts_leave() -> None:
    second = replace(RECIPE, of=3, heads=(0, 2))
    other = replace(RECIPE, attention="layers.1.attn", heads=(6,))
    assert heads_left([RECIPE, other, second], "layers.0.attn") == [0, 5]
    assert heads_left([RECIPE, other], "layers.1.attn") == [6] and heads_left([], "layers.0.attn") == []
