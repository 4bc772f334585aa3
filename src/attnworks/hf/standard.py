"""The model with fewer heads as a model that transformers itself can load, where its config can say that.

The config of a model of transformers has one number of heads for all layers, or for all layers of a stack. A model
whose layers keep equal numbers of heads is built anew under a config with these numbers. It is taken if it has the
same tensors and computes the same outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.core.display import counted
from attnworks.core.tensors import tensors_of
from attnworks.hf import quiet
from attnworks.hf.anatomy import layout_of
from attnworks.hf.cut.keep import CUTS_ENTRY
from attnworks.hf.cut.proof import distance, running, runs_of
from attnworks.hf.heads import ADDED_ENTRY, HEADS_ENTRY, MECHANISMS_ENTRY, WIDTHS_ENTRY
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.position_bias import POSITION_BIAS
from attnworks.hf.tiny_sizes import ATTRIBUTES
from attnworks.models.folder import fill

HEAD_COUNTS, KEY_HEAD_COUNTS, HEAD_WIDTHS = (ATTRIBUTES[name].split() for name in ("heads", "groups", "width"))
WIDTH_ENTRY = "head_dim"
"""Entry for the width of a head, which many models read where their config has it."""
ROUNDING_STEPS = 16
"""The largest error of the outputs of the new model, in units of the rounding error of their type."""


def to_standard(model: nn.Module) -> nn.Module:
    """The same model with a plain config, where transformers can represent it; else `model` itself."""
    config: Any = getattr(model, "config", None)
    ours = {name for name, value in vars(config).items() if name.startswith("attnworks") and value} if config else set()
    if not {HEADS_ENTRY} <= ours <= {HEADS_ENTRY, CUTS_ENTRY}:
        return model
    layers = layout_of(model).layers
    kept: Mapping[str, list[int]] = getattr(config, HEADS_ENTRY)
    if not layers or not all(layer.heads and str(slot) in kept for layer in layers for slot in layer.slots):
        return model
    heads = {layer.path: kept[str(layer.slots[0])] for layer in layers}
    for plain in _configs(config, layers):
        if (new := _rebuilt(model, plain, heads)) is not None and _equal(model, new):
            return new
    return model


def nonstandard_part(model: nn.Module) -> str | None:
    """What transformers alone cannot represent in this model, in words; None for a plain model.

    Give it what `to_standard` returns.
    """
    config: Any = model.config
    if not hasattr(config, MECHANISMS_ENTRY):
        return None
    for name, specs in getattr(config, MECHANISMS_ENTRY).items():
        if other := next((spec for spec in specs if spec != "dense"), None):
            return f"{other} in {name}"
    for entry, words in ((WIDTHS_ENTRY, "heads of other widths"), (ADDED_ENTRY, "columns that were added")):
        if name := next(iter(getattr(config, entry, {})), None):
            return f"{words} in {name}"
    for layers in _stacks(layout_of(model).layers).values():
        fewest, most = (choose(layers, key=_heads) for choose in (min, max))
        if fewest.heads < most.heads:
            return f"{counted(fewest.heads, 'head')} in {fewest.slots[0]} and {most.heads} in {most.slots[0]}"
    return f"fewer heads, whose width the config of {type(model).__name__} cannot give"


def _configs(config: Any, layers: tuple[AttentionLayout, ...]) -> Iterator[Any]:
    """Configs without entries of attnworks that may describe these layers."""
    counts = _counts(layers)
    widths = {layer.widths[0] for layer in layers}
    if counts is None or len(widths) > 1:
        return
    for names in ([], [WIDTH_ENTRY]):
        new = copy.deepcopy(config)
        for name in [name for name in vars(new) if name.startswith("attnworks")]:
            delattr(new, name)
        text = new.get_text_config()
        try:
            for name, value in counts.items():
                if getattr(text, name, None) is not None:
                    setattr(text, name, value)
            for name in (*(name for name in HEAD_WIDTHS if hasattr(text, name)), *names):
                setattr(text, name, *widths)
            plain: Any = type(config).from_dict(new.to_dict())
            for implementation in ("_attn_implementation", "_experts_implementation"):
                setattr(plain, implementation, getattr(config, implementation))
            yield plain
        except Exception:  # transformers refuses the numbers
            continue


def _counts(layers: tuple[AttentionLayout, ...]) -> dict[str, int] | None:
    """Entries for the numbers of heads, of each stack or of all; None where layers of a stack differ."""
    found: dict[str, int] = {}
    for names, count in ((HEAD_COUNTS, _heads), (KEY_HEAD_COUNTS, _key_heads)):
        by_stack = {stack: {count(layer) for layer in of_stack} for stack, of_stack in _stacks(layers).items()}
        if any(len(numbers) > 1 for numbers in by_stack.values()):
            return None
        for name in names:
            stack = next((stack for stack in by_stack if stack in name), next(iter(by_stack)))
            (found[name],) = by_stack[stack]
    return found


def _stacks(layers: tuple[AttentionLayout, ...]) -> dict[str, list[AttentionLayout]]:
    """The layers of encoder and decoder, by the prefixes of their entries."""
    stacks: dict[str, list[AttentionLayout]] = {}
    for layer in layers:
        stacks.setdefault("encoder_" if layer.slots[0].kind == "encoder" else "decoder_", []).append(layer)
    return stacks


def _heads(layer: AttentionLayout) -> int:
    return layer.heads


def _key_heads(layer: AttentionLayout) -> int:
    return len({*layer.key_of})


def _rebuilt(model: Any, config: Any, heads: Mapping[str, list[int]]) -> Any:
    """The model with its weights under this config, and its position biases cut to the heads; None if it has others.

    heads    path of an attention module -> the original numbers of the heads that are left
    """
    old = {name: _of_heads(name, T, heads) for name, T in tensors_of(model).items()}
    try:
        with quiet(), torch.device("meta"):
            if not _same_shapes(tensors_of(type(model)(copy.deepcopy(config))), old):
                return None
        with quiet(), torch.random.fork_rng(devices=[]):
            new = type(model)(config).to(next(model.parameters()).device).train(model.training)
    except Exception:  # transformers refuses the numbers
        return None
    if getattr(model, "generation_config", None) is not None:
        new.generation_config = copy.deepcopy(model.generation_config)
    fill(new, {name: T.detach() for name, T in old.items()})
    trainable = {name: T.requires_grad for name, T in tensors_of(model).items()}
    for name, tensor in tensors_of(new).items():
        tensor.requires_grad_(trainable[name])
    return new


def _of_heads(name: str, T: Tensor, heads: Mapping[str, list[int]]) -> Tensor:
    """The tensor; of the table of a position bias, which a cut leaves whole, the columns of these heads."""
    kept = heads.get(name.removesuffix(f".{POSITION_BIAS}.weight"))
    return T if kept is None or T.shape[1] <= len(kept) else T[:, kept]


def _same_shapes(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return {name: T.shape for name, T in tensors.items()} == {name: T.shape for name, T in others.items()}


def _equal(model: Any, new: Any) -> bool:
    """Whether both models give the same outputs."""
    try:
        with running(model):
            expected = [run() for run in runs_of(model)]
        with running(new):
            found = [run() for run in runs_of(new)]
    except Exception:  # the new model does not run with these numbers
        return False
    allowed = ROUNDING_STEPS * torch.finfo(expected[0].dtype).eps
    return all(distance(one, other) <= allowed for one, other in zip(found, expected, strict=True))
