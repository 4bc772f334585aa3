"""Random numbers that depend on their place alone, not on what was drawn before."""

from __future__ import annotations

import torch
from torch import Tensor


def hashed(*parts: int | Tensor) -> Tensor:
    """Integers in [0, 2^63), one for each combination of the parts (which broadcast), by the finaliser of splitmix64.

    The same parts give the same number on every machine and in every version; a generator promises neither.
    """
    mixed = torch.zeros((), dtype=torch.int64)
    for part in parts:
        mixed = _finalise(mixed * _STEP + part)
    return mixed & (2**63 - 1)


_STEP, _FIRST, _SECOND = (constant - 2**64 for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _finalise(x: Tensor) -> Tensor:
    x = x + _STEP
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits as if x had no sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
