"""How an attention layer with added columns computes attention: hooks on its projections, and a function of its own.

The inputs of the projections of queries, keys and values are remembered by hooks until attention is computed. The
output of the heads in their own columns is handed back to the layer; that of the added columns waits for the hook of
the output projection, which adds it to the output of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isclose
from threading import local
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.hf.added_maps import ROLES, AddedColumns, added_to
from attnworks.hf.head_modules import remove_hooks
from attnworks.hf.layer_implementation import reset_implementation, set_implementation
from attnworks.hf.observe import show_call
from attnworks.hf.swapped_attention import HEAD_GROUPS, outputs_by_groups

ADDED_COLUMNS = "attnworks-added-columns"
"""Attention implementation of layers with added columns."""
FACTOR_ROUNDING = 1e-3
"""How far the factor of a layout may be from that of the layer, as it is measured in the precision of the model."""


@dataclass(eq=False)
class _Call:
    """One forward pass of a layer: what its projections read, its cache, and the output of the added columns."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    cache: Any = None
    added: Tensor | None = None


class _Calls(local):
    """The calls of this thread, by attention module."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[nn.Module, _Call] = WeakKeyDictionary()


_CALLS = _Calls()


def _call_of(attention: nn.Module) -> _Call:
    return _CALLS.of.setdefault(attention, _Call())


# --- hooks ---


def attach_columns(model: nn.Module, added: AddedColumns) -> None:
    """Let the layer that `added` is in compute its columns. Hooks that are there already stay."""
    from transformers import AttentionInterface

    AttentionInterface.register(ADDED_COLUMNS, widened_attention)
    shape = added.shape
    attention = model.get_submodule(shape.attention)
    set_implementation(attention, ADDED_COLUMNS)
    numbers = (getattr(module, "layer_idx", None) for module in model.modules())
    added.cache_layers = 1 + max((number for number in numbers if isinstance(number, int)), default=-1)
    _hook_before(attention, partial(_begin, attention))
    for role, path in zip(ROLES, (shape.query, shape.key, shape.value), strict=True):
        _hook_before(model.get_submodule(path), partial(_remember, attention, role))
    output = model.get_submodule(shape.output)
    if not any(_same(hook, partial(_add, attention)) for hook in output._forward_hooks.values()):
        output.register_forward_hook(partial(_add, attention))


def detach_columns(model: nn.Module, added: AddedColumns) -> None:
    """Undo `attach_columns`."""
    shape = added.shape
    attention = model.get_submodule(shape.attention)
    reset_implementation(attention)
    for path in (shape.attention, shape.query, shape.key, shape.value, shape.output):
        remove_hooks(model.get_submodule(path), partial(_is_of, attention))


def _is_of(attention: nn.Module, hook: Any) -> bool:
    """Whether a hook computes what was added to this layer."""
    return isinstance(hook, partial) and hook.func in (_begin, _remember, _add) and hook.args[0] is attention


def _hook_before(module: nn.Module, hook: partial[None]) -> None:
    if not any(_same(other, hook) for other in module._forward_pre_hooks.values()):
        module.register_forward_pre_hook(hook, with_kwargs=True)


def _same(hook: Callable[..., Any], other: partial[Any]) -> bool:
    return isinstance(hook, partial) and (hook.func, hook.args) == (other.func, other.args)


def _active(attention: Any) -> AddedColumns | None:
    """The columns that were added to a layer, if it computes them now."""
    added = added_to(attention)
    return added if added is not None and str(attention.config._attn_implementation) == ADDED_COLUMNS else None


def _begin(attention: nn.Module, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a layer: find its cache, and forget what an earlier pass left that ended with an error."""
    if (added := _active(attention)) is None:
        return
    from attnworks.hf.added_cache import find_cache

    call, shape = _call_of(attention), added.shape
    call.cache, call.added = find_cache([*args, *kwargs.values()], shape.crosses), None
    for role, path in zip(ROLES, (shape.query, shape.key, shape.value), strict=True):
        if path.startswith(f"{shape.attention}."):
            call.inputs.pop(role, None)


def _remember(attention: nn.Module, role: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _active(attention) is not None:
        _call_of(attention).inputs[role] = next(T for T in (*args, *kwargs.values()) if isinstance(T, Tensor))


def _add(attention: nn.Module, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """After the output projection: add what the added columns give."""
    if (added := _active(attention)) is None:
        return None
    call = _call_of(attention)
    if call.inputs:
        raise _unfit(added, "attention computed by the registered function", "attention computed in another way")
    Y, call.added = call.added, None
    if Y is None:
        return None
    more = added.project(Y).to(output.dtype)
    if more.shape != output.shape:
        raise _unfit(added, "one vector per token", "an output projection to several vectors per token")
    return output + more


# --- attention ---


def widened_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls in the place of sdpa or eager: attention of wider heads, and of more."""
    added = added_to(module)
    assert added is not None
    call, shape = _call_of(module), added.shape
    if query.shape[1] != shape.heads:
        raise _unfit(added, f"{shape.heads} heads, as when columns were added", f"{query.shape[1]} heads")
    scaling = options.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    X = _input(added, call, "query", query)
    if X is None or X.shape[1] != query.shape[2]:
        raise _unfit(added, f"an input of {query.shape[2]} queries", _length(X))
    queries = added.queries(X) * _ratio(shape.factor, scaling)
    wide = added.widen(query, key, value, queries, _keys_and_values(module, added, call, query, key))
    call.inputs, call.cache = {}, None
    options = {**options, **_for_new_heads(options, added), "scaling": scaling}
    mask = None if attention_mask is None else _table_for_new_heads(attention_mask, added)
    name = module.config._attn_implementation.of_model
    Y, P = _attend(name, module, *wide, mask, options)
    Y = show_call(name, module, *wide, mask, Y, options).transpose(1, 2)
    own, call.added = added.split(Y, value.shape[-1])
    return own.transpose(1, 2).contiguous(), P


def _ratio(factor: float | None, scaling: Any) -> Any:
    """What turns `scaling` Q K^T into scores with this factor; exactly 1 where the two differ by rounding alone."""
    if factor is None or isclose(factor, scaling, rel_tol=FACTOR_ROUNDING):
        return 1.0
    return factor / scaling


def _keys_and_values(module: Any, added: AddedColumns, call: _Call, Q: Tensor, K: Tensor) -> Float[Tensor, "b j w"]:
    """The added columns of all keys and values that the layer reads, of earlier tokens from the cache.

    A layer that caches what its projections read (a latent of keys and values) projects earlier tokens again.
    """
    Z_K, Z_V = (_input(added, call, role, K) for role in ("key", "value"))
    columns = None if Z_K is None or Z_V is None else added.keys_and_values(Z_K, Z_V)
    again = columns is not None and Q.shape[2] < columns.shape[1] == K.shape[2] and not added.shape.crosses
    if call.cache is not None and not again:
        from attnworks.hf.added_cache import cached

        number, shape = getattr(module, "layer_idx", None), added.shape
        columns = cached(call.cache, number, added.cache_layers, shape.attention, columns, shape.crosses)
    if columns is None or columns.shape[1] != K.shape[2]:
        raise _unfit(added, f"an input of {K.shape[2]} keys", _length(columns))
    return columns


def _input(added: AddedColumns, call: _Call, role: str, T: Tensor) -> Float[Tensor, "b n e"] | None:
    """What a projection read, [b n e] or [b 1 n e], for queries or keys T [b h n k]; None if it did not run."""
    X = call.inputs.get(role)
    X = X.squeeze(1) if X is not None and X.dim() == 4 else X
    if X is not None and (X.dim() != 3 or X.shape[0] != T.shape[0]):
        expected = f"{T.shape[0]} sequences as the input of its {role} projection"
        raise _unfit(added, expected, f"an input of shape {list(X.shape)}")
    return X


def _length(X: Tensor | None) -> str:
    return "no input" if X is None else f"an input of {X.shape[1]}"


def _attend(
    name: str, module: Any, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> tuple[Float[Tensor, "b i h v"], Tensor | None]:
    """Attention as the implementation of the model computes it; its weights too where that gives them."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if name == HEAD_GROUPS:
        return outputs_by_groups(module, Q, K, V, mask, options), None
    if name not in ("eager", "sdpa"):
        remedy = 'call model.set_attn_implementation("sdpa")'
        raise UsageError("attention of a grown layer", "the implementation sdpa or eager", name, remedy)
    if name == "eager":
        return _explicit(module, Q, K, V, _table(Q, K, mask, options), options)
    alone = SimpleNamespace(is_causal=getattr(module, "is_causal", True))  # without groups: K and V are those of heads
    return sdpa_attention_forward(alone, Q, K, V, mask, **options)  # pyright: ignore[reportArgumentType]


def _explicit(
    module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, table: Tensor | None, options: dict[str, Any]
) -> tuple[Float[Tensor, "b i h v"], Float[Tensor, "b h i j"]]:
    """softmax(scaling Q K^T + table) V, with what eager attention knows besides: capped scores and sink logits."""
    S, cap, sink = options["scaling"] * (Q @ K.mT), options.get("softcap"), options.get("s_aux")
    S = S if cap is None else cap * (S / cap).tanh()
    S = S if table is None else S + table
    if sink is not None:
        S = torch.cat([S, sink.to(S.dtype)[:, None, None].expand(*S.shape[:3], 1)], -1)
    P = S.softmax(-1, dtype=torch.promote_types(S.dtype, torch.float32)).to(V.dtype)[..., : K.shape[2]]
    P = nn.functional.dropout(P, options.get("dropout", 0.0), module.training)
    return (P @ V).transpose(1, 2), P


def _table(Q: Tensor, K: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor | None:
    """All that is added to the scores, for a mask as eager attention reads it."""
    mask, bias = None if mask is None else mask[..., : K.shape[2]], options.get("position_bias")
    if mask is not None and mask.dtype == torch.bool:
        zeros = torch.zeros(mask.shape, dtype=Q.dtype, device=Q.device)
        mask = zeros.masked_fill(~mask, torch.finfo(Q.dtype).min)
    return mask if bias is None else bias if mask is None else mask + bias


# --- what the model gives for each head, for new heads ---


def _for_new_heads(options: dict[str, Any], added: AddedColumns) -> dict[str, Tensor]:
    """Sink logits and what is added for positions: new heads have no sink, and nothing is added to their scores."""
    sink, bias, new = options.get("s_aux"), options.get("position_bias"), added.heads - added.shape.heads
    found: dict[str, Tensor] = {}
    if new and sink is not None:
        found["s_aux"] = torch.cat([sink, sink.new_full((new,), torch.finfo(sink.dtype).min)])
    if new and bias is not None and bias.dim() > 2 and bias.shape[-3] == added.shape.heads:
        found["position_bias"] = torch.cat([bias, torch.zeros_like(bias[..., :1, :, :].expand(*_more(bias, new)))], -3)
    return found


def _table_for_new_heads(mask: Tensor, added: AddedColumns) -> Tensor:
    """A mask [b h i j] with one table for each head, also for new ones: these read all keys that any head may read."""
    new = added.heads - added.shape.heads
    if not new or mask.dim() < 4 or mask.shape[1] != added.shape.heads:
        return mask
    if mask.dtype == torch.bool:
        table = mask.any(1, keepdim=True)
    else:
        highest = mask.amax(1, keepdim=True)
        table = torch.where(highest <= torch.finfo(mask.dtype).min / 2, highest, 0.0)
    return torch.cat([mask, table.expand(*_more(mask, new))], 1)


def _more(table: Tensor, heads: int) -> Sequence[int]:
    return (*table.shape[:-3], heads, *table.shape[-2:])


def _unfit(added: AddedColumns, expected: str, got: str) -> UsageError:
    remedy = "pass use_cache=False, or go back to the model without them"
    return UsageError(f"columns added to {added.shape.attention}", expected, got, remedy)
