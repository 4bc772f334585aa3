"""Layers of Hugging Face models that compute attention by mechanisms of attnworks, beside others that keep their own.

Such a layer has an attention implementation of its own (`layer_implementation.py`). It is given the masks of the
implementation of the model, which all other layers still use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import HeadGroups
from attnworks.hf.attention import attend_head_groups
from attnworks.hf.cached_keys import cached_keys, stop_watching, watch_cache
from attnworks.hf.cut.stored import kept_heads
from attnworks.hf.head_modules import MECHANISMS_ATTRIBUTE, head_groups_of
from attnworks.hf.layer_implementation import LayerImplementation, reset_implementation, set_implementation
from attnworks.hf.masks import is_causal, mask_of_call, options_of_keys
from attnworks.hf.observe import show_call

HEAD_GROUPS = "attnworks-heads"
"""Attention implementation of layers with mechanisms of attnworks."""


def set_groups(attention: Any, groups: HeadGroups) -> None:
    """Let a layer compute attention by these mechanisms."""
    from transformers import AttentionInterface

    AttentionInterface.register(HEAD_GROUPS, head_groups_attention)
    setattr(attention, MECHANISMS_ATTRIBUTE, groups)
    watch_cache(attention)
    _compute_by(attention, [HEAD_GROUPS, *_others(attention)])


def remove_groups(attention: Any) -> None:
    """Let a layer compute attention as it did before `set_groups`."""
    _compute_by(attention, _others(attention))
    stop_watching(attention)
    delattr(attention, MECHANISMS_ATTRIBUTE)


@contextmanager
def own_attention(model: nn.Module) -> Iterator[None]:
    """Within this context no layer of a model computes attention by mechanisms of attnworks."""
    changed = [module for module in model.modules() if head_groups_of(module) is not None]
    try:
        for attention in changed:
            _compute_by(attention, _others(attention))
        yield
    finally:
        for attention in changed:
            _compute_by(attention, [HEAD_GROUPS, *_others(attention)])


def _others(attention: Any) -> list[str]:
    """The implementations of a layer besides this one, the one that was set last at the end."""
    found, config = list[str](), attention.config
    while isinstance(config._attn_implementation, LayerImplementation):
        found.insert(0, str(config._attn_implementation))
        config = config._attn_implementation.config
    return [name for name in found if name != HEAD_GROUPS]


def _compute_by(attention: Any, names: Sequence[str]) -> None:
    """Give a layer these implementations in place of those that it has; the last one computes its attention."""
    while isinstance(attention.config._attn_implementation, LayerImplementation):
        reset_implementation(attention)
    for name in names:
        set_implementation(attention, name)


def model_implementation(attention: Any) -> str:
    """The implementation of a layer without its own."""
    name = attention.config._attn_implementation
    while isinstance(name, LayerImplementation):
        name = name.of_model
    return name


def head_groups_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls in the place of sdpa or eager: attention by the HeadGroups of the layer."""
    Y = outputs_by_groups(module, query, key, value, attention_mask, options)
    return show_call(model_implementation(module), module, query, key, value, attention_mask, Y, options), None


def outputs_by_groups(
    module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, given: Tensor | None, options: dict[str, Any]
) -> Float[Tensor, "b i h v"]:
    """The outputs of the heads of a layer, for a mask as the implementation of the model is given it."""
    if is_causal(module, options):
        groups, keys = head_groups_of(module), cached_keys(module, K)
        assert groups is not None
        keys.check(groups)
        K, V, options = K[:, :, : keys.used], V[:, :, : keys.used], options_of_keys(options, keys.used)
    mask = mask_of_call(model_implementation(module), module, Q, K, given, options)
    if (kept := kept_heads(module, Q, K)) is None:
        Y = attend_head_groups(module, Q, K, V, mask, options).Y
    else:
        own = kept.queries_keys_values(Q, K, V)
        Y = kept.whole(attend_head_groups(module, *own, kept.mask(mask), kept.options(options)).Y)
    return Y.transpose(1, 2).contiguous()
