"""The story of a model: what it is, what it does and what can be removed, one sentence with a number for each part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from attnworks.core.display import counted, format_number
from attnworks.core.places import KINDS, HeadId, Kind, Slot
from attnworks.exam.examination import Examination
from attnworks.exam.findings.roles import (
    CONTENT_ROLES,
    EVEN_ATTENTION,
    POSITION_ROLES,
    ROLE_SENTENCES,
    ROLES_BY_INTEREST,
    roles_of_heads,
)
from attnworks.exam.findings.streams import RESIDUAL_DROP
from attnworks.exam.findings.words import percent_of
from attnworks.exam.headline import place_of
from attnworks.exam.measures import all_measures
from attnworks.exam.reading import STACK_NAMES, HeadValue, ModelReadings, joined_with_and, role_group
from attnworks.exam.work import Work, predicted_rises, work_of

SHOWN_HEADS = 4
"""Heads that are shown for what the model reads."""
MANY_MEASURES = 14
"""An examination with more measures than this is repeated with --measures all."""
SMALL_RISE = 0.05
"""Heads are said to be removable as far as the predicted rise is below this share of the sum of all rises."""


@dataclass(frozen=True)
class StoryPart:
    """One part of the story.

    name      what, reads, rests, work, depth, removal, trust
    title     the question that it answers
    text      one sentence with a number
    more      further sentences
    heads     heads to show, as enc.3.7
    command   what repeats or extends it, with MODEL for the model; "" where there is nothing to run
    curve     (heads kept, predicted rise of the loss), for removal
    """

    name: str
    title: str
    text: str
    more: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    command: str = ""
    curve: tuple[tuple[int, float], ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        about = {"name": self.name, "title": self.title, "text": self.text, "more": list(self.more)}
        return {**about, "heads": list(self.heads), "command": self.command, "curve": [list(at) for at in self.curve]}


def story_of(exam: Examination) -> tuple[StoryPart, ...]:
    """The parts of the story for which there are readings, in their order."""
    model = ModelReadings(exam.readings)
    parts = (part(exam, model) for part in STORY_PARTS)
    return tuple(part for part in parts if part is not None)


# Parts ---------------------------------------------------------------------------------------------------------------


def _what(exam: Examination, model: ModelReadings) -> StoryPart:
    del model
    about, corpus = exam.model, exam.corpus
    parameters, family = about.get("parameters"), about.get("family")
    size = f"{parameters:,} parameters in " if isinstance(parameters, int) else ""
    architecture = ", ".join(str(part) for part in (about.get("class"), family and f"family {family}") if part)
    numbers = f"computed in {about['dtype']}" if about.get("dtype") else ""
    source = next((str(corpus[key]) for key in ("spec", "file", "name") if corpus.get(key)), "")
    text = f"examined on {_sample(exam)}{f' of {source}' * bool(source)}"
    lineage = about.get("lineage")
    reshapes = "; ".join(map(str, lineage.get("reshapes", ()))) if isinstance(lineage, dict) else ""
    more = [part for part in (architecture, numbers, text, f"reshaped: {reshapes}" if reshapes else "") if part]
    return StoryPart(
        "what", "What it is", f"{model_name(exam)}: {size}{stacks_in_words(about.get('heads'))}.", tuple(more)
    )


def model_name(exam: Examination) -> str:
    """The name of the model without the folders above it."""
    return PurePath(str(exam.model.get("name") or "")).name or "a model"


def _sample(exam: Examination) -> str:
    """128 sentences with 1,489 tokens."""
    sentences, tokens = exam.corpus.get("sentences"), exam.corpus.get("tokens")
    sample = counted(sentences, "sentence") if isinstance(sentences, int) else "the examined text"
    return f"{sample} with {counted(tokens, 'token')}" if isinstance(tokens, int) else sample


def stacks_in_words(slots: object) -> str:
    """6 layers of 12 heads; an encoder with 2 layers of 4 heads, a decoder with ..."""
    known = {Slot.parse(slot): count for slot, count in slots.items()} if isinstance(slots, dict) else {}
    stacks: list[tuple[Kind, str]] = []
    for kind in KINDS:
        counts = [count for slot, count in known.items() if slot.kind == kind]
        if counts:
            least, most = min(counts), max(counts)
            each = counted(most, "head") if least == most else f"{least} to {most} heads"
            stacks.append((kind, f"{counted(len(counts), 'layer')} of {each}"))
    if not stacks:
        return "no heads"
    if len(stacks) == 1:
        return stacks[0][1]
    if len({size for _, size in stacks}) == 1:
        return f"{stacks[0][1]} in each of {joined_with_and([STACK_NAMES[kind] for kind, _ in stacks])}"
    return joined_with_and([f"{size} in the {STACK_NAMES[kind]}" for kind, size in stacks])


def _reads(exam: Examination, model: ModelReadings) -> StoryPart | None:
    """Heads of position and of content, the most interesting first."""
    del exam
    labels, roles = model.labels("roles.label"), roles_of_heads(model)
    if not labels:
        return None
    groups = {head: [role_group(role) for role in found] for head, found in roles.items()}
    position = [head for head, found in groups.items() if any(group in POSITION_ROLES for group in found)]
    content = [head for head, found in groups.items() if any(group in CONTENT_ROLES for group in found)]
    evenness = model.at("roles.evenness")
    even = sum(value >= EVEN_ATTENTION for value in evenness.values())
    attend = "attend" if len(position or content) != 1 else "attends"
    parts = [f"{len(found)} {{}}by {what}" for found, what in ((position, "position"), (content, "content")) if found]
    if parts:
        text = f"Of {counted(len(labels), 'head')}, {joined_with_and(parts)}.".format(f"{attend} ", "")
    elif even:
        text = f"{even} of {len(labels)} heads attend nearly evenly, and none attends by position or by content."
    else:
        text = f"None of {len(labels)} heads attends by position or by content more than chance would explain."
    counts = Counter(group for found in groups.values() for group in dict.fromkeys(found))
    named = [group for group in counts if group in ROLE_SENTENCES]
    named.sort(key=lambda group: -counts[group])
    more = [f"{counted(counts[group], 'head')}: {ROLE_SENTENCES[group]}." for group in named]
    return StoryPart("reads", "What it reads", text, tuple(more), _clearest_heads(model, groups))


def _clearest_heads(model: ModelReadings, groups: dict[HeadId, list[str]]) -> tuple[str, ...]:
    """The head with the highest score of each role, the most interesting role first."""
    scores = model.at("roles.score")
    best: dict[str, HeadId] = {}
    for head in sorted(groups, key=lambda head: -scores.get(head, -math.inf)):
        best.setdefault(groups[head][0], head)
    order = [*ROLES_BY_INTEREST, *sorted(best.keys() - set(ROLES_BY_INTEREST))]
    return tuple(str(best[group]) for group in order if group in best)[:SHOWN_HEADS]


def _rests(exam: Examination, model: ModelReadings) -> StoryPart | None:
    """Heads that rest on the first token or on delimiters, and how little that adds."""
    sinks, first = model.labels("roles.sink"), model.at("sinks.first")
    if not first:
        return None
    places = {"first": exam.first_token, "delimiter": "delimiters"}
    parts, heads = [], []
    for sink, where in places.items():
        resting = [head for head, at in sinks.items() if at == sink]
        attention, effects = model.at(f"sinks.{sink}"), model.at(f"sinks.{sink}_effect")
        given = [attention[head] for head in resting if head in attention]
        added = [effects[head] for head in resting if head in effects]
        if resting:
            figures = [f"{percent_of(sum(given) / len(given))} of their attention"] if given else []
            figures += [f"{percent_of(sum(added) / len(added))} of their effect"] if added else []
            there = f", with {' and '.join(figures)} there" if figures else ""
            parts.append(f"{len(resting)} of {len(sinks)} heads rest on {where}{there}")
            heads += sorted(resting, key=lambda head: -attention.get(head, 0.0))[:1]
    share = sum(first.values()) / len(first)
    none = (
        f"No head rests on {exam.first_token} or on delimiters" if sinks else "Heads were not judged by where they rest"
    )
    text = f"{'; '.join(parts)}." if parts else f"{none}: {exam.first_token} gets {percent_of(share)} of all attention."
    return StoryPart("rests", "Where it rests", text, heads=tuple(map(str, heads)))


def _works(exam: Examination, model: ModelReadings) -> StoryPart | None:
    """The layer and the head that do most of the work."""
    del exam
    work = work_of(model)
    if work is None:
        return None
    shares = work.layers
    slot, most = max(shares.items(), key=lambda entry: entry[1])
    head, value = max(work.heads.items(), key=lambda entry: entry[1])
    name, alone = model.name_of(HeadValue(head, value)), percent_of(value / work.total)
    place = place_of(slot, model)
    text = f"{place[0].upper()}{place[1:]} does {percent_of(most)} of the work, and head {name} alone {alone}."
    return StoryPart("work", "Where the work is done", text, (_what_work_is(work),), (str(head),))


def _what_work_is(work: Work) -> str:
    if work.reading == "ablation.change":
        return "The work of a head is what the loss rises without it; that of a layer is the sum over its heads."
    return "The work of a head is the gradient of the loss by its gate; that of a layer is the sum over its heads."


def _depth(exam: Examination, model: ModelReadings) -> StoryPart | None:
    """Whether tokens stay distinct, and how tight the bound on their diameter is."""
    del exam
    curves: dict[Kind, dict[int, float]] = {
        kind: curve for kind, curve in model.curves("rank.residual").items() if len(curve) > 1
    }
    if not curves:
        return None
    parts, fall = [], False
    for kind, curve in curves.items():
        first, last = curve[min(curve)], curve[max(curve)]
        fall = fall or last < RESIDUAL_DROP * first
        stack = f"{model.stack(kind).strip()}: " if len(curves) > 1 else ""
        parts.append(f"{stack}{percent_of(first)} of the stream differs between tokens at depth 0, and ")
        parts[-1] += f"{percent_of(last)} at depth {max(curve)}"
    begin = "Tokens become alike" if fall else "Tokens stay distinct"
    bounds = model.curves("bounds.ratio")
    ratios = [(ratio, model.stack(kind), at) for kind, curve in bounds.items() for at, ratio in curve.items()]
    more = []
    if ratios:
        ratio, stack, at = min(ratios)
        more.append(
            f"The proved bound on the diameter of the attention output is tightest in {stack}layer {at}: there it is "
            f"{format_number(ratio)} times the measured value."
        )
    return StoryPart("depth", "Whether tokens stay distinct", f"{begin}: {'; '.join(parts)}.", tuple(more))


def _removal(exam: Examination, model: ModelReadings) -> StoryPart | None:
    """How many heads can go for how much, and where capacity is missing."""
    del exam
    curve = predicted_rises(model)
    wider = [(what, model.heads(f"bottleneck.{what}")) for what in ("keys", "values")]
    more = []
    for what, heads in wider:
        found = [head for head in heads if head.value > 0]
        if found:
            most = model.name_of(max(found, key=lambda head: head.value))
            more.append(f"{len(found)} of {len(heads)} heads would gain from wider {what}, {most} most.")
        elif heads:
            more.append(f"No head needs wider {what}.")
    if not curve:
        if not more:
            return None
        return StoryPart("removal", "What can go, and what is missing", more[0], tuple(more[1:]))
    heads = curve[0][0]
    largest = sum(max(0.0, change) for change in model.at("ablation.change").values())
    cheap = [at for at in curve if at[1] <= SMALL_RISE * largest]
    kept, rise = min(cheap)
    verb = "rise" if rise >= 0 else "fall"
    text = f"{heads - kept} of {heads} heads can go for a predicted {verb} of the loss of {format_number(abs(rise))}, "
    text += "the sum of what each costs alone."
    command = f"attnworks prune MODEL --keep {math.ceil(100 * kept / heads) / 100:g} --out pruned"
    if kept == heads:
        text, command = "No head can go for less than 5 % of what all heads cost alone.", ""
    thinned = curve if len(curve) <= 100 else [at for n, at in enumerate(curve) if n % (len(curve) // 100 + 1) == 0]
    return StoryPart(
        "removal", "What can go, and what is missing", text, tuple(more), command=command, curve=tuple(thinned)
    )


def _trust(exam: Examination, model: ModelReadings) -> StoryPart:
    """The sample, an interval, and the command to repeat the examination."""
    sentences = exam.corpus.get("sentences")
    text = f"All numbers are means over {_sample(exam)}"
    changes, low, high = (model.at("ablation.change", end) for end in (None, 0, 1))
    known = [head for head in changes if head in low and head in high]
    if known:
        head = max(known, key=lambda head: changes[head])
        text += f"; without head {model.name_of(HeadValue(head, 0.0))} the loss rises by "
        text += (
            f"{format_number(changes[head])} (95 % interval {format_number(low[head])} to {format_number(high[head])})"
        )
    seen = {reading.name.partition(".")[0] for reading in exam.readings.values()}
    measures = all_measures()
    used = sorted(name for name in measures if name in seen)
    chosen = "all" if len(used) > MANY_MEASURES else ",".join(used)
    size = f" --sentences {sentences}" if isinstance(sentences, int) else ""
    option = "" if all(measures[name].default for name in used) else f" --measures {chosen}"
    command = f"attnworks examine MODEL{size}{option}"
    return StoryPart("trust", "How sure this is", f"{text}.", command=command)


STORY_PARTS: tuple[Callable[[Examination, ModelReadings], StoryPart | None], ...] = (
    _what, _reads, _rests, _works, _depth, _removal, _trust,
)  # fmt: skip
