"""Random numbers that depend on their place alone, not on what was drawn before."""

from __future__ import annotations

import numpy as np


def hashed(*parts: int | np.ndarray) -> np.ndarray:
    """Integers below 2^64, one for each combination of the parts (which broadcast), by the finaliser of splitmix64.

    The same parts give the same number on every machine and in every version; a generator promises neither.
    """
    mixed = np.zeros(1, dtype=np.uint64)
    for part in parts:
        mixed = _finalise(mixed * _STEP + np.asarray(part).astype(np.uint64))
    return mixed


_STEP, _FIRST, _SECOND = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _finalise(x: np.ndarray) -> np.ndarray:
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
