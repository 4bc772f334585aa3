"""Numbers as a page has them: few digits, and null where there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DIGITS = 6


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Nested lists, tuples and mappings with every float to `digits` significant digits; None for what is not finite.

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
