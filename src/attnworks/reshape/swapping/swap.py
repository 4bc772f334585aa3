"""Swap attention mechanisms in a trained model, in given layers or where it saves most time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from attnworks.attention import Geometry, MechanismSpec
from attnworks.core.checks import number, text
from attnworks.core.errors import UsageError
from attnworks.core.places import NO_HEADS, HeadId, Slot, select_heads
from attnworks.core.timing import Interval
from attnworks.exam.lineage import HeadMap
from attnworks.reshape.contract import AUTO, RESHAPES, Reshape, ReshapeContext, ReshapeResult
from attnworks.reshape.surgery import check_mechanisms, layers_alike, mechanisms_of, with_alike
from attnworks.reshape.swapping.advice import check_length, find_advice, swapped, trial_of, whole_layers
from attnworks.reshape.swapping.trials import ByHead

PAIR = "="
"""Between the name of a layer and its mechanism."""


@RESHAPES.register("swap")
@dataclass(frozen=True, kw_only=True)
class Swap(Reshape):
    """Other attention mechanisms in the heads of a trained model.

    to          mechanisms, such as "window:window=64"; none: all that could pay at this length
    layers      "auto": where they save most time within `max_error`; or layers and heads for one mechanism: "enc.0",
                "0,1", "cross.*", "enc.0.3"; or several with theirs: "enc.0=window:window=8 enc.1.2=linear"
    max_error   of "auto": largest root mean square, over the layers, of the relative error of attention, and largest
                share by which the loss may rise
    length      positions at which time counts; None: the mean number of tokens of a sentence

    Weights stay. New parameters of mechanisms are drawn with a fixed seed and need healing; so may the other weights.
    A head of layers that share their weights changes in all of them when it is named in one.
    `find_advice` documents how "auto" chooses.
    """

    name: ClassVar[str] = "swap"
    calibration_sentences: ClassVar[int] = 1024

    to: tuple[str, ...] = ()
    layers: str = AUTO
    max_error: float = 0.02
    length: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.to, str) or not all(isinstance(spec, str) for spec in self.to):
            got = type(self.to).__name__
            raise UsageError(f"swapping to {self.to!r}", "a list of texts", got, 'to=["window:window=64"]')
        object.__setattr__(self, "to", tuple(dict.fromkeys(str(MechanismSpec.parse(spec)) for spec in self.to)))
        for spec in self.to:  # options that depend on a length raise a TypeError, and are checked later
            with contextlib.suppress(TypeError), torch.device("meta"):
                MechanismSpec.parse(spec).build(Geometry(1, 8, 8))
        number("max_error", self.max_error, 0, 1, remedy="0.02 is two percent")
        if self.length is not None:
            check_length(self.length)
        text("layers to swap", self.layers, 'layers="auto"')
        names = ", ".join(self.to)
        if PAIR in self.layers and self.to:
            asked = f"swapping {self.layers}"
            raise UsageError(asked, "mechanisms in the pairs alone", f"also {names}", "leave out to")
        if self.layers not in (AUTO, NO_HEADS) and PAIR not in self.layers and len(self.to) != 1:
            asked = f"swapping layers {self.layers}"
            raise UsageError(asked, "one mechanism", names or "none", "name one mechanism")

    @property
    def flops_length(self) -> int | None:
        return self.length

    def check(self, model: nn.Module) -> None:
        check_mechanisms(model, self.named(model)[0])

    def heads(self, model: nn.Module) -> dict[HeadId, str]:
        """The heads that are named, and the mechanism of each; none for "auto".

        Heads of layers that share their weights with a named one get its mechanism, if they are not named themselves.
        """
        now = {slot: len(by_head) for slot, by_head in mechanisms_of(model, cross=True).items()}
        if self.layers in (AUTO, NO_HEADS):
            return {}
        if PAIR not in self.layers:
            return dict.fromkeys(with_alike(model, heads_of_layers(self.layers, now)), self.to[0])
        pairs = (pair.partition(PAIR) for pair in self.layers.split())
        named = {
            head: str(MechanismSpec.parse(spec)) for where, _, spec in pairs for head in heads_of_layers(where, now)
        }
        alike = layers_alike(model)
        return {HeadId(other, head): spec for (slot, head), spec in named.items() for other in alike[slot]} | named

    def again(self, done: Mapping[str, str], heads: Mapping[str, HeadMap]) -> Swap:
        del heads
        return replace(self, to=(), layers=pairs_of(done) or NO_HEADS) if self.layers == AUTO else self

    def make(self, context: ReshapeContext) -> ReshapeResult:
        if self.layers == AUTO:
            advice = find_advice(context, self.to, max_error=self.max_error, length=self.length)
            wanted, done = whole_layers(context.model, advice.chosen), advice.chosen
        else:
            wanted, done = self.named(context.model)
            advice = trial_of(context, wanted, self.length)
        facts = {"error": advice.error, **_with_interval("attention", advice.time_ratio, advice.time_interval)}
        if advice.model_time_ratio is not None and advice.model_time_interval is not None:
            facts |= _with_interval("model", advice.model_time_ratio, advice.model_time_interval)
        for trial in advice.trials:
            if trial.error is not None and advice.chosen.get(trial.slot) == trial.spec:
                facts[f"error_{trial.slot}"] = trial.error
        rise = advice.rise if advice.sentence_rise is None else advice.sentence_rise
        return ReshapeResult(swapped(context.model, wanted), done, rise, facts, rise_at_length=advice.rise)

    def named(self, model: nn.Module) -> tuple[dict[Slot, ByHead], dict[str, str]]:
        """The mechanisms of the layers in which something changes, and what is done where: a layer, or some heads."""
        wanted: dict[Slot, ByHead] = {}
        done: dict[str, str] = {}
        heads = self.heads(model)
        for slot, now in mechanisms_of(model, cross=True).items():
            new = tuple(heads.get(HeadId(slot, head), before) for head, before in enumerate(now))
            if new != now:
                wanted[slot] = new
                changed = {f"{slot}.{head}": new[head] for head, before in enumerate(now) if new[head] != before}
                done |= {str(slot): new[0]} if len({*new}) == 1 else changed
        return wanted, done


def _with_interval(of: str, ratio: float, interval: Interval) -> dict[str, float]:
    """As facts of a receipt, which are single numbers."""
    name = f"{of}_time_ratio"
    return {name: ratio, f"{name}_low": interval[0], f"{name}_high": interval[1]}


def pairs_of(chosen: Mapping[str, str]) -> str:
    """enc.0=window:window=8 enc.1=linear"""
    return " ".join(f"{place}{PAIR}{spec}" for place, spec in chosen.items())


def heads_of_layers(asked: str, layers: Mapping[Slot, int]) -> list[HeadId]:
    """Heads as `select_heads` reads them; what names no head but a layer means all heads of it.

    >>> layers = {Slot("encoder", 0): 3, Slot("encoder", 1): 2}
    >>> [str(head) for head in heads_of_layers("enc.1,0.2", layers)]
    ['enc.0.2', 'enc.1.0', 'enc.1.1']
    """
    if asked.strip() == NO_HEADS:
        return []
    patterns = [pattern.strip() for pattern in asked.split(",")]
    whole = [f"{one}.*" if not _finds(one, layers) and _finds(f"{one}.*", layers) else one for one in patterns]
    return select_heads(",".join(whole), layers)


def _finds(pattern: str, layers: Mapping[Slot, int]) -> bool:
    try:
        return bool(select_heads(pattern, layers))
    except UsageError:
        return False
