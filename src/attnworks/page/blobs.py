"""Numbers inside a page: attention maps in few bits, gzipped, in base64; other numbers with few digits."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

FINE_LEVELS, COARSE_LEVELS = 255, 39
"""Levels of a weight. The maps of BERT (12 x 12 heads) for 128 tokens take 1.9 MB (fine) or 0.9 MB (coarse)."""
MAX_FINE_WEIGHTS = 2**19
"""A sentence with more weights than this, in all of its maps, gets the coarse levels."""
THUMBNAIL_PIXELS = 24
"""Rows and columns of a thumbnail, at most."""
THUMBNAIL_SHADES = 17
"""Shades of a thumbnail besides zero; 255 is 15 times 17."""

_GZIP_WINDOW = 31
"""The zlib argument `wbits` for the largest window and a gzip header, which has neither time nor name."""
PAGE_DIGITS = 6


class Coding(NamedTuple):
    """uint8: weight = (q / levels)^2, of weights from 0 to 1. float16: little-endian, any number."""

    type: Literal["uint8", "float16"]
    levels: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"type": "uint8", "levels": self.levels} if self.type == "uint8" else {"type": "float16"}


def pack(data: bytes, *, noisy: bool = False) -> str:
    """Gzipped, in base64; the same text for the same bytes.

    Noisy data, such as attention maps, hardly repeat. Without a search for repetitions they are packed in a tenth of
    the time, and 4 to 14 % smaller.
    """
    strategy = zlib.Z_RLE if noisy else zlib.Z_DEFAULT_STRATEGY
    gzip = zlib.compressobj(9, zlib.DEFLATED, _GZIP_WINDOW, zlib.DEF_MEM_LEVEL, strategy)
    return base64.b64encode(gzip.compress(data) + gzip.flush()).decode("ascii")


def coding_of(P: Float[Tensor, "h i j"], weights: int) -> Coding:
    """The coding of the maps of a layer, in a sentence whose maps have `weights` weights in all."""
    if not is_weights(P):
        return Coding("float16")
    return Coding("uint8", FINE_LEVELS if weights <= MAX_FINE_WEIGHTS else COARSE_LEVELS)


def is_weights(P: Float[Tensor, "*a"]) -> bool:
    """Whether all numbers are from 0 to 1."""
    return bool(((P >= 0) & (P <= 1)).all())


def encode_map(P: Float[Tensor, "*a"], coding: Coding) -> bytes:
    """q = round(levels sqrt(p)), row after row.

    With m = levels, sqrt(p) is kept within 1 / 2m, and so p within sqrt(p) / m + 1 / 4m^2.
    """
    if coding.type == "float16":
        return P.half().numpy().astype("<f2").tobytes()
    return (P.float().clamp(0, 1).sqrt() * coding.levels).round().to(torch.uint8).numpy().tobytes()


def thumbnails(P: Float[Tensor, "h i j"]) -> tuple[bytes, tuple[int, int]]:
    """The maps of a layer at 24 x 24 or less, in uint8 with THUMBNAIL_SHADES shades, and the size of each.

    A pixel is the largest weight in its part of the map, so that a single sharp weight is not lost. If the maps are not
    weights, it is |p| as a share of the largest |p| of the layer.
    """
    size = (min(THUMBNAIL_PIXELS, P.shape[1]), min(THUMBNAIL_PIXELS, P.shape[2]))
    sizes = P if is_weights(P) else P.abs() / P.abs().max()
    shades = encode_map(F.adaptive_max_pool2d(sizes.float(), size), Coding("uint8", THUMBNAIL_SHADES))
    return bytes(shade * (FINE_LEVELS // THUMBNAIL_SHADES) for shade in shades), size


def rounded(value: Any, digits: int = PAGE_DIGITS) -> Any:
    """Nested lists, tuples and mappings with every float to `digits` significant digits, or None if not finite.

    >>> rounded({"a": [0.123456789, 12345678.9, 3], "b": float("nan")})
    {'a': [0.123457, 12345700.0, 3], 'b': None}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return value
