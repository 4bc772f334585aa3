"""Change the heads or mechanisms of any model: calls `models/surgery.py` for a model of attnworks.

For a model of Hugging Face it calls `hf/heads.py` and `hf/attention.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from attnworks.attention import MechanismSpec
from attnworks.attention.heads import HeadGroups, HeadMatrices
from attnworks.core.checks import each
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.hf.anatomy import HFPart, hf_anatomy, hf_layers, parts_unknown
from attnworks.hf.cut.recipe import PLAIN, Form
from attnworks.hf.head_modules import head_groups_of
from attnworks.hf.heads import (
    hf_keep_heads,
    hf_put_heads,
    hf_refusal_to_grow,
    hf_refusal_to_shrink,
    hf_silence_heads,
)
from attnworks.hf.mechanisms import build_in_mechanisms, check_can_build_in
from attnworks.hf.swappable import hf_refusal_to_swap, hf_scale
from attnworks.models.anatomy import BlockAnatomy, Part, attention_layers, heads_of, own_anatomy
from attnworks.models.config import check_serves
from attnworks.models.multihead import MultiHead
from attnworks.models.recurrent import Recurrent
from attnworks.models.surgery import (
    MechanismsBySlot,
    cannot_grow,
    cannot_keep,
    own_refusal_to_grow,
    own_refusal_to_shrink,
    own_refusal_to_swap,
    put_own_heads,
    with_own_mechanisms,
)
from attnworks.models.transformer import Transformer
from attnworks.traces.edits import HeadsOffHook

PruneUnit = tuple[HeadId, ...]
"""Heads that are cut together: one, or all that share keys and values."""


def anatomy_of(model: nn.Module) -> tuple[BlockAnatomy, ...] | None:
    """The blocks of a model, encoder before decoder; None for a model whose parts are not known."""
    own = own_anatomy(model)
    return hf_anatomy(model) if own is None else own


def layers_of(model: nn.Module) -> Mapping[Slot, Part]:
    """Every attention layer whose heads are known, in the order of the model; empty if there are none.

    Layers of Hugging Face that share their weights have the same module; layers of attnworks that do are left out.
    """
    own = own_anatomy(model)
    if own is not None or isinstance(model, Recurrent):
        return attention_layers(own)
    return hf_layers(model)


def attention_parts(model: nn.Module, *, cross: bool = False) -> dict[Slot, Part]:
    """Every self-attention layer whose heads are known; with `cross`, those of cross-attention too.

    Refused for models in which none are known.
    """
    if isinstance(model, Recurrent):
        raise UsageError("other heads", "a transformer", "a recurrent model", "choose another model")
    layers = layers_of(model)
    if not layers and own_anatomy(model) is None:
        raise parts_unknown(model)
    return {slot: part for slot, part in layers.items() if cross or part.role == "self"}


def layers_alike(model: nn.Module) -> dict[Slot, tuple[Slot, ...]]:
    """Every attention layer whose heads are known -> the layers that share their weights with it, itself included."""
    layers = layers_of(model)
    return {
        slot: tuple(other for other in layers if layers[other].attention is part.attention)
        for slot, part in layers.items()
    }


def with_alike(model: nn.Module, heads: Iterable[HeadId]) -> list[HeadId]:
    """These heads, and the same heads of the layers that share their weights, in the order of the model."""
    alike = layers_alike(model)
    order = {slot: place for place, slot in enumerate(alike)}
    found = {HeadId(other, head) for slot, head in heads for other in alike[slot]}
    return sorted(found, key=lambda each: (order[each.slot], each.head))


def groups_in(part: Part) -> HeadGroups | None:
    """The mechanisms of a layer; None for a layer of Hugging Face's as it came."""
    attention = part.attention
    assert attention is not None
    return attention.mechanisms if isinstance(attention, MultiHead) else head_groups_of(attention)


# --- heads ---


def refusal_to_grow(model: nn.Module, slot: Slot) -> str | None:
    """Why `put_heads` cannot change a layer, in words; None if it can."""
    if isinstance(model, Recurrent):
        return "a recurrent model"
    return (hf_refusal_to_grow if own_anatomy(model) is None else own_refusal_to_grow)(model, slot)


def check_can_grow(model: nn.Module, slot: Slot) -> None:
    """Refuse layers that `put_heads` cannot change."""
    if reason := refusal_to_grow(model, slot):
        raise cannot_grow(slot, reason)


def put_heads(model: nn.Module, slot: Slot, heads: Sequence[HeadMatrices]) -> None:
    """Put a layer together from these heads, in place: those it has, maybe wider, then new ones, which are dense.

    Scores keep their scaling factor. The same heads give the same model bit for bit. Objects that were made from the
    model before, such as a `Part` or a subject, are not updated.
    """
    layers = layers_of(model)
    if not isinstance(model, Transformer) or slot not in layers:
        check_can_grow(model, slot)
    before = len(heads_of(layers[slot]))
    origins = [head if head < before else None for head in range(len(heads))]
    if isinstance(model, Transformer):
        put_own_heads(model, slot, heads, origins)
    else:
        hf_put_heads(model, hf_layers(model)[slot], slot, heads, origins)


def refusal_to_shrink(model: nn.Module, slot: Slot, kept: Sequence[int]) -> str | None:
    """Why `keep_heads` cannot cut a layer down to these heads, in words; None if it can."""
    if isinstance(model, Recurrent):
        return "a recurrent model"
    return (hf_refusal_to_shrink if own_anatomy(model) is None else own_refusal_to_shrink)(model, slot, kept)


def check_can_keep(model: nn.Module, slot: Slot, kept: Sequence[int]) -> None:
    """Refuse what `keep_heads` cannot do."""
    if reason := refusal_to_shrink(model, slot, kept):
        raise cannot_keep(slot, reason)


def keep_heads(model: nn.Module, slot: Slot, kept: Sequence[int]) -> None:
    """Cut a layer down to these of its heads, in place: the others lose their rows and columns of all four maps.

    The output is that of the layer with the outputs of the others set to zero; a layer without heads gives its output
    bias. All heads, in their order, leave the model as it is. Layers that share their weights lose the same heads.
    """
    keep_heads_by_layer(model, {slot: kept})


def keep_heads_by_layer(model: nn.Module, kept: Mapping[Slot, Sequence[int]]) -> dict[Slot, Form]:
    """`keep_heads` for several layers of a model; the form of the cut of each layer that changed."""
    for slot, heads in kept.items():
        check_can_keep(model, slot, heads)
    layers = layers_of(model)
    fewer = {slot: heads for slot, heads in kept.items() if list(heads) != list(range(layers[slot].heads))}
    if not isinstance(model, Transformer):
        return hf_keep_heads(model, fewer) if fewer else {}
    for slot, heads in fewer.items():
        before = heads_of(layers[slot])
        put_own_heads(model, slot, [before[head] for head in heads], heads)
    return dict.fromkeys(fewer, PLAIN)


@torch.no_grad()
def silence_heads(model: nn.Module, slot: Slot, silent: Collection[int]) -> None:
    """W_O,h = 0 for these heads of a layer, in place: the layer without them, in which all keep numbers and maps."""
    part = attention_parts(model, cross=True)[slot]
    if isinstance(part, HFPart):
        hf_silence_heads(part, silent)
        return
    assert part.weights is not None
    W = part.weights()
    if W.value_widths is None:
        W.W_O[list(silent)] = 0.0
        return
    heads = heads_of(part)
    for head in silent:
        heads[head] = heads[head]._replace(W_O=torch.zeros_like(heads[head].W_O))
    put_heads(model, slot, heads)


def heads_off(units: Iterable[PruneUnit]) -> HeadsOffHook:
    """Runs a model without these heads."""
    return HeadsOffHook(head for unit in units for head in unit)


# --- mechanisms ---


def mechanisms_of(model: nn.Module, *, cross: bool = False) -> dict[Slot, tuple[str, ...]]:
    """What each head of each self-attention layer uses; with `cross`, of cross-attention too."""
    found: dict[Slot, tuple[str, ...]] = {}
    for slot, part in attention_parts(model, cross=cross).items():
        groups = groups_in(part)
        found[slot] = ("dense",) * part.heads if groups is None else groups.by_head()
    return found


def attention_groups(model: nn.Module, *, cross: bool = False) -> dict[Slot, HeadGroups]:
    """The mechanisms of every self-attention layer that has some of ours; with `cross`, of cross-attention too."""
    found = {slot: groups_in(part) for slot, part in attention_parts(model, cross=cross).items()}
    return {slot: groups for slot, groups in found.items() if groups is not None}


def refusal_to_swap(model: nn.Module, slot: Slot, by_head: Sequence[str]) -> str | None:
    """Why a layer cannot have these mechanisms, as words after "a mechanism that"; None if it can."""
    for kind in (MechanismSpec.parse(spec).kind for spec in by_head):
        if kind.needs:
            return f"needs {' and '.join(sorted(kind.needs)).replace('_', ' ')}"
    if not all(MechanismSpec.parse(spec).serves(slot.kind) for spec in by_head):
        return "has no causal form" if slot.causal else "is not defined from one sequence to another"
    refusal = hf_refusal_to_swap if own_anatomy(model) is None else own_refusal_to_swap
    return refusal(model, slot, by_head)


def scale_of_scores(model: nn.Module, slot: Slot) -> float | None:
    """The factor of the scores of a layer, if the model sets it and it is not 1/sqrt(k)."""
    part = layers_of(model)[slot]
    if isinstance(part.attention, MultiHead):
        return part.attention.config.scale
    scale, usual = hf_scale(model, slot), part.geometry().d_k ** -0.5
    return None if scale is None or math.isclose(scale, usual) else scale


@torch.inference_mode(False)
def with_mechanisms(model: nn.Module, wanted: MechanismsBySlot) -> Any:
    """A copy of the model whose named layers use these mechanisms, one for each head; `model` itself stays as it is.

    Weights are carried over. Heads whose mechanism uses no queries and keys lose W_Q and W_K. All layers that share
    their weights must be named, with the same mechanisms.
    """
    check_mechanisms(model, wanted)
    if isinstance(model, Transformer):
        return with_own_mechanisms(model, wanted)
    new = copy.deepcopy(model)
    build_in_mechanisms(new, _changed(model, wanted))
    return new


def check_mechanisms(model: nn.Module, wanted: MechanismsBySlot) -> None:
    """Refuse what `with_mechanisms` cannot do."""
    now = mechanisms_of(model, cross=True)
    for slot, specs in wanted.items():
        if slot not in now:
            known, got = f"one of {', '.join(map(str, now)) or 'no layer'}", "a layer this model does not have"
            raise UsageError(f"other heads in {slot}", known, got, "name layers enc.L, dec.L or cross.L, from zero")
        each(f"other heads in {slot}", len(specs), len(now[slot]), "mechanisms")
        for text in specs:
            check_serves(MechanismSpec.parse(text), slot)
    if own_anatomy(model) is None:
        check_can_build_in(model, _changed(model, wanted))


def _changed(model: nn.Module, wanted: MechanismsBySlot) -> MechanismsBySlot:
    """The layers in which something changes."""
    now = mechanisms_of(model, cross=True)
    return {slot: specs for slot, specs in wanted.items() if tuple(specs) != now[slot]}
