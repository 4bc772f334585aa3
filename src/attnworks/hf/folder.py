"""Folders of Hugging Face models with changed heads or mechanisms: the same three files as for models of attnworks.

transformers alone cannot run such a model. Its config therefore names a model_type that transformers does not know.
Where transformers can represent the model after all, `to_standard` gives it back with a plain config.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnworks.core.errors import AttnworksError
from attnworks.core.folders import COPY_FOLDER, disk_errors, load_error, parse_json, read_json_bytes
from attnworks.core.places import Slot
from attnworks.core.tensors import tensors_of
from attnworks.hf import quiet
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.heads import (
    HEADS_ENTRY,
    MECHANISMS_ENTRY,
    WIDTHS_ENTRY,
    hf_refusal_to_grow,
    hf_refusal_to_shrink,
    restore_heads,
)
from attnworks.hf.mechanisms import build_in_mechanisms
from attnworks.models.folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    check_expected,
    fill,
    read_config,
    read_manifest,
    read_weights,
    write_parts,
)
from attnworks.models.surgery import cannot_grow, cannot_keep

MODEL_TYPE_PREFIX = "attnworks-"
README_FILE = "README.md"
FAMILIES_BY_HEAD_COUNT = ("llama", "mistral", "qwen2")
FAMILIES_BY_HEAD_NUMBER = ("t5", "mt5")
POSITION_BIAS = "relative_attention_bias.weight"


def save_hf(model: Any, folder: Path) -> None:
    """Write a model of Hugging Face: config, weights and manifest if it was reshaped, else as transformers does."""
    if not hasattr(model.config, MECHANISMS_ENTRY):
        with quiet():
            model.save_pretrained(folder)
        return
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    config |= {"model_type": MODEL_TYPE_PREFIX + config["model_type"], "architectures": [type(model).__name__]}
    write_parts(config, model, folder)
    (folder / README_FILE).write_text(
        f"# {type(model).__name__}, reshaped by attnworks\n\n"
        "Some attention heads are not what transformers knows, so that `from_pretrained` alone refuses this folder. "
        "Open it with attnworks:\n\n"
        "```python\nimport attnworks\n\nsubject = attnworks.open('this-folder')\n```\n"
    )


def is_reshaped(folder: Path) -> bool:
    """Whether the config has entries of attnworks."""
    config = _config(folder)
    return str(config.get("model_type")).startswith(MODEL_TYPE_PREFIX) and MECHANISMS_ENTRY in config


def is_hf_folder(folder: Path) -> bool:
    """Whether the config is one of transformers, or was before a reshape."""
    return "model_type" in _config(folder)


def _config(folder: Path) -> dict[str, Any]:
    if not all((folder / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE)):
        return {}
    try:
        config = parse_json(folder / CONFIG_FILE, read_json_bytes(folder / CONFIG_FILE))
    except (AttnworksError, OSError):
        return {}
    return config if isinstance(config, dict) else {}


def _build_reshaped(model_class: Any, config: Any, mechanisms: Any, widths: Any, heads: Any) -> Any:
    """A model with the mechanisms, widths and heads that a config describes, each by the name of the layer."""
    model = model_class(copy.deepcopy(config))
    for name in {**heads, **widths}:
        slot = Slot.parse(name)
        if name in widths and (reason := hf_refusal_to_grow(model, slot)):
            raise cannot_grow(slot, reason)
        if name not in widths and (reason := hf_refusal_to_shrink(model, slot, heads.get(name))):
            raise cannot_keep(slot, reason)
        restore_heads(model, hf_layers(model)[slot], slot, widths.get(name), heads.get(name))
    if heads:
        model.config.attnworks_heads = heads
    build_in_mechanisms(model, {Slot.parse(name): specs for name, specs in mechanisms.items()})
    return model


def open_reshaped(folder: Path, model_class: Any, config: Any) -> nn.Module:
    """The model of the folder of a reshaped model, checked against its manifest."""
    with disk_errors(f"open {folder}", remedy=COPY_FOLDER):
        manifest = read_manifest(folder)
        read_config(folder, manifest)
    if model_class is None:
        raise load_error(folder / CONFIG_FILE, "the class of a model of transformers", repr(config.architectures)[:60])
    described = [vars(config).pop(name, {}) for name in (MECHANISMS_ENTRY, WIDTHS_ENTRY, HEADS_ENTRY)]
    try:
        with torch.device("meta"):
            skeleton = _build_reshaped(model_class, config, *described)
        check_expected(folder, skeleton, manifest["tensors"])
        model = _build_reshaped(model_class, config, *described)
    except AttnworksError:
        raise
    except Exception as error:
        expected = "mechanisms, widths and heads that fit the model"
        raise load_error(folder / CONFIG_FILE, expected, str(error)[:100]) from error
    fill(model, read_weights(folder, manifest, model))
    return model


# The configs of Llama and T5 hold the width of a head beside the number of heads. They can describe a model with fewer
# heads if all layers have the same number; in T5, whose position bias has one column per head, the same heads.


def to_standard(model: nn.Module) -> nn.Module:
    """The same model with a plain config, where transformers can represent it; else `model` itself."""
    config: Any = getattr(model, "config", None)
    kept: dict[str, list[int]] = getattr(config, HEADS_ENTRY, {})
    if not kept or getattr(config, MECHANISMS_ENTRY, None) or getattr(config, WIDTHS_ENTRY, None):
        return model
    slots = {*map(str, hf_layers(model))}
    changes = _changes(config, kept, model) if {*kept} == slots and all(kept.values()) else None
    plain = None if changes is None else _changed(config, changes)
    return model if plain is None else _rebuilt(model, plain, next(iter(kept.values())))


def _changes(config: Any, kept: dict[str, list[int]], model: nn.Module) -> dict[str, int] | None:
    """Entries of the config that say how many heads there are, if they can."""
    if config.model_type in FAMILIES_BY_HEAD_NUMBER:
        same = len({tuple(heads) for heads in kept.values()}) == 1
        return {"num_heads": len(next(iter(kept.values())))} if same else None
    if config.model_type not in FAMILIES_BY_HEAD_COUNT:
        return None
    weights = [part.weights() for part in hf_layers(model).values() if part.weights is not None]
    sizes = {(*W.W_Q.shape[::2], W.groups) for W in weights}
    if len(sizes) > 1:
        return None
    ((heads, width, groups),) = sizes
    return {"num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": width}


def _changed(config: Any, changes: dict[str, int]) -> Any:
    """The config with these entries and without those of attnworks; None if transformers would refuse it."""
    from huggingface_hub.errors import StrictDataclassError

    new = copy.deepcopy(config)
    for name in (MECHANISMS_ENTRY, WIDTHS_ENTRY, HEADS_ENTRY):
        vars(new).pop(name, None)
    try:
        for name, value in changes.items():
            setattr(new, name, value)
        type(config).from_dict(new.to_dict())
    except (StrictDataclassError, ValueError):
        return None
    return new


def _rebuilt(model: Any, config: Any, heads: list[int]) -> nn.Module:
    """The model with its weights under this config; the position bias [buckets h] is cut to these heads."""
    with torch.random.fork_rng(devices=[]):
        new = type(model)(config).to(next(model.parameters()).device).train(model.training)
    if getattr(model, "generation_config", None) is not None:
        new.generation_config = copy.deepcopy(model.generation_config)
    old = tensors_of(model)
    fill(new, {name: (T[:, heads] if name.endswith(POSITION_BIAS) else T).detach() for name, T in old.items()})
    for name, tensor in tensors_of(new).items():
        tensor.requires_grad_(old[name].requires_grad)
    return new
