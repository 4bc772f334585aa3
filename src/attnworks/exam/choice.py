"""Which measures an examination takes, and what that will cost."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from attnworks.attention import MECHANISMS
from attnworks.core.errors import UsageError
from attnworks.exam.measure import Measure, Setting
from attnworks.exam.measure_hook import overrides
from attnworks.exam.measures import all_measures
from attnworks.models.multihead import MultiHead

EVERYTHING = "all"


def choose_measures(names: Sequence[str] | None, setting: Setting) -> list[Measure]:
    """The measures of these names; by default those that are cheap, with "all" every one."""
    if names is not None and not names:
        raise UsageError(
            asked="measures", expected="one name or more", got="none", remedy="--list-measures shows those there are"
        )
    known = all_measures()
    if names is None:
        chosen = [name for name in known if known[name].default]
    elif EVERYTHING in names:
        chosen = list(known)
    else:
        chosen = list(dict.fromkeys(required for name in names for required in (name, *known[name].requires)))
    return [known[name](setting) for name in chosen]


def without_weights(model: nn.Module) -> list[str]:
    """Layers whose maps are no weights, with the mechanism: readings of rows and maps make no sense there."""
    return [
        f"{spec.name} in {layer.slot}"
        for layer in model.modules()
        if isinstance(layer, MultiHead)
        for spec in layer.mechanisms.specs
        if not MECHANISMS[spec.name].stochastic
    ]


def fit_to_maps(measures: list[Measure], asked: Sequence[str] | None, layers: Sequence[str]) -> list[Measure]:
    """Without those that read attention weights, if some layers have none; refused if they were asked for by name."""
    reading = [
        measure for measure in measures if any(overrides(measure, look) for look in ("rows", "maps", "pointers"))
    ]
    if not layers or not reading:
        return measures
    left = [measure for measure in measures if measure not in reading]
    if asked is not None or not left:
        raise UsageError(
            asked=f"measures {', '.join(measure.name for measure in reading)}",
            expected="attention weights: rows that are not negative and sum to one",
            got=f"mixtures of any sign ({', '.join(layers[:3])}{', ...' if len(layers) > 3 else ''})",
            remedy=f"choose others, such as --measures {','.join(m.name for m in left) or 'rank'}",
        )
    return left


def costs(measures: Sequence[Measure]) -> list[tuple[str, str]]:
    """What each measure beyond the default set costs, in words."""
    return [(measure.name, measure.cost) for measure in measures if not measure.default]
