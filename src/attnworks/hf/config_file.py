"""The config of a Hugging Face model: read, checked, and without entries that would load code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from attnworks.core.errors import UnsafeFileError, short_message, short_number
from attnworks.core.folders import load_error, parse_json, read_json_bytes
from attnworks.core.registry import unknown_name
from attnworks.hf.files.contract import WeightFiles
from attnworks.hf.heads import MECHANISMS_ENTRY
from attnworks.hf.model_classes import package_classes
from attnworks.hf.registration import MODEL_TYPE_PREFIX, plain_types
from attnworks.models.folder import CONFIG_FILE, WEIGHTS_FILE

ADAPTER_FILE = "adapter_config.json"
CODE_ENTRIES = ("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "fusion_config")
"""Entries of a config with which transformers would load code or kernels."""
INFINITE_ENTRY, INFINITE = "__float__", ("Infinity", "-Infinity", "NaN")
"""What transformers writes in the place of such a number: {"__float__": "Infinity"}."""
LAYER_COUNT, LAYERS_WITHOUT_TENSORS = re.compile(r"(^|_)(layers?|blocks|depth)(_per_stack)?$"), 64
"""Entries of a config that count layers, not sizes of them such as block_size; layers that may share their tensors."""


def read_entries(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        inner = sorted(
            found.parent for found in folder.glob(f"*/{CONFIG_FILE}") if (found.parent / WEIGHTS_FILE).is_file()
        )
        remedy = f"open {inner[0]}" if inner else "check the path"
        raise load_error(folder, f"a model folder, with {CONFIG_FILE}", "none in it", remedy)
    if (folder / ADAPTER_FILE).is_file():
        raise load_error(folder, "a whole model", "an adapter of another model", "merge it into its model first")
    config = parse_json(path, read_json_bytes(path))
    if isinstance(config, dict) and isinstance(config.get("model_type"), str) and MECHANISMS_ENTRY in config:
        config["model_type"] = config["model_type"].removeprefix(MODEL_TYPE_PREFIX)
    if isinstance(config, dict) and "kind" in config:
        got = "a model of attnworks without its vocabulary"
        remedy = "give the run that it came from, or pass model and vocabulary in Python"
        raise load_error(folder, "a training run, or a Hugging Face model", got, remedy)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise load_error(path, "a config that says its model_type", "none", "check that this is a Hugging Face model")
    known = plain_types()
    if config["model_type"] not in known:
        if "auto_map" in config:
            expected, got = "a model that transformers itself knows", f"{config['model_type']!r} with code of its own"
            raise UnsafeFileError(f"open {folder}", expected, got, "choose another model")
        raise unknown_name(f"model_type in {path}", config["model_type"], sorted(known))
    if "quantization_config" in config:
        raise load_error(path, "weights as plain numbers", "quantised ones", "open the model before it was quantised")
    return config


def check_counts(source: Path, described: dict[str, Any], weights: WeightFiles) -> None:
    """Refuse a config with more layers than the files have tensors: building them would take memory and time."""
    most = len(weights.tensors) + LAYERS_WITHOUT_TENSORS
    widest = max((max(tensor.shape, default=1) for tensor in weights.tensors.values()), default=1)
    for name, number in _integers(described):
        limit = most if LAYER_COUNT.search(name) else max(widest, most) if name == "num_labels" else None
        if limit is not None and number > limit:
            got, remedy = f"{short_number(number)}", "use the config and the weights that belong together"
            raise load_error(source, f"{name} of at most {limit:,}, for {len(weights.tensors):,} tensors", got, remedy)


def _integers(described: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """The whole numbers of a config with their names, also those of its parts."""
    if isinstance(described, dict):
        for key, value in described.items():
            yield from _integers(value, str(key))
    elif type(described) is int:
        yield name, described


def config_of(source: Path, transformers: ModuleType, described: dict[str, Any]) -> Any:
    try:
        return transformers.CONFIG_MAPPING[described["model_type"]].from_dict(harmless(described))
    except Exception as error:
        expected, got = "a config that transformers can read", short_message(error)
        raise load_error(source, expected, got, "check it") from error


def named_class(config: Any) -> Any:
    """The class that config.json asks for, if transformers has it as a model for this very kind of config."""
    names = config.architectures
    name = names[0] if isinstance(names, list) and names else None
    return next((found for found in package_classes(type(config)) if found.__name__ == name), None)


def harmless(config: Any) -> Any:
    """The config without what would load code or kernels, at any depth, and with its infinite numbers."""
    if isinstance(config, list):
        return [harmless(value) for value in config]
    if not isinstance(config, dict):
        return config
    if {*config} == {INFINITE_ENTRY} and config[INFINITE_ENTRY] in INFINITE:
        return float(config[INFINITE_ENTRY])
    return {key: harmless(value) for key, value in config.items() if key not in CODE_ENTRIES}
