"""Folders of Hugging Face models with changed heads or mechanisms: the same three files as for models of attnworks.

transformers alone cannot run such a model. Its config therefore names a model_type that transformers does not know.
Where transformers can represent the model after all, `hf/standard.py` gives it back with a plain config.
"""

from __future__ import annotations

import copy
import json
import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnworks.core.errors import AttnworksError
from attnworks.core.folders import COPY_FOLDER, TensorTable, disk_errors, load_error, parse_json, read_json_bytes
from attnworks.core.places import Slot
from attnworks.core.tensors import tensors_of
from attnworks.hf import quiet
from attnworks.hf.added_columns import restore
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.changed_layers import LAYERS_ENTRY, LayerPlace, describe_layers, places_of
from attnworks.hf.cut.apply import apply_recipe, check
from attnworks.hf.cut.keep import CUTS_ENTRY
from attnworks.hf.cut.recipe import CutRecipe, heads_left
from attnworks.hf.heads import (
    ADDED_ENTRY,
    HEADS_ENTRY,
    MECHANISMS_ENTRY,
    WIDTHS_ENTRY,
    hf_keep_heads,
    hf_refusal_to_shrink,
    missing_layer_reason,
    resize,
)
from attnworks.hf.mechanisms import drop_as_earlier, put_mechanisms, use_mechanisms
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
from attnworks.models.surgery import cannot_keep

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


@dataclass(frozen=True)
class _Described:
    """What the config of a folder says of changed layers; all but `cuts` by the names of the layers.

    layers    where they sit; None in folders of earlier versions, in which they are found by evidence
    """

    mechanisms: dict[str, list[str]]
    widths: dict[str, dict[str, list[int]]]
    heads: dict[str, list[int]]
    cuts: list[Any]
    layers: dict[str, Any] | None
    added: dict[str, Any]

    @classmethod
    def taken_from(cls, config: Any) -> _Described:
        """The entries of a config, which are removed from it."""
        names, taken = (MECHANISMS_ENTRY, WIDTHS_ENTRY, HEADS_ENTRY), vars(config)
        mechanisms, widths, heads = (taken.pop(name, {}) for name in names)
        cuts, layers, added = taken.pop(CUTS_ENTRY, []), taken.pop(LAYERS_ENTRY, None), taken.pop(ADDED_ENTRY, {})
        return cls(mechanisms, widths, heads, cuts, layers, added)


def _build_reshaped(model_class: Any, config: Any, described: _Described, table: TensorTable) -> Any:
    """A model with the mechanisms, widths and heads that a config describes, for weights with these shapes."""
    model = model_class(copy.deepcopy(config))
    for entry in described.cuts:
        recipe = CutRecipe.from_json(entry)
        check(model, recipe)
        apply_recipe(model, recipe, ExitStack())
    _cut_by_evidence(model, described)
    changed = {**described.widths, **described.mechanisms}
    if described.layers is None:
        places = places_of(model, changed)
    else:
        if unknown := changed.keys() - described.layers.keys():
            raise ValueError(f"no such layer as {min(unknown)}")
        places = {name: LayerPlace.from_json(described.layers[name], model) for name in changed}
    for name, widths in described.widths.items():
        place, count = places[name], len(widths["keys"])
        first = described.heads.get(name) or [*range(count)]
        attention = model.get_submodule(place.attention)
        resize(model, attention, Slot.parse(name), place.projections, widths["keys"], widths["values"], first)
    if described.layers is None:
        narrow = {name: specs for name, specs in described.mechanisms.items() if name not in described.widths}
        rows = {name.removesuffix(".weight"): entry["shape"][0] for name, entry in table.items() if entry["shape"]}
        drop_as_earlier(model, narrow, rows)
    for name, specs in described.mechanisms.items():
        place = places[name]
        put_mechanisms(model.get_submodule(place.attention), place.widths, specs, place.projections)
    for entry, value in (
        (HEADS_ENTRY, described.heads),
        (CUTS_ENTRY, described.cuts),
        (ADDED_ENTRY, described.added),
    ):
        if value:
            setattr(model.config, entry, value)
    use_mechanisms(model, described.mechanisms)
    for added in described.added.values():
        restore(model, added)
    return model


def _cut_by_evidence(model: Any, described: _Described) -> None:
    """Cut the layers of a folder of an earlier version, which has no recipes."""
    names = [] if described.layers is not None else [name for name in described.heads if name not in described.widths]
    for name in names:
        if reason := hf_refusal_to_shrink(model, Slot.parse(name), described.heads[name]):
            raise cannot_keep(Slot.parse(name), reason)
    hf_keep_heads(model, {Slot.parse(name): described.heads[name] for name in names})


def open_reshaped(folder: Path, model_class: Any, config: Any) -> nn.Module:
    """The model of the folder of a reshaped model, checked against its manifest."""
    with disk_errors(f"open {folder}", remedy=COPY_FOLDER):
        manifest = read_manifest(folder)
        read_config(folder, manifest)
    if model_class is None:
        raise load_error(folder / CONFIG_FILE, "the class of a model of transformers", repr(config.architectures)[:60])
    described = _Described.taken_from(config)
    try:
        _check_sizes(folder, model_class, config, described, manifest["tensors"])
        model = _build_reshaped(model_class, config, described, manifest["tensors"])
        fill(model, read_weights(folder, manifest, model))
        _check_heads(model, described)
    except AttnworksError:
        raise
    except Exception as error:
        expected = "mechanisms, widths and heads that fit the model"
        raise load_error(folder / CONFIG_FILE, expected, str(error)[:100]) from error
    return model


def _check_sizes(folder: Path, model_class: Any, config: Any, described: _Described, table: TensorTable) -> None:
    """Check the sizes of a model before it is built; only roughly where its layers are yet to be found."""
    with torch.device("meta"):
        if described.layers is not None:
            check_expected(folder, _build_reshaped(model_class, config, described, table), table)
            return
        whole = sum(tensor.numel() for tensor in tensors_of(model_class(copy.deepcopy(config))).values())
    stored = sum(math.prod(entry["shape"]) for entry in table.values())
    if whole > MOST_TIMES_LARGER * stored + MOST_TIMES_LARGER:
        expected = (
            f"a model of at most {MOST_TIMES_LARGER} times the {stored} numbers of its tensors before heads were cut"
        )
        raise load_error(folder / CONFIG_FILE, expected, str(whole))


def _check_heads(model: nn.Module, described: _Described) -> None:
    """Check that the layers have as many heads as the config says, and those that its cuts leave."""
    named = {**described.mechanisms, **described.heads}
    layers = hf_layers(model) if named else {}
    for name, heads in named.items():
        if reason := missing_layer_reason(model, Slot.parse(name)):
            raise ValueError(reason)
        found = layers[Slot.parse(name)]
        if len(heads) != found.heads:
            raise ValueError(f"{len(heads)} heads in {name}, which has {found.heads}")
    cuts = [CutRecipe.from_json(entry) for entry in described.cuts]
    for name in described.heads.keys() - described.widths.keys():
        kept = heads_left(cuts, layers[Slot.parse(name)].place()[1].path)
        if described.layers is not None and described.heads[name] != kept:
            raise ValueError(f"the heads {described.heads[name]!r:.40} in {name}, whose cuts leave {kept!r:.40}")
