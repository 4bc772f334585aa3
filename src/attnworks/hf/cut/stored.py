"""Projections that store some of their columns only, and layers that compute attention for heads without columns.

Where a layer cannot run with fewer heads, the columns of removed heads are not stored: the projection gives zeros in
their place, and the output projection does not read them. Hooks do this, so that the modules keep their names and
classes. What such a layer shows of its attention is that of the heads that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.hf.attention_hook import AttentionHook

OUTPUTS, INPUTS = "attnworks_stored_outputs", "attnworks_stored_inputs"
"""Buffers of a module: the numbers, among all columns, of those that it stores."""
ALL_OUTPUTS = "attnworks_all_outputs"
KEPT_HEADS = "attnworks_kept_heads"
"""The attribute of an attention module that holds the numbers of the heads that are left."""


def is_stored(module: nn.Module) -> bool:
    """Whether a projection stores some of its columns only, or a layer computes attention for heads that are gone."""
    return any(hasattr(module, name) for name in (OUTPUTS, INPUTS, KEPT_HEADS))


def store_outputs(module: nn.Module, kept: Int[Tensor, " c"], columns: int, undo: ExitStack) -> None:
    """Give zeros for all but these of the columns of the output; `kept` counts those that the module has now.

    Other hooks of the module run later, on the output with all columns.
    """
    if getattr(module, OUTPUTS, None) is None:
        undo.callback(module.register_forward_hook(_fill_with_zeros, prepend=True).remove)
        setattr(module, ALL_OUTPUTS, columns)
    _set_numbers(module, OUTPUTS, kept, undo)


def store_inputs(module: nn.Module, kept: Int[Tensor, " c"], undo: ExitStack) -> None:
    """Read these of the columns of the input alone; `kept` counts those that the module reads now."""
    if getattr(module, INPUTS, None) is None:
        undo.callback(module.register_forward_pre_hook(_read_stored, with_kwargs=True).remove)
    _set_numbers(module, INPUTS, kept, undo)


def keep_heads_of(attention: Any, kept: Sequence[int], undo: ExitStack) -> None:
    """Note that only these heads are left, of those that attention was computed for so far."""
    before: list[int] | None = getattr(attention, KEPT_HEADS, None)
    undo.callback(_put_back, attention, KEPT_HEADS, before)
    setattr(attention, KEPT_HEADS, [*kept] if before is None else [before[head] for head in kept])


def _set_numbers(module: nn.Module, name: str, kept: Tensor, undo: ExitStack) -> None:
    before: Tensor | None = getattr(module, name, None)
    numbers = kept.to(next(module.parameters()).device) if before is None else before[kept.to(before.device)]
    undo.callback(_put_back, module, name, before)
    module.register_buffer(name, numbers, persistent=False)


def _put_back(module: Any, name: str, before: Any) -> None:
    if before is None:
        delattr(module, name)
    else:
        setattr(module, name, before)


def _fill_with_zeros(module: Any, _: Any, output: Float[Tensor, "*a c"]) -> Float[Tensor, "*a d"]:
    full = output.new_zeros(*output.shape[:-1], getattr(module, ALL_OUTPUTS))
    return full.index_copy(-1, getattr(module, OUTPUTS), output)


def _read_stored(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def stored(value: Any) -> Any:
        return value.index_select(-1, getattr(module, INPUTS)) if isinstance(value, Tensor) else value

    return tuple(map(stored, args)), {name: stored(value) for name, value in given.items()}


@dataclass(frozen=True)
class KeptHeads:
    """The heads that are left in one call of attention.

    heads    their numbers among those that attention is computed for
    keys     the numbers of their heads of keys and values; one for each head where groups have different numbers left
    of       how many heads attention is computed for
    """

    heads: list[int]
    keys: list[int]
    of: int

    def queries_keys_values(self, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of Q [b h i k], K [b g j k] and V [b g j v], what belongs to these heads."""
        return Q[:, self.heads], K[:, self.keys], V[:, self.keys]

    def separate(self, V: Float[Tensor, "b g j v"]) -> tuple[Tensor, Tensor]:
        """The values of these heads, and those of all heads as a function of them, for derivatives by them."""
        own = V[:, self.keys]
        places = {key: place for place, key in reversed([*enumerate(self.keys)])}
        rows = torch.tensor([*places], device=V.device)
        return own, V.index_copy(1, rows, own[:, [*places.values()]])

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Sink logits [h], what is added for positions [b h i j] and weights [b h i j] of these heads."""
        sink, found = options.get("s_aux"), dict(options)
        if isinstance(sink, Tensor) and sink.shape[0] == self.of:
            found["s_aux"] = sink[self.heads]
        for name in ("position_bias", "weights"):
            table = options.get(name)
            if isinstance(table, Tensor) and table.dim() == 4 and table.shape[1] == self.of:
                found[name] = table[:, self.heads]
        return found

    def mask(self, mask: Mask) -> Mask:
        """A mask with one table for each head, of these heads."""
        if mask.dense is None or mask.dense.dim() < 4 or mask.dense.shape[1] != self.of:
            return mask
        return replace(mask, dense=mask.dense[:, self.heads])

    def whole(self, Y: Float[Tensor, "b h i v"]) -> Float[Tensor, "b g i v"]:
        """Outputs of these heads, with zeros for all others."""
        full = Y.new_zeros(Y.shape[0], self.of, *Y.shape[2:])
        return full.index_copy(1, torch.tensor(self.heads, device=Y.device), Y)


def kept_heads(attention: nn.Module, Q: Tensor, K: Tensor) -> KeptHeads | None:
    """The heads that are left of those that a call computes; None if all are."""
    heads: list[int] | None = getattr(attention, KEPT_HEADS, None)
    if heads is None:
        return None
    rows = [head * K.shape[1] // Q.shape[1] for head in heads]
    even = len({rows.count(row) for row in rows}) == 1
    return KeptHeads(heads, sorted({*rows}) if even else rows, Q.shape[1])


def call_hook(
    hook: AttentionHook,
    module: nn.Module,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    mask: Mask,
    Y: Float[Tensor, "b h i v"],
    options: dict[str, Any],
    own: Tensor | None = None,
) -> Tensor | None:
    """What a hook makes of a call of attention, of which it is shown the heads that are left.

    own    the values of these heads, if Y was computed from them (`KeptHeads.separate`)
    """
    if (kept := kept_heads(module, Q, K)) is None:
        return hook(module, Q, K, V, mask, Y, options)
    Q, K, V = kept.queries_keys_values(Q, K, V)
    edited = hook(module, Q, K, V if own is None else own, kept.mask(mask), Y[:, kept.heads], kept.options(options))
    return None if edited is None else kept.whole(edited)
