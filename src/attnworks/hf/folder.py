"""Folders of Hugging Face models with changed heads or mechanisms: the same three files as for models of attnworks.

transformers alone cannot run such a model. Its config therefore names a model_type that transformers does not know
unless attnworks.hf is imported (`hf/registration.py`).
Where transformers can represent the model after all, `hf/standard.py` gives it back with a plain config.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnworks.core.errors import AttnworksError, short_message
from attnworks.core.folders import (
    COPY_FOLDER,
    MAX_JSON_BYTES,
    TensorTable,
    check_regular,
    disk_errors,
    load_error,
    parse_json,
    read_json_bytes,
)
from attnworks.core.tensors import tensors_of
from attnworks.hf import quiet
from attnworks.hf.changed_layers import LAYERS_ENTRY, describe_layers
from attnworks.hf.described import Described, build_reshaped, check_heads
from attnworks.hf.heads import MECHANISMS_ENTRY, WIDTHS_ENTRY
from attnworks.hf.registration import MODEL_TYPE_PREFIX
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

README_FILE, GENERATION_FILE = "README.md", "generation_config.json"
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
    if model.can_generate():
        model.generation_config.to_json_file(folder / GENERATION_FILE)
    (folder / README_FILE).write_text(
        f"# {type(model).__name__}, reshaped by attnworks\n\n"
        "Some attention heads are not what transformers knows, so that `from_pretrained` alone refuses this folder. "
        "Import attnworks.hf first; then the Auto classes, `pipeline` and sentence-transformers open it:\n\n"
        "```python\nimport attnworks.hf\nfrom transformers import AutoModel, AutoTokenizer\n\n"
        "model = AutoModel.from_pretrained('this-folder')\n"
        "tokenizer = AutoTokenizer.from_pretrained('this-folder')\n```\n\n"
        "`attnworks.open('this-folder')` opens it to be examined and reshaped.\n"
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
    described, manifest = checked(folder, model_class, config)
    with config_errors(folder):
        model = build_reshaped(model_class, config, described, manifest["tensors"])
        fill(model, read_weights(folder, manifest, model))
        check_heads(model, described)
        read_generation_config(model, folder)
    return model


def checked(folder: Path, model_class: Any, config: Any) -> tuple[Described, dict[str, Any]]:
    """What the config says of changed layers, and the manifest, both checked before a model is built.

    The entries of attnworks are removed from the config.
    """
    with disk_errors(f"open {folder}", remedy=COPY_FOLDER):
        manifest = read_manifest(folder)
        read_config(folder, manifest)
    if model_class is None:
        raise load_error(folder / CONFIG_FILE, "the class of a model of transformers", repr(config.architectures)[:60])
    described = Described.taken_from(config)
    with config_errors(folder):
        _check_sizes(folder, model_class, config, described, manifest["tensors"])
    return described, manifest


@contextmanager
def config_errors(folder: Path) -> Iterator[None]:
    """Whatever fails while a model is built becomes an error about its config."""
    try:
        yield
    except AttnworksError:
        raise
    except Exception as error:
        expected = "mechanisms, widths and heads that fit the model"
        raise load_error(folder / CONFIG_FILE, expected, str(error)[:100]) from error


def read_generation_config(model: Any, folder: Path) -> None:
    """Give a model that generates text the settings beside it, if there are any."""
    if not model.can_generate() or not (folder / GENERATION_FILE).is_file():
        return
    from transformers import GenerationConfig

    check_regular(folder / GENERATION_FILE, MAX_JSON_BYTES)
    try:
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        got = short_message(error)
        raise load_error(folder / GENERATION_FILE, "settings that transformers can read", got, "correct it") from error


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
