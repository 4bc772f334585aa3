"""Recipes that cannot be cooked are refused in one line that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from attnworks.core.errors import UsageError
from attnworks.models import PRESETS
from attnworks.training.recipe import PRESET_SETTINGS, Recipe

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("batch_tokens", 0, "a whole number from 1"),
        ("accumulate", 0, "a whole number from 1"),
        ("accumulate", -2, "a whole number from 1"),
        ("validate_every", 0, "a whole number from 1"),
        ("pairs", 0, "a whole number from 1"),
        ("steps", 0, "a whole number from 1"),
        ("keep_every", 0, "a whole number from 1"),
        ("patience", 0, "a whole number from 1"),
        ("threads", 0, "a whole number from 1"),
        ("score_sentences", -1, "a whole number from 0"),
        ("seed", -1, "from 0"),
        ("seed", 2**63, "from 0"),
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", -1.0, "above 0"),
        ("learning_rate", NAN, "above 0"),
        ("clip", 0.0, "above 0"),
        ("epochs", 0.0, "above 0"),
        ("epochs", NAN, "above 0"),
        ("epochs", INFINITY, "above 0"),
        ("minutes", -1.0, "above 0"),
        ("smoothing", 1.0, "from 0 and below 1"),
        ("smoothing", NAN, "from 0 and below 1"),
        ("dropout", -0.1, "from 0 and below 1"),
        ("dropout", 1.0, "from 0 and below 1"),
    ],
)
def test_a_value_that_cannot_be(name: str, value: Any, expected: str) -> None:
    settings: dict[str, Any] = {"preset": "tiny", "steps": 5}
    with pytest.raises(UsageError) as caught:
        Recipe(**(settings | {name: value}))
    text = str(caught.value)
    assert f"{name}={value}" in text and expected in text and "\n" not in text


def test_some_place_to_stop() -> None:
    with pytest.raises(UsageError, match="epochs, steps or minutes"):
        Recipe(preset="tiny")
    Recipe(preset="tiny", epochs=0.5)
    Recipe(preset="tiny", steps=1)
    Recipe(preset="tiny", minutes=0.1)


def test_a_cosine_needs_an_end() -> None:
    with pytest.raises(UsageError, match="the cosine schedule: expected epochs or steps"):
        Recipe(preset="tiny", schedule="cosine", minutes=3.0)


def test_settings_of_a_preset_are_defaults() -> None:
    assert Recipe.for_preset("small", steps=1).vocabulary == "bpe"
    assert Recipe.for_preset("small", steps=1, vocabulary="word").vocabulary == "word"
    assert Recipe.for_preset("custom", steps=1) == Recipe(preset="custom", steps=1)


@pytest.mark.parametrize("preset", PRESET_SETTINGS)
def test_settings_of_presets_are_fields_of_a_recipe(preset: str) -> None:
    assert preset in PRESETS
    recipe = Recipe.for_preset(preset, steps=1)
    assert {name: getattr(recipe, name) for name in PRESET_SETTINGS[preset]} == PRESET_SETTINGS[preset]
