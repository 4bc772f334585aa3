"""Folders of Hugging Face models with heads of ours: the same three files as an own model's, and no other name for it.

transformers alone cannot run such a model. Its config therefore names a model_type that transformers does not know.
"""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnworks.errors import AttnworksError
from attnworks.hf import quiet
from attnworks.hf.heads import HEADS, WIDTHS, restore_heads
from attnworks.models.attention_layers import attention_layers
from attnworks.models.folder import (
    CONFIG,
    WEIGHTS,
    check_expected,
    fill,
    read_config,
    read_manifest,
    read_weights,
    write_parts,
)
from attnworks.models.remaking import ENTRY, equip
from attnworks.models.surgery import check_can_grow, check_can_keep
from attnworks.storage.disk import disk_errors
from attnworks.storage.sealed import changed, parse_json, read_json_bytes

PREFIX = "attnworks-"
README = "README.md"


def write_foreign(model: Any, folder: Path) -> None:
    """A model of Hugging Face, into a folder that is being filled: as transformers does it, unless heads are ours."""
    if hasattr(model.config, ENTRY):
        _write_reshaped(model, folder)
    else:
        with quiet():
            model.save_pretrained(folder)


def _write_reshaped(model: Any, folder: Path) -> None:
    """Config, weights and manifest."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    config |= {"model_type": PREFIX + config["model_type"], "architectures": [type(model).__name__]}
    write_parts(config, model, folder)
    (folder / README).write_text(
        f"# {type(model).__name__}, reshaped by attnworks\n\n"
        "Some attention heads are not what transformers knows, so that `from_pretrained` alone refuses this folder. "
        "Open it with attnworks:\n\n"
        "```python\nimport attnworks\n\nmodel = attnworks.load('this-folder')\n```\n"
    )


def is_reshaped(folder: Path) -> bool:
    """Whether the config speaks of mechanisms of ours."""
    config = _config(folder)
    return str(config.get("model_type")).startswith(PREFIX) and ENTRY in config


def is_pretrained(folder: Path) -> bool:
    """Whether the config is one of transformers, or was before a reshape."""
    return "model_type" in _config(folder)


def _config(folder: Path) -> dict[str, Any]:
    if not all((folder / name).is_file() for name in (CONFIG, WEIGHTS)):
        return {}
    try:
        config = parse_json(folder / CONFIG, read_json_bytes(folder / CONFIG))
    except (AttnworksError, OSError):
        return {}
    return config if isinstance(config, dict) else {}


def _equipped(model_class: Any, config: Any, mechanisms: Any, widths: Any, heads: Any) -> Any:
    model = model_class(copy.deepcopy(config))
    for slot in {**heads, **widths}:
        check = partial(check_can_keep, kept=heads[slot]) if slot not in widths else check_can_grow
        check(model, slot)
        restore_heads(model, attention_layers(model)[slot], slot, widths.get(slot), heads.get(slot))
    if heads:
        model.config.attnworks_heads = heads
    equip(model, mechanisms)
    return model


def open_reshaped(folder: Path, model_class: Any, config: Any) -> nn.Module:
    """The model of such a folder, checked against its manifest."""
    with disk_errors(f"open {folder}", remedy="copy the folder again from where it was whole"):
        manifest = read_manifest(folder)
        read_config(folder, manifest)
    if model_class is None:
        raise changed(folder / CONFIG, "the class of a model of transformers", repr(config.architectures)[:60])
    described = [vars(config).pop(name, {}) for name in (ENTRY, WIDTHS, HEADS)]
    try:
        with torch.device("meta"):
            skeleton = _equipped(model_class, config, *described)
        check_expected(folder, skeleton, manifest["tensors"])
        model = _equipped(model_class, config, *described)
    except AttnworksError:
        raise
    except Exception as error:
        raise changed(folder / CONFIG, "mechanisms, widths and heads that fit the model", str(error)[:100]) from error
    fill(model, read_weights(folder, manifest, model))
    return model
