"""Every measure that comes with attnworks; importing this package registers those that live in it."""

from __future__ import annotations

from importlib import import_module

from attnworks.core.registry import Registry
from attnworks.exam.measure import MEASURES, Measure
from attnworks.exam.measures import (
    bounds,
    cost,
    importance,
    paths,
    rank,
    redundancy,
    roles,
    saturation,
    sinks,
    spectra,
    structure,
)

__all__ = [
    "MEASURES_ABOVE",
    "all_measures",
    "bounds",
    "cost",
    "importance",
    "paths",
    "rank",
    "redundancy",
    "roles",
    "saturation",
    "sinks",
    "spectra",
    "structure",
]

MEASURES_ABOVE = ("attnworks.reshape.growth.bottleneck",)
"""Modules of measures in packages that this one must not import, by name."""


def all_measures() -> Registry[type[Measure]]:
    """Every registered measure; the first call imports `MEASURES_ABOVE`."""
    for module in MEASURES_ABOVE:
        import_module(module)
    return MEASURES
