"""T5's position bias in layers with fewer or more heads.

T5 computes its position bias [1 h i j] in the first layer, and each layer passes it to the next. A layer with removed
or new heads selects the slices of its heads, with zeros for new ones, and passes on the bias of all original heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

POSITION_BIAS = "relative_attention_bias"
"""The name of the table of the position bias in the attention module that holds it."""
ORIGINS = "attnworks_origins"
"""The attribute of an attention module that holds the numbers of its heads in the original layer, -1 for new ones."""


def has_position_bias(attention: nn.Module) -> bool:
    """Whether an attention module is one of T5's kind."""
    return hasattr(attention, "relative_attention_num_buckets") and hasattr(attention, "has_relative_attention_bias")


def keep_positions(attention: Any, kept: Sequence[int], undo: ExitStack) -> None:
    """Select the slices of these of the present heads."""
    before: list[int] | None = getattr(attention, ORIGINS, None)
    if before is None:
        undo.callback(delattr, attention, ORIGINS)
    else:
        undo.callback(setattr, attention, ORIGINS, before)
    for hook in select_positions(attention, [head if before is None else before[head] for head in kept]):
        undo.callback(hook.remove)


def select_positions(attention: Any, origins: Sequence[int]) -> list[Any]:
    """Select the slices of the heads with these original numbers; the hooks that are new for it."""
    hooked = hasattr(attention, ORIGINS)
    setattr(attention, ORIGINS, list(origins))
    if hooked:
        return []
    hooks = [
        attention.register_forward_pre_hook(_select, with_kwargs=True),
        attention.register_forward_hook(_restore),
    ]
    if attention.has_relative_attention_bias:
        hooks.append(attention.relative_attention_bias.register_forward_hook(partial(_store, attention)))
    return hooks


def _select(attention: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    added = attention.attnworks_all_positions = given.get("position_bias")
    if added is None:
        return args, given
    return args, {**given, "position_bias": _of_heads(added, attention.attnworks_origins, 1)}


def _store(attention: Any, _: nn.Module, __: Any, added: Tensor) -> Tensor:
    attention.attnworks_all_positions = added.permute(2, 0, 1).unsqueeze(0)
    return _of_heads(added, attention.attnworks_origins, 2)


def _restore(attention: Any, _: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
    attended, added, *others = output
    whole, attention.attnworks_all_positions = attention.attnworks_all_positions, None
    if whole is None:
        whole = added.new_zeros(1, attention.config.num_heads, *added.shape[2:])
    return attended, whole, *others


def _of_heads(added: Tensor, origins: Sequence[int], axis: int) -> Tensor:
    """The slices of these heads along the axis; zeros for new heads, and for the one of a layer without heads."""
    nothing = added.new_zeros(*added.shape[:axis], 1, *added.shape[axis + 1 :])
    return torch.cat([nothing if head < 0 else added.narrow(axis, head, 1) for head in origins or (-1,)], axis)
