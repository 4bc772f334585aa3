"""Calls of the attention interface of transformers, passed to a hook.

The interface receives Q, K, V, mask, scale and sink logits of any architecture, with rotary positions applied. The
model keeps its own implementation of attention, `eager` or `sdpa`, and its output is the same, bit for bit. A model
with another implementation is examined with `sdpa`, or with `eager` if it does not support that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any

from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.hf.attention_hook import attention_hook as attention_hook
from attnworks.hf.attention_hook import current_hook, softmax_unobserved
from attnworks.hf.cut.stored import call_hook, kept_heads
from attnworks.hf.layer_implementation import LayerImplementation
from attnworks.hf.masks import keys_of_call, mask_of_call, options_of_keys

OBSERVABLE_IMPLEMENTATIONS = ("eager", "sdpa")
"""Implementations whose masks and options this module can read."""


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    """Within this context the model computes attention by this implementation."""
    before = {id(part.config): (part.config, part.config._attn_implementation) for part in _configured(model)}
    try:
        try:
            model.set_attn_implementation(name)
        except ValueError as error:
            raise no_attention(type(model).__name__) from error
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
        if current_hook() is None:
            return found
        own = isinstance(attn_implementation, LayerImplementation)  # such a function calls `show_call` itself
        watched = attn_implementation in OBSERVABLE_IMPLEMENTATIONS and not own
        return partial(_call, partial(_attention, found, attn_implementation) if watched else found)

    return get_interface


def _call(attend: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call an attention function, whose own softmax is not observed."""
    with softmax_unobserved():
        return attend(*args, **options)


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
    if (hook := current_hook()) is None:
        return Y
    if (keys := keys_of_call(name, module, Q, K, given, options)) < K.shape[2]:
        K, V, options = K[:, :, :keys], V[:, :, :keys], options_of_keys(options, keys)
        own = None if own is None else own[:, :, :keys]
    mask = mask_of_call(name, module, Q, K, given, options)
    edited = call_hook(hook, module, Q, K, V, mask, Y.transpose(1, 2), options, own)
    return Y if edited is None else edited.transpose(1, 2).contiguous()


def no_attention(name: str) -> UsageError:
    """The error for a model in which no attention was found."""
    expected = "a model with attention: softmax(Q K^T) V of its tokens, in the attention interface or in its own code"
    remedy = "examine another model, or show its Q, K and V through attnworks.traces.adapted"
    return UsageError(f"attention of {name}", expected, "one in which none was found", remedy)
