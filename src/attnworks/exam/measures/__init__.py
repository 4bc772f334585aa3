"""Every measure that comes with attnworks, and the choice of those that an examination takes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from torch import nn

from attnworks.attention import MECHANISMS
from attnworks.core.errors import UsageError
from attnworks.core.registry import Registry
from attnworks.exam.measure import MEASURES, Measure, overrides
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
from attnworks.models.multihead import MultiHead

__all__ = [
    "ALL_MEASURES",
    "MEASURES_ABOVE",
    "all_measures",
    "applicable_measures",
    "bounds",
    "choose_measures",
    "cost",
    "importance",
    "layers_without_weights",
    "paths",
    "rank",
    "redundancy",
    "roles",
    "saturation",
    "sinks",
    "spectra",
    "structure",
]

ALL_MEASURES = "all"
MEASURES_ABOVE = ("attnworks.reshape.growth.bottleneck",)
"""Modules of measures in packages that this one must not import, by name."""


def all_measures() -> Registry[type[Measure]]:
    """Every registered measure; the first call imports `MEASURES_ABOVE`."""
    for module in MEASURES_ABOVE:
        import_module(module)
    return MEASURES


def choose_measures(names: Sequence[str] | None) -> list[type[Measure]]:
    """The measures with these names and those that they require; by default the cheap ones, with "all" every one."""
    if names is not None and not names:
        raise UsageError("measures", "one name or more", "none", "--list-measures shows those there are")
    known = all_measures()
    if names is None:
        return [known[name] for name in known if known[name].default]
    if ALL_MEASURES in names:
        return [known[name] for name in known]
    chosen = dict.fromkeys(required for name in names for required in (name, *known[name].requires))
    return [known[name] for name in chosen]


def layers_without_weights(model: nn.Module) -> list[str]:
    """Layers whose maps are no attention weights, with their mechanism: measures of rows and maps do not apply."""
    return [
        f"{spec.name} in {layer.slot}"
        for layer in model.modules()
        if isinstance(layer, MultiHead)
        for spec in layer.mechanisms.specs
        if not MECHANISMS[spec.name].rows_sum_to_one
    ]


def applicable_measures(measures: list[Measure], asked: Sequence[str] | None, layers: Sequence[str]) -> list[Measure]:
    """Without the measures that read attention weights, if some layers have none; an error if they were asked for."""
    methods = ("rows", "maps", "pointers")
    reading = [measure for measure in measures if any(overrides(measure, method) for method in methods)]
    if not layers or not reading:
        return measures
    left = [measure for measure in measures if measure not in reading]
    if asked is not None or not left:
        raise UsageError(
            f"measures {', '.join(measure.name for measure in reading)}",
            "attention weights: rows that are not negative and sum to one",
            f"mixtures of any sign ({', '.join(layers[:3])}{', ...' if len(layers) > 3 else ''})",
            f"choose others, such as --measures {','.join(m.name for m in left) or 'rank'}",
        )
    return left
