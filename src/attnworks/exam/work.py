"""The work of heads and layers: what the loss loses without them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from attnworks.core.places import HeadId, Slot
from attnworks.exam.reading import ModelReadings

CERTAIN_WORK = 0.5
"""Ablations count as work if at least this share of their sum is from heads whose interval lies above zero."""


@dataclass(frozen=True)
class Work:
    """The work of every head, by the reading that it comes from.

    reading    "ablation.change", or else "importance.gradient"
    heads      head -> the rise of the loss without it, at least 0; or the size of its gradient
    """

    reading: str
    heads: dict[HeadId, float]

    @property
    def total(self) -> float:
        return sum(self.heads.values())

    @property
    def layers(self) -> dict[Slot, float]:
        """Layer -> its share of the sum over all heads; layers in the order of the model."""
        sums: dict[Slot, float] = defaultdict(float)
        for head, value in self.heads.items():
            sums[head.slot] += value / self.total
        return dict(sorted(sums.items(), key=lambda entry: entry[0].order))

    def to_json(self) -> dict[str, Any]:
        return {"reading": self.reading, "layers": {str(slot): share for slot, share in self.layers.items()}}


def work_of(model: ModelReadings) -> Work | None:
    """The sum of single-head ablation effects where they are certain, or else of gradients; None without both."""
    changes, lows = model.at("ablation.change"), model.at("ablation.change", 0)
    rises = {head: max(0.0, change) for head, change in changes.items()}
    certain = sum(rise for head, rise in rises.items() if lows.get(head, -math.inf) > 0)
    if sum(rises.values()) > 0 and certain >= CERTAIN_WORK * sum(rises.values()):
        return Work("ablation.change", rises)
    gradients = model.at("importance.gradient")
    return Work("importance.gradient", gradients) if sum(gradients.values()) > 0 else None


def predicted_rises(model: ModelReadings) -> list[tuple[int, float]]:
    """(heads kept, rise of the loss) from all heads to none, the least needed first: the sum of single effects.

    Empty where ablations were not measured.
    """
    changes = sorted(model.at("ablation.change").values())
    return [(len(changes) - cut, rise) for cut, rise in enumerate(accumulate(changes, initial=0.0))] if changes else []
