"""Where layers with other heads or mechanisms sit, as the config of a saved folder says it.

A folder is opened without a forward pass of the model as it was, so that its config has to name modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from attnworks.core.places import Slot
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.heads import projection_paths

LAYERS_ENTRY = "attnworks_layers"
"""Entry of the config of a folder: the places of its changed layers."""
WIDEST = 2**16
"""The largest width of a head that a config may name."""


@dataclass(frozen=True)
class LayerPlace:
    """One attention layer.

    attention      the path of its module
    widths         of queries (and keys) and of values, as attention is given them
    projections    to queries, keys and values, and that of the output; none where they are not known
    """

    attention: str
    widths: tuple[int, int]
    projections: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, entry: Any, model: nn.Module) -> LayerPlace:
        """The place with these entries in a model; ValueError or AttributeError for anything else."""
        if not isinstance(entry, dict) or {*entry} != {"attention", "widths", "projections"}:
            raise ValueError(f"a layer with {entry!r:.60}")
        widths, projections = entry["widths"], entry["projections"]
        if not isinstance(widths, list) or len(widths) != 2 or not all(_is_width(width) for width in widths):
            raise ValueError(f"widths {widths!r:.40}")
        if not isinstance(projections, list) or len(projections) not in (0, 4):
            raise ValueError(f"projections {projections!r:.60}")
        for path in (entry["attention"], *projections):
            model.get_submodule(path)
        return cls(entry["attention"], (widths[0], widths[1]), tuple(projections))


def _is_width(width: object) -> bool:
    return type(width) is int and 0 < width <= WIDEST


def describe_layers(model: nn.Module, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The places of these layers of a model, as JSON."""
    return {name: {**asdict(place), "widths": list(place.widths)} for name, place in places_of(model, names).items()}


def places_of(model: nn.Module, names: Iterable[str]) -> Mapping[str, LayerPlace]:
    """The places of these layers of a model, by evidence. KeyError for a name that is no layer of the model."""
    names = list(names)
    layers = hf_layers(model) if names else {}
    found: dict[str, LayerPlace] = {}
    for name in names:
        part = layers[Slot.parse(name)]
        (_, *widths), layout = part.geometry(), part.place()[1]
        found[name] = LayerPlace(layout.path, (widths[0], widths[1]), projection_paths(layout) or ())
    return found
