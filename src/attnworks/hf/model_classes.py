"""The classes of models of transformers for a config."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

CLASS_MAPPINGS = (
    *("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    *("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_MULTIMODAL_LM_MAPPING", "MODEL_MAPPING"),
    *("MODEL_FOR_PRETRAINING_MAPPING", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"),
)
"""Where the class of a model is looked for: those with an output layer first."""


def model_classes(config: Any) -> list[type]:
    """The classes of models with this config that take token ids, the one with an output layer for its text first."""
    from transformers.models.auto import modeling_auto

    found: list[type] = []
    for name in CLASS_MAPPINGS if getattr(config, "is_encoder_decoder", False) else CLASS_MAPPINGS[1:]:
        try:
            chosen = getattr(modeling_auto, name).get(type(config), None)
        except ValueError:  # transformers names a class that it does not have
            continue
        found.extend(chosen if isinstance(chosen, tuple) else [chosen] if chosen is not None else [])
    if not found:
        parts = filter(takes_token_ids, package_classes(type(config)))
        found = sorted(parts, key=lambda each: (not each.__name__.endswith("TextModel"), each.__name__))
    return list(dict.fromkeys(found))


def takes_token_ids(model_class: Any) -> bool:
    return "input_ids" in inspect.signature(model_class.forward).parameters


def package_classes(config_class: type) -> Iterator[type]:
    """The classes of models with this config, in the package that defines it; none if a single module does."""
    from transformers import PreTrainedModel

    package = config_class.__module__.rpartition(".")[0]
    if not package:
        return
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not found.name.startswith("modeling_"):
            continue
        try:
            module = importlib.import_module(f"{package}.{found.name}")
        except ImportError:
            continue
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, PreTrainedModel) and each.config_class is config_class:
                yield each
