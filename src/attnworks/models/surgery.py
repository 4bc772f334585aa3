"""Attention layers taken apart into heads, and put together again with wider heads, more or fewer of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from attnworks.errors import UsageError
from attnworks.hf.heads import (
    keep_foreign_heads,
    put_foreign_heads,
    why_not_fewer_foreign,
    why_not_foreign,
)
from attnworks.models.anatomy import Part
from attnworks.models.attention_layers import attention_layers, every_layer
from attnworks.models.config import AttentionConfig
from attnworks.models.head_groups import Head, HeadWeights, carry_over
from attnworks.models.multihead import MultiHead, tie_layers
from attnworks.models.transformer import Transformer
from attnworks.models.widths import Widths


def heads_of(part: Part) -> list[Head]:
    """The heads of a layer, each in its own width; views of the weights wherever that is possible."""
    assert part.weights is not None
    W = part.weights()
    keys = W.key_widths or (W.W_Q.shape[-1],) * len(W.W_Q)
    values = W.value_widths or (W.W_V.shape[-1],) * len(W.W_V)
    return [_head(W, head, *widths) for head, widths in enumerate(zip(keys, values, strict=True))]


def _head(W: HeadWeights, head: int, k: int, v: int) -> Head:
    b_Q, b_K, b_V = (None if b is None else b[head] for b in (W.b_Q, W.b_K, W.b_V))
    return Head(
        W.W_Q[head, :, :k],
        W.W_K[head, :, :k],
        W.W_V[head, :, :v],
        W.W_O[head, :v],
        None if b_Q is None else b_Q[:k],
        None if b_K is None else b_K[:k],
        None if b_V is None else b_V[:v],
    )


def why_not(model: nn.Module, slot: str) -> str | None:
    """The reason for which `put_heads` cannot change a layer, in words; None if it can."""
    if reason := _why_no_heads(model, slot):
        return reason
    part = attention_layers(model)[slot]
    attention = part.attention
    if not heads_of(part):
        return "no heads at all"
    if not isinstance(attention, MultiHead):
        return why_not_foreign(model, part)
    if attention.twice:
        return "global tokens with projections of their own"
    if otherwise := [mechanism.name for mechanism in attention.mechanisms.mechanisms if not mechanism.stochastic]:
        return f"{otherwise[0]} attention, whose weights are no distribution over keys"
    return "mechanisms that depend on the width of a head" if attention.mechanisms.bound_to_width() else None


def check_can_grow(model: nn.Module, slot: str) -> None:
    """Refuse layers that `put_heads` cannot change."""
    if reason := why_not(model, slot):
        raise UsageError(
            asked=f"wider or more heads in {slot}",
            expected="dense heads with projections of their own",
            got=reason,
            remedy="choose another layer, or a model of another family",
        )


def put_heads(model: nn.Module, slot: str, heads: Sequence[Head]) -> None:
    """Put a layer together from these heads, in place: those it has, maybe wider, then new ones, which are dense.

    Scores keep the factor that they had. The same heads give the same model bit for bit. A `Part` or subject that was
    made of the model before does not know of it.
    """
    layers = attention_layers(model)
    if isinstance(model, Transformer) and slot in layers:
        _put_own_heads(model, layers[slot], slot, heads, _then_new(len(heads_of(layers[slot])), len(heads)))
    else:
        check_can_grow(model, slot)
        put_foreign_heads(model, layers[slot], slot, heads, _then_new(len(heads_of(layers[slot])), len(heads)))


def _then_new(before: int, now: int) -> list[int | None]:
    return [head if head < before else None for head in range(now)]


def why_not_fewer(model: nn.Module, slot: str, kept: Sequence[int]) -> str | None:
    """The reason for which `keep_heads` cannot cut a layer down to these heads, in words; None if it can."""
    if reason := _why_no_heads(model, slot):
        return reason
    part = attention_layers(model)[slot]
    if not {*kept} <= {*range(len(heads_of(part)))} or len({*kept}) < len(kept):
        return "numbers that are not those of its heads, or twice the same"
    return None if isinstance(model, Transformer) else why_not_fewer_foreign(part, kept)


def _why_no_heads(model: nn.Module, slot: str) -> str | None:
    """Why a layer has no heads of its own that could be taken out of it; None if it has."""
    known, own = every_layer(model), attention_layers(model)
    if not known:
        return f"{type(model).__name__}, a model whose parts are not known"
    if slot not in known:
        return f"no such layer among {', '.join(known)}"
    if slot not in own:
        return "weights that several layers share"
    alike = isinstance(own[slot].attention, MultiHead) and not isinstance(model, Transformer)
    return f"{type(model).__name__}, whose layers are all alike" if alike else None


def check_can_keep(model: nn.Module, slot: str, kept: Sequence[int]) -> None:
    """Refuse what `keep_heads` cannot do."""
    if reason := why_not_fewer(model, slot, kept):
        raise UsageError(
            asked=f"fewer heads in {slot}",
            expected="heads with projections of their own, or as many of each group that shares keys and values",
            got=reason,
            remedy="choose other heads, another layer, or a model of another family",
        )


def keep_heads(model: nn.Module, slot: str, kept: Sequence[int]) -> None:
    """Cut a layer down to these of its heads, in place: the others lose their rows and columns of all four maps.

    The output is that of the layer with the outputs of the others set to zero; a layer without heads gives its output
    bias. All heads, in their order, leave the model as it is. Heads that share keys and values keep them together.
    """
    check_can_keep(model, slot, kept)
    part = attention_layers(model)[slot]
    heads = heads_of(part)
    if list(kept) == list(range(len(heads))):
        return
    if isinstance(model, Transformer):
        _put_own_heads(model, part, slot, [heads[head] for head in kept], kept)
    else:
        keep_foreign_heads(model, part, slot, kept, heads)


@torch.no_grad()
def _put_own_heads(
    model: Transformer, part: Part, slot: str, heads: Sequence[Head], origins: Sequence[int | None]
) -> None:
    assert isinstance(part.attention, MultiHead)
    old = part.attention
    with torch.random.fork_rng(devices=[]):
        new = MultiHead(old.W_O.shape[-1], _config(old, heads, origins), slot).to(old.W_O).train(old.training)
    looking = [heads[head] for head in new.mechanisms.looking]
    for name in ("W_Q", "W_K", "b_Q", "b_K"):
        _fill(old, new, name, looking, new.key_widths)
    for name, axis in (("W_V", -1), ("b_V", -1), ("W_O", 0)):
        _fill(old, new, name, heads, new.value_widths, axis)
    if old.b_O is not None and new.b_O is not None:
        new.b_O.requires_grad_(old.b_O.requires_grad).copy_(old.b_O)
    for name in (f"{letter}_{of}g" for letter in "Wb" for of in "QKV"):
        if new.twice and getattr(old, name) is not None:
            rows = [getattr(old, name)[head] for head in origins]
            getattr(new, name).requires_grad_(getattr(old, name).requires_grad).copy_(torch.stack(rows))
    _check_carried(old, new)
    carry_over(old.mechanisms, new.mechanisms, origins)
    holder, _, name = next(path for path, module in model.named_modules() if module is old).rpartition(".")
    setattr(model.get_submodule(holder), name, new)
    model.config = replace(model.config, slots={**model.config.slots, slot: new.config})
    tie_layers(model)


def _config(old: MultiHead, heads: Sequence[Head], origins: Sequence[int | None]) -> AttentionConfig:
    """The layer's own with other widths and heads, and the scale that it had."""
    config = old.config
    if not heads:
        geometry = config.geometry
        return replace(config, heads=0, d_k=geometry.d_k, d_v=geometry.d_v, mechanism="dense")
    before = (config.mechanism,) * config.heads if isinstance(config.mechanism, str) else config.mechanism
    specs = tuple("dense" if origin is None else before[origin] for origin in origins)
    known = (0 if origin is None else config.key_widths[origin] for origin in origins)
    keys = tuple(head.W_Q.shape[1] or width for head, width in zip(heads, known, strict=True))
    values = tuple(head.W_V.shape[1] for head in heads)
    scale = config.scale
    if scale is None and (max(keys) != config.geometry.d_k or None in origins):
        scale = _scale(old)
    mechanism = config.mechanism if {*specs} == {config.mechanism} else specs
    return replace(config, heads=len(heads), d_k=keys, d_v=values, mechanism=mechanism, scale=scale)


def _scale(old: MultiHead) -> float:
    """The one factor of the scores in all heads that look; one of other width would change it by itself."""
    d_k = old.config.geometry.d_k
    scales = {mechanism.scale(d_k, old.context) for mechanism in old.mechanisms.mechanisms if mechanism.by_content}
    if len(scales) > 1:
        raise UsageError(
            asked=f"another largest width of keys in {old.slot}",
            expected="one scale of the scores in all heads",
            got=", ".join(f"{scale:.4g}" for scale in sorted(scales)),
            remedy="build the layer with a scale of its own",
        )
    return scales.pop() if scales else d_k**-0.5


def _fill(old: MultiHead, new: MultiHead, name: str, heads: Sequence[Head], widths: Widths, axis: int = -1) -> None:
    if getattr(old, name) is not None:
        parameter = getattr(new, name).requires_grad_(getattr(old, name).requires_grad)
        widths.fill(parameter, [getattr(head, name) for head in heads], axis)


def _check_carried(old: MultiHead, new: MultiHead) -> None:
    """Parameters of mechanisms must not depend on the widths that changed."""
    before, after = (
        {
            str(spec): [tensor.shape[1:] for tensor in module.state_dict().values()]
            for spec, module in zip(layer.mechanisms.specs, layer.mechanisms.mechanisms, strict=True)
        }
        for layer in (old, new)
    )
    if any(before.get(spec, shapes) != shapes for spec, shapes in after.items()):
        raise UsageError(
            asked=f"wider heads in {old.slot}",
            expected="mechanisms whose own parameters do not depend on the width",
            got=str(old.config.mechanism),
            remedy="grow layers of dense heads",
        )
