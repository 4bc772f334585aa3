"""Every measure that comes with attnworks; importing this registers those of this package."""

from __future__ import annotations

from importlib import import_module

from attnworks.core.registry import Registry
from attnworks.exam.measure import MEASURES, Measure
from attnworks.exam.measures import (
    ablation,
    bounds,
    cost,
    importance,
    paths,
    rank,
    ranks,
    redundancy,
    residuals,
    roles,
    rollout,
    saturation,
    sinks,
    sketch,
    spectra,
    structure,
)

__all__ = [
    "MEASURES_ABOVE",
    "ablation",
    "all_measures",
    "bounds",
    "cost",
    "importance",
    "paths",
    "rank",
    "ranks",
    "redundancy",
    "residuals",
    "roles",
    "rollout",
    "saturation",
    "sinks",
    "sketch",
    "spectra",
    "structure_fit",
]

MEASURES_ABOVE = ("attnworks.reshape.growth.bottleneck",)
"""Modules of measures that this package must not import, by name."""


def all_measures() -> Registry[type[Measure]]:
    """Every registered measure; the first call imports `MEASURES_ABOVE`."""
    for module in MEASURES_ABOVE:
        import_module(module)
    return MEASURES
