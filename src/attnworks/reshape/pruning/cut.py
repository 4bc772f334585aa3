"""Remove heads from a copy of a model, and say what was done."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from attnworks.core.display import counted
from attnworks.core.places import HeadId, Slot
from attnworks.hf.cut.recipe import Form
from attnworks.reshape.pruning.units import heads_by_layer
from attnworks.reshape.surgery import PruneUnit, keep_heads_by_layer


class CutModel(NamedTuple):
    """A model with fewer heads.

    left     for every layer that lost some, the heads that stay, by their numbers before
    forms    how each of these layers was cut
    """

    model: nn.Module
    left: dict[Slot, list[int]]
    forms: dict[Slot, Form]


def without(model: nn.Module, cut: Sequence[PruneUnit]) -> CutModel:
    """A copy of the model without these units. The model stays as it is."""
    left = left_of(heads_by_layer(model), [head for unit in cut for head in unit])
    new = copy.deepcopy(model)
    return CutModel(new, left, keep_heads_by_layer(new, left))


def left_of(layers: Mapping[Slot, Sequence[int]], cut: Sequence[HeadId]) -> dict[Slot, list[int]]:
    """The heads that stay in each layer that loses some."""
    gone = {*cut}
    return {
        slot: [head for head in range(len(groups)) if (slot, head) not in gone]
        for slot, groups in layers.items()
        if any(of == slot for of, _ in gone)
    }


def describe_kept(before: int, kept: Sequence[int], form: Form) -> str:
    """In words: 8 -> 3 heads (0, 4, 5)."""
    named = f" ({', '.join(map(str, kept))})" if kept else ""
    same_time = f"; attention is still computed for {before}" if kept and form == "stored" else ""
    return f"{before} -> {counted(len(kept), 'head')}{named}{same_time}"
