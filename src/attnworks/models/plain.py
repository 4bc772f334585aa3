"""Models of Hugging Face that lost heads evenly, as transformers itself can say it.

Families whose config has the width of a head beside their number (Llama, T5) need no word of ours for fewer heads, as
long as every layer has as many; T5, whose heads know positions by their number, as long as they are the same ones.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from attnworks.hf.heads import HEADS, WIDTHS
from attnworks.models.attention_layers import attention_layers
from attnworks.models.folder import fill
from attnworks.models.remaking import ENTRY
from attnworks.storage.tensors import tensors_of

BY_COUNT = ("llama", "mistral", "qwen2")
BY_NUMBER = ("t5", "mt5")
POSITIONS = "relative_attention_bias.weight"


def as_plain(model: nn.Module) -> nn.Module:
    """The same model without a word of ours in its config, where transformers can represent it; else `model` itself."""
    config: Any = getattr(model, "config", None)
    kept: dict[str, list[int]] = getattr(config, HEADS, {})
    if not kept or getattr(config, ENTRY, None) or getattr(config, WIDTHS, None):
        return model
    slots = {*attention_layers(model)}
    changes = _changes(config, kept, model) if {*kept} == slots and all(kept.values()) else None
    plain = None if changes is None else _changed(config, changes)
    return model if plain is None else _rebuilt(model, plain, next(iter(kept.values())))


def _changes(config: Any, kept: dict[str, list[int]], model: nn.Module) -> dict[str, int] | None:
    """Entries of the config that say how many heads there are, if they can."""
    if config.model_type in BY_NUMBER:
        same = len({tuple(heads) for heads in kept.values()}) == 1
        return {"num_heads": len(next(iter(kept.values())))} if same else None
    if config.model_type not in BY_COUNT:
        return None
    weights = [part.weights() for part in attention_layers(model).values() if part.weights is not None]
    sizes = {(*W.W_Q.shape[::2], W.groups) for W in weights}
    if len(sizes) > 1:
        return None
    ((heads, width, groups),) = sizes
    return {"num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": width}


def _changed(config: Any, changes: dict[str, int]) -> Any:
    """The config with these entries and without ours; None if transformers would refuse it."""
    from huggingface_hub.errors import StrictDataclassError

    new = copy.deepcopy(config)
    for name in (ENTRY, WIDTHS, HEADS):
        vars(new).pop(name, None)
    try:
        for name, value in changes.items():
            setattr(new, name, value)
        type(config).from_dict(new.to_dict())
    except (StrictDataclassError, ValueError):
        return None
    return new


def _rebuilt(model: Any, config: Any, heads: list[int]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        new = type(model)(config).to(next(model.parameters()).device).train(model.training)
    if getattr(model, "generation_config", None) is not None:
        new.generation_config = copy.deepcopy(model.generation_config)
    theirs = tensors_of(model)
    fill(new, {name: T.detach()[:, heads] if name.endswith(POSITIONS) else T.detach() for name, T in theirs.items()})
    for name, tensor in tensors_of(new).items():
        tensor.requires_grad_(theirs[name].requires_grad)
    return new
