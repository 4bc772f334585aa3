"""Configs of tiny models: the options of a given config with small sizes that all differ."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnworks.hf.tiny_sizes import ATTRIBUTES, FIXED, KINDS_OF_LAYERS, ONES, OPTIONS, OVERRIDES, Sizes

DEEPEST = 3
"""Configs within configs are made small down to this depth."""
MOST_LAYERS = 6
TOKEN_ATTRIBUTES = ("_token_id", "_token_index", "_token_ids")
"""How the names of attributes end that hold ids of special tokens."""


@dataclass(frozen=True)
class Variant:
    """How sizes depend on each other; code that fixes a ratio does not run in every variant.

    free       the hidden size is not heads times width
    grouped    several heads share keys and values, where the config has an attribute for it
    widths     the width of a head is set where the config has an attribute for it
    """

    free: bool = True
    grouped: bool = True
    widths: bool = True


VARIANTS = (
    Variant(),
    Variant(free=False),
    Variant(free=False, grouped=False),
    Variant(free=False, widths=False),
    Variant(free=False, grouped=False, widths=False),
)


def tiny_config(config: Any, sizes: Sizes, variant: Variant, *, like: bool) -> Any:
    """A config of the same class and options with small sizes.

    like    heads share keys and values only if they do so in the config; otherwise wherever it has an attribute for it
    """
    small = type(config)(**_arguments(config, sizes, variant, {}, like))
    for part in configs_in(small):
        _fit_rotary(part)
    return small


def configs_in(config: Any) -> Iterator[Any]:
    """The config and the configs in it."""
    yield config
    for name in _parts(config):
        yield from configs_in(vars(config)[name])


def special_ids(config: Any) -> set[int]:
    """The ids of start, end, padding, pictures and the like."""
    found: set[int] = set()
    for part in configs_in(config):
        for name, value in vars(part).items():
            if name.endswith(TOKEN_ATTRIBUTES):
                found.update(value if isinstance(value, list) else [value])
    return {number for number in found if isinstance(number, int)}


def _arguments(
    config: Any, sizes: Sizes, variant: Variant, tokens: dict[str, int], like: bool, depth: int = 0
) -> dict[str, Any]:
    """The arguments of the class of a config: what differs from its defaults, with small sizes."""
    has_width = variant.free and any(name in vars(config) for name in ATTRIBUTES["width"].split())
    hidden = sizes.hidden if has_width else sizes.joined
    given = _options(config) | _small_sizes(config, sizes, variant, hidden, like)
    given |= _small_tokens(config, sizes.vocabulary, tokens)
    given |= _few_layers(config, sizes.layers)
    if depth < DEEPEST:
        for name in _parts(config):
            part = vars(config)[name]
            given[name] = _arguments(part, sizes, variant, tokens, like, depth + 1) | {"model_type": part.model_type}
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        given["decoder_start_token_id"] = vars(config).get("pad_token_id") or 0
    for table in [OVERRIDES] if like else [OVERRIDES, OPTIONS]:
        if config.model_type in table:
            given |= table[config.model_type](sizes, hidden)
    return given


def _parts(config: Any) -> list[str]:
    """The attributes that hold configs."""
    return [name for name in getattr(type(config), "sub_configs", {}) if hasattr(vars(config).get(name), "model_type")]


def _options(config: Any) -> dict[str, Any]:
    """What differs from the defaults of the class of this config."""
    takes = inspect.signature(type(config).__init__).parameters
    try:
        defaults = vars(type(config)())
    except Exception:
        defaults = {}
    return {
        name: copy.deepcopy(value)
        for name, value in vars(config).items()
        if name in takes and name not in _parts(config) and not (name in defaults and defaults[name] == value)
    }


def _small_sizes(config: Any, sizes: Sizes, variant: Variant, hidden: int, like: bool) -> dict[str, Any]:
    """Every size that the config has, made small; 0 stays 0."""
    numbers = {size: getattr(sizes, size) for size in ATTRIBUTES if size not in ("hidden", "state_heads", "groups")}
    numbers |= {"hidden": hidden, "state_heads": 2 * hidden // sizes.state_head_width}
    latent = "kv_lora_rank" in vars(config)
    small: dict[str, Any] = {}
    for size, names in ATTRIBUTES.items():
        for name in names.split():
            now = vars(config).get(name, 0)
            if size == "groups":
                small[name] = _groups(config, now, sizes, shared=variant.grouped and not latent, like=like)
            elif size != "width" or (variant.widths and not latent):
                small[name] = numbers[size]
            elif latent and name == "head_dim":
                small[name] = sizes.rotary_width
    small |= dict.fromkeys(ONES.split(), 1) | FIXED
    unset = {*ATTRIBUTES["width"].split(), *ATTRIBUTES["groups"].split()}
    return {
        name: number
        for name, number in small.items()
        if _is_size(now := vars(config).get(name, 0)) or (now is None and name in unset)
    }


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value != 0


def _groups(config: Any, now: int | None, sizes: Sizes, *, shared: bool, like: bool) -> int:
    heads = getattr(config, "num_attention_heads", None)
    if now == 1:
        return 1
    return sizes.groups if shared and not (like and now in (None, heads)) else sizes.heads


def _small_tokens(config: Any, vocabulary: int, tokens: dict[str, int]) -> dict[str, Any]:
    """Ids below the size of the vocabulary for all special tokens; the same name gets the same id in all parts."""
    small: dict[str, Any] = {}
    for name, value in vars(config).items():
        given = value if isinstance(value, list) else [value]
        if name.endswith(TOKEN_ATTRIBUTES) and any(
            isinstance(number, int) and number >= vocabulary for number in given
        ):
            number = tokens.setdefault(name, vocabulary - 1 - len(tokens))
            small[name] = [number] if isinstance(value, list) else number
    return small


def _few_layers(config: Any, layers: int) -> dict[str, Any]:
    """Lists with an entry per layer, cut to one layer of each kind, and the number of layers that are left."""
    counts = {name: vars(config)[name] for name in ATTRIBUTES["layers"].split() if _is_size(vars(config).get(name))}
    lists = {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, list) and len(value) > 1 and len(value) in counts.values()
        and (name in KINDS_OF_LAYERS or len(value) > MOST_LAYERS)
    }  # fmt: skip
    kinds = [value for value in lists.values() if isinstance(value[0], str | bool) or set(value) == {0, 1}]
    if not kinds:
        return {}
    kept = list(dict.fromkeys(zip(*kinds, strict=False)))
    chosen = [list(zip(*kinds, strict=False)).index(kind) for kind in kept][:MOST_LAYERS]
    chosen += [chosen[-1]] * (layers - len(chosen))
    few = {name: [value[index] for index in chosen] for name, value in lists.items()}
    total = len(kinds[0])
    return few | {name: len(chosen) for name, count in counts.items() if count == total}


def _fit_rotary(config: Any) -> None:
    """Sections and factors of rotary positions that fit half of what is turned of a head's width."""
    found = vars(config).get("rope_parameters")
    if not isinstance(found, dict):
        return
    width = vars(config).get("head_dim") or _heads_share(config)
    for part in [found, *(each for each in found.values() if isinstance(each, dict))]:
        turned = vars(config).get("qk_rope_head_dim") or int(width * part.get("partial_rotary_factor", 1.0))
        half = max(turned // 2, 1)
        if "partial_rotary_factor" in part and width:
            part["partial_rotary_factor"] = 2 * half / width
        for name in ("short_factor", "long_factor"):
            if name in part:
                part[name] = [1.0] * half
        if "rope_type" in part and _has_sections(type(config)):
            third = half // 3
            part["mrope_section"] = [third, third, half - 2 * third]


def _heads_share(config: Any) -> int:
    """The hidden size by the number of heads; 0 in a config without them."""
    heads = getattr(config, "num_attention_heads", None)
    return config.hidden_size // heads if isinstance(heads, int) else 0


@functools.cache
def _has_sections(config_class: type) -> bool:
    """Whether the code of the model gives parts of a head's width to different positions: time, row and column."""
    folder = Path(inspect.getfile(config_class)).parent
    return any("mrope_section" in file.read_text() for file in folder.glob("modeling_*.py"))
