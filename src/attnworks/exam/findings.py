"""Findings: what stands out in the readings, in plain sentences.

Each finder answers one question about the whole model, so that no two findings contradict each other. A finding says
what it means and what to do about it, then the number.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from attnworks.core.display import counted, format_number
from attnworks.core.places import HeadId, Kind, Slot
from attnworks.exam.examination import ExamFinding
from attnworks.exam.reading import NO_ROLE, HeadValue, ModelReadings, Readings, joined_with_and, role_group

SINK_SHARE = 0.5
"""A head whose mean attention to the first token is above this is a sink."""
MAX_TWIN_DISTANCE = 0.1
"""Heads nearer than this attend to the same keys."""
NEGLIGIBLE_LOSS_CHANGE = 1e-3
"""A head can be removed if the loss changes by less than this without it."""
FAINT_GRADIENT_SHARE = 0.01
"""Heads whose gradient is below this share of the largest hardly affect the loss."""
MEAN_COSINE_ALIKE = 0.9
"""Tokens are nearly the same where their mean cosine is this or more."""
RESIDUAL_DROP = 0.5
"""Tokens become alike if the residual falls below this share of the first one at some depth."""
MIN_RESIDUAL_SHARE = 0.1
"""There is no collapse if the relative residual is this or more at every depth."""
SATURATED_JACOBIAN, ONE_KEY_WEIGHT = 0.05, 0.9
"""A head is saturated if its mean Jacobian norm is below the first and its mean largest weight above the second."""
MOST_ATTENTION_SHARE = 0.8
"""The share of the output that counts as most of it."""
OPPOSING_PATH_SHARE = 0.01
"""Paths work against the others if they subtract more than this share of the output."""
FEW_LAYERS_SHARE = 0.5
"""Few attention layers are at most this share of all."""
LOOSE_BOUND_FACTOR = 10.0
"""A bound predicts nothing if it is this many times the measured value or more."""
HEADS_NAMED = 4
"""The largest number of heads that a finding names."""

ROLE_SENTENCES = {
    "previous": "attends to the previous token",
    "next": "attends to the next token",
    "self": "attends to the token itself",
    "offset": "attends at another fixed offset",
    "first": "attends to the first token more than chance",
    "delimiter": "attends to delimiters",
    "syntactic": "attends to the syntactic head",
    "rare": "attends to the rarest token",
    "uniform": "attends to all tokens nearly evenly",
    "induction": "attends to what followed the same token before (induction)",
    "duplicate": "attends to the same token elsewhere",
}
POSITION_ROLES = ("previous", "next", "self", "offset", "uniform")
CONTENT_ROLES = ("syntactic", "rare", "induction", "duplicate")
ROLES_BY_INTEREST = (
    "induction", "syntactic", "previous", "next", "duplicate", "rare", "self", "delimiter", "uniform", "first",
)  # fmt: skip
SINK_ADVICE = "such heads often do little else; try attnworks prune"
FORM_NAMES = {
    "identity": "diagonal",
    "offset": "shifted diagonal",
    "column": "one column",
    "columns": "blocks of columns",
    "band": "band",
    "permutation": "permutation",
}
"""Structured forms by their names on the page."""


def find(readings: Readings) -> tuple[ExamFinding, ...]:
    """All findings by group, in each the largest effect first. Missing readings and NaN are ignored."""
    model = ModelReadings(readings)
    found: list[ExamFinding] = []
    for group, finders in FINDERS.items():
        of_group = [replace(finding, group=group) for finder in finders for finding in finder(model)]
        found += sorted(of_group, key=lambda finding: -finding.weight)
    return tuple(found)


# What heads do --------------------------------------------------------------------------------------------------------


def head_roles(model: ModelReadings) -> Iterator[ExamFinding]:
    """One finding for every label except `first`, which `first_token_heads` covers."""
    return (_role(model, group, heads) for group, heads in _by_role(model).items() if group != "first")


def first_token_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """Heads with the label `first`, which is tested against chance, and heads with more than half of it there."""
    heads = model.heads("sinks.first")
    sinks = [head for head in heads if head.value > SINK_SHARE]
    if labelled := _by_role(model).get("first"):
        inside = {head.id for head in sinks} <= {head.id for head in labelled}
        which = f"{len(sinks)} of them" if inside else f"{len(sinks)} of all {len(heads)}"
        more = f", {f'{which} ' * (len(labelled) > 1 or not inside)}with over half of {_their(sinks)} attention"
        found = _role(model, "first", labelled, more * bool(sinks))
        yield replace(found, readings=(*found.readings, *["sinks.first"] * bool(sinks)))
    elif sinks:
        text = f"{_counted(model, sinks, len(heads))} {_verb('gives', sinks)} more than half of {_their(sinks)} "
        text += f"attention to the first token: {SINK_ADVICE}"
        yield ExamFinding(text, 0.3 + 0.35 * len(sinks) / len(heads), ("sinks.first",), _names(sinks))


def _by_role(model: ModelReadings) -> dict[str, list[HeadValue]]:
    """The heads of each role, the highest score first."""
    scores = model.at("roles.score")
    groups: dict[str, list[HeadValue]] = defaultdict(list)
    for head, label in model.labels("roles.label").items():
        if label != NO_ROLE:
            groups[role_group(label)].append(HeadValue(head, scores.get(head, math.nan)))
    for heads in groups.values():
        heads.sort(key=lambda head: -head.value if math.isfinite(head.value) else math.inf)
    return groups


def _role(model: ModelReadings, group: str, heads: list[HeadValue], more: str = "") -> ExamFinding:
    does = _offsets(model, heads) if group == "offset" else ROLE_SENTENCES.get(group, f"has the label {group!r}")
    verb, _, what = does.partition(" ")
    most = f"head {model.name_of(heads[0])} most, " if len(heads) > 1 else ""
    best = heads[0].value
    score = f" ({most}{_score(group, best)})" if math.isfinite(best) else ""
    rank = ROLES_BY_INTEREST.index(group) / len(ROLES_BY_INTEREST) if group in ROLES_BY_INTEREST else 0.5
    share = len(heads) / len(model.labels("roles.label"))
    weight = 0.2 + 0.4 * share + 0.2 * (1 - rank) + 0.2 * (best if 0 <= best <= 1 else 0.5)
    text = f"{_counted(model, heads)} {_verb(verb, heads)} {what}{more}{_advice(model, group, heads)}{score}"
    return ExamFinding(text, weight, ("roles.label", "roles.score"), _names(heads))


def _advice(model: ModelReadings, group: str, heads: list[HeadValue]) -> str:
    """What a role means and what to do about it; a fixed form is advised for self-attention heads that have one."""
    them = "it" if len(heads) == 1 else "them"
    if group in POSITION_ROLES:
        if all(head.crosses for head in heads):
            return ": the order of the two texts decides, as in word-by-word alignment" if group == "offset" else ""
        forms = model.labels("structure.form")
        fixed = [head for head in heads if not head.crosses and forms.get(head.id, group) != NO_ROLE]
        which = them if len(fixed) == len(heads) else f"{len(fixed)} of them"
        return (
            f": content matters little{f', so a fixed form may replace {which}; try attnworks project' * bool(fixed)}"
        )
    if group in CONTENT_ROLES:
        return f": content decides, so no fixed form can replace {them}"
    return f": {SINK_ADVICE}" if group in ("first", "delimiter") else ""


def _score(group: str, value: float) -> str:
    if group == "syntactic":
        return f"right for {format_number(value)} of the tokens"
    return f"{format_number(value)} of {'the tokens' if group == 'uniform' else 'the attention'}"


def _offsets(model: ModelReadings, heads: list[HeadValue]) -> str:
    """attends 2 tokens back; for several offsets: attends at a fixed offset (2 tokens back: 3, ...)."""
    own = {head.id for head in heads}
    counts = Counter(_offset(label) for head, label in model.labels("roles.label").items() if head in own)
    if len(counts) == 1:
        return f"attends {next(iter(counts))}"
    return f"attends at a fixed offset ({', '.join(f'{place}: {count}' for place, count in counts.most_common())})"


def _offset(label: str) -> str:
    """offset -2: 2 tokens back."""
    offset = label.removeprefix("offset ")
    if not offset.lstrip("-").isdigit():
        return f"at {label}"
    if offset == "0":
        return "to the same position"
    away = abs(int(offset))
    return f"{away} token{'s' if away > 1 else ''} {'back' if offset[0] == '-' else 'ahead'}"


def structured_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """How many heads have a structured form, and the head that its form explains best."""
    labels, explained = model.labels("structure.form"), model.at("structure.explained")
    forms = {head: form for head, form in labels.items() if form in FORM_NAMES and head in explained}
    if not forms:
        return
    heads = [HeadValue(head, explained[head]) for head in sorted(forms, key=lambda head: -explained[head])]
    best, counts = heads[0], Counter(forms.values()).most_common()
    what = f"a structured form, which explains at least half of {_their(heads)} attention"
    advice = "" if all(head.crosses for head in heads) else ": try attnworks project"
    text = f"{len(heads)} of {len(labels)} heads {_verb('has', heads)} {what}{advice} "
    text += f"({', '.join(f'{count} {FORM_NAMES[form]}' for form, count in counts)}; "
    text += f"{FORM_NAMES[forms[best.id]]} explains {_percent(best.value)} of head {model.name_of(best)})"
    weight = 0.45 + 0.2 * len(heads) / len(labels)
    yield ExamFinding(text, weight, ("structure.form", "structure.explained"), _names(heads))


# What can be removed or is missing ------------------------------------------------------------------------------------


def redundant_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    pairs: list[tuple[float, HeadValue, HeadValue]] = []
    for reading in model.readings.of("redundancy.distance"):
        for layer, row in enumerate(reading.value):
            assert isinstance(row, Tensor)
            slot = Slot(reading.kind, layer)
            for one, other in torch.triu_indices(*row.shape, offset=1).T.tolist():
                if (distance := float(row[one, other])) < MAX_TWIN_DISTANCE:
                    first, second = (HeadValue(HeadId(slot, head), distance) for head in (one, other))
                    pairs.append((distance, first, second))
    if pairs:
        distance, one, other = min(pairs)
        more = f"; {counted(len(pairs) - 1, 'more pair')}" if len(pairs) > 1 else ""
        text = f"heads {model.name_of(one)} and {model.name_of(other)} attend to the same keys: one of them may be "
        text += f"enough; try attnworks prune (distance {format_number(distance)}{more})"
        names = dict.fromkeys(str(head.id) for pair in sorted(pairs) for head in pair[1:])
        weight = 0.6 + 0.1 * (1 - distance / MAX_TWIN_DISTANCE)
        yield ExamFinding(text, weight, ("redundancy.distance",), tuple(names))


def ablated_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """Judged by both ends of the interval; heads without an interval, as after a single sentence, are left out."""
    name = "ablation.change"
    heads = model.heads(name)
    low, high = (model.at(name, end) for end in (0, 1))
    known = [(head, low[head.id], high[head.id]) for head in heads if head.id in low and head.id in high]
    idle = [head for head, least, most in known if max(abs(least), abs(most)) < NEGLIGIBLE_LOSS_CHANGE]
    harmful = [head for head, _, most in known if most < -NEGLIGIBLE_LOSS_CHANGE]
    needed = [head for head, least, _ in known if least > NEGLIGIBLE_LOSS_CHANGE]
    idle.sort(key=lambda head: abs(head.value))
    if idle:
        several = len(idle) > 1
        listed = f" ({_listed(model, idle)})" if several else ""
        text = f"{_counted(model, idle, len(heads))}{listed} can probably be removed{', one at a time' * several}: try "
        text += f"attnworks prune; the loss changes by less than {format_number(NEGLIGIBLE_LOSS_CHANGE)} without "
        text += "any of them" if several else "it"
        yield ExamFinding(text, 0.65 + 0.2 * len(idle) / len(heads), (name,), _names(idle))
    if harmful:
        worst = min(harmful, key=lambda head: head.value)
        without = f"{model.name_of(worst)}, the worst" if len(harmful) > 1 else "it"
        text = f"{_counted(model, harmful)} {_verb('does', harmful)} harm on this text: try attnworks prune; "
        text += f"the loss is {format_number(-worst.value)} lower without {without}"
        yield ExamFinding(text, 0.75, (name,), _names(harmful))
    if needed and len(heads) > 1:
        most = max(needed, key=lambda head: head.value)
        rise = format_number(most.value)
        text = f"head {model.name_of(most)} matters most: keep it; the loss is {rise} higher without it"
        yield ExamFinding(text, 0.6, (name,), (str(most.id),))


def faint_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    heads = model.heads("importance.gradient")
    if len(heads) < 2 or model.readings.of("ablation.change"):
        return
    largest = max(heads, key=lambda head: head.value)
    least = FAINT_GRADIENT_SHARE * largest.value
    faint = sorted((head for head in heads if head.value < least), key=lambda head: head.value)
    if faint:
        listed = f" ({_listed(model, faint)})" if len(faint) > 1 else ""
        text = f"{_counted(model, faint, len(heads))}{listed} hardly {_verb('affects', faint)} the loss: "
        text += "measure ablation to see what can be removed "
        text += f"(gradient below {_percent(FAINT_GRADIENT_SHARE)} of that of {model.name_of(largest)})"
    else:
        size = format_number(largest.value)
        text = f"the loss depends most on head {model.name_of(largest)}: keep it (gradient {size})"
    yield ExamFinding(text, 0.55, ("importance.gradient",), _names(faint or [largest]))


def narrow_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    for what in ("keys", "values"):
        name = f"bottleneck.{what}"
        all_heads = model.heads(name)
        heads = [head for head in all_heads if head.value > 0]
        if heads:
            most = max(heads, key=lambda head: head.value)
            text = f"{_counted(model, heads, len(all_heads))} would gain from wider {what}: try attnworks grow; "
            text += f"the loss should fall by {format_number(most.value)} per 1000 parameters"
            text += f" in {model.name_of(most)}, the most" if len(heads) > 1 else ""
            yield ExamFinding(text, 0.7, (name,), _names(heads))
        elif all_heads:
            text = f"no head needs wider {what}: growing them would not lower the loss on other sentences"
            yield ExamFinding(text, 0.5, (name,), ())


# Health of gradients and the residual stream --------------------------------------------------------------------------


def _saturated(model: ModelReadings) -> Iterator[ExamFinding]:
    """Saturated heads have a small Jacobian and a large weight; attention spread over many keys has only the first."""
    top = model.at("saturation.max_weight")
    flat = [head for head in model.heads("saturation.jacobian") if head.value < SATURATED_JACOBIAN]
    found = sorted((head for head in flat if top.get(head.id, 0.0) > ONE_KEY_WEIGHT), key=lambda head: head.value)
    if found:
        most = f"head {model.name_of(found[0])} most, " if len(found) > 1 else ""
        text = f"{_counted(model, found)} {_verb('is', found)} saturated: each query attends to almost one key, so "
        text += f"little gradient reaches {_their(found)} scores; to train further, scale {_their(found)} queries down "
        text += f"({most}mean Jacobian norm {format_number(found[0].value)})"
        weight = 0.5 + 0.2 * (1 - found[0].value / SATURATED_JACOBIAN)
        yield ExamFinding(text, weight, ("saturation.jacobian", "saturation.max_weight"), _names(found))


def _collapse(model: ModelReadings) -> Iterator[ExamFinding]:
    """Whether tokens become alike, by cosine and by the least residual at any depth; no collapse only if both agree."""
    alike, falls, kept = list(_alike(model)), [], []
    for kind, curve in model.curves("rank.residual").items():
        if len(curve) < 2 or curve[min(curve)] <= 0:
            continue
        lowest = min(curve, key=lambda depth: curve[depth])
        left = curve[lowest] / curve[min(curve)]
        if left < RESIDUAL_DROP:
            falls.append((left, kind, lowest))
        else:
            kept.append((curve[lowest], kind, lowest))
    yield from alike
    if falls:
        yield _falling(model, sorted(falls))
    elif kept and min(kept)[0] >= MIN_RESIDUAL_SHARE and not alike:
        least, kind, lowest = min(kept)
        share, where = format_number(least), f"{model.stack(kind)}depth {lowest}"
        text = "no rank collapse: tokens stay apart at every depth, so nothing needs to change "
        text += f"(the smallest part of the stream in which they differ is {share}, at {where})"
        yield ExamFinding(text, 0.35, ("rank.residual",))


def _alike(model: ModelReadings) -> Iterator[ExamFinding]:
    places, most = [], 0.0
    for kind, curve in model.curves("rank.cosine").items():
        for first, last in _runs(depth for depth, value in curve.items() if value >= MEAN_COSINE_ALIKE):
            places.append(_after(first, last, model.stack(kind)))
            most = max(most, *(curve[depth] for depth in range(first, last + 1)))
    if places:
        text = f"tokens are nearly the same {joined_with_and(places)}: attention can hardly distinguish them there, "
        up_to = " up to" * (len(places) > 1)
        text += f"check skip connections and norms (mean cosine{up_to} {format_number(most)})"
        weight = 0.8 + 0.2 * min(1.0, (most - MEAN_COSINE_ALIKE) / (1 - MEAN_COSINE_ALIKE))
        yield ExamFinding(text, weight, ("rank.cosine",))


def _falling(model: ModelReadings, falls: list[tuple[float, Kind, int]]) -> ExamFinding:
    """All stacks where tokens become alike, with the numbers of the one where they do most."""
    _, kind, lowest = falls[0]
    curve = model.curves("rank.residual")[kind]
    first, last = min(curve), max(curve)
    before, least, after = curve[first], curve[lowest], curve[last]
    where = model.in_stacks(kind for _, kind, _ in falls)
    text = f"tokens become alike with depth{where}: later layers can hardly distinguish them, check skip connections "
    text += f"and norms ({format_number(before)} of the stream differs at depth {first}, "
    text += f"{format_number(least)} at {model.stack(kind) if len(falls) > 1 else ''}depth {lowest}"
    text += f", {format_number(after)} at depth {last})" if after > least else ")"
    return ExamFinding(text, 0.9 - 0.2 * min(1.0, after / before), ("rank.residual",))


def _paths(model: ModelReadings) -> Iterator[ExamFinding]:
    """How many attention layers the output passes; all stacks in one finding."""
    carried: list[tuple[float, str]] = []
    against: list[tuple[float, str]] = []
    for kind, share in model.curves("paths.share").items():
        if len(share) < 2:
            continue
        longest = max(share)
        least = min(share, key=lambda length: share[length])
        up_to = {n: sum(share[m] for m in share if m <= n) for n in sorted(share)}
        enough = next((n for n, part in up_to.items() if part >= MOST_ATTENTION_SHARE), longest)
        if share[least] < -OPPOSING_PATH_SHARE:
            part = f"{_percent(-share[least])} of the output{model.in_stacks([kind])}"
            against.append((-share[least], f"those through {counted(least, 'attention layer')} subtract {part}"))
        else:
            part = f"{_percent(up_to[enough])} through at most {enough} of {longest}"
            carried.append((enough / longest, f"{model.stack(kind)}{part}"))
    if against:
        text = "some paths work against the others: measure ablation to see which heads can be removed "
        text += f"({'; '.join(text for _, text in against)})"
        yield ExamFinding(text, 0.45 + 0.1 * min(1.0, max(against)[0]), ("paths.share",))
    if carried:
        few = "most of the output passes few attention layers: they hardly build on one another, so fewer may be enough"
        many = "much of the output passes many attention layers: they build on one another, so keep all of them"
        parts = ", ".join(part for _, part in carried)
        text = f"{few if max(carried)[0] <= FEW_LAYERS_SHARE else many} ({parts})"
        yield ExamFinding(text, 0.3 + 0.3 * (1 - min(carried)[0]), ("paths.share",))


def _bounds(model: ModelReadings) -> Iterator[ExamFinding]:
    curves = model.curves("bounds.ratio")
    ratios = [(ratio, model.stack(kind), layer) for kind, curve in curves.items() for layer, ratio in curve.items()]
    if ratios:
        ratio, stack, layer = min(ratios)
        where = f"{stack}layer {layer}"
        tight = f"the weights of {where} limit how far apart tokens stay: only larger ones would allow more "
        tight += f"(the diameter bound is {format_number(ratio)} times the measured diameter)"
        loose = "the diameter bound is too loose to predict how far apart tokens stay: use the measured diameter "
        loose += f"(the bound is {format_number(ratio)} times that in {where}, and more in others)"
        is_tight = ratio < LOOSE_BOUND_FACTOR
        yield ExamFinding(tight if is_tight else loose, 0.5 if is_tight else 0.3, ("bounds.ratio",))


FINDERS: dict[str, tuple[Callable[[ModelReadings], Iterable[ExamFinding]], ...]] = {
    "What heads do": (head_roles, first_token_heads, structured_heads),
    "What can be removed or is missing": (ablated_heads, faint_heads, redundant_heads, narrow_heads),
    "Health of gradients and the residual stream": (_saturated, _collapse, _paths, _bounds),
}
"""Group -> its finders, in the order in which groups are shown."""


# Words ----------------------------------------------------------------------------------------------------------------


def _runs(depths: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of every run of consecutive numbers."""
    for _, places in groupby(enumerate(depths), lambda place: place[1] - place[0]):
        run = [depth for _, depth in places]
        yield run[0], run[-1]


def _after(first: int, last: int, stack: str) -> str:
    """The place of a run of depths in words: depth 0 is the embeddings, depth d the output of layer d - 1."""
    if last == 0:
        return f"at the {stack}embeddings"
    if first == 0:
        return f"from the {stack}embeddings to layer {last - 1}"
    return f"after {stack}layer {first - 1}" if first == last else f"after {stack}layers {first - 1}-{last - 1}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _counted(model: ModelReadings, heads: list[HeadValue], of: int | None = None) -> str:
    """head 0.2; 3 heads; 3 of 8 heads."""
    if len(heads) == 1:
        return f"head {model.name_of(heads[0])}"
    return f"{len(heads)} heads" if of is None else f"{len(heads)} of {of} heads"


def _verb(verb: str, heads: list[HeadValue]) -> str:
    """attends for one head, attend for several."""
    return verb if len(heads) == 1 else {"has": "have", "is": "are", "does": "do"}.get(verb, verb.removesuffix("s"))


def _their(heads: list[HeadValue]) -> str:
    return "its" if len(heads) == 1 else "their"


def _names(heads: list[HeadValue]) -> tuple[str, ...]:
    return tuple(str(head.id) for head in heads)


def _listed(model: ModelReadings, heads: list[HeadValue]) -> str:
    return ", ".join(model.name_of(head) for head in heads[:HEADS_NAMED]) + ", ..." * (len(heads) > HEADS_NAMED)
