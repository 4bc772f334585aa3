"""Every measure that comes with attnworks; importing this registers them."""

import importlib

from attnworks.measures import (
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
    structure_fit,
)

__all__ = [
    "ablation",
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

ABOVE = ("attnworks.reshape.growth.bottleneck",)
"""Measures of packages that stand above this one, by name."""

for name in ABOVE:
    importlib.import_module(name)
