"""What `from_pretrained` and `save_pretrained` of transformers do with a reshaped model.

A folder is checked against its manifest as `attnworks.open` checks it. As in transformers, the class that is asked for
may be another than that of the folder, with another output layer or none: the layers that both have are kept.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.core.folders import check_regular_files, load_error, read_tensors
from attnworks.core.notation import DTYPES
from attnworks.core.places import Slot
from attnworks.core.tensors import tensors_of
from attnworks.hf import quiet
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.config_file import named_class
from attnworks.hf.described import Described, build_reshaped, check_heads
from attnworks.hf.folder import checked, config_errors, is_reshaped, read_generation_config, save_hf
from attnworks.hf.heads import HEADS_ENTRY, MECHANISMS_ENTRY
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, fill, stored_dtype
from attnworks.models.modes import cast, use_plain_experts

HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
"""Options about where transformers finds a folder."""
IGNORED = (
    *("_commit_hash", "_fast_init", "_from_auto", "_from_pipeline", "adapter_kwargs", "low_cpu_mem_usage"),
    *("max_memory", "offload_buffers", "offload_folder", "offload_state_dict", "tqdm_class", "trust_remote_code"),
    *("use_safetensors", "weights_only", "disable_mmap"),
)
"""Options that change nothing here: weights are safetensors, in one file, and no code of a folder is run."""
REFUSED = (
    *("adapter_name", "device_mesh", "distributed_config", "fusion_config", "gguf_file", "kernel_config"),
    *("key_mapping", "quantization_config", "state_dict", "tp_plan", "tp_size", "use_kernels", "variant"),
)


def is_reshaped_source(name_or_path: object, options: Mapping[str, Any]) -> bool:
    """Whether `from_pretrained` is given the folder of a reshaped model, or its config."""
    if options.get("gguf_file") is not None or not isinstance(name_or_path, str | os.PathLike):
        return False
    folder = Path(name_or_path, options.get("subfolder") or "")
    return is_reshaped(folder) if folder.is_dir() else hasattr(options.get("config"), MECHANISMS_ENTRY)


def from_reshaped(model_class: Any, name_or_path: str | os.PathLike[str], *model_args: Any, **options: Any) -> Any:
    """`model_class.from_pretrained` for the folder of a reshaped model."""
    import transformers

    given = {name: value for name, value in options.items() if name not in IGNORED}
    refused = [name for name in REFUSED if given.pop(name, None)]
    device = _device(given.pop("device_map", None))
    if model_args or refused:
        got = refused[0] if refused else "arguments without a name"
        raise _not_with(name_or_path, "options that a reshaped model has", got, "leave it out")
    folder = _folder(name_or_path, {name: given.pop(name) for name in HUB if name in given})
    with_info, ignoring = given.pop("output_loading_info", False), given.pop("ignore_mismatched_sizes", False)
    dtype, generation = _dtype(name_or_path, given), given.pop("generation_config", None)
    config: Any = given.pop("config", None)
    if not isinstance(config, transformers.PreTrainedConfig):
        read: Any = transformers.AutoConfig.from_pretrained(folder, return_unused_kwargs=True, **given)
        config, given = read
    config = copy.deepcopy(config)
    for name in ("attn_implementation", "experts_implementation"):
        if name in given:
            setattr(config, f"_{name}", given.pop(name))
    model, missing, unused, others = _built(folder, model_class, config, given, ignoring)
    if dtype is not None:
        cast(model, dtype)
    use_plain_experts(model)
    config_of: Any = model.config
    config_of.dtype, config_of.name_or_path, model.name_or_path = model.dtype, str(name_or_path), str(name_or_path)
    read_generation_config(model, folder)
    if generation is not None:
        model.generation_config = generation
    _tell(model, folder, missing, unused)
    model = model.to(device).eval()
    found = {"missing_keys": missing, "unexpected_keys": unused, "mismatched_keys": others, "error_msgs": []}
    return (model, found) if with_info else model


def save_reshaped(
    model: Any,
    save_directory: str | os.PathLike[str],
    is_main_process: bool = True,
    state_dict: object = None,
    push_to_hub: bool = False,
    **ignored: Any,
) -> None:
    """`save_pretrained` of a reshaped model: the three files of `hf/folder.py`."""
    del state_dict, ignored
    if push_to_hub:
        expected, remedy = "a folder alone", "save it, then upload the folder"
        raise UsageError(f"save a reshaped {type(model).__name__}", expected, "push_to_hub", remedy)
    if is_main_process:
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        save_hf(model, Path(save_directory))


def _built(
    folder: Path, model_class: Any, config: Any, options: Mapping[str, Any], ignoring: bool
) -> tuple[Any, set[str], set[str], set[tuple[str, torch.Size, torch.Size]]]:
    """The model, the names of its tensors that the folder lacks, of those that it has no use for, and of other shapes.

    options     arguments of the class
    ignoring    whether tensors of other shapes are left out
    """
    import transformers

    check_regular_files(folder)
    with quiet():
        saved = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    named = named_class(saved)
    described, manifest = checked(folder, named, saved)
    if not isinstance(config, model_class.config_class):
        expected, remedy = f"a folder of {model_class.config_class.__name__}", "use an Auto class"
        raise _not_with(folder, expected, type(config).__name__, remedy)
    Described.taken_from(config)
    make, tensors = partial(model_class, **options), read_tensors(folder / WEIGHTS_FILE, manifest["tensors"])
    with config_errors(folder):
        with torch.device("meta"):
            names = {name: name for name in tensors}
            if model_class is not named:
                plain = make(copy.deepcopy(config))
                rename = partial(_name_in, plain, model_class.base_model_prefix)
                names = {name: rename(name) for name in tensors}
                described = described.renamed(lambda path: _if_module(plain, rename(path)))
            table = {new: manifest["tensors"][name] for name, new in names.items() if new is not None}
            empty = tensors_of(build_reshaped(make, config, described, table))
        ready = {new: tensors[name] for name, new in names.items() if new in empty}
        missing, unused = {*empty} - {*ready}, {name for name, new in names.items() if new not in empty}
        others = {(name, T.shape, empty[name].shape) for name, T in ready.items() if T.shape != empty[name].shape}
        ready = {name: T for name, T in ready.items() if T.shape == empty[name].shape}
        if others and not ignoring:
            name, stored, expected = min(others)
            remedy = "pass ignore_mismatched_sizes=True for new random weights"
            raise load_error(folder, f"{name} of shape {[*expected]}", f"shape {[*stored]}", remedy)
        model = build_reshaped(make, config, described, table)
        fill(model, {**_new_tensors(model, {*missing, *(name for name, _, _ in others)}, folder), **ready})
        if model_class is not named:
            described = _heads_of_layers(model, described)
        check_heads(model, described)
    return model, missing, unused, others


def _name_in(model: nn.Module, prefix: str, path: str) -> str | None:
    """Path of a module or tensor in a model of another class -> its path in this one, or None.

    prefix    the name under which a model with an output layer has the one without
    """
    names = {name.partition(".")[0] for name in model.state_dict()}
    first, _, rest = path.partition(".")
    if first in names:
        return path
    if first == prefix:
        return rest
    return f"{prefix}.{path}" if prefix in names else None


def _if_module(model: nn.Module, path: str | None) -> str | None:
    """The path, if it is one of a module or parameter of the model."""
    known = path is not None and (path in dict(model.named_modules()) or path in dict(model.named_parameters()))
    return path if known else None


def _heads_of_layers(model: Any, described: Described) -> Described:
    """Without the heads of layers that the model does not have; the same in its config."""
    layers = hf_layers(model) if described.heads else {}
    heads = {name: numbers for name, numbers in described.heads.items() if Slot.parse(name) in layers}
    if heads != described.heads:
        setattr(model.config, HEADS_ENTRY, heads)
    return replace(described, heads=heads)


def _new_tensors(model: nn.Module, names: set[str], folder: Path) -> dict[str, Tensor]:
    """The random numbers of a new model with these names, in the type of the weights of the folder."""
    dtype = stored_dtype(folder)
    new = {name: T.detach() for name, T in tensors_of(model).items() if name in names}
    return {name: T.to(dtype) if T.is_floating_point() else T for name, T in new.items()}


def _folder(name_or_path: str | os.PathLike[str], hub: Mapping[str, Any]) -> Path:
    """The folder itself, or that of a model of the Hub as transformers finds or fetches its files."""
    if (folder := Path(name_or_path, hub.get("subfolder") or "")).is_dir():
        return folder
    from transformers.utils.hub import cached_file

    files = [cached_file(str(name_or_path), name, **hub) for name in (CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE)]
    return Path(str(files[0])).parent


def _dtype(asked: object, options: dict[str, Any]) -> torch.dtype | None:
    """The type of numbers that the options name, which are taken out; None for the type that is stored."""
    older = options.pop("torch_dtype", None)
    dtype = options.pop("dtype", None) or older or "auto"
    if dtype == "auto":
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise _not_with(asked, f"a dtype among {', '.join(DTYPES)}", name, "choose one of them")
    return getattr(torch, name)


def _device(device_map: Any) -> torch.device:
    """The one device that a device map names."""
    places = {*device_map.values()} if isinstance(device_map, dict) else {device_map}
    place = "cpu" if places == {None} else next(iter(places))
    if len(places) > 1 or place in ("auto", "balanced", "balanced_low_0", "sequential", "disk"):
        raise _not_with("it", "a device_map with one device", f"{device_map!r:.60}", "move the model to a device")
    return torch.device(place)


def _tell(model: Any, folder: Path, missing: set[str], unused: set[str]) -> None:
    from transformers.utils import logging

    log, name = logging.get_logger("transformers.attnworks"), type(model).__name__
    for names, said in (
        (missing, f"The weights of {name} that {folder} lacks are random; train the model before you use it"),
        (unused, f"{name} does not have these weights of {folder}"),
    ):
        if names:
            log.warning(f"{said}: {', '.join(sorted(names))}.")


def _not_with(asked: object, expected: str, got: str, remedy: str) -> UsageError:
    return UsageError(f"from_pretrained of a reshaped model, {asked}", expected, got, remedy)
