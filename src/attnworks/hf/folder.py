"""Folders of Hugging Face models with changed heads or mechanisms: the same three files as for models of attnworks.

transformers alone cannot run such a model. Its config therefore names a model_type that transformers does not know.
Where transformers can represent the model after all, `hf/standard.py` gives it back with a plain config.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnworks.core.errors import AttnworksError
from attnworks.core.folders import COPY_FOLDER, TensorTable, disk_errors, load_error, parse_json, read_json_bytes
from attnworks.core.tensors import tensors_of
from attnworks.hf import quiet
from attnworks.hf.changed_layers import LAYERS_ENTRY, describe_layers
from attnworks.hf.described import Described, build_reshaped, check_heads
from attnworks.hf.heads import MECHANISMS_ENTRY, WIDTHS_ENTRY
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

MODEL_TYPE_PREFIX = "attnworks-"
README_FILE = "README.md"
MOST_TIMES_LARGER = 8
"""How much larger a model of a folder of an earlier version may have been before heads were cut."""


def save_hf(model: Any, folder: Path) -> None:
    """Write a model of Hugging Face: config, weights and manifest if it was reshaped, else as transformers does."""
    if not hasattr(model.config, MECHANISMS_ENTRY):
        with quiet():
            model.save_pretrained(folder)
        return
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    config |= {"model_type": MODEL_TYPE_PREFIX + config["model_type"], "architectures": [type(model).__name__]}
    changed = {**config[MECHANISMS_ENTRY], **config.get(WIDTHS_ENTRY, {})}
    config[LAYERS_ENTRY] = describe_layers(model, changed)
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


def open_reshaped(folder: Path, model_class: Any, config: Any) -> nn.Module:
    """The model of the folder of a reshaped model, checked against its manifest."""
    with disk_errors(f"open {folder}", remedy=COPY_FOLDER):
        manifest = read_manifest(folder)
        read_config(folder, manifest)
    if model_class is None:
        raise load_error(folder / CONFIG_FILE, "the class of a model of transformers", repr(config.architectures)[:60])
    described = Described.taken_from(config)
    try:
        _check_sizes(folder, model_class, config, described, manifest["tensors"])
        model = build_reshaped(model_class, config, described, manifest["tensors"])
        fill(model, read_weights(folder, manifest, model))
        check_heads(model, described)
    except AttnworksError:
        raise
    except Exception as error:
        expected = "mechanisms, widths and heads that fit the model"
        raise load_error(folder / CONFIG_FILE, expected, str(error)[:100]) from error
    return model


def _check_sizes(folder: Path, model_class: Any, config: Any, described: Described, table: TensorTable) -> None:
    """Check the sizes of a model before it is built; only roughly where its layers are yet to be found."""
    with torch.device("meta"):
        if described.layers is not None:
            check_expected(folder, build_reshaped(model_class, config, described, table), table)
            return
        whole = sum(tensor.numel() for tensor in tensors_of(model_class(copy.deepcopy(config))).values())
    stored = sum(math.prod(entry["shape"]) for entry in table.values())
    if whole > MOST_TIMES_LARGER * stored + MOST_TIMES_LARGER:
        expected = (
            f"a model of at most {MOST_TIMES_LARGER} times the {stored} numbers of its tensors before heads were cut"
        )
        raise load_error(folder / CONFIG_FILE, expected, str(whole))
