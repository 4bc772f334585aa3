"""Remove heads: the rows and columns of all four matrices, so that the model becomes smaller and faster."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from attnworks.core.checks import choice, number, one_of_options, text
from attnworks.core.display import counted
from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.places import NO_HEADS, HeadId, Slot, select_heads
from attnworks.exam.lineage import HeadMap
from attnworks.hf.cut.recipe import Form
from attnworks.hf.standard import to_standard
from attnworks.models.modes import inference_mode
from attnworks.reshape.contract import AUTO, RESHAPES, Reshape, ReshapeContext, ReshapeResult
from attnworks.reshape.pruning.ranking import RANKINGS, rank
from attnworks.reshape.surgery import (
    PruneUnit,
    attention_parts,
    check_can_keep,
    heads_off,
    keep_heads_by_layer,
    layers_of,
    refusal_to_shrink,
)
from attnworks.traces.edits import CountHeadsHook
from attnworks.traces.subject import LayerHook

COMPARED_KEEP_SHARES = tuple(tenths / 10 for tenths in range(9, -1, -1))
"""The shares of heads kept at which a comparison measures the loss."""


@RESHAPES.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Reshape):
    """Remove the heads that are needed least: columns of W_Q, W_K, W_V and rows of W_O.

    keep      share of all heads that stay, encoder, decoder and cross-attention together
    heads     "auto", or the heads that go, by name: "3.2,4.*", with enc, dec or cross in front where there are several
    by        how heads are ranked: "ablation", "gradient", "gates", "redundancy", "role", "random"
    evenly    the same share of every layer goes, which transformers itself can load in some families (Llama)
    compare   measure the loss at every tenth of the heads, by every ranking; gates are trained for the share asked for

    Heads that share keys and values are removed together, and so are the same heads of layers that share their weights.
    A layer without heads gives its output bias. The prediction is the loss on the calibration text with the outputs of
    these heads set to zero, which equals removing them.
    Source: Michel et al. 2019; Voita et al. 2019, whose gates are one of the rankings.
    """

    name: ClassVar[str] = "prune"

    keep: float | None = None
    heads: str = AUTO
    by: str = "ablation"
    evenly: bool = False
    compare: bool = False

    def __post_init__(self) -> None:
        text("heads to cut", self.heads, "write for instance heads='enc.0.3,dec.1.*'")
        named = self.heads != AUTO
        remedy = "for instance keep=0.5, or heads='enc.0.3,dec.1.*'"
        one_of_options("to prune", {"keep": self.keep, "heads": named}, remedy)
        if self.keep is not None:
            number("pruning with keep", self.keep, 0, 1, remedy="0.5 keeps half of the heads")
        choice("ranking of heads", self.by, RANKINGS)
        if named and (self.evenly or self.compare):
            asked = "pruning evenly or with a comparison"
            raise UsageError(asked, "a share of heads to keep", "heads by name", "give keep")

    def check(self, model: nn.Module) -> None:
        if self.keep is None:
            heads = [head for unit in self.chosen(model) for head in unit]
            for slot, kept in _left(heads_by_layer(model), heads).items():
                check_can_keep(model, slot, kept)
        else:
            _check_can_prune(model)

    def chosen(self, model: nn.Module) -> list[PruneUnit]:
        """The heads that are asked for by name, each with itself in the layers that share its weights."""
        if self.heads.strip() != NO_HEADS:
            _check_can_prune(model)
        named = {*select_heads(self.heads, {slot: len(heads) for slot, heads in heads_by_layer(model).items()})}
        return [unit for unit in units_of(model, alone=True) if named & {*unit}]

    def make(self, context: ReshapeContext) -> ReshapeResult:
        text_loss, model = context.calibration, context.model
        others: dict[str, LayerHook] = {}
        left_out: dict[str, str] = {}
        if self.keep is None:
            cut = self.chosen(model)
        else:
            units = units_that_run(context)
            order = self.ranked(context, units, self.by)
            cut = self.first(order, self.keep, units)
            others, left_out = self.levels(context, units, order) if self.compare else ({}, {})
        new, before = copy.deepcopy(model), heads_by_layer(model)
        heads = [head for unit in cut for head in unit]
        left = _left(before, heads)
        forms = keep_heads_by_layer(new, left)
        context.tell("predicting", 0, 1)
        rise = text_loss.mean(hook=heads_off(cut)) - text_loss.mean() if cut else 0.0
        done = {str(slot): _describe_kept(len(before[slot]), kept, forms[slot]) for slot, kept in left.items()}
        facts = {"heads_before": float(sum(map(len, before.values()))), "heads_cut": float(len(heads))}
        kept_heads = {str(slot): HeadMap(before=len(before[slot]), after=tuple(kept)) for slot, kept in left.items()}
        return ReshapeResult(to_standard(new), done, rise, facts, others, left_out, kept_heads)

    def first(self, order: Sequence[PruneUnit], keep: float, units: Sequence[PruneUnit]) -> list[PruneUnit]:
        """The units at the beginning of an order that have to go, so that this share of heads is left."""
        slots = dict.fromkeys(unit[0].slot for unit in units)
        by_layer = [[unit for unit in order if unit[0].slot == slot] for slot in slots]
        return [unit for part in (by_layer if self.evenly else [order]) for unit in _first(part, keep)]

    def ranked(self, context: ReshapeContext, units: Sequence[PruneUnit], by: str) -> list[PruneUnit]:
        """All units in the order of a ranking. Ablation ranks every unit for a comparison or equal shares per layer."""
        assert self.keep is not None
        to_the_end = by == "ablation" and (self.compare or self.evenly)
        return rank(context, units, len(units if to_the_end else self.first(units, self.keep, units)), by)

    def levels(
        self, context: ReshapeContext, units: Sequence[PruneUnit], order: Sequence[PruneUnit]
    ) -> tuple[dict[str, LayerHook], dict[str, str]]:
        """For every ranking, the model without the heads it would cut at each share, or why it cannot be computed."""
        found: dict[str, LayerHook] = {}
        left_out: dict[str, str] = {}
        for name in RANKINGS:
            try:
                ranked = order if name == self.by else self.ranked(context, units, name)
            except AttnworksError as error:
                left_out[f"ranking {name}"] = f"expected {error.expected}, got {error.got}"
                continue
            for level in COMPARED_KEEP_SHARES:
                found[f"loss_by_{name}_keeping_{100 * level:.0f}"] = heads_off(self.first(ranked, level, units))
        return found, left_out


def _first(order: Sequence[PruneUnit], keep: float) -> list[PruneUnit]:
    left = sum(map(len, order))
    target = round(keep * left)
    cut: list[PruneUnit] = []
    for unit in order:
        if left - len(unit) >= target:
            cut.append(unit)
            left -= len(unit)
    return cut


def heads_by_layer(model: nn.Module) -> dict[Slot, list[int]]:
    """The number of the group, for keys and values, of every head of every layer that heads can go from."""
    layers = layers_of(model)
    return {slot: part.groups() for slot, part in layers.items() if _refusal(model, slot, part.groups()) is None}


def _refusal(model: nn.Module, slot: Slot, groups: Sequence[int]) -> str | None:
    """Why neither all heads of a layer nor those of one group can go, in words; None if they can."""
    some = [head for head, group in enumerate(groups) if group]
    return refusal_to_shrink(model, slot, some) or refusal_to_shrink(model, slot, [])


def _check_can_prune(model: nn.Module) -> None:
    """Refuse a model in which no head can be cut, with the reason for its first layer."""
    layers = attention_parts(model, cross=True)
    reasons = {slot: _refusal(model, slot, part.groups()) for slot, part in layers.items()}
    refused = {slot: reason for slot, reason in reasons.items() if reason is not None}
    if len(refused) == len(layers) or not units_of(model):
        got = next((f"{reason} in {slot}" for slot, reason in refused.items()), "none that are left")
        raise UsageError(f"pruning {type(model).__name__}", "heads that can be cut", got, "choose another model")


def units_of(model: nn.Module, *, alone: bool = False) -> list[PruneUnit]:
    """Heads that go together: in all layers that share their weights, those that share keys and values.

    alone    each by itself, also of those that share keys and values
    """
    units: dict[tuple[nn.Module | None, int], list[HeadId]] = {}
    layers = layers_of(model)
    for slot, groups in heads_by_layer(model).items():
        for head, group in enumerate(groups):
            units.setdefault((layers[slot].attention, head if alone else group), []).append(HeadId(slot, head))
    return [tuple(unit) for unit in units.values()]


def units_that_run(context: ReshapeContext) -> list[PruneUnit]:
    """The units of layers that run on the text; cross-attention without a source does not run."""
    subject, counting = context.subject, CountHeadsHook()
    with inference_mode(context.model):
        subject.run(context.calibration.text.batch(0)[0].to(subject.device), counting)
    return [unit for unit in units_of(context.model) if unit[0].slot in counting.heads]


def _left(layers: Mapping[Slot, Sequence[int]], cut: Sequence[HeadId]) -> dict[Slot, list[int]]:
    """The heads that stay in each layer that loses some."""
    gone = {*cut}
    return {
        slot: [head for head in range(len(groups)) if (slot, head) not in gone]
        for slot, groups in layers.items()
        if any(of == slot for of, _ in gone)
    }


def _describe_kept(before: int, kept: Sequence[int], form: Form) -> str:
    """In words: 8 -> 3 heads (0, 4, 5)."""
    named = f" ({', '.join(map(str, kept))})" if kept else ""
    same_time = f"; attention is still computed for {before}" if kept and form == "stored" else ""
    return f"{before} -> {counted(len(kept), 'head')}{named}{same_time}"
