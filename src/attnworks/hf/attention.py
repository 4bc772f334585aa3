"""Mechanisms of attnworks in models of transformers: as attention implementations, or built into single layers.

>>> name = register_mechanism("window:window=64")
>>> model = AutoModel.from_pretrained(folder, attn_implementation=name)    # or model.set_attn_implementation(name)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.attention import Attended, Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.dense import Dense
from attnworks.attention.heads import HeadGroups, mask_of_heads
from attnworks.attention.mask import as_four_axes
from attnworks.core.errors import UsageError
from attnworks.hf.cached_keys import counts_from_first
from attnworks.hf.head_modules import head_groups_of
from attnworks.hf.masks import is_causal, keys_of_call, padding_mask, padding_rows


def register_mechanism(mechanism: str) -> str:
    """Register a mechanism with transformers and return its name as an attention implementation.

    Layers in which the mechanism is not defined (a window across sequences) compute dense attention. Padding arrives as
    one row per sentence, so that no table of all pairs is built. A scale of the model other than 1/sqrt(k) replaces
    that of the mechanism. There is no dropout of weights, and `output_attentions` does not return them.
    Mechanisms with parameters are refused, as these would not be part of the model.
    """
    spec = MechanismSpec.parse(mechanism)
    if any(True for _ in spec.build(Geometry(1, 8, 8)).parameters()):
        asked, expected = f"{spec.name} attention for any model of transformers", "a mechanism without parameters"
        remedy = "choose window, bigbird, longformer or linear"
        raise UsageError(asked, expected, f"{spec.name}, which has some", remedy)
    return register(f"attnworks-{spec}", partial(_mechanism_attention, spec, cache(spec.build)))


def register(name: str, implementation: Any) -> str:
    """Register an attention implementation whose masks are one row of padding per sentence."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, implementation)
    AttentionMaskInterface.register(name, padding_rows)
    return name


def attend_head_groups(
    module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, options: dict[str, Any], *, weights: bool = False
) -> Attended:
    """Attention by the HeadGroups of a layer, with the factor that the model gives.

    Scores that the model caps, or that share their softmax with a sink logit, are those of dense heads alone.
    """
    groups = head_groups_of(module)
    assert groups is not None
    K, V = repeat_for_heads(groups.count, K, V)
    mask = mask.by_rows(Q.shape[2], K.shape[2], last=is_causal(module, options))
    found = groups(Q, K, V, mask, context_of_call(Q, options), weights=weights)
    own = dense_heads(groups) if has_own_softmax(options) else []
    if not own:
        return found
    Y = found.Y.clone()
    Y[:, own] = _own_softmax(Q[:, own], K[:, own], V[:, own], mask_of_heads(mask, tuple(own)), _of_heads(options, own))
    return found._replace(Y=Y)


def has_own_softmax(options: dict[str, Any]) -> bool:
    """Whether a model caps the scores of a layer, or adds a sink logit to the softmax."""
    return any(options.get(name) is not None for name in ("softcap", "s_aux"))


def dense_heads(groups: HeadGroups) -> list[int]:
    """The heads whose mechanism is dense attention."""
    pairs = zip(groups.mechanisms, groups.heads, strict=True)
    return sorted(head for mechanism, heads in pairs if isinstance(mechanism, Dense) for head in heads)


def _of_heads(options: dict[str, Any], heads: Sequence[int]) -> dict[str, Any]:
    """The sink logits [h] of these heads."""
    sink = options.get("s_aux")
    return options if sink is None else {**options, "s_aux": sink[list(heads)]}


def _own_softmax(Q: Tensor, K: Tensor, V: Tensor, mask: Mask, options: dict[str, Any]) -> Tensor:
    """Y = P V with P = softmax over keys and sink of c tanh(s Q K^T / c) + M."""
    scale, cap, sink = options.get("scaling"), options.get("softcap"), options.get("s_aux")
    S = (Q.shape[3] ** -0.5 if scale is None else scale) * (Q @ K.mT)
    S = S if cap is None else cap * (S / cap).tanh()
    added, allowed = mask.additive(), mask.allowed(*S.shape[-2:], device=S.device)
    S = S if added is None else S + as_four_axes(added)
    S = S if allowed is None else S.masked_fill(~allowed, torch.finfo(S.dtype).min)
    if sink is not None:
        S = torch.cat([S, sink.to(S.dtype)[:, None, None].expand(*S.shape[:3], 1)], -1)
    return S.softmax(-1, dtype=torch.promote_types(S.dtype, torch.float32)).to(V.dtype)[..., : K.shape[2]] @ V


def _mechanism_attention(
    spec: MechanismSpec,
    build: Callable[[Geometry], Mechanism],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in the place of sdpa: Q [b h i k], K, V, a padding mask [b j] -> Y [b i h v]."""
    keys = keys_of_call(str(spec), module, query, key, attention_mask, options)
    key, value = key[:, :, :keys], value[:, :, :keys]
    _check_options(spec, keys, options)
    mask = padding_mask(module, query, key, attention_mask, options)
    crosses = _is_cross_attention(module) or query.shape[2] != key.shape[2]
    kind = "decoder" if mask.causal else "cross" if crosses else "encoder"
    K, V = repeat_for_heads(query.shape[1], key, value)
    attend = build(Geometry(query.shape[1], query.shape[3], V.shape[3])) if spec.serves(kind) else Dense()
    Y = attend(query, K, V, mask, context_of_call(query, options)).Y
    return Y.transpose(1, 2).contiguous(), None


def _is_cross_attention(module: nn.Module) -> bool:
    """Whether a layer that is not causal reads another sequence, by its attributes or the name of its class."""
    marked = getattr(module, "is_cross_attention", False) or getattr(module, "is_decoder", False)
    return bool(marked) or "Cross" in type(module).__name__


def repeat_for_heads(heads: int, *grouped: Tensor) -> tuple[Tensor, ...]:
    """Keys or values [b g j k] that heads share, repeated for each of `heads` heads."""
    return tuple(T if T.shape[1] == heads else T.repeat_interleave(heads // T.shape[1], 1) for T in grouped)


def context_of_call(Q: Tensor, options: dict[str, Any]) -> Context:
    """The scale of the model in a Context, if it is not 1/sqrt(k)."""
    scale = options.get("scaling")
    usual = scale is None or math.isclose(scale, Q.shape[3] ** -0.5)
    return Context(scale=None if usual else scale)


def _check_options(spec: MechanismSpec, keys: int, options: dict[str, Any]) -> None:
    window = options.get("sliding_window")
    forgets = window is not None and window < keys + counts_from_first(spec)  # a cache keeps as many keys as the window
    unknown = {"sliding_window": forgets}
    unknown |= {name: options.get(name) is not None for name in ("softcap", "s_aux")}
    for name in (name for name, present in unknown.items() if present):
        expected = "attention that is a softmax over all keys, or all earlier ones"
        remedy = f"set {name} to None in the model's config if it can do without"
        raise UsageError(f"{spec} in a model with {name}", expected, f"{name}={options[name]!r:.40}", remedy)
