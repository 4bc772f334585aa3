"""The claims that can be checked on a model of one's own: which of them hold there, and how tight bounds are."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnworks.models.modes import InFloat64, evaluating
from attnworks.text.passages import Passage
from attnworks.text.tokens import TextBatch
from attnworks.theory.contract import CLAIMS, Claim, in_order
from attnworks.theory.laws import OF_LAYERS, OF_STACKS, Law, Layer
from attnworks.theory.sides import Sides, number
from attnworks.traces.forward import record_forward
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import Examinee, Spectator, Subject
from attnworks.traces.text import read_text


@dataclass
class Tally:
    """What one claim came to over all layers (or stacks) and sentences of a model.

    looked      how often both sides were computed, and of these how often the claim `held`
    tightness   left over right of an inequality, every time
    worst       the two sides where they come nearest to breaking the claim, or break it most, and the place of that
    silent      why the claim says nothing of a place -> how many places
    """

    law: Law
    looked: int = 0
    held: int = 0
    tightness: list[float] = field(default_factory=list)
    worst: tuple[Sides, str] | None = None
    silent: Counter[str] = field(default_factory=Counter)

    def add(self, found: Sides | str, place: str) -> None:
        if isinstance(found, str):
            self.silent[found] += 1
            return
        self.looked += 1
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
            "compares": self.law.words,
            "looked": self.looked,
            "held": self.held,
            "tightness": {"median": number(statistics.median(self.tightness)), "largest": number(max(self.tightness))}
            if self.tightness
            else None,
            "worst": None if sides is None else {**sides.to_json(), "place": place},
            "silent": dict(self.silent),
        }


def check_on(
    examinee: Examinee,
    passages: Sequence[Passage],
    advance: Callable[[int], None] = lambda sentences: None,
    wanted: Container[str] | None = None,
) -> list[Tally]:
    """Every claim that says something of a model, on all layers and sentences; the model runs in float64.

    wanted    ids of claims; others are left out
    """
    subject = examinee.subject
    layers, stacks = (
        [Tally(laws[id]) for id in laws if wanted is None or id in wanted] for laws in (OF_LAYERS, OF_STACKS)
    )
    with evaluating(subject.model):
        text = read_text(examinee, passages, tokens_per_batch=1)
        advance(text.dropped)
        with InFloat64(subject.model, True):
            for number in range(len(text.batches)):
                batch, (sentence,) = text.batch(number)
                batch = batch.to(next(subject.model.parameters()).device)
                subject.run(batch, _Tallying(layers, f"sentence {int(sentence) + 1}"))
                if stacks:
                    _add_stacks(stacks, subject, batch, f"sentence {int(sentence) + 1}")
                advance(1)
    places = {claim.id: place for place, claim in enumerate(in_order())}
    return sorted([*layers, *stacks], key=lambda tally: places[tally.law.id])


def _add_stacks(tallies: Sequence[Tally], subject: Subject, batch: TextBatch, sentence: str) -> None:
    forwards = record_forward(subject, batch)[0] if subject.blocks else []
    for tally in tallies:
        for forward in forwards:
            tally.add(tally.law.looks(forward), f"{forward.kind}, {sentence}")
        if not forwards:
            tally.add("the parts of its residual stream are not known", sentence)


class _Tallying(Spectator):
    def __init__(self, tallies: Sequence[Tally], sentence: str) -> None:
        self.tallies, self.sentence = tallies, sentence

    def attention(self, trace: LayerTrace) -> Tensor | None:
        layer = Layer(trace)
        for tally in self.tallies:
            tally.add(tally.law.looks(layer), f"{trace.slot}, {self.sentence}")
        return None


def _strain(sides: Sides) -> float:
    """How much of the right side the claim is broken by."""
    strain = sides.excess / (abs(sides.right) or 1.0)
    return math.inf if math.isnan(strain) else strain
