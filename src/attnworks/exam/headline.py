"""The headline of an examination: the two or three facts with the largest effect, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from attnworks.core.display import format_number
from attnworks.core.places import KINDS, HeadId, Kind, Slot
from attnworks.exam.findings.capacity import NEGLIGIBLE_LOSS_CHANGE
from attnworks.exam.findings.roles import EVEN_ATTENTION, POSITION_ROLES, copy_losses_without_induction, roles_of_heads
from attnworks.exam.findings.streams import MEAN_COSINE_ALIKE, MIN_RESIDUAL_SHARE, RESIDUAL_DROP
from attnworks.exam.findings.words import percent_of
from attnworks.exam.reading import STACK_NAMES, ModelReadings, Readings, role_group
from attnworks.exam.shares import FRACTIONS, number_words, part_of, share_words
from attnworks.exam.work import Work, work_of

FACTS = 3
"""The largest number of facts in a headline."""
LEAST_EFFECT = 0.08
"""Facts with a smaller effect are not mentioned, unless there is no other."""
LONGEST = 150
"""A third fact is left out where the sentence would have more characters."""
CONCENTRATED = 0.4
"""One layer does most of the work if it does at least this share."""
MANY_LAYERS = 6
"""From this number of layers on, the work can be said to be done in a few of them."""
MOSTLY_EVEN = 0.5
"""A model is as an untrained one if at least this share of its heads attends nearly evenly."""
FIRST_TOKEN = "the first token"
OF_HEADS = " of the heads "
"""Said of the first share alone: two thirds of the heads rest; a fifth attend at a fixed offset."""
NOTHING = "Nothing stands out in what was measured"


@dataclass(frozen=True)
class HeadlineFact:
    """One fact of a headline.

    topic      what it is about: work, rest, positions, alignment, roles, copying, removal, depth, even
    text       the fact, with shares in words
    effect     how large it is, from 0 to 1; the largest come first
    evidence   its exact figures
    """

    topic: str
    text: str
    effect: float
    evidence: str


@dataclass(frozen=True)
class Headline:
    """One sentence about a model, and the exact figures behind it."""

    facts: tuple[HeadlineFact, ...]

    @property
    def text(self) -> str:
        texts = [fact.text for fact in self.facts]
        counted = next((place for place, text in enumerate(texts) if OF_HEADS in text), len(texts))
        texts[counted + 1 :] = [text.replace(OF_HEADS, " ") for text in texts[counted + 1 :]]
        text = "; ".join(texts) or NOTHING
        return f"{text[0].upper()}{text[1:]}."

    @property
    def evidence(self) -> str:
        return "; ".join(fact.evidence for fact in self.facts)

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "evidence": [fact.evidence for fact in self.facts]}

    def __str__(self) -> str:
        return self.text


def headline_of(readings: Readings, first_token: str = FIRST_TOKEN) -> Headline:
    """The facts with the largest effect; those that follow from even attention are left out beside it.

    first_token    what the first token is called, such as [CLS]
    """
    model = ModelReadings(readings)
    facts = sorted((fact for find in FACT_FINDERS for fact in find(model)), key=lambda fact: -fact.effect)
    facts = [replace(fact, text=fact.text.replace(FIRST_TOKEN, first_token)) for fact in facts]
    if any(fact.topic == "even" and fact.effect > 1 for fact in facts):
        facts = [fact for fact in facts if fact.topic in ("even", "depth")]
    chosen = [fact for fact in facts if fact.effect >= LEAST_EFFECT][:FACTS] or facts[:1]
    headline = Headline(tuple(chosen))
    return Headline(tuple(chosen[:-1])) if len(chosen) == FACTS and len(headline.text) > LONGEST else headline


# Facts ---------------------------------------------------------------------------------------------------------------


def _work(model: ModelReadings) -> Iterator[HeadlineFact]:
    """The layer that does most of the work, or the few layers that do half of it, or that all do about the same."""
    work = work_of(model)
    if work is None or len(shares := work.layers) < 2:
        return
    slot, most = max(shares.items(), key=lambda entry: entry[1])
    even = 1 / len(shares)
    few = _fewest_layers(list(shares.values()))
    evidence = f"{model.stack(slot.kind)}layer {slot.layer}: {percent_of(most)} of {_work_words(work)}"
    if most >= max(CONCENTRATED, 1.5 * even):
        text = f"{share_words(most)} of the work is done in {place_of(slot, model)}"
        effect = (most - even) / (1 - even)
    elif len(shares) >= MANY_LAYERS and len(few) <= len(shares) / 3:
        text = f"{share_words(sum(few))} of the work is done in {number_words(len(few))} of {len(shares)} layers"
        effect = 0.7 * (sum(few) - len(few) * even)
    else:
        text = f"no layer does more than {share_words_above(most)} of the work"
        effect = LEAST_EFFECT
    yield HeadlineFact("work", text, effect, evidence)


def _fewest_layers(shares: list[float]) -> list[float]:
    """The largest shares, as many as do half of the work."""
    taken: list[float] = []
    for share in sorted(shares, reverse=True):
        if sum(taken) >= 0.5:
            break
        taken.append(share)
    return taken


def _work_words(work: Work) -> str:
    if work.reading == "ablation.change":
        return "what the loss rises without each head, one at a time"
    return "the gradients of the loss by the gates of all heads"


def share_words_above(share: float) -> str:
    """A share in words that is at least as large: 0.24 is a quarter, 0.26 is 27 %."""
    near = [name for fraction, name in FRACTIONS if share - 1e-9 <= fraction < share + 0.02]
    return near[0] if near else f"{int(100 * share) + 1} %"


def place_of(slot: Slot, model: ModelReadings) -> str:
    """the last layer; layer 3; the first layer of the encoder."""
    layers = [found.layer for found in {head.slot for head in _all_heads(model)} if found.kind == slot.kind]
    ends = {max(layers, default=0): "the last layer", min(layers, default=0): "the first layer"}
    place = ends.get(slot.layer, f"layer {slot.layer}") if len(set(layers)) > 1 else "the only layer"
    return f"{place} of the {STACK_NAMES[slot.kind]}" if model.several else place


def _all_heads(model: ModelReadings) -> set[HeadId]:
    names = ("roles.label", "roles.evenness", "ablation.change", "importance.gradient", "saturation.entropy")
    return {head for name in names for head in (*model.labels(name), *model.at(name))}


def _rest(model: ModelReadings) -> Iterator[HeadlineFact]:
    """How many heads rest, and where."""
    sinks = model.labels("roles.sink")
    places = {"first": "on the first token", "delimiter": "on delimiters"}
    found = {sink: [head for head, at in sinks.items() if at == sink] for sink in places}
    where = [words for sink, words in places.items() if found[sink]]
    if not where:
        return
    heads = [head for at in found.values() for head in at]
    share = len(heads) / len(sinks)
    parts = [_rest_figures(model, sink, at) for sink, at in found.items() if at]
    evidence = f"{len(heads)} of {len(sinks)} heads rest: {', '.join(parts)}"
    text = f"{part_of(share, 'the heads')} rest {' or '.join(where)}"
    yield HeadlineFact("rest", text, 0.8 * share, evidence)


def _rest_figures(model: ModelReadings, sink: str, heads: list[HeadId]) -> str:
    """28 on the first token, with 71 % of their attention and 20 % of their effect."""
    numbers = []
    for name, words in ((f"sinks.{sink}", "attention"), (f"sinks.{sink}_effect", "effect")):
        values = [value for head, value in model.at(name).items() if head in heads]
        numbers += [f"{percent_of(sum(values) / len(values))} of their {words}"] if values else []
    where = "the first token" if sink == "first" else "delimiters"
    figures = " and ".join(numbers)
    return f"{len(heads)} on {where}{f', with {figures}' * bool(figures)}"


def _positions(model: ModelReadings) -> Iterator[HeadlineFact]:
    """How many heads attend by position; in a translator, how many heads of cross-attention do."""
    roles, labels = roles_of_heads(model), model.labels("roles.label")
    for crosses in (False, True):
        of_kind = [head for head in labels if head.slot.crosses == crosses]
        found = [head for head in of_kind if any(role_group(role) in POSITION_ROLES for role in roles.get(head, ()))]
        if found:
            share = len(found) / len(of_kind)
            if crosses:
                text = f"{part_of(share, 'the cross-attention heads')} align the two texts by position"
                things = "cross-attention heads"
            else:
                text, things = f"{part_of(share, 'the heads')} attend at a fixed offset", "heads"
                text = text.replace("the heads", "the self-attention heads") if _has_cross(labels) else text
            figures = f"{len(found)} of {len(of_kind)} {things} attend at a fixed offset"
            yield HeadlineFact("alignment" if crosses else "positions", text, 0.55 * share, figures)


def _no_roles(model: ModelReadings) -> Iterator[HeadlineFact]:
    """That no head has a role, where roles were measured."""
    labels = model.labels("roles.label")
    if len(labels) > 1 and not roles_of_heads(model):
        text = f"none of the {len(labels):,} heads attends by position or by content"
        yield HeadlineFact("roles", text, 0.2, f"role labels of {len(labels)} heads: none")


def _has_cross(labels: dict[HeadId, str]) -> bool:
    return any(head.slot.crosses for head in labels)


def _copying(model: ModelReadings) -> Iterator[HeadlineFact]:
    """What the model copies with its induction heads and without them, where probes measured it."""
    heads = [head for head, roles in roles_of_heads(model).items() if "induction" in roles]
    if not heads:
        return
    count, copying = (
        f"{number_words(len(heads))} induction head{'s' * (len(heads) > 1)}",
        copy_losses_without_induction(model),
    )
    if copying is None:
        verb = "continue" if len(heads) > 1 else "continues"
        yield HeadlineFact("copying", f"{count} {verb} what was repeated", 0.3, f"{len(heads)} have the role induction")
    elif copying.is_lost:
        without = copying.first_loss - copying.changed_saved
        evidence = f"loss on repeated random tokens {format_number(copying.copy_loss)}, "
        evidence += f"without {len(heads)} induction heads {format_number(without)}"
        yield HeadlineFact("copying", f"without its {count} it cannot copy from its context", 0.65, evidence)


def _removal(model: ModelReadings) -> Iterator[HeadlineFact]:
    """How many heads can be removed, one at a time, by both ends of the interval."""
    changes, low, high = (model.at("ablation.change", end) for end in (None, 0, 1))
    ends = [max(abs(low[head]), abs(high[head])) for head in changes if head in low and head in high]
    idle = sum(most < NEGLIGIBLE_LOSS_CHANGE for most in ends)
    if idle:
        share = idle / len(changes)
        text = f"{part_of(share, 'the heads')} can be removed at almost no loss, one at a time"
        evidence = (
            f"{idle} of {len(changes)} heads change the loss by less than {format_number(NEGLIGIBLE_LOSS_CHANGE)}"
        )
        yield HeadlineFact("removal", text, 0.6 * share, evidence)


def _depth(model: ModelReadings) -> Iterator[HeadlineFact]:
    """Whether tokens become alike, in the stack where they do most."""
    curves: dict[Kind, dict[int, float]] = {
        kind: curve for kind, curve in model.curves("rank.residual").items() if len(curve) > 1
    }
    ends: list[tuple[float, float, Kind, int]] = [
        (curve[max(curve)], curve[min(curve)], kind, max(curve)) for kind, curve in curves.items()
    ]
    if not ends:
        return
    last, first, kind, depth = min(ends, key=lambda end: (end[0] / max(end[1], 1e-12), KINDS.index(end[2])))
    where = model.in_stacks([kind])
    evidence = f"relative residual {format_number(first)} at depth 0, {format_number(last)} at depth {depth}{where}"
    cosines = [value for curve in model.curves("rank.cosine").values() for value in curve.values()]
    if last < RESIDUAL_DROP * first:
        text = f"tokens become alike with depth{where}: {percent_of(last)} of their size still differs at the end"
        yield HeadlineFact("depth", text, 0.9 * (1 - last / first), evidence)
    elif max(cosines, default=0.0) < MEAN_COSINE_ALIKE and all(
        min(curve.values()) >= max(MIN_RESIDUAL_SHARE, RESIDUAL_DROP * curve[min(curve)]) for curve in curves.values()
    ):
        yield HeadlineFact("depth", "tokens stay distinct at every depth", LEAST_EFFECT, evidence)


def _evenness(model: ModelReadings) -> Iterator[HeadlineFact]:
    """How many heads attend nearly evenly. Most of them do in untrained models, which then comes first."""
    evenness = model.at("roles.evenness")
    even = sum(value >= EVEN_ATTENTION for value in evenness.values())
    if even:
        share = even / len(evenness)
        evidence = f"{even} of {len(evenness)} heads have an evenness of {format_number(EVEN_ATTENTION)} or more"
        untrained = ", as in an untrained model" * (share >= MOSTLY_EVEN)
        text = f"{part_of(share, 'the heads')} attend nearly evenly{untrained}"
        yield HeadlineFact("even", text, 1 + share if untrained else 0.5 * share, evidence)


FACT_FINDERS: tuple[Callable[[ModelReadings], Iterator[HeadlineFact]], ...] = (
    _evenness, _work, _rest, _copying, _positions, _no_roles, _removal, _depth,
)  # fmt: skip
"""One finder for every topic; of facts with the same effect, those of earlier finders come first."""
