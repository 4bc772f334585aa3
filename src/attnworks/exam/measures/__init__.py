"""Every measure that comes with attnworks, and the choice of measures for an examination."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from torch import nn

from attnworks.attention import MECHANISMS
from attnworks.core.errors import UsageError
from attnworks.core.registry import Registry
from attnworks.exam.measure import MEASURES, Measure, MeasureContext, overrides
from attnworks.models.multihead import MultiHead

ALL_MEASURES, DEFAULT_MEASURES = "all", "default"
PAGE_MEASURES = (DEFAULT_MEASURES, "importance")
"""What a page shows by default: the work of every head costs one backward pass more."""

for _module in iter_modules(__path__):  # a module registers its measures when it is imported
    import_module(f"{__name__}.{_module.name}")


def all_measures() -> Registry[type[Measure]]:
    """Every registered measure; the first call imports `MEASURES_ELSEWHERE`."""
    MEASURES.import_built_in()
    return MEASURES


def choose_measures(names: Sequence[str] | None) -> list[type[Measure]]:
    """The measures with these names and those that they require; by default the cheap ones, with "all" every one.

    "default" among other names stands for the default ones.
    """
    if names is not None and not names:
        raise UsageError("measures", "one name or more", "none", "--list-measures shows all names")
    known = all_measures()
    if names is not None and ALL_MEASURES in names:
        return [known[name] for name in known]
    names = _spelled_out(names or (DEFAULT_MEASURES,), [name for name in known if known[name].default])
    for name in names:
        _check_not_a_reading(name, known)
    chosen = dict.fromkeys(required for name in names for required in (name, *known[name].requires))
    return [known[name] for name in chosen]


def _spelled_out(names: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """The names, with those of the default measures in place of "default"."""
    return [known for name in names for known in (defaults if name == DEFAULT_MEASURES else (name,))]


def takes_default(names: Sequence[str] | None) -> bool:
    """Whether the default measures are among these, so that some of them may be left out or added for a model."""
    return names is None or DEFAULT_MEASURES in names


def _check_not_a_reading(name: str, known: Registry[type[Measure]]) -> None:
    """Refuse the name of a reading, such as entropy or saturation.entropy, and say which measure makes it."""
    if name in known:
        return
    for kind in (known[measure] for measure in known):
        readings = [spec.name for spec in kind(MeasureContext(max_length=1)).declares()]
        if whole := next((reading for reading in readings if name in (reading, reading.partition(".")[2])), None):
            remedy = f"the measure {kind.name} makes {whole}"
            raise UsageError(f"measure {name!r}", "the name of a measure", "the name of a reading", remedy)


def layers_without_weights(model: nn.Module) -> list[str]:
    """Layers whose maps are not attention weights, with their mechanism: measures of rows and maps do not apply."""
    return [
        f"{spec.name} in {layer.slot}"
        for layer in model.modules()
        if isinstance(layer, MultiHead)
        for spec in layer.mechanisms.specs
        if not MECHANISMS[spec.name].rows_sum_to_one
    ]


def applicable_measures(measures: list[Measure], chosen: Sequence[str] | None, layers: Sequence[str]) -> list[Measure]:
    """The measures without those that need attention weights, if some layers have none.

    chosen    names that the caller chose; an error if one of them needs weights
    layers    the layers without weights
    """
    methods = ("rows", "maps", "pointers", "probe")
    of_weights = [measure for measure in measures if any(overrides(measure, method) for method in methods)]
    if not layers or not of_weights:
        return measures
    others = [measure for measure in measures if measure not in of_weights]
    if not takes_default(chosen) or not others:
        names = ", ".join(measure.name for measure in of_weights)
        got = f"mixtures of any sign ({', '.join(layers[:3])}{', ...' if len(layers) > 3 else ''})"
        remedy = f"choose others, such as --measures {','.join(measure.name for measure in others) or 'rank'}"
        expected = "attention weights: rows that are not negative and sum to one"
        raise UsageError(f"measures {names}", expected, got, remedy)
    return others
