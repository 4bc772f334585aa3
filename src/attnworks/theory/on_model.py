"""Check the laws of `laws.py` on a model: which of them hold there, and how tight their bounds are."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnworks.core.display import rich_html
from attnworks.core.errors import AttnworksError, UsageError, short_message
from attnworks.models.modes import in_float64, inference_mode
from attnworks.text.passages import Passage
from attnworks.text.tokens import Batch
from attnworks.theory.contract import CLAIMS, Claim, all_claims
from attnworks.theory.laws import LAYER_LAWS, STACK_LAWS, Law, LawLayer
from attnworks.theory.sides import Sides, as_number
from attnworks.traces.forward import record_forward
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import LayerHook, Subject


@dataclass
class LawTally:
    """The results of one claim over all layers (or stacks) and sentences of a model.

    computed         how often both sides were computed, and of these how often the claim `held`
    tightness        left over right of an inequality, every time
    worst            the two sides that come nearest to breaking the claim, or break it most, and their place
    not_applicable   reason why the claim does not apply at a place -> number of places
    """

    law: Law
    computed: int = 0
    held: int = 0
    tightness: list[float] = field(default_factory=list)
    worst: tuple[Sides, str] | None = None
    not_applicable: Counter[str] = field(default_factory=Counter)

    def add(self, found: Sides | str, place: str) -> None:
        if isinstance(found, str):
            self.not_applicable[found] += 1
            return
        self.computed += 1
        self.held += found.holds
        if found.right and found.relation != "=":
            self.tightness.append(found.left / found.right)
        if self.worst is None or _strain(found) > _strain(self.worst[0]):
            self.worst = found, place

    @property
    def claim(self) -> Claim:
        return CLAIMS[self.law.id]

    def to_json(self) -> dict[str, Any]:
        sides, place = self.worst or (None, None)
        return {
            "id": self.law.id,
            "statement": self.claim.statement,
            "verdict": str(self.claim.verdict),
            "compares": self.law.description,
            "computed": self.computed,
            "held": self.held,
            "tightness": {
                "median": as_number(statistics.median(self.tightness)),
                "largest": as_number(max(self.tightness)),
            }
            if self.tightness
            else None,
            "worst": None if sides is None else {**sides.to_json(), "place": place},
            "not_applicable": dict(self.not_applicable),
        }


class LawTallies(list[LawTally]):
    """The results of several claims on one model: its name, the number of sentences, and the source of these."""

    def __init__(self, tallies: Iterable[LawTally], model: str, sentences: int, source: str) -> None:
        super().__init__(tallies)
        self.model, self.sentences, self.source = model, sentences, source

    @property
    def held(self) -> bool:
        """Whether every claim held at every place where it applies."""
        return all(tally.held == tally.computed for tally in self)

    def to_json(self) -> list[dict[str, Any]]:
        """An object per claim."""
        return [tally.to_json() for tally in self]

    def __rich__(self) -> Any:
        from attnworks.theory.render import tallies_shown

        return tallies_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)


def check_on_model(
    subject: Subject,
    passages: Sequence[Passage],
    advance: Callable[[int], None] = lambda sentences: None,
    wanted: Container[str] | None = None,
) -> list[LawTally]:
    """Check every law on all layers and sentences of a model, which runs in float64.

    wanted    ids of claims; others are left out
    """
    layers, stacks = (
        [LawTally(laws[id]) for id in laws if wanted is None or id in wanted] for laws in (LAYER_LAWS, STACK_LAWS)
    )
    with inference_mode(subject.model):
        text = subject.read(passages, batch_tokens=1)
        advance(text.dropped)
        with in_float64(subject.model, True):
            for number in range(len(text.batches)):
                batch, (sentence,) = text.batch(number)
                batch = batch.to(next(subject.model.parameters()).device)
                if not number:
                    _check_runs(subject, batch)
                subject.run(batch, _TallyHook(layers, f"sentence {int(sentence) + 1}"))
                if stacks:
                    _add_stacks(stacks, subject, batch, f"sentence {int(sentence) + 1}")
                advance(1)
    places = {claim.id: place for place, claim in enumerate(all_claims())}
    return sorted([*layers, *stacks], key=lambda tally: places[tally.law.id])


def _check_runs(subject: Subject, batch: Batch) -> None:
    """Refuse a model whose own code does not run in float64, such as one that makes masks in float32."""
    try:
        subject.run(batch, None)
    except AttnworksError:
        raise
    except Exception as error:
        got, remedy = f"one that raises {type(error).__name__}: {short_message(error)}", "choose another model"
        raise UsageError(f"claims on {subject.name}", "a model that runs in float64", got, remedy) from error


def _add_stacks(tallies: Sequence[LawTally], subject: Subject, batch: Batch, sentence: str) -> None:
    forwards = record_forward(subject, batch)[0] if subject.blocks else []
    for tally in tallies:
        for forward in forwards:
            tally.add(tally.law.check(forward), f"{forward.kind}, {sentence}")
        if not forwards:
            tally.add("the parts of its residual stream are not known", sentence)


class _TallyHook(LayerHook):
    def __init__(self, tallies: Sequence[LawTally], sentence: str) -> None:
        self.tallies, self.sentence = tallies, sentence

    def attention(self, trace: LayerTrace) -> Tensor | None:
        layer = LawLayer(trace)
        for tally in self.tallies:
            tally.add(tally.law.check(layer), f"{trace.slot}, {self.sentence}")
        return None


def _strain(sides: Sides) -> float:
    """By how much the claim is broken, relative to the right side."""
    strain = sides.excess / (abs(sides.right) or 1.0)
    return math.inf if math.isnan(strain) else strain
