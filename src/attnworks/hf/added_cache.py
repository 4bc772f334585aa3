"""The keys and values of added columns in the cache of transformers, in layers of its own behind those of the model.

So they are reordered, cropped and repeated with the rest of the cache.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import BaseQuantizedLayer, DynamicLayer, DynamicSlidingWindowLayer

from attnworks.core.errors import UsageError


class _OfColumns:
    """A cache layer of the columns [b 1 j w] that were added to one layer.

    owner    the path of its attention module
    """

    def __init__(self, owner: str, *settings: Any) -> None:
        super().__init__(*settings)
        self.owner = owner

    def append(self, columns: Float[Tensor, "b n w"]) -> Float[Tensor, "b j w"]:
        """Add the columns of new tokens; those of all tokens that the layer still reads."""
        update: Any = super().update  # pyright: ignore[reportAttributeAccessIssue]
        every, _ = update(columns.unsqueeze(1), columns[:, None, :, :0])
        return every.squeeze(1)

    def update(self, *_: object, **__: object) -> Any:
        """A layer of the model that is stored at this number, which the cache did not know of, is refused."""
        raise _unfit("a cache with fewer layers than the model has")


class AddedLayer(_OfColumns, DynamicLayer):
    """The columns of a layer that reads all earlier tokens."""


class AddedSlidingLayer(_OfColumns, DynamicSlidingWindowLayer):
    """The columns of a layer that reads a window of them."""


def find_cache(given: list[Any], crosses: bool) -> Cache | None:
    """The cache among the arguments of an attention module; for a model with two, that of its kind of attention."""
    cache = next((value for value in given if isinstance(value, Cache)), None)
    if isinstance(cache, EncoderDecoderCache):
        return cache.cross_attention_cache if crosses else cache.self_attention_cache
    return cache


def cached(
    cache: Cache, layer: int | None, layers: int, owner: str, columns: Float[Tensor, "b n w"] | None, crosses: bool
) -> Float[Tensor, "b j w"]:
    """The columns of all tokens that a layer reads, after those of new ones were stored.

    layer      number in the cache of the layer that the columns are added to
    layers     how many layers of the model use the cache
    columns    None where a layer of cross-attention reads its keys and values from the cache
    """
    found = _stored(cache, owner)
    if columns is None:
        if found is None or not found.is_initialized:
            raise _unfit("one that was filled before columns were added")
        return found.keys.squeeze(1)
    if found is None:
        found = _new_layer(cache, layer, layers, owner)
    if crosses:
        found.reset()
    return found.append(columns)


def _stored(cache: Cache, owner: str) -> Any:
    added = (layer for layer in cache.layers if isinstance(layer, _OfColumns))
    return next((layer for layer in added if layer.owner == owner), None)


def _new_layer(cache: Cache, layer: int | None, layers: int, owner: str) -> Any:
    """A cache layer that keeps as many tokens as that of the layer itself, behind all layers of the model."""
    if layer is None or layer >= len(cache.layers):
        raise _unfit("none in the cache for this layer")
    own: Any = cache.layers[layer]
    plain = type(cache) is DynamicCache and not cache.offloading  # other classes count their layers in their own ways
    if not plain or isinstance(own, BaseQuantizedLayer) or not isinstance(own, DynamicLayer):
        raise _unfit(f"{type(own).__name__} in {type(cache).__name__}")
    while cache.layer_class_to_replicate is not None and len(cache.layers) < layers:
        cache.layers.append(cache.layer_class_to_replicate())
    if isinstance(own, DynamicSlidingWindowLayer):
        new = AddedSlidingLayer(owner, own.sliding_window)
        new.record_past = own.record_past
    else:
        new = AddedLayer(owner)
    cache.layers.append(new)
    return new


def _unfit(got: str) -> UsageError:
    expected, remedy = "layers of a DynamicCache that grow with the text", "pass use_cache=False"
    return UsageError("a key/value cache of a grown model", expected, got, remedy)
