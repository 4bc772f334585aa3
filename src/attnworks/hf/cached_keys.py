"""Which keys of a call of attention belong to tokens, where the layer reads them from a cache of transformers.

A cache of fixed length hands over all its places, also those behind the last token that are still empty. A cache for a
sliding window hands over the last tokens alone. How many tokens it was given says which.
"""

from __future__ import annotations

from threading import local
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from attnworks.attention import MechanismSpec
from attnworks.attention.heads import HeadGroups
from attnworks.core.errors import UsageError
from attnworks.hf.head_modules import remove_hooks

COUNT_FROM_FIRST = ("bigbird", "longformer")
"""Mechanisms in which the first positions of a text have a part of their own."""


class CachedKeys(NamedTuple):
    """The keys that a layer reads.

    used         how many belong to tokens, from the first one; the others are empty places
    forgotten    how many tokens came before the first key
    """

    used: int
    forgotten: int

    def check(self, groups: HeadGroups) -> None:
        """Refuse mechanisms that count positions from a token which the cache has forgotten."""
        counting = next((str(spec) for spec in groups.specs if counts_from_first(spec)), None)
        if self.forgotten and counting is not None:
            expected = "all earlier tokens, as positions are counted from the first one"
            got = f"a cache that has forgotten {self.forgotten} of them"
            raise UsageError(f"{counting} with a key/value cache", expected, got, "pass use_cache=False")


class _Caches(local):
    """The cache that each attention module was given last, by thread."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[nn.Module, ref[Any]] = WeakKeyDictionary()


_CACHES = _Caches()


def watch_cache(attention: nn.Module) -> None:
    """Let `cached_keys` know the cache of this layer."""
    if _remember not in attention._forward_pre_hooks.values():
        attention.register_forward_pre_hook(_remember, with_kwargs=True)


def stop_watching(attention: nn.Module) -> None:
    """Undo `watch_cache`."""
    remove_hooks(attention, lambda hook: hook is _remember)


def _remember(attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from attnworks.hf.added_cache import find_cache

    cache = find_cache([*args, *kwargs.values()], crosses=False)
    if cache is None:
        _CACHES.of.pop(attention, None)
    else:
        _CACHES.of[attention] = ref(cache)


def cached_keys(attention: nn.Module, K: Tensor) -> CachedKeys:
    """The keys of this call of a layer of causal self-attention, whose cache has been given its queries already."""
    found, keys = _CACHES.of.get(attention), K.shape[2]
    layer = None if found is None else _layer_of(found(), getattr(attention, "layer_idx", None))
    if layer is None:
        return CachedKeys(keys, 0)
    read = int(layer.get_seq_length())
    return CachedKeys(read if read < keys == layer.keys.shape[-2] else keys, max(read - keys, 0))


def _layer_of(cache: Any, number: int | None) -> Any:
    """The part of a cache that a layer reads; for one that reads keys of an earlier layer, any with as many tokens."""
    from transformers.cache_utils import CacheLayerMixin

    layers = [] if cache is None else cache.layers
    own = layers[number : number + 1] if isinstance(number, int) else []
    able = [layer for layer in own or layers if isinstance(layer, CacheLayerMixin) and layer.is_initialized]
    return max(able, key=lambda layer: int(layer.get_seq_length()), default=None)


def counts_from_first(spec: MechanismSpec) -> bool:
    """Whether a mechanism depends on how far a token is from the first one."""
    return spec.name in COUNT_FROM_FIRST or "block" in str(spec.options.get("members"))
