"""Tensors to tensors: no modules, no state."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnworks.exam import structure

__all__ = ["structure"]


def __getattr__(name: str) -> object:
    """`attnworks.exam.structure` on first use: it loads scipy, which the rest seldom needs."""
    if name != "structure":
        raise AttributeError(f"module 'attnworks.linalg' has no attribute {name!r}")
    return importlib.import_module("attnworks.exam.structure")
