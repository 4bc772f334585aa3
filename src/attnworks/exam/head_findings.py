"""Findings about heads: what they do, and which can be removed or are too narrow."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnworks.exam.examination import Finding
from attnworks.exam.finding_words import (
    HeadValue,
    ModelReadings,
    counted_heads,
    head_names,
    its_or_their,
    listed_heads,
    verb_for,
    whole_percent,
)
from attnworks.exam.reading import number
from attnworks.traces.layer import Slot

SINK = 0.5
SAME = 0.1
"""Heads nearer than this attend to the same keys."""
LITTLE = 1e-3
"""A change of the objective that does not matter."""
FAINT = 0.01
"""A gradient below this part of the largest is hardly felt."""

ROLES = {
    "previous": "attends to the previous token",
    "next": "attends to the next token",
    "self": "attends to the token itself",
    "offset": "attends at another fixed offset",
    "first": "attends to the first token",
    "delimiter": "attends to delimiters",
    "syntactic": "attends to the syntactic head",
    "rare": "attends to the rarest token",
    "uniform": "attends to all tokens nearly evenly",
    "induction": "attends to what followed the same token before (induction)",
    "duplicate": "attends to the same token elsewhere",
}
BY_POSITION = ("previous", "next", "self", "offset", "uniform")
BY_CONTENT = ("syntactic", "rare", "induction", "duplicate")
SINK_ADVICE = "such heads often have no other task; ablation shows which can be removed"
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


def role_group(label: str) -> str:
    """The label under which heads are counted together: all offsets are `offset`."""
    return "offset" if label.startswith("offset ") else label


# What heads do -------------------------------------------------------------------------------------------------------


def head_roles(model: ModelReadings) -> Iterator[Finding]:
    """Every label but `first`, which `first_token_heads` covers; counts are those of the grid of heads."""
    for group, heads in _by_role(model).items():
        if group != "first":
            yield _role(model, group, heads)


def first_token_heads(model: ModelReadings) -> Iterator[Finding]:
    """Heads labelled `first`, and heads that give the first token more than half."""
    heads = model.heads("sinks.first")
    sinks = [head for head in heads if head.value > SINK]
    if labelled := _by_role(model).get("first"):
        found = _role(model, "first", labelled)
        more = f"; {len(sinks)} of {len(heads)} heads give it more than half" if sinks else ""
        yield replace(found, text=found.text + more, readings=(*found.readings, *["sinks.first"] * bool(sinks)))
    elif sinks:
        text = f"{counted_heads(model, sinks, len(heads))} {verb_for('gives', sinks)} more than half of "
        text += f"{its_or_their(sinks)} attention to the first token: {SINK_ADVICE}"
        yield Finding(text, 0.3 + 0.35 * len(sinks) / len(heads), ("sinks.first",), head_names(sinks))


def _by_role(model: ModelReadings) -> dict[str, list[HeadValue]]:
    """The heads of each role, the highest score first."""
    scores = model.at("roles.score")
    groups: dict[str, list[HeadValue]] = defaultdict(list)
    for slot, head, label in model.labels("roles.label"):
        if label != NO_ROLE:
            groups[role_group(label)].append(HeadValue(slot, head, scores.get((slot, head), math.nan)))
    for heads in groups.values():
        heads.sort(key=lambda head: -head.value if math.isfinite(head.value) else math.inf)
    return groups


def _role(model: ModelReadings, group: str, heads: list[HeadValue]) -> Finding:
    does = _offsets(model, heads) if group == "offset" else ROLES.get(group, f"has the label {group!r}")
    verb, _, what = does.partition(" ")
    most = f"{model.name_of(heads[0])} most, " if len(heads) > 1 else ""
    best = heads[0].value
    score = f" ({most}{_score(group, best)})" if math.isfinite(best) else ""
    telling = 1 - TELLING.index(group) / len(TELLING) if group in TELLING else 0.5
    share = len(heads) / len(model.labels("roles.label"))
    weight = 0.2 + 0.4 * share + 0.2 * telling + 0.2 * (best if 0 <= best <= 1 else 0.5)
    text = f"{counted_heads(model, heads)} {verb_for(verb, heads)} {what}{_advice(model, group, heads)}{score}"
    return Finding(text, weight, ("roles.label", "roles.score"), head_names(heads))


def _advice(model: ModelReadings, group: str, heads: list[HeadValue]) -> str:
    """What a role means and what can be done about it; fixed forms are for self-attention heads that have a form."""
    them = "it" if len(heads) == 1 else "them"
    if group in BY_POSITION:
        if all(head.slot.kind == "cross" for head in heads):
            return ": the order of the two texts decides, as in word-by-word alignment" if group == "offset" else ""
        forms = {(slot, head): form for slot, head, form in model.labels("structure.form")}
        fixed = [head for head in heads if head.slot.kind != "cross" and forms.get(head.at, group) != NO_ROLE]
        which = them if len(fixed) == len(heads) else f"{len(fixed)} of them"
        return f": content matters little{f', so a fixed form may replace {which}; try reshape project' * bool(fixed)}"
    if group in BY_CONTENT:
        return f": content decides, so no fixed form can replace {them}"
    return f": {SINK_ADVICE}" if group in ("first", "delimiter") else ""


def _score(group: str, value: float) -> str:
    if group == "syntactic":
        return f"right for {number(value)} of the tokens"
    return f"{number(value)} of {'the tokens' if group == 'uniform' else 'the attention'}"


def _offsets(model: ModelReadings, heads: list[HeadValue]) -> str:
    """attends 2 tokens back; of several offsets: attends at a fixed offset (2 tokens back: 3, ...)."""
    own = {head.at for head in heads}
    counts = Counter(_offset_words(label) for slot, at, label in model.labels("roles.label") if (slot, at) in own)
    if len(counts) == 1:
        return f"attends {next(iter(counts))}"
    return f"attends at a fixed offset ({', '.join(f'{words}: {count}' for words, count in counts.most_common())})"


def structured_heads(model: ModelReadings) -> Iterator[Finding]:
    """How many heads have a structured form, and the head that its form explains best."""
    labels, explained = model.labels("structure.form"), model.at("structure.explained")
    forms = {(slot, head): form for slot, head, form in labels if form in FORMS and (slot, head) in explained}
    if not forms:
        return
    heads = [HeadValue(*at, explained[at]) for at in sorted(forms, key=lambda at: -explained[at])]
    best, counts = heads[0], Counter(forms.values()).most_common()
    have = "heads have" if len(heads) > 1 else "heads has"
    text = (
        f"{len(heads)} of {len(labels)} {have} a structured form, which explains at least half and is worth the length "
    )
    text += f"of its description ({', '.join(f'{count} {FORMS[form]}' for form, count in counts)}): "
    text += f"{FORMS[forms[best.at]]} explains {whole_percent(best.value)} of {model.name_of(best)}"
    if any(head.slot.kind != "cross" for head in heads):
        text += "; try reshape project"
    weight = 0.45 + 0.2 * len(heads) / len(labels)
    yield Finding(text, weight, ("structure.form", "structure.explained"), head_names(heads))


# What can be removed or is missing ------------------------------------------------------------------------------------


def redundant_heads(model: ModelReadings) -> Iterator[Finding]:
    pairs: list[tuple[float, HeadValue, HeadValue]] = []
    for reading in model.readings.of("redundancy.distance"):
        for layer, row in enumerate(reading.value):
            assert isinstance(row, Tensor)
            slot = Slot(reading.kind, layer)
            for one, other in torch.triu_indices(*row.shape, offset=1).T.tolist():
                if (distance := float(row[one, other])) < SAME:
                    pairs.append((distance, HeadValue(slot, one, distance), HeadValue(slot, other, distance)))
    if pairs:
        distance, one, other = min(pairs)
        more = {1: "", 2: "; so does one more pair"}.get(len(pairs), f"; so do {len(pairs) - 1} more pairs")
        text = f"heads {model.name_of(one)} and {model.name_of(other)} attend to the same keys: one of them may be "
        text += f"enough, try reshape prune (distance {number(distance)}){more}"
        names = dict.fromkeys(head.full_name for pair in sorted(pairs) for head in pair[1:])
        yield Finding(text, 0.6 + 0.1 * (1 - distance / SAME), ("redundancy.distance",), tuple(names))


def ablated_heads(model: ModelReadings) -> Iterator[Finding]:
    """Judged by both ends of the interval; a head without one, as after a single sentence, is not judged."""
    name = "ablation.change"
    heads = model.heads(name)
    low, high = (model.at(name, end) for end in (0, 1))
    judged = [(head, low[head.at], high[head.at]) for head in heads if head.at in low and head.at in high]
    idle = [head for head, least, most in judged if max(abs(least), abs(most)) < LITTLE]
    harmful = [head for head, _, most in judged if most < -LITTLE]
    needed = [head for head, least, _ in judged if least > LITTLE]
    idle.sort(key=lambda head: abs(head.value))
    if idle:
        one_by_one = ", one at a time" if len(idle) > 1 else ""
        listed = f" ({listed_heads(model, idle)})" if len(idle) > 1 else ""
        text = f"{counted_heads(model, idle, len(heads))}{listed} can probably be removed{one_by_one}: try reshape "
        text += f"prune; the loss changes by less than {number(LITTLE)} without "
        text += "any of them" if len(idle) > 1 else "it"
        yield Finding(text, 0.65 + 0.2 * len(idle) / len(heads), (name,), head_names(idle))
    if harmful:
        worst = min(harmful, key=lambda head: head.value)
        without = f"{model.name_of(worst)}, the worst" if len(harmful) > 1 else "it"
        text = f"{counted_heads(model, harmful)} {verb_for('does', harmful)} harm on this text: try reshape prune; "
        text += f"the loss is {number(-worst.value)} lower without {without}"
        yield Finding(text, 0.75, (name,), head_names(harmful))
    if needed and len(heads) > 1:
        most = max(needed, key=lambda head: head.value)
        text = f"head {model.name_of(most)} matters most: keep it; the loss is {number(most.value)} higher without it"
        yield Finding(text, 0.6, (name,), (most.full_name,))


def faint_heads(model: ModelReadings) -> Iterator[Finding]:
    heads = model.heads("importance.gradient")
    if len(heads) < 2 or model.readings.of("ablation.change"):
        return
    loudest = max(heads, key=lambda head: head.value)
    faint = sorted((head for head in heads if head.value < FAINT * loudest.value), key=lambda head: head.value)
    if faint:
        listed = f" ({listed_heads(model, faint)})" if len(faint) > 1 else ""
        text = f"{counted_heads(model, faint, len(heads))}{listed} hardly {verb_for('affects', faint)} the loss: "
        text += f"measure ablation to see what can be removed (gradient below {whole_percent(FAINT)} of that of "
        text += f"{model.name_of(loudest)})"
    else:
        text = f"the loss depends most on head {model.name_of(loudest)}: keep it (gradient {number(loudest.value)})"
    yield Finding(text, 0.55, ("importance.gradient",), head_names(faint or [loudest]))


def narrow_heads(model: ModelReadings) -> Iterator[Finding]:
    for what in ("keys", "values"):
        name = f"bottleneck.{what}"
        all_heads = model.heads(name)
        heads = [head for head in all_heads if head.value > 0]
        if heads:
            most = max(heads, key=lambda head: head.value)
            text = f"{counted_heads(model, heads, len(all_heads))} would gain from wider {what}: try reshape grow; "
            text += f"the loss should fall by {number(most.value)} per 1000 parameters"
            text += f" in {model.name_of(most)}, the most" if len(heads) > 1 else ""
            yield Finding(text, 0.7, (name,), head_names(heads))
        elif all_heads:
            text = f"no head needs wider {what}: growth in no direction lowers the loss on other sentences"
            yield Finding(text, 0.5, (name,), ())


def _offset_words(label: str) -> str:
    """offset -2: 2 tokens back."""
    offset = label.removeprefix("offset ")
    if not offset.lstrip("-").isdigit():
        return f"at {label}"
    if offset == "0":
        return "to the same position"
    away = abs(int(offset))
    return f"{away} token{'s' if away > 1 else ''} {'back' if offset[0] == '-' else 'ahead'}"
