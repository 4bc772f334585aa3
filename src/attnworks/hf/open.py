"""Opening models of Hugging Face safely: from safetensors only, without running code from their folders.

transformers warns about missing weights, draws them at random and continues. Here they are an error.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from attnworks.core.checks import choice
from attnworks.core.errors import FolderError, MissingExtraError, UnsafeFileError, short_message
from attnworks.core.folders import check_regular_files, disk_errors, load_error, parse_json, read_json_bytes
from attnworks.core.notation import DTYPES
from attnworks.core.packages import package_folder
from attnworks.core.registry import unknown_name
from attnworks.core.tensors import check_device
from attnworks.hf import quiet
from attnworks.hf.folder import is_reshaped, open_reshaped
from attnworks.hf.heads import MECHANISMS_ENTRY
from attnworks.hf.model_classes import package_classes
from attnworks.hf.registration import MODEL_TYPE_PREFIX, plain_types
from attnworks.models.folder import CONFIG_FILE, PICKLE_SUFFIXES, WEIGHTS_FILE
from attnworks.models.modes import cast, use_plain_experts

WEIGHTS_INDEX_FILE, ADAPTER_FILE = "model.safetensors.index.json", "adapter_config.json"
MODEL_FILES = ("*.json", "model*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model", "*.spm")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
OPTIONAL_TENSORS = re.compile(r"(^|\.)(position_ids$|pooler\.)")
CODE_ENTRIES = ("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "fusion_config")
"""Entries of a config with which transformers would load code or kernels."""

INFINITE_ENTRY, INFINITE = "__float__", ("Infinity", "-Infinity", "NaN")
"""What transformers writes in the place of such a number: {"__float__": "Infinity"}."""


class OpenedModel(NamedTuple):
    """A model in evaluation mode, and its tokenizer if there is one."""

    model: Any
    tokenizer: Any
    name: str


def open_model(
    path_or_id: str, *, dtype: str | None = "float32", device: str = "cpu", output_layer: bool = True
) -> OpenedModel:
    """The model in a folder, or with this id in the local cache of Hugging Face; nothing is ever downloaded.

    A model that cannot be loaded as a whole is an error. The model is built by the class of transformers that
    config.json names, with its output layer; without it if `output_layer` is False, or there is no such class. Without
    a dtype, weights keep the one in which they are stored.
    """
    if dtype is not None:
        choice("type of numbers", dtype, DTYPES)
    check_device(device)
    transformers = _transformers(path_or_id)
    with quiet():
        folder = folder_of(path_or_id)
        with disk_errors(f"open {folder}", remedy="check that you may read it"):
            check_regular_files(folder)
            described = _read_config(folder)
            _check_weights(folder)
        config = _config(folder, transformers, described)
        named = named_class(config)
        if is_reshaped(folder):
            model = open_reshaped(folder, named, config).to(device)
            if dtype is not None:
                cast(model, getattr(torch, dtype))
            use_plain_experts(model)
            return OpenedModel(model.eval(), _tokenizer(folder, config, transformers), folder.name)
        try:
            model_class = (named if output_layer else None) or transformers.AutoModel
            model, report = model_class.from_pretrained(
                folder,
                config=config,
                dtype="auto" if dtype is None else getattr(torch, dtype),
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except Exception as error:
            expected, got = "a model that transformers can load", short_message(error)
            raise load_error(folder, expected, got, "check its files") from error
        if dtype == "float64":  # some models, such as XLNet, make parameters in float32 alone
            cast(model, torch.float64)
        _check_report(folder, model, report)
        _check_finite(folder, model, dtype)
        use_plain_experts(model)
        tokenizer = _tokenizer(folder, config, transformers)
    name = (Path(path_or_id).name or folder.resolve().name) if Path(path_or_id).is_dir() else path_or_id
    return OpenedModel(model.to(device).eval(), tokenizer, name)


def empty_model(path_or_id: str) -> Any:
    """The model of a folder as `open_model` builds it, on torch's device meta: shapes alone, no weights are read."""
    transformers = _transformers(path_or_id)
    with quiet():
        folder = folder_of(path_or_id)
        if is_reshaped(folder):
            return open_model(path_or_id, dtype=None).model
        with disk_errors(f"open {folder}", remedy="check that you may read it"):
            config = _config(folder, transformers, _read_config(folder))
        named = named_class(config)
        try:
            with torch.device("meta"):
                return transformers.AutoModel.from_config(config) if named is None else named(config)
        except Exception as error:
            expected, got = "a config that transformers can build a model of", short_message(error)
            raise load_error(folder / CONFIG_FILE, expected, got, "check it") from error


def _transformers(asked: str) -> ModuleType:
    if importlib.util.find_spec("transformers") is None:
        remedy = "pip install 'attnworks[hf]'"
        raise MissingExtraError(f"open {asked}", "the package transformers", "an environment without it", remedy)
    import transformers

    return transformers


def folder_of(path_or_id: str) -> Path:
    """The folder itself, that of an installed package (`pypi:NAME`), or a copy in the cache. Nothing is downloaded."""
    if (inside := package_folder(path_or_id)) is not None:
        return inside
    folder = Path(path_or_id)
    if folder.is_file():
        if folder.suffix in PICKLE_SUFFIXES:
            raise _pickle(folder)
        raise load_error(folder, "a model folder", "a file", "give the folder that it is in")
    if folder.is_dir():
        return folder
    got, remedy = "nothing at this path", "check the path"
    if HUB_ID.fullmatch(path_or_id):
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError

        remedy = f"check the path, or download the model beforehand (hf download {path_or_id})"
        try:
            return Path(
                huggingface_hub.snapshot_download(path_or_id, allow_patterns=list(MODEL_FILES), local_files_only=True)
            )
        except LocalEntryNotFoundError:
            got = "no such folder, and nothing in the cache under this name"
        except Exception as error:
            got = f"no such folder, and a cache that cannot be read: {short_message(error)}"
    expected = "a model folder, or the id of a model downloaded from the Hugging Face Hub"
    raise FolderError(f"open {path_or_id}", expected, got, remedy)


def _read_config(folder: Path) -> dict[str, Any]:
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


def _config(folder: Path, transformers: ModuleType, described: dict[str, Any]) -> Any:
    try:
        return transformers.CONFIG_MAPPING[described["model_type"]].from_dict(harmless(described))
    except Exception as error:
        expected, got = "a config that transformers can read", short_message(error)
        raise load_error(folder / CONFIG_FILE, expected, got, "check it") from error


def harmless(config: Any) -> Any:
    """The config without what would load code or kernels, at any depth, and with its infinite numbers."""
    if isinstance(config, list):
        return [harmless(value) for value in config]
    if not isinstance(config, dict):
        return config
    if {*config} == {INFINITE_ENTRY} and config[INFINITE_ENTRY] in INFINITE:
        return float(config[INFINITE_ENTRY])
    return {key: harmless(value) for key, value in config.items() if key not in CODE_ENTRIES}


def named_class(config: Any) -> Any:
    """The class that config.json asks for, if transformers has it as a model for this very kind of config."""
    names = config.architectures
    name = names[0] if isinstance(names, list) and names else None
    return next((found for found in package_classes(type(config)) if found.__name__ == name), None)


def _check_weights(folder: Path) -> None:
    """Refuse weights that are not in safetensors files, missing ones and damaged ones."""
    whole = folder / WEIGHTS_FILE
    for path in [whole] if whole.is_file() else _shards(folder):
        try:
            with safe_open(path, framework="pt") as file:
                file.keys()
        except (SafetensorError, OSError) as error:
            got = f"one that cannot be read ({short_message(error)})"
            raise load_error(path, "a whole safetensors file", got) from error


def _shards(folder: Path) -> list[Path]:
    """The files that the index of split weights names."""
    index = folder / WEIGHTS_INDEX_FILE
    if not index.is_file():
        if pickles := sorted(path for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES):
            raise _pickle(pickles[0])
        expected = f"{WEIGHTS_FILE} or {WEIGHTS_INDEX_FILE}"
        raise load_error(folder, expected, "neither", "copy the weights into the folder")
    table = parse_json(index, read_json_bytes(index))
    where = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(where, dict) or not where:
        raise load_error(index, "a weight_map", "none")
    names = sorted({str(name) for name in where.values()})
    for name in names:
        if not name.endswith(".safetensors") or Path(name).name != name:
            expected = f"files of this folder in {WEIGHTS_INDEX_FILE}"
            raise UnsafeFileError(f"open {folder}", expected, repr(name), "convert the weights to safetensors")
    return [folder / name for name in names]


def _pickle(path: Path) -> UnsafeFileError:
    got, remedy = "a pickle, which can run code", "convert it to safetensors, if you trust it"
    return UnsafeFileError(f"open {path}", "safetensors", got, remedy)


def _check_report(folder: Path, model: nn.Module, report: dict[str, Any]) -> None:
    """Refuse weights that do not fit the config: of another shape, missing, or of layers that it does not have."""
    remedy = "use the config.json and the weights that belong together"
    for name, stored, expected in sorted(report["mismatched_keys"]):
        raise load_error(folder, f"{name} of shape {list(expected)}", f"shape {list(stored)}", remedy)
    if missing := sorted(name for name in report["missing_keys"] if not OPTIONAL_TENSORS.search(name)):
        raise load_error(folder, "every tensor that the config calls for", f"no {_some(missing)}", remedy)
    own = {_numberless(name) for name in model.state_dict()}
    layers = tuple(name for name in own if "#" in name)
    if extra := sorted(name for name in report["unexpected_keys"] if _numberless(name).endswith(layers)):
        raise load_error(folder, "as many layers as the config says", f"also {_some(extra)}", remedy)
    if report["error_msgs"]:
        raise load_error(folder, "weights that fit", short_message(report["error_msgs"][0]), remedy)


def _check_finite(folder: Path, model: nn.Module, dtype: str | None) -> None:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            bad = "NaN" if tensor.isnan().any() else f"infinite numbers in {dtype or 'its own type'}"
            raise load_error(folder, "finite weights", f"{bad} in {name}", "get the weights anew, or use a wider dtype")


def _tokenizer(folder: Path, config: Any, transformers: ModuleType) -> Any:
    if not any(next(folder.glob(name), None) for name in TOKENIZER_FILES):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, config=config, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        got = f"one that fails: {short_message(error)}"
        raise load_error(folder, "a tokenizer that transformers can load", got, "check its files") from error


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "#", f".{name}")


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} others"
