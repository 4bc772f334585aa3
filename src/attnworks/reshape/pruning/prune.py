"""Cut heads: whole rows and columns of all four maps go, and the model becomes smaller and faster."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.registry import unknown_name
from attnworks.exam.lineage import HeadMap
from attnworks.hf.folder import as_plain
from attnworks.models.anatomy import attention_layers
from attnworks.models.modes import evaluating
from attnworks.reshape.contract import RESHAPES, Bench, Made, Reshape
from attnworks.reshape.heads import Head, Unit, choose_heads
from attnworks.reshape.pruning.ranking import RANKINGS, rank
from attnworks.reshape.surgery import anatomy_of, check_can_keep, keep_heads, why_not_fewer, without
from attnworks.traces.edits import CountHeads
from attnworks.traces.subject import Spectator

AUTO = "auto"
LEVELS = tuple(tenths / 10 for tenths in range(9, -1, -1))
"""Shares of heads that are kept, of a comparison."""


@RESHAPES.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Reshape):
    """Heads that are needed least go: W_Q, W_K, W_V of fewer columns, W_O of fewer rows.

    keep      share of all heads that stay, encoder, decoder and cross-attention together
    heads     "auto", or the heads that go, by name: "3.2,4.*", with enc, dec or cross in front where there are several
    by        how heads are ranked: "ablation", "gradient", "gates", "redundancy", "role", "random"
    evenly    the same share of every layer goes, which transformers itself can load in some families (Llama)
    compare   measure the loss at every tenth of the heads, by every ranking; gates are trained for the share asked for

    Heads that share keys and values go together. A layer may end without heads: then it gives its output bias. The
    prediction is the loss of the same cut on the text that is read, with the outputs of heads set to zero, which
    removing them is equal to.
    Source: Michel et al. 2019; Voita et al. 2019, whose gates are one of the rankings.
    """

    name: ClassVar[str] = "prune"

    keep: float | None = None
    heads: str = AUTO
    by: str = "ablation"
    evenly: bool = False
    compare: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.heads, str):
            raise UsageError(
                asked="heads to cut",
                expected="text",
                got=type(self.heads).__name__,
                remedy="write for instance heads='enc.0.3,dec.1.*'",
            )
        named = self.heads != AUTO
        if named == (self.keep is not None):
            raise UsageError(
                asked="to prune",
                expected="a share of heads to keep, or heads to cut",
                got="both" if named else "neither",
                remedy="for instance keep=0.5, or heads='enc.0.3,dec.1.*'",
            )
        if self.keep is not None and (type(self.keep) not in (int, float) or not 0 <= self.keep <= 1):
            raise UsageError(
                asked=f"pruning with keep={self.keep!r}",
                expected="a number from 0 to 1",
                got=repr(self.keep),
                remedy="0.5 keeps half of the heads",
            )
        if self.by not in RANKINGS:
            raise unknown_name("ranking of heads", self.by, list(RANKINGS))
        if named and (self.evenly or self.compare):
            raise UsageError(
                asked=f"pruning {self.heads}" + " evenly" * self.evenly + " with a comparison" * self.compare,
                expected="a share of heads to keep",
                got="heads by name",
                remedy="give keep instead of heads",
            )

    def check(self, model: nn.Module) -> None:
        if self.keep is None:
            for slot, kept in _left(heads_by_layer(model), self.chosen(model)).items():
                check_can_keep(model, slot, kept)
        elif not units_of(model):
            raise UsageError(
                asked=f"pruning {type(model).__name__}",
                expected="a transformer whose layers have heads of their own",
                got="no heads that could go: none are left" if heads_by_layer(model) else "no layer whose heads can go",
                remedy="choose another model",
            )

    def chosen(self, model: nn.Module) -> list[Head]:
        """The heads that are asked for by name."""
        return choose_heads(self.heads, {slot: len(heads) for slot, heads in heads_by_layer(model).items()})

    def make(self, bench: Bench) -> Made:
        judge, model = bench.looked_at, bench.model
        others: dict[str, Spectator] = {}
        if self.keep is None:
            cut: list[Unit] = [(head,) for head in self.chosen(model)]
        else:
            units = units_that_run(bench)
            order = self.ranked(bench, units, self.by)
            cut = self.first(order, self.keep, units)
            others = self.levels(bench, units, order) if self.compare else {}
        new, before = copy.deepcopy(model), heads_by_layer(model)
        heads = [head for unit in cut for head in unit]
        left = _left(before, heads)
        for slot, kept in left.items():
            keep_heads(new, slot, kept)
        bench.watch("predicting", 0, 1)
        rise = judge.mean(spectator=without(cut)) - judge.mean() if cut else 0.0
        done = {slot: _said(len(before[slot]), kept) for slot, kept in left.items()}
        facts = {"heads_before": float(sum(map(len, before.values()))), "heads_cut": float(len(heads))}
        kept_heads = {slot: HeadMap(before=len(before[slot]), after=tuple(kept)) for slot, kept in left.items()}
        return Made(as_plain(new), done, rise, facts, others, heads=kept_heads)

    def first(self, order: Sequence[Unit], keep: float, units: Sequence[Unit]) -> list[Unit]:
        """The units at the beginning of an order that have to go, so that this share of heads is left."""
        if self.evenly:
            slots = dict.fromkeys(unit[0][0] for unit in units)
            by_layer = ([unit for unit in order if unit[0][0] == slot] for slot in slots)
            return [unit for own in by_layer for unit in _first(own, keep)]
        return _first(order, keep)

    def ranked(self, bench: Bench, units: Sequence[Unit], by: str) -> list[Unit]:
        """Greedy ablation continues to the last head if every level is asked for, or each layer has its own share."""
        assert self.keep is not None
        to_the_end = by == "ablation" and (self.compare or self.evenly)
        return rank(bench, units, len(units if to_the_end else self.first(units, self.keep, units)), by)

    def levels(self, bench: Bench, units: Sequence[Unit], order: Sequence[Unit]) -> dict[str, Spectator]:
        """For every ranking that can be had, the model without the heads it would cut at every level."""
        found: dict[str, Spectator] = {}
        for name in RANKINGS:
            try:
                ranked = order if name == self.by else self.ranked(bench, units, name)
            except AttnworksError:
                continue
            for level in LEVELS:
                found[f"loss_by_{name}_keeping_{100 * level:.0f}"] = without(self.first(ranked, level, units))
        return found


def _first(order: Sequence[Unit], keep: float) -> list[Unit]:
    left = sum(map(len, order))
    target = round(keep * left)
    cut: list[Unit] = []
    for unit in order:
        if left - len(unit) >= target:
            cut.append(unit)
            left -= len(unit)
    return cut


def heads_by_layer(model: nn.Module) -> dict[str, list[int]]:
    """The number of the group, for keys and values, of every head of every layer that heads can go from."""
    found: dict[str, list[int]] = {}
    for slot, part in attention_layers(anatomy_of(model)).items():
        assert part.weights is not None
        W = part.weights()
        if why_not_fewer(model, slot, []) is None:
            found[slot] = [head * W.groups // len(W.W_O) for head in range(len(W.W_O))]
    return found


def units_of(model: nn.Module) -> list[Unit]:
    """Heads that go together: those that share keys and values, else each by itself."""
    return [
        tuple((slot, head) for head, group in enumerate(groups) if group == number)
        for slot, groups in heads_by_layer(model).items()
        for number in dict.fromkeys(groups)
    ]


def units_that_run(bench: Bench) -> list[Unit]:
    """Those of layers that the text runs through: not cross-attention without anything to look at."""
    judge, counting = bench.looked_at, CountHeads()
    batch, _ = judge.text.batch(0)
    with evaluating(bench.model):
        judge.original.run(batch.to(next(bench.model.parameters()).device), counting)
    seen = {str(slot) for slot in counting.heads}
    return [unit for unit in units_of(bench.model) if unit[0][0] in seen]


def _left(layers: Mapping[str, Sequence[int]], cut: Sequence[Head]) -> dict[str, list[int]]:
    """The heads that stay in each layer that loses some."""
    gone = {*cut}
    return {
        slot: [head for head in range(len(groups)) if (slot, head) not in gone]
        for slot, groups in layers.items()
        if any(of == slot for of, _ in gone)
    }


def _said(before: int, kept: Sequence[int]) -> str:
    """In words: 8 -> 3 heads (0, 4, 5)."""
    named = f" ({', '.join(map(str, kept))})" if kept else ""
    return f"{before} -> {len(kept)} head{'s' * (len(kept) != 1)}{named}"
