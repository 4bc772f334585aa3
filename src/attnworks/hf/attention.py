"""Mechanisms of attnworks in models of transformers: as attention implementations, or built into single layers.

>>> name = register_mechanism("window:window=64")
>>> model = AutoModel.from_pretrained(folder, attn_implementation=name)    # or model.set_attn_implementation(name)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from torch import Tensor, nn

from attnworks.attention import Attended, Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.dense import Dense
from attnworks.core.errors import UsageError
from attnworks.hf.head_modules import head_groups_of

HEAD_GROUPS = "attnworks-heads"
"""Attention implementation of models with mechanisms of attnworks in their layers."""


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


def register_head_groups() -> str:
    """Register the implementation in which each layer attends by its HeadGroups, if it has any, and else densely."""
    return register(HEAD_GROUPS, head_groups_attention)


def register(name: str, implementation: Any) -> str:
    """Register an attention implementation whose masks are one row of padding per sentence."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(name, implementation)
    AttentionMaskInterface.register(name, flash_attention_mask)
    return name


def head_groups_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention by the HeadGroups of a layer; in a layer without, dense attention."""
    _check_options("attention by own mechanisms", key.shape[2], options)
    mask = mask_of_call(module, query, key, attention_mask, options)
    Y = attend_head_groups(module, query, key, value, mask, context_of_call(query, options)).Y
    return Y.transpose(1, 2).contiguous(), None


def attend_head_groups(
    module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, *, weights: bool = False
) -> Attended:
    groups = head_groups_of(module)
    if groups is None:
        return Dense()(Q, *repeat_for_heads(Q.shape[1], K, V), mask, context, weights=weights)
    (K,), (V,) = repeat_for_heads(Q.shape[1], K), repeat_for_heads(groups.count, V)
    return groups(Q, K, V, mask, context, weights=weights)


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
    _check_options(str(spec), key.shape[2], options)
    mask = mask_of_call(module, query, key, attention_mask, options)
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


def _check_options(spec: str, keys: int, options: dict[str, Any]) -> None:
    window = options.get("sliding_window")
    unknown = {"sliding_window": window is not None and window < keys}
    unknown |= {name: options.get(name) is not None for name in ("softcap", "s_aux")}
    for name in (name for name, present in unknown.items() if present):
        expected = "attention that is a softmax over all keys, or all earlier ones"
        remedy = f"set {name} to None in the model's config if it can do without"
        raise UsageError(f"{spec} in a model with {name}", expected, f"{name}={options[name]!r:.40}", remedy)


def mask_of_call(module: nn.Module, Q: Tensor, K: Tensor, given: Tensor | None, options: dict[str, Any]) -> Mask:
    """The mask of a call with padding [b j], or none, and the options `is_causal` and `position_bias`."""
    flag = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if flag is None else flag) and Q.shape[2] <= K.shape[2]
    real = None if given is None else given[:, -K.shape[2] :].bool()
    added = options.get("position_bias")
    return Mask(real, causal, None if added is None or not added.any() else added)
