"""The mask of a call of attention, as each implementation of transformers reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.core.errors import UsageError


def mask_of_call(name: str, module: Any, Q: Tensor, K: Tensor, given: Any, options: dict[str, Any]) -> Mask:
    """The mask of a call of the implementation with this name: what it is given, and its options.

    `eager` and `sdpa` read tables of booleans, or of numbers to add; others one row of padding for each sentence.
    """
    if name in ("eager", "sdpa"):
        causal = name == "sdpa" and given is None and Q.shape[2] > 1 and is_causal(module, options)
        return Mask(dense=_table(Q, K, given, options), causal=causal)
    if given is not None and not (isinstance(given, Tensor) and given.dim() == 2):
        expected, remedy = "the implementation sdpa or eager", 'call model.set_attn_implementation("sdpa")'
        raise UsageError("the mask of an attention layer", expected, name, remedy)
    return padding_mask(module, Q, K, given, options)


def padding_rows(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """What transformers calls to make a mask: padding [b j] of the keys that are read, or None if none is hidden.

    attention_mask    padding [b n] of all tokens so far, or of all places of the cache

    A cache of fixed length has empty places behind the last query, which a row that is shorter leaves out.
    """
    causal = "allow_is_bidirectional_skip" not in others  # an argument for other masks alone
    keys = min(kv_length, int(q_offset) + q_length - kv_offset) if causal else kv_length
    if attention_mask is None:
        device = others.get("device")
        return None if keys == kv_length else torch.ones(batch_size, keys, dtype=torch.bool, device=device)
    rows = attention_mask[:, kv_offset : kv_offset + keys]
    return None if keys == kv_length and rows.shape[1] == keys and bool(rows.all()) else rows


def padding_mask(module: nn.Module, Q: Tensor, K: Tensor, given: Tensor | None, options: dict[str, Any]) -> Mask:
    """The mask of a call with padding [b j], or none, and the options `is_causal` and `position_bias`."""
    real = None if given is None else given[:, -K.shape[2] :].bool()
    return Mask(real, is_causal(module, options) and Q.shape[2] <= K.shape[2], added_scores(options))


def keys_of_call(name: str, module: Any, Q: Tensor, K: Tensor, given: Any, options: dict[str, Any]) -> int:
    """How many of the keys a call reads; those behind are empty places in a cache of fixed length.

    Without a mask, `sdpa` reads as many keys as there are queries. Rows of padding end with the keys that are read.
    """
    queries, keys = Q.shape[2], K.shape[2]
    if name in ("eager", "sdpa"):
        first = name == "sdpa" and given is None and queries > 1 and is_causal(module, options)
        return min(queries, keys) if first else keys
    return min(keys, given.shape[-1]) if isinstance(given, Tensor) else keys


def options_of_keys(options: dict[str, Any], keys: int) -> dict[str, Any]:
    """The options of a call that reads only the first keys."""
    bias = options.get("position_bias")
    return options if bias is None else {**options, "position_bias": bias[..., :keys]}


def added_scores(options: dict[str, Any]) -> Tensor | None:
    """What the option `position_bias` adds to scores; None if that is nothing."""
    added = options.get("position_bias")
    return None if added is None or not bool(added.any()) else added


def is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether a layer hides later keys, by the option `is_causal` of a call or else by its attribute."""
    flag = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if flag is None else flag)


def _table(Q: Tensor, K: Tensor, given: Tensor | None, options: dict[str, Any]) -> Tensor | None:
    """The keys that may be seen, or what is added to scores, with -inf for hidden keys; None for no mask.

    LayoutLM gives one row for all queries. Tables of numbers have the smallest number of their type where a key is
    hidden.
    """
    added = added_scores(options)
    added = None if added is None else added.to(Q.dtype)
    if given is None:
        return added
    given = given[..., : K.shape[2]].expand(*given.shape[:-2], Q.shape[2], -1)
    hidden = ~given if given.dtype == torch.bool else given <= torch.finfo(given.dtype).min / 2
    if given.dtype != torch.bool:
        table = given.masked_fill(hidden, 0.0).to(Q.dtype)
        if bool(table.any()):
            added = table if added is None else table + added
    return ~hidden if added is None else added.masked_fill(hidden, -torch.inf)
