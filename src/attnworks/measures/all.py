"""Every measure that comes with attnworks; importing this registers them."""

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
