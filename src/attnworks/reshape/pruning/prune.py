"""Remove heads: the rows and columns of all four matrices, so that the model becomes smaller and faster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from attnworks.core.checks import choice, number, one_of_options, text
from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.places import NO_HEADS, select_heads
from attnworks.exam.lineage import HeadMap
from attnworks.hf.standard import to_standard
from attnworks.reshape.contract import AUTO, RESHAPES, Reshape, ReshapeContext, ReshapeResult
from attnworks.reshape.pruning.budget import PARAMETERS, Budget, parameter_share
from attnworks.reshape.pruning.cut import describe_kept, left_of, without
from attnworks.reshape.pruning.order import Agreement, Order
from attnworks.reshape.pruning.ranking import GREEDY, RANKINGS, rank
from attnworks.reshape.pruning.units import check_can_prune, heads_by_layer, units_of, units_that_run
from attnworks.reshape.surgery import PruneUnit, check_can_keep, heads_off
from attnworks.traces.subject import LayerHook

COMPARED_KEEP_SHARES = tuple(tenths / 10 for tenths in range(9, -1, -1))
"""The shares of heads kept at which a comparison measures the loss."""


@RESHAPES.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Reshape):
    """Remove the heads that are needed least: columns of W_Q, W_K, W_V and rows of W_O.

    keep      share of all heads that stay, encoder, decoder and cross-attention together
    budget    share of what the model has now that may be left: 0.9 or "parameters:0.9", or "time:0.8" of a forward
              pass, where the upper end of the 95 % interval is at most that
    heads     "auto", or the heads that go, by name: "3.2,4.*", with enc, dec or cross in front where there are several
    by        how heads are ranked: "curvature", "ablation", "gradient", "gates", "redundancy", "role", "norm", "random"
    evenly    the same share of every layer goes, which transformers itself can load in some families (Llama)
    compare   measure the loss at every tenth of the heads, by every ranking; gates are trained for the share asked for

    Heads that share keys and values are removed together, and so are the same heads of layers that share their weights.
    A layer without heads gives its output bias. The prediction is the loss on the calibration text with the outputs of
    these heads set to zero, which equals removing them.
    Source: Michel et al. 2019; Voita et al. 2019, whose gates are one of the rankings.
    """

    name: ClassVar[str] = "prune"

    keep: float | None = None
    budget: float | str | None = None
    heads: str = AUTO
    by: str = "curvature"
    evenly: bool = False
    compare: bool = False

    def __post_init__(self) -> None:
        text("heads to cut", self.heads, "write for instance heads='enc.0.3,dec.1.*'")
        remedy = "for instance keep=0.5, budget='parameters:0.9', or heads='enc.0.3,dec.1.*'"
        one_of_options("to prune", {"keep": self.keep, "budget": self.budget, "heads": self.named}, remedy)
        if self.keep is not None:
            number("pruning with keep", self.keep, 0, 1, remedy="0.5 keeps half of the heads")
        if self.budget is not None:
            Budget.parse(self.budget)
        choice("ranking of heads", self.by, RANKINGS)
        if self.named and (self.evenly or self.compare):
            asked = "pruning evenly or with a comparison"
            raise UsageError(asked, "a share of heads to keep, or a budget", "heads by name", "give keep or budget")

    @property
    def named(self) -> bool:
        """Whether the heads that go are given by name."""
        return self.heads != AUTO

    def check(self, model: nn.Module) -> None:
        if self.named:
            heads = [head for unit in self.chosen(model) for head in unit]
            for slot, kept in left_of(heads_by_layer(model), heads).items():
                check_can_keep(model, slot, kept)
            return
        check_can_prune(model)
        if self.budget is not None and (budget := Budget.parse(self.budget)).of == PARAMETERS:
            budget.check(parameter_share(model, without(model, units_of(model)).model))

    def again(self, done: Mapping[str, str], heads: Mapping[str, HeadMap]) -> Prune:
        """A budget of time is met by other heads when times are measured again: the heads that went, by name."""
        if self.budget is None or Budget.parse(self.budget).of == PARAMETERS:
            return self
        gone = [
            f"{slot}.{head}" for slot, kept in heads.items() for head in range(kept.before) if head not in kept.after
        ]
        return Prune(heads=",".join(gone) or NO_HEADS)

    def chosen(self, model: nn.Module) -> list[PruneUnit]:
        """The heads that are asked for by name, each with itself in the layers that share its weights."""
        if self.heads.strip() != NO_HEADS:
            check_can_prune(model)
        named = {*select_heads(self.heads, {slot: len(heads) for slot, heads in heads_by_layer(model).items()})}
        return [unit for unit in units_of(model, alone=True) if named & {*unit}]

    def make(self, context: ReshapeContext) -> ReshapeResult:
        text_loss, model, before = context.calibration, context.model, heads_by_layer(context.model)
        order, units = Order([]), list[PruneUnit]()
        others: dict[str, LayerHook] = {}
        left_out: dict[str, str] = {}
        if self.named:
            cut = self.chosen(model)
        else:
            units = units_that_run(context)
            order, cut = self.ordered(context, units)
            others, left_out = self.levels(context, units, order, len(cut)) if self.compare else ({}, {})
        new = without(model, cut)
        context.tell("predicting", 0, 1)
        rise = text_loss.mean(hook=heads_off(cut)) - text_loss.mean() if cut else 0.0
        done = {str(slot): describe_kept(len(before[slot]), kept, new.forms[slot]) for slot, kept in new.left.items()}
        facts = {"heads_before": float(sum(map(len, before.values()))), "heads_cut": float(sum(map(len, cut)))}
        agreement = self.agreement(order, units, cut)
        if agreement is not None:
            facts |= {"ranking_agreement": agreement.same, "ranking_agreement_by_chance": agreement.chance}
        heads = {str(slot): HeadMap(before=len(before[slot]), after=tuple(kept)) for slot, kept in new.left.items()}
        warnings = order.warnings(agreement) if cut else ()
        return ReshapeResult(to_standard(new.model), done, rise, facts, others, left_out, heads, warnings=warnings)

    def ordered(self, context: ReshapeContext, units: Sequence[PruneUnit]) -> tuple[Order, list[PruneUnit]]:
        """An order of all units, and those of them that go."""
        if self.budget is None:
            assert self.keep is not None
            wanted = len(self.first(units, self.keep, units))
            if not wanted and not self.compare:
                return Order([]), []
            order = self.ranked(context, units, self.by, wanted)
            return order, self.first(order, self.keep, units)
        budget, heads, model = Budget.parse(self.budget), sum(map(len, units)), context.model
        context.tell(f"measuring {budget.of} without heads", 0, 1)
        least = budget.share_of(context, without(model, units).model)
        budget.check(least)
        line = len(units) * (1 - budget.share) / (1 - least) if least < 1 else 0.0
        order = self.ranked(context, units, self.by, min(len(units), math.ceil(line)))
        known: dict[int, float] = {}

        def share_kept(kept: int) -> float:
            cut = self.first(order, kept / heads, units)
            if len(cut) not in known:
                context.tell(f"measuring {budget.of} with fewer heads", 0, 1)
                known[len(cut)] = budget.share_of(context, without(model, cut).model)
            return known[len(cut)]

        kept = budget.most_kept(heads, least, share_kept)
        return order, self.first(order, kept / heads, units)

    def first(self, order: Iterable[PruneUnit], keep: float, units: Sequence[PruneUnit]) -> list[PruneUnit]:
        """The units at the beginning of an order that have to go, so that this share of heads is left."""
        return [unit for group in self.groups(units) for unit in _first(order, keep, group)]

    def groups(self, units: Sequence[PruneUnit]) -> list[list[PruneUnit]]:
        """The units among which heads are chosen: those of each layer if the same share of every layer goes."""
        slots = dict.fromkeys(unit[0].slot for unit in units)
        return [[unit for unit in units if unit[0].slot == slot] for slot in slots] if self.evenly else [[*units]]

    def agreement(self, order: Order, units: Sequence[PruneUnit], cut: Sequence[PruneUnit]) -> Agreement | None:
        """How far rankings by two halves of the text would cut the same units."""
        if not cut or self.named:
            return None
        kept = 1 - sum(map(len, cut)) / sum(map(len, units))
        return order.agreement(lambda half: self.first(half, kept, units), self.groups(units))

    def ranked(self, context: ReshapeContext, units: Sequence[PruneUnit], by: str, cut: int) -> Order:
        """All units in the order of a ranking. For a comparison or equal shares per layer, the whole order is read."""
        return rank(context, units, len(units) if by in GREEDY and (self.compare or self.evenly) else cut, by)

    def levels(
        self, context: ReshapeContext, units: Sequence[PruneUnit], order: Order, cut: int
    ) -> tuple[dict[str, LayerHook], dict[str, str]]:
        """For every ranking, the model without the heads it would cut at each share, or why it cannot be computed."""
        found: dict[str, LayerHook] = {}
        left_out: dict[str, str] = {}
        for name in RANKINGS:
            try:
                ranked = order if name == self.by else self.ranked(context, units, name, cut)
            except AttnworksError as error:
                left_out[f"ranking {name}"] = f"expected {error.expected}, got {error.got}"
                continue
            for level in COMPARED_KEEP_SHARES:
                found[f"loss_by_{name}_keeping_{100 * level:.0f}"] = heads_off(self.first(ranked, level, units))
        return found, left_out


def _first(order: Iterable[PruneUnit], keep: float, units: Sequence[PruneUnit]) -> list[PruneUnit]:
    """Of these units, those at the beginning of an order without which this share of their heads is left."""
    left, smallest = sum(map(len, units)), min(map(len, units), default=0)
    target, wanted, cut = round(keep * left), {*units}, list[PruneUnit]()
    if left - smallest < target:
        return cut
    for unit in order:
        if unit in wanted and left - len(unit) >= target:
            cut.append(unit)
            left -= len(unit)
            if left - smallest < target:
                break
    return cut
