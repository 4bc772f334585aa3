"""What stands out in the readings, said in plain words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnworks.exam.examination import Finding
from attnworks.measures.reading import Reading, Readings
from attnworks.measures.table import number
from attnworks.traces.layer import SHORT, Kind

ALIKE = 0.9
"""Tokens are alike where their mean cosine is above this."""
APART = 0.5
"""The residual falls if less than this part of it is left at some depth."""
KEPT = 0.1
"""There is no collapse only if tokens keep this part of the stream apart at every depth."""
SINK = 0.5
SATURATED, ONE_KEY = 0.05, 0.9
"""Mean Jacobian norm below, and mean largest weight above, which a head is saturated."""
SAME = 0.1
"""Heads nearer than this look at the same places."""
LITTLE = 1e-3
"""A change of the objective that does not matter."""
FAINT = 0.01
"""A gradient below this part of the largest is hardly felt."""
MOST = 0.8
AGAINST = 0.01
"""Paths work against the others if they take more than this part of the output away."""
LOOSE = 10.0
AGAIN = 0.8
NAMED = 4
"""Heads that one finding names."""

ROLES = {
    "previous": "{looks} at the previous token",
    "next": "{looks} at the next token",
    "self": "{looks} at the token itself",
    "first": "{looks} at the first token",
    "delimiter": "{looks} at delimiters",
    "syntactic": "{looks} at the syntactic head",
    "rare": "{looks} at the rarest token",
    "uniform": "{looks} everywhere nearly alike",
    "induction": "{continues} patterns seen before (induction)",
    "duplicate": "{looks} at the same token elsewhere",
}
FORMS = {
    "identity": "diagonal",
    "offset": "shifted diagonal",
    "column": "one column",
    "columns": "blocks of columns",
    "band": "band",
    "permutation": "permutation",
}
"""Structured forms, as the page calls them."""
NO_ROLE = "none"
TELLING = ("induction", "syntactic", "previous", "next", "duplicate", "rare", "self", "delimiter", "uniform", "first")
"""Roles from the most to the least telling."""


class Head(NamedTuple):
    """A head and its value in some reading."""

    kind: Kind
    layer: int
    head: int
    value: float

    @property
    def full_name(self) -> str:
        return f"{SHORT[self.kind]}.{self.layer}.{self.head}"


def find(readings: Readings) -> tuple[Finding, ...]:
    """All findings, the weightiest first. Readings that are absent, or hold no number, are passed over."""
    found: list[Finding] = []
    for kind in readings.kinds():
        of_kind = {reading.name: reading for reading in (readings[name] for name in readings) if reading.kind == kind}
        prefix = f"{SHORT[kind]}." if len(readings.kinds()) > 1 else ""
        for finder in FINDERS:
            found += finder(_Look(of_kind, prefix))
    return _varied(found)


def _varied(found: list[Finding]) -> tuple[Finding, ...]:
    """By weight; what follows from the same readings as a weightier finding weighs less, each time more so."""
    told: Counter[tuple[str, ...]] = Counter()
    damped = []
    for finding in sorted(found, key=lambda finding: -finding.weight):
        damped.append(replace(finding, weight=finding.weight * AGAIN ** told[finding.readings]))
        told[finding.readings] += 1
    return tuple(sorted(damped, key=lambda finding: -finding.weight))


class _Look:
    """The readings of one kind of attention, and how its heads are called."""

    def __init__(self, readings: dict[str, Reading], prefix: str) -> None:
        self.readings, self.prefix = readings, prefix

    def heads(self, name: str, end: int | None = None) -> list[Head]:
        """Every head that has a number in this reading, or (0, 1) at this end of its interval."""
        reading = self.readings.get(name)
        if reading is None or (end is not None and reading.interval is None):
            return []
        values = reading.value if end is None or reading.interval is None else reading.interval[end]
        rows = [(layer, row) for layer, row in enumerate(values) if isinstance(row, Tensor)]
        return [
            Head(reading.kind, layer, head, value)
            for layer, row in rows
            for head, value in enumerate(row.tolist())
            if math.isfinite(value)
        ]

    def at(self, name: str, end: int | None = None) -> dict[tuple[int, int], float]:
        """(layer, head) -> value, or one end of its interval."""
        return {(head.layer, head.head): head.value for head in self.heads(name, end)}

    def curve(self, name: str) -> dict[int, float]:
        """Depth (or length) -> value, where there is a number."""
        reading = self.readings.get(name)
        if reading is None or len(reading.axes) != 1:
            return {}
        rows = [row for row in reading.value if isinstance(row, Tensor)]
        values = torch.stack(rows).flatten() if reading.layered and rows else rows[0] if rows else torch.empty(0)
        return {place: value for place, value in enumerate(values.tolist()) if math.isfinite(value)}

    def labels(self, name: str) -> list[tuple[int, int, str]]:
        reading = self.readings.get(name)
        rows = () if reading is None else reading.value
        return [
            (layer, head, label)
            for layer, row in enumerate(rows)
            if isinstance(row, tuple)
            for head, label in enumerate(row)
        ]

    def say(self, head: Head) -> str:
        return f"{self.prefix}{head.layer}.{head.head}"

    def of_stack(self) -> str:
        return {"enc.": "encoder: ", "dec.": "decoder: ", "cross.": "cross-attention: "}.get(self.prefix, "")


def _alike(look: _Look) -> Iterator[Finding]:
    curve = look.curve("rank.cosine")
    for first, last in _runs(depth for depth, value in curve.items() if value >= ALIKE):
        most = max(curve[depth] for depth in range(first, last + 1))
        text = f"{look.of_stack()}{_after(first, last)} tokens are {number(most)} alike (mean cosine)"
        yield Finding(text, 0.8 + 0.2 * min(1.0, (most - ALIKE) / (1 - ALIKE)), ("rank.cosine",))


def _falling(look: _Look) -> Iterator[Finding]:
    """Judged by the depth where least is left, wherever it lies."""
    curve = look.curve("rank.residual")
    if len(curve) < 2:
        return
    first, last, lowest = min(curve), max(curve), min(curve, key=lambda depth: curve[depth])
    before, least, after = curve[first], curve[lowest], curve[last]
    if before <= 0:
        return
    if least < APART * before:
        text = f"{look.of_stack()}what tells tokens apart falls from {number(before)} to {number(least)} of the stream"
        again = f", then grows to {number(after)} at depth {last}" if after > least else ""
        weight = 0.9 - 0.2 * min(1.0, after / before)
        yield Finding(f"{text} between depth {first} and {lowest}{again}", weight, ("rank.residual",))
    elif least >= KEPT:
        text = f"{look.of_stack()}no rank collapse: tokens keep {number(least)} of the stream apart or more"
        yield Finding(f"{text} (least at depth {lowest})", 0.35, ("rank.residual",))


def _roles(look: _Look) -> Iterator[Finding]:
    scores, kind = look.at("roles.score"), _kind_of(look, "roles.label")
    groups: dict[str, list[Head]] = defaultdict(list)
    for layer, head, label in look.labels("roles.label"):
        if label != NO_ROLE and not (label == "first" and _gathering(look)):
            groups[label].append(Head(kind, layer, head, scores.get((layer, head), math.nan)))
    for label, heads in groups.items():
        heads.sort(key=lambda head: -head.value if math.isfinite(head.value) else math.inf)
        best = heads[0]
        does = ROLES.get(label) or _looks_at_offset(label)
        score = f" ({number(best.value)})" if math.isfinite(best.value) else ""
        if len(heads) == 1:
            text = f"head {look.say(best)} {_verb(does, 1)}{score}"
        else:
            text = f"{len(heads)} heads {_verb(does, 2)}, {look.say(best)} most{score}"
        telling = 1 - TELLING.index(label) / len(TELLING) if label in TELLING else 0.5
        strength = best.value if 0 <= best.value <= 1 else 0.5
        yield Finding(text, 0.25 + 0.2 * telling + 0.25 * strength, ("roles.label", "roles.score"), _names(heads))


def _sinks(look: _Look) -> Iterator[Finding]:
    heads, sinks = look.heads("sinks.first"), _gathering(look)
    if sinks:
        many = f"{len(sinks)} of {len(heads)} heads give more than half of their attention to the first token"
        one = f"head {look.say(sinks[0])} gives more than half of its attention to the first token"
        text = look.of_stack() + many if len(sinks) > 1 else one
        yield Finding(text, 0.4 + 0.35 * len(sinks) / len(heads), ("sinks.first",), _names(sinks))


def _gathering(look: _Look) -> list[Head]:
    return [head for head in look.heads("sinks.first") if head.value > SINK]


def _saturated(look: _Look) -> Iterator[Finding]:
    """A small Jacobian alone could also mean attention spread over many keys: the largest weight tells them apart."""
    top = look.at("saturation.max_weight")
    flat = [head for head in look.heads("saturation.jacobian") if head.value < SATURATED]
    found = sorted((head for head in flat if top.get(head[1:3], 0.0) > ONE_KEY), key=lambda head: head.value)
    if found:
        least = f"mean Jacobian norm {number(found[0].value)}"
        many = f"{len(found)} heads saturate, {look.say(found[0])} most: {least}"
        text = many if len(found) > 1 else f"head {look.say(found[0])} saturates: {least}"
        weight = 0.5 + 0.2 * (1 - found[0].value / SATURATED)
        yield Finding(text, weight, ("saturation.jacobian",), _names(found))


def _redundant(look: _Look) -> Iterator[Finding]:
    reading = look.readings.get("redundancy.distance")
    pairs: list[tuple[float, Head, Head]] = []
    kind = _kind_of(look, "redundancy.distance")
    for layer, row in enumerate(() if reading is None else reading.value):
        assert isinstance(row, Tensor)
        for one, other in torch.triu_indices(*row.shape, offset=1).T.tolist():
            if (distance := float(row[one, other])) < SAME:
                pairs.append((distance, Head(kind, layer, one, distance), Head(kind, layer, other, distance)))
    if pairs:
        distance, one, other = min(pairs)
        more = {1: "", 2: ", and so does one more pair"}.get(len(pairs), f", and so do {len(pairs) - 1} more pairs")
        text = f"heads {look.say(one)} and {look.say(other)} see the same (distance {number(distance)}){more}"
        names = dict.fromkeys(head.full_name for pair in sorted(pairs) for head in pair[1:])
        yield Finding(text, 0.6 + 0.1 * (1 - distance / SAME), ("redundancy.distance",), tuple(names))


def _structured(look: _Look) -> Iterator[Finding]:
    """How many heads have a structured form, and the head that its form explains best."""
    labels, explained = look.labels("structure.form"), look.at("structure.explained")
    forms = {(layer, head): form for layer, head, form in labels if form in FORMS and (layer, head) in explained}
    if not forms:
        return
    kind = _kind_of(look, "structure.form")
    heads = [Head(kind, *at, explained[at]) for at in sorted(forms, key=lambda at: -explained[at])]
    best, counts = heads[0], Counter(forms.values()).most_common()
    have = "heads have" if len(heads) > 1 else "heads has"
    text = f"{look.of_stack()}{len(heads)} of {len(labels)} {have} a structured form that explains at least half of "
    text += f"the attention ({', '.join(f'{count} {FORMS[form]}' for form, count in counts)}): "
    text += f"{FORMS[forms[best.layer, best.head]]} explains {_percent(best.value)} of {look.say(best)}"
    text += "" if kind == "cross" else "; attnworks reshape project can put fixed forms in their place"
    weight = 0.45 + 0.2 * len(heads) / len(labels)
    yield Finding(text, weight, ("structure.form", "structure.explained"), _names(heads))


def _ablated(look: _Look) -> Iterator[Finding]:
    """Judged by both ends of the interval; a head without one, as after a single sentence, is not judged."""
    name = "ablation.change"
    heads = look.heads(name)
    low, high = (look.at(name, end) for end in (0, 1))
    judged = [(head, low[at], high[at]) for head in heads if (at := head[1:3]) in low and at in high]
    idle = [head for head, least, most in judged if max(abs(least), abs(most)) < LITTLE]
    harmful = [head for head, _, most in judged if most < -LITTLE]
    needed = [head for head, least, _ in judged if least > LITTLE]
    idle.sort(key=lambda head: abs(head.value))
    if idle:
        who = f"{len(idle)} of {len(heads)} heads ({_listed(look, idle)})"
        all_of_them = f"{who} can probably go, one at a time: removing any of them"
        text = all_of_them if len(idle) > 1 else f"head {look.say(idle[0])} can probably go: removing it"
        text = f"{text} changes the objective by less than {number(LITTLE)}"
        yield Finding(text, 0.65 + 0.2 * len(idle) / len(heads), (name,), _names(idle))
    if harmful:
        worst = min(harmful, key=lambda head: head.value)
        others = f"{len(harmful)} heads do harm, most of all {look.say(worst)}" if len(harmful) > 1 else ""
        who = others or f"head {look.say(worst)} does harm"
        text = f"{who}: the objective is {number(-worst.value)} better without it"
        yield Finding(text, 0.75, (name,), _names(harmful))
    if needed and len(heads) > 1:
        most = max(needed, key=lambda head: head.value)
        worse = f"the objective is {number(most.value)} worse without it"
        text = f"{look.of_stack()}head {look.say(most)} matters most: {worse}"
        yield Finding(text, 0.6, (name,), (most.full_name,))


def _faint(look: _Look) -> Iterator[Finding]:
    heads = look.heads("importance.gradient")
    if len(heads) < 2 or "ablation.change" in look.readings:
        return
    loudest = max(heads, key=lambda head: head.value)
    faint = sorted((head for head in heads if head.value < FAINT * loudest.value), key=lambda head: head.value)
    if faint:
        who = f"{len(faint)} of {len(heads)} heads" if len(faint) > 1 else f"head {look.say(faint[0])}"
        text = f"the loss hardly feels {who}{f' ({_listed(look, faint)})' if len(faint) > 1 else ''}: "
        text += f"gradient below {FAINT:.0%} of that of {look.say(loudest)}".replace("%", " %")
    else:
        text = f"the loss depends most on head {look.say(loudest)} (gradient {number(loudest.value)})"
    yield Finding(text, 0.55, ("importance.gradient",), _names(faint or [loudest]))


def _narrow(look: _Look) -> Iterator[Finding]:
    for kind in ("keys", "values"):
        name = f"bottleneck.{kind}"
        heads = [head for head in look.heads(name) if head.value > 0]
        if heads:
            most = max(heads, key=lambda head: head.value)
            text = f"{look.of_stack()}more {kind} would pay in {len(heads)} of {len(look.heads(name))} heads, most "
            text += f"of all in {look.say(most)}: the loss should fall by {number(most.value)} per 1000 parameters"
            yield Finding(text, 0.7, (name,), _names(heads))
        elif look.heads(name):
            yield Finding(f"no head lacks {kind}: other sentences confirm no direction of growth", 0.5, (name,), ())


def _paths(look: _Look) -> Iterator[Finding]:
    share = look.curve("paths.share")
    if len(share) < 2:
        return
    if min(share.values()) < -AGAINST:
        least = min(share, key=lambda length: share[length])
        part = f"{_percent(share[least])} of the output"
        text = f"{look.of_stack()}paths of length {least} work against the others ({part})"
        yield Finding(text, 0.45, ("paths.share",))
        return
    carried = 0.0
    for length in sorted(share):
        carried += share[length]
        if carried >= MOST:
            span = f"length 0-{length}" if length else "length 0 (no attention at all)"
            text = f"{look.of_stack()}paths of {span} carry {_percent(carried)} of the output"
            yield Finding(text, 0.3 + 0.3 * (1 - length / max(share)), ("paths.share",))
            return


def _bounds(look: _Look) -> Iterator[Finding]:
    ratio = look.curve("bounds.ratio")
    if ratio:
        nearest = min(ratio, key=lambda layer: ratio[layer])
        times = number(ratio[nearest])
        if ratio[nearest] < LOOSE:
            text = f"{look.of_stack()}layer {nearest} comes within a factor {times} of the diameter bound"
        else:
            text = f"{look.of_stack()}the diameter bound says little: {times} times what layer {nearest} does, or more"
        yield Finding(text, 0.5 if ratio[nearest] < LOOSE else 0.3, ("bounds.ratio",))


FINDERS: tuple[Callable[[_Look], Iterable[Finding]], ...] = (
    _alike, _falling, _roles, _sinks, _saturated, _redundant, _structured, _narrow, _ablated, _faint, _paths, _bounds,
)  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _runs(depths: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of every run of consecutive numbers."""
    first = last = None
    for depth in depths:
        if last is None or depth != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = depth
        last = depth
    if first is not None and last is not None:
        yield first, last


def _after(first: int, last: int) -> str:
    """Depth d is what block d - 1 leaves; depth 0 are the embeddings."""
    if last == 0:
        return "at the embeddings"
    if first == 0:
        return f"from the embeddings to layer {last - 1}"
    return f"layer {first - 1}:" if first == last else f"layers {first - 1}-{last - 1}:"


def _kind_of(look: _Look, name: str) -> Kind:
    return look.readings[name].kind if name in look.readings else "encoder"


def _looks_at_offset(label: str) -> str:
    """offset -2: two tokens back."""
    words, _, offset = label.partition(" ")
    if words != "offset" or not offset.lstrip("-").isdigit():
        return f"{{is}} labelled {label!r}"
    if offset == "0":
        return "{looks} at the same position"
    away = abs(int(offset))
    return f"{{looks}} {away} token{'s' if away > 1 else ''} {'back' if offset[0] == '-' else 'ahead'}"


def _verb(text: str, heads: int) -> str:
    forms = {"looks": "look", "continues": "continue", "is": "are"}
    return text.format(**{word: word if heads == 1 else many for word, many in forms.items()})


def _names(heads: list[Head]) -> tuple[str, ...]:
    return tuple(head.full_name for head in heads)


def _listed(look: _Look, heads: list[Head]) -> str:
    names = [look.say(head) for head in heads[:NAMED]]
    return ", ".join(names) + (", ..." if len(heads) > NAMED else "")
