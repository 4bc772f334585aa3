"""The classes of models for a config, also for one of a user's own."""

from __future__ import annotations

from typing import Any

import pytest

from attnworks.hf.model_classes import model_classes, package_classes

transformers: Any = pytest.importorskip("transformers")


def names(config_name: str) -> list[str]:
    return [found.__name__ for found in model_classes(getattr(transformers, config_name)())]


def test_a_class_with_an_output_layer_is_first() -> None:
    assert names("LlamaConfig")[:2] == ["LlamaForCausalLM", "LlamaModel"]
    assert names("T5Config")[0] == "T5ForConditionalGeneration"


@pytest.mark.parametrize("module", ["__main__", "my_model"])
def test_a_config_outside_of_packages_has_no_classes_beside_it(module: str) -> None:
    own = type("OwnConfig", (transformers.LlamaConfig,), {"__module__": module, "model_type": "own"})
    assert [*package_classes(own)] == [] and model_classes(own()) == []
