"""The function that is shown attention of this thread while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from attnworks.attention import Mask

AttentionHook = Callable[[nn.Module, Tensor, Tensor, Tensor, Mask, Tensor, dict[str, Any]], Tensor | None]
"""(module, Q [b h i k], K [b g j k], V [b g j v], mask, Y [b h i v], options) -> what takes the place of Y, or None.

The options are those of the attention interface of transformers: scaling, softcap, s_aux and others. Attention that is
observed at its softmax has the option `weights`, which no call of the interface has.
"""

_HOOK: ContextVar[AttentionHook | None] = ContextVar("attnworks_attention_hook", default=None)
_SOFTMAX_UNOBSERVED: ContextVar[bool] = ContextVar("attnworks_softmax_unobserved", default=False)


@contextmanager
def attention_hook(hook: AttentionHook | None) -> Iterator[None]:
    """Within this context attention of this thread is passed to `hook`, and to no other; to none if it is None."""
    token = _HOOK.set(hook)
    try:
        yield
    finally:
        _HOOK.reset(token)


def current_hook() -> AttentionHook | None:
    """The hook of this thread."""
    return _HOOK.get()


@contextmanager
def softmax_unobserved() -> Iterator[None]:
    """Within this context functions of torch that this thread calls are not those of a model."""
    token = _SOFTMAX_UNOBSERVED.set(True)
    try:
        yield
    finally:
        _SOFTMAX_UNOBSERVED.reset(token)


def is_softmax_unobserved() -> bool:
    return _SOFTMAX_UNOBSERVED.get()
