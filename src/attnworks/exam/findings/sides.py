"""The finding about heads that align two texts in one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attnworks.core.display import format_number
from attnworks.core.places import HeadId
from attnworks.exam.examination import ExamFinding
from attnworks.exam.findings.words import count_heads, head_names, their, verb_for
from attnworks.exam.measures.labels import MIN_GAIN
from attnworks.exam.reading import HeadValue, ModelReadings

MOSTLY_EQUAL = 0.5
"""A head joins equal tokens if more than this share of its attention between the texts does."""
EVIDENCE = {
    "sides.aligned": "to one partner of each token in the other text",
    "sides.gold": "to tokens that the known alignment joins",
}
"""Readings that say that a head aligns two texts, and where the attention goes then."""


class _Score(NamedTuple):
    """What a reading says about one head; gains are 0 at chance and 1 where all attention to both texts goes there."""

    gain: float
    least_gain: float
    head: HeadValue
    reading: str
    chance: float


def aligning_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """Heads that certainly gain more than `MIN_GAIN`: the lower end of the interval of their score does."""
    scores = [score for reading in EVIDENCE for score in _scores(model, reading)]
    if not scores:
        return
    found = sorted((score for score in scores if score.least_gain > MIN_GAIN), reverse=True)
    best = found[0] if found else max(scores, key=lambda score: score.head.value)
    numbers = f"{format_number(best.head.value)} of its attention to both texts goes {EVIDENCE[best.reading]}, "
    numbers += f"{format_number(best.chance)} by chance{_between(model, best.head.id)}{_gold(model, scores, best)}"
    readings = tuple(name for reading in EVIDENCE if model.heads(reading) for name in (reading, f"{reading}_chance"))
    if not found:
        text = "no head aligns the two texts token by token: use pairs of the kind that the model was trained on "
        yield ExamFinding(f"{text}(head {model.name_of(best.head)} is the nearest: {numbers})", 0.3, readings)
        return
    heads = [HeadValue(head, value) for head, value in {score.head.id: score.head.value for score in found}.items()]
    most = f"head {model.name_of(best.head)} most: " if len(heads) > 1 else ""
    them = "it" if len(heads) == 1 else "them"
    which = f"{count_heads(model, heads, len(model.heads('sides.aligned')))} {verb_for('aligns', heads)}"
    text = f"{which} the two texts token by token{_what(model, heads)}: keep {them} where texts are compared, and see "
    text += f"{their(heads)} maps on the page ({most}{numbers})"
    yield ExamFinding(text, 0.6 + 0.3 * min(1.0, best.gain), readings, head_names(heads))


def _scores(model: ModelReadings, reading: str) -> Iterator[_Score]:
    """Chance levels are by layer, or by head where they depend on it."""
    low, by_layer = model.at(reading, 0), model.curves(f"{reading}_chance")
    by_head = {} if by_layer else model.at(f"{reading}_chance")
    for head in model.heads(reading):
        kind, layer = head.id.slot
        chance = by_layer[kind].get(layer, 1.0) if kind in by_layer else by_head.get(head.id, 1.0)
        if head.id in low and chance < 1:
            gain, least = ((value - chance) / (1 - chance) for value in (head.value, low[head.id]))
            yield _Score(gain, least, head, reading, chance)


def _what(model: ModelReadings, heads: list[HeadValue]) -> str:
    """Whether the heads join equal tokens."""
    equal = model.at("sides.equal")
    joining = [head for head in heads if equal.get(head.id, 0.0) > MOSTLY_EQUAL]
    if not joining:
        return ""
    return ", mostly equal tokens" if len(joining) == len(heads) else f", {len(joining)} of them mostly equal tokens"


def _between(model: ModelReadings, head: HeadId) -> str:
    """How much of all its attention goes to the other text, and how much of that to equal tokens."""
    names = {"to_second": "from the first text to the second", "to_first": "from the second to the first"}
    given = {words: model.at(f"sides.{name}").get(head) for name, words in names.items()}
    parts = [f"{format_number(value)} {words}" for words, value in given.items() if value is not None]
    equal = model.at("sides.equal").get(head)
    joins = "" if equal is None else f", {format_number(equal)} of that to equal tokens"
    return f"; of all its attention {' and '.join(parts)}{joins}" if parts else ""


def _gold(model: ModelReadings, scores: list[_Score], best: _Score) -> str:
    """The head with most attention on the known alignment, if there is one and it was not said."""
    known = [score for score in scores if score.reading == "sides.gold"]
    if not known or best.reading == "sides.gold":
        return ""
    most = max(known, key=lambda score: score.head.value)
    numbers = f"{format_number(most.head.value)}, {format_number(most.chance)} by chance"
    return f"; head {model.name_of(most.head)} gives most {EVIDENCE[most.reading]}: {numbers}"
