"""One forward pass of a Hugging Face model, observed through the attention interface of transformers.

The interface receives Q, K, V, mask, scale and sink logits of any architecture, with rotary positions applied. The
model keeps its own implementation of attention, `eager` or `sdpa`, and its output is the same, bit for bit. A model
with another implementation is examined with `sdpa`, or with `eager` if it does not support that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.attention.heads import HeadGroups, HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.places import Kind, Slot
from attnworks.hf.attention import attend_head_groups, context_of_call, dense_heads
from attnworks.hf.cut.stored import kept_heads
from attnworks.hf.head_modules import head_groups_of, is_empty
from attnworks.hf.layer_implementation import LayerImplementation
from attnworks.hf.masks import added_scores, mask_of_call
from attnworks.text.tokens import Batch, Tokens
from attnworks.traces.head_edits import HeadEdits
from attnworks.traces.layer import LayerHook, LayerTrace

OBSERVABLE_IMPLEMENTATIONS = ("eager", "sdpa")
"""Implementations whose masks and options this module can read."""

AttentionHook = Callable[[nn.Module, Tensor, Tensor, Tensor, Mask, Tensor, dict[str, Any]], Tensor | None]
_HOOK: ContextVar[AttentionHook | None] = ContextVar("attnworks_attention_hook", default=None)


class ObservedPass:
    """One observed forward pass: counts layers, and passes a trace of each to the hook.

    kinds           attention modules and their kinds
    read_weights    of each layer whose weights are known
    bilinear        (slot, X, Q) -> whether the queries of a layer are linear in X
    """

    def __init__(
        self,
        kinds: Mapping[nn.Module, Kind],
        read_weights: Mapping[Slot, Callable[[], HeadWeights]],
        bilinear: Callable[[Slot, Tensor | None, Tensor], bool],
        batch: Batch,
        hook: LayerHook,
    ) -> None:
        self.kinds, self.read_weights, self.bilinear = kinds, read_weights, bilinear
        self.batch, self.hook = batch, hook
        self.seen: Counter[Kind] = Counter()
        self.inputs: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def hook_inputs(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Remember the inputs of each of these attention modules until its attention is computed."""
        with ExitStack() as hooks:
            for module in modules:
                hooks.enter_context(module.register_forward_pre_hook(self._remember, with_kwargs=True))
            yield

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        X = args[0] if args else kwargs["hidden_states"]
        others = (kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states"))
        Z = next((other for other in others if other is not None), X)
        self.inputs[module] = X, Z

    def attention(
        self,
        module: nn.Module,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        mask: Mask,
        Y: Tensor,
        options: dict[str, Any],
    ) -> Tensor | None:
        """One attention layer: Q [b h i k], K [b g j k], V [b g j v], Y [b h i v], and the options of the interface."""
        kind = self.kinds.get(module, "encoder")
        slot = Slot(kind, self.seen[kind])
        self.seen[kind] += 1
        if is_empty(module):
            return None
        queries, keys = self.batch.sides(kind)
        if (Q.shape[2], K.shape[2]) != (queries.ids.shape[1], keys.ids.shape[1]):
            expected = f"{queries.ids.shape[1]} queries and {keys.ids.shape[1]} keys, one per token"
            got, remedy = f"{Q.shape[2]} and {K.shape[2]}", "examine a model whose sequence is its tokens"
            raise UsageError(f"attention of {slot}", expected, got, remedy)
        X, Z = self.inputs.pop(module, (None, None))
        trace = _layer_trace(slot, module, Q, K, V, mask, Y, options, queries, keys)
        plain = trace.scale is not None and trace.sink is None and trace.softcap is None
        bilinear = plain and added_scores(options) is None and self.bilinear(slot, X, Q)
        return self.hook.attention(
            replace(trace, X=X, Z=Z, read_weights=self.read_weights.get(slot), bilinear=bilinear)
        )


def _layer_trace(
    slot: Slot,
    module: nn.Module,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    mask: Mask,
    Y: Tensor,
    options: dict[str, Any],
    queries: Tokens,
    keys: Tokens,
) -> LayerTrace:
    """A layer as the attention interface shows it: without its input and its weights."""
    groups, weigh, scoring, sink = head_groups_of(module), None, None, options.get("s_aux")
    scale = options.get("scaling")
    scale = Q.shape[-1] ** -0.5 if scale is None else scale
    if groups is not None:
        weigh = partial(_weigh, module, Q, K, V, mask, options)
        scoring = groups.scoring(Q.shape[-1], context_of_call(Q, options))
        scale = scoring.scale
        sink = None if sink is None else _of_dense_heads(sink, groups)
    return LayerTrace(
        slot, Q, K, V, Y, mask, scale, queries, keys,
        weigh=weigh, scoring=scoring, sink=sink, softcap=options.get("softcap"),
    )  # fmt: skip


def _of_dense_heads(sink: Float[Tensor, " h"], groups: HeadGroups) -> Float[Tensor, " h"]:
    """Sink logits that give no weight to the sink in heads whose weights do not come from the softmax of the model."""
    found = torch.full_like(sink, torch.finfo(sink.dtype).min)
    heads = dense_heads(groups)
    found[heads] = sink.detach()[heads]
    return found


class _EditedCalls:
    """Edits heads in direct calls of a model, of which only shapes are known: every token counts as real."""

    def __init__(self, name: str, kinds: Mapping[nn.Module, Kind], edits: Sequence[HeadEdits]) -> None:
        self.name, self.kinds, self.edits = name, kinds, edits
        self.seen: Counter[Kind] = Counter()

    @contextmanager
    def hook_passes(self, model: Any) -> Iterator[None]:
        """Count layers from zero in every pass of the model, its body, or its encoder, which `generate` calls."""
        bodies = {model, getattr(model, "base_model", model)}
        encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else None
        with ExitStack() as hooks:
            for body in bodies:
                hooks.enter_context(body.register_forward_pre_hook(self._begin))
            if isinstance(encoder, nn.Module):
                hooks.enter_context(encoder.register_forward_pre_hook(self._begin_encoder))
            hooks.enter_context(model.register_forward_hook(self._check_found))
            yield

    def _begin(self, *_: object) -> None:
        self.seen.clear()

    def _begin_encoder(self, *_: object) -> None:
        del self.seen["encoder"]

    def _check_found(self, *_: object) -> None:
        """Refuse names of heads that the model does not have."""
        if _HOOK.get() is None:  # this call is not edited
            return
        for edits in self.edits:
            edits.check_found(self.name)

    def attention(
        self, module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, Y: Tensor, options: dict[str, Any]
    ) -> Tensor | None:
        if module not in self.kinds:  # a layer of another model, which runs inside the block
            return None
        kind = self.kinds[module]
        slot = Slot(kind, self.seen[kind])
        self.seen[kind] += 1
        if is_empty(module):
            return None
        queries, keys = (Tokens(real.long(), real) for real in (_all_real(Q), _all_real(K)))
        trace, edited = _layer_trace(slot, module, Q, K, V, mask, Y, options, queries, keys), None
        for edits in self.edits:
            edited = edits.apply(trace) or edited
            trace = edited or trace
        return None if edited is None else edited.Y


def _all_real(rows: Float[Tensor, "b h i k"]) -> Bool[Tensor, "b i"]:
    return torch.ones(rows.shape[0], rows.shape[2], dtype=torch.bool, device=rows.device)


@contextmanager
def edited_calls(
    model: nn.Module, name: str, kinds: Mapping[nn.Module, Kind], edits: Sequence[HeadEdits]
) -> Iterator[None]:
    """Make these edits in every direct call of the model, also in `generate`, inside the context."""
    calls = _EditedCalls(name, kinds, edits)
    with ExitStack() as stack:
        stack.enter_context(observe_interface(model))
        stack.enter_context(calls.hook_passes(model))
        stack.enter_context(attention_hook(calls.attention))
        yield


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    """Within this context the model computes attention by this implementation."""
    before = {id(part.config): (part.config, part.config._attn_implementation) for part in _configured(model)}
    try:
        try:
            model.set_attn_implementation(name)
        except ValueError as error:
            raise unobservable(model) from error
        yield
    finally:
        for config, old in before.values():
            config._attn_implementation = old


def _configured(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            yield module


@contextmanager
def observe_interface(model: nn.Module) -> Iterator[None]:
    """Within this context calls of the attention interface of transformers are passed to the hook of this thread.

    The name of the model's implementation stays: some models, such as A.X-K2, put their choice of keys into the mask
    for `eager` and `sdpa` alone. Masks of other implementations are not tables of all pairs. These are replaced by
    `sdpa`, or by `eager` if the model does not support it.
    """
    with ExitStack() as stack:
        if any(part.config._attn_implementation not in OBSERVABLE_IMPLEMENTATIONS for part in _configured(model)):
            stack.enter_context(_implementation(model, "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"))
        stack.enter_context(_INTERFACE)
        yield


@contextmanager
def attention_hook(hook: AttentionHook | None) -> Iterator[None]:
    """Within this context attention of this thread is passed to `hook`, and to no other; to none if it is None."""
    token = _HOOK.set(hook)
    try:
        yield
    finally:
        _HOOK.reset(token)


class _ObservedInterface:
    """Wraps AttentionInterface.get_interface while any thread examines a model. Other threads see no change."""

    def __init__(self) -> None:
        self._lock, self._open = Lock(), 0
        self._plain: Callable[..., Callable[..., Any]] | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            if self._plain is None:
                interface = _interface()
                plain = self._plain = interface.get_interface
                interface.get_interface = _observed_interface(plain)

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                _interface().get_interface, self._plain = self._plain, None


def _interface() -> Any:
    from transformers import AttentionInterface

    return AttentionInterface


def _observed_interface(plain: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        found = plain(self, attn_implementation, default)
        own = isinstance(attn_implementation, LayerImplementation)  # such a function calls `show_call` itself
        watched = _HOOK.get() is not None and attn_implementation in OBSERVABLE_IMPLEMENTATIONS and not own
        return partial(_attention, found, attn_implementation) if watched else found

    return get_interface


_INTERFACE = _ObservedInterface()


def _attention(
    attend: Callable[..., tuple[Tensor, Any]],
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:
    """The model's own attention, passed to the hook of this thread."""
    own = None
    if (kept := kept_heads(module, query, key)) is not None:
        own, value = kept.separate(value)
    Y, P = attend(module, query, key, value, attention_mask, **options)
    return show_call(name, module, query, key, value, attention_mask, Y, options, own), P


def show_call(
    name: str,
    module: nn.Module,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    given: Tensor | None,
    Y: Tensor,
    options: dict[str, Any],
    own: Tensor | None = None,
) -> Tensor:
    """Pass a call of attention, with outputs Y [b i h v], to the hook of this thread, if it has one; what Y becomes.

    name     the implementation that the mask was given for
    own      the values of the heads that are left, in a layer that computes attention for others too
    """
    if (hook := _HOOK.get()) is None:
        return Y
    mask = mask_of_call(name, module, Q, K, given, options)
    heads, kept = Y.transpose(1, 2), kept_heads(module, Q, K)
    if kept is not None:
        Q, K, V = kept.queries_keys_values(Q, K, V)
        V, heads, mask, options = (
            V if own is None else own,
            heads[:, kept.heads],
            kept.mask(mask),
            kept.options(options),
        )
    edited = hook(module, Q, K, V, mask, heads, options)
    if edited is None:
        return Y
    return (edited if kept is None else kept.whole(edited)).transpose(1, 2).contiguous()


def _weigh(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, options: dict[str, Any]) -> Tensor:
    P = attend_head_groups(module, Q, K, V, mask, options, weights=True).P
    assert P is not None
    return P


def unobservable(model: nn.Module) -> UsageError:
    """The error for a model whose attention could not be observed."""
    expected = "a model that computes attention through transformers' attention interface"
    got = "one that does not (block-sparse BigBird, XLNet, code that reads ALL_ATTENTION_FUNCTIONS[...] itself, as "
    got += "models written for transformers 4 do, and some others)"
    remedy = "examine another model, or show its Q, K and V through attnworks.traces.adapted"
    return UsageError(f"attention of {type(model).__name__}", expected, got, remedy)
