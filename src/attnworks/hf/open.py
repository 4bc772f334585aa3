"""Opening models of Hugging Face safely: whatever the format of their weights, no code of their files is run.

The readers of `hf/files` check files before they take memory. transformers warns about missing weights, draws them at
random and continues. Here they are an error.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from attnworks.core.checks import choice
from attnworks.core.errors import AttnworksError, FolderError, MissingExtraError, UnsafeFileError, short_message
from attnworks.core.folders import (
    check_regular,
    check_regular_files,
    disk_errors,
    load_error,
)
from attnworks.core.notation import DTYPES
from attnworks.core.packages import package_folder
from attnworks.core.tensors import check_device
from attnworks.hf import quiet
from attnworks.hf.config_file import check_counts, config_of, named_class, read_entries
from attnworks.hf.files.contract import WeightFiles
from attnworks.hf.files.find import ModelPlace, find_weights, is_gguf
from attnworks.hf.folder import (
    GENERATION_FILE,
    MOST_TIMES_LARGER,
    is_reshaped,
    open_reshaped,
    read_generation_config,
)
from attnworks.hf.heads import MECHANISMS_ENTRY
from attnworks.models.folder import CONFIG_FILE, WEIGHTS_FILE, half_precision_remark
from attnworks.models.modes import cast, use_plain_experts

MODEL_FILES = ("*.json", "model*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model", "*.spm")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
OPTIONAL_TENSORS = re.compile(r"(^|\.)(position_ids$|pooler\.)")
FREE_NUMBERS = 2**24
"""A model may always have this number of numbers, for tables of positions and masks that are computed."""


class OpenedModel(NamedTuple):
    """A model in evaluation mode, and its tokenizer if there is one.

    remarks    sentences on what was changed when it was opened
    """

    model: Any
    tokenizer: Any
    name: str
    remarks: tuple[str, ...] = ()


class _Described(NamedTuple):
    """What is known of a model before its weights are read: its config, and the headers of its files."""

    place: ModelPlace
    weights: WeightFiles
    config: Any


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
        path = folder_of(path_or_id)
        with disk_errors(f"open {path}", remedy="check that you may read it"):
            place, weights, config = _describe(path, transformers)
            named = named_class(config)
            if is_own_folder(place):
                model = open_reshaped(place.folder, named, config)
                if dtype is not None:
                    cast(model, getattr(torch, dtype))
            else:
                model = _load(place, weights, config, named, dtype, output_layer=output_layer)
        use_plain_experts(model)
        tokenizer = open_tokenizer(place, weights, config)
    name = (Path(path_or_id).name or path.resolve().name) if Path(path_or_id).exists() else path_or_id
    return OpenedModel(model.to(device).eval(), tokenizer, name, _remarks(weights, dtype))


def empty_model(path_or_id: str) -> Any:
    """The model of a folder as `open_model` builds it, on torch's device meta: shapes alone, no weights are read."""
    transformers = _transformers(path_or_id)
    with quiet():
        path = folder_of(path_or_id)
        with disk_errors(f"open {path}", remedy="check that you may read it"):
            if path.is_dir() and is_reshaped(path):
                return open_model(path_or_id, dtype=None).model
            if is_gguf(path) or path.is_file():
                place, _, config = _describe(path, transformers)
                return _empty(place.file, named_class(config), config)
            config = config_of(path / CONFIG_FILE, transformers, read_entries(path))
            return _empty(path / CONFIG_FILE, named_class(config), config)


def stored_dtype_of(place: ModelPlace) -> torch.dtype:
    """The type of most numbers of a model as it is opened without a dtype."""
    return place.weights().stored_dtype


def is_own_folder(place: ModelPlace) -> bool:
    """Whether this is the folder of a model that attnworks reshaped."""
    return place.format == "safetensors" and is_reshaped(place.folder)


def open_tokenizer(place: ModelPlace, weights: WeightFiles | None = None, config: Any = None) -> Any:
    """The tokenizer of a model; None if there is none."""
    if place.format == "GGUF":
        from attnworks.hf.files.from_gguf import GGUFFile

        return (weights if isinstance(weights, GGUFFile) else GGUFFile(place.file)).tokenizer()
    return _tokenizer(place.folder, config, _transformers(str(place.folder)))


def _describe(path: Path, transformers: ModuleType) -> _Described:
    """The config and the headers of the weights of a model, checked to be no larger than its files allow."""
    if path.is_file():
        find_weights(path)
    if path.is_dir() or not is_gguf(path):
        check_regular_files(path if path.is_dir() else path.parent)
    else:
        check_regular(path)
    described: dict[str, Any] = {}
    if not is_gguf(path):
        described = read_entries(path if path.is_dir() else path.parent)
    place = find_weights(path)
    if MECHANISMS_ENTRY in described and place.file.name != WEIGHTS_FILE:
        got, remedy = place.file.name, "copy the folder again from where it was whole"
        raise UnsafeFileError(f"open {path}", f"{WEIGHTS_FILE}, whose hashes the manifest has", got, remedy)
    weights = place.weights()
    source = place.folder / CONFIG_FILE
    if place.format == "GGUF":
        from attnworks.hf.files.from_gguf import GGUFFile

        assert isinstance(weights, GGUFFile)
        described, source = weights.config(), place.file
    check_counts(source, described, weights)
    return _Described(place, weights, config_of(source, transformers, described))


def _load(
    place: ModelPlace, weights: WeightFiles, config: Any, named: Any, dtype: str | None, *, output_layer: bool
) -> Any:
    """The model with the weights of its files, every one of which must fit."""
    whole = _empty(place.file, named, config)
    model_class = type(whole if output_layer else _empty(place.file, None, config))
    _check_size(place, whole, weights)
    wanted = weights.stored_dtype if dtype is None else getattr(torch, dtype)
    state = weights.read(whole, wanted)
    try:
        model, report = model_class.from_pretrained(
            None,  # pyright: ignore[reportArgumentType] -- the state dict is given
            config=config,
            state_dict=state,
            dtype=wanted,
            trust_remote_code=False,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        if place.format != "GGUF":
            _read_generation_config(model, place.folder)
    except AttnworksError:
        raise
    except Exception as error:
        expected, got = "a model that transformers can load", short_message(error)
        raise load_error(place.named, expected, got, "check its files") from error
    if dtype == "float64":  # some models, such as XLNet, make parameters in float32 alone
        cast(model, torch.float64)
    _check_report(place.named, model, report)
    _check_finite(place.named, model, dtype)
    model.config.name_or_path = str(place.folder)
    return model


def _read_generation_config(model: Any, folder: Path) -> None:
    """How the model writes, as `from_pretrained` reads it: from its own file, else from the config (BART)."""
    read_generation_config(model, folder)
    if model.can_generate() and not (folder / GENERATION_FILE).is_file():
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig.from_pretrained(
            folder, config_file_name=CONFIG_FILE, local_files_only=True, _from_model_config=True
        )


def _empty(source: Path, named: Any, config: Any) -> Any:
    """The model on torch's device meta, where it takes no memory."""
    import transformers

    try:
        with torch.device("meta"):
            return transformers.AutoModel.from_config(config) if named is None else named(config)
    except Exception as error:
        expected, got = "a config that transformers can build a model of", short_message(error)
        raise load_error(source, expected, got, "check it") from error


def _remarks(weights: WeightFiles, dtype: str | None) -> tuple[str, ...]:
    if kinds := weights.quantisations:
        return (f"the weights are stored in blocks ({', '.join(kinds)}) and were dequantised to float32",)
    return () if dtype is None else half_precision_remark(weights.stored_dtype, getattr(torch, dtype))


def _check_size(place: ModelPlace, empty: nn.Module, weights: WeightFiles) -> None:
    """Refuse a model that is much larger than its files: what they lack would take memory before it is missed."""
    numbers = sum({id(tensor): tensor.numel() for tensor in (*empty.parameters(), *empty.buffers())}.values())
    if numbers > (most := MOST_TIMES_LARGER * weights.numel + FREE_NUMBERS):
        expected = f"a model of at most {most:,} numbers, for the {weights.numel:,} of its files"
        raise load_error(place.named, expected, f"{numbers:,}", "use the config and the weights that belong together")


def _transformers(asked: str) -> ModuleType:
    if importlib.util.find_spec("transformers") is None:
        remedy = "pip install 'attnworks[hf]'"
        raise MissingExtraError(f"open {asked}", "the package transformers", "an environment without it", remedy)
    import transformers

    return transformers


def folder_of(path_or_id: str) -> Path:
    """The folder or file itself, the folder of an installed package (`pypi:NAME`), or a copy in the cache.

    Nothing is downloaded.
    """
    if (inside := package_folder(path_or_id)) is not None:
        return inside
    folder = Path(path_or_id)
    if folder.exists():
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
