"""What stands out in the readings, said in plain words.

Each finder answers one question about the whole model, so that no two findings contradict each other. A finding says
what it means and what to do about it, then the number.
"""

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
from attnworks.traces.layer import Kind, Slot

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
"""Heads nearer than this attend to the same keys."""
LITTLE = 1e-3
"""A change of the objective that does not matter."""
FAINT = 0.01
"""A gradient below this part of the largest is hardly felt."""
MOST = 0.8
AGAINST = 0.01
"""Paths work against the others if they take more than this part of the output away."""
FEW_LAYERS = 0.5
"""Paths through at most this part of the attention layers are short."""
LOOSE = 10.0
NAMED = 4
"""Heads that one finding names."""

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
STACKS = {"encoder": "encoder", "decoder": "decoder", "cross": "cross-attention"}
TELLING = ("induction", "syntactic", "previous", "next", "duplicate", "rare", "self", "delimiter", "uniform", "first")
"""Roles from the most to the least telling."""


class Head(NamedTuple):
    """A head and its value in some reading."""

    slot: Slot
    head: int
    value: float

    @property
    def at(self) -> tuple[Slot, int]:
        return self.slot, self.head

    @property
    def full_name(self) -> str:
        return f"{self.slot}.{self.head}"


def find(readings: Readings) -> tuple[Finding, ...]:
    """All findings, group after group; in a group the largest effect first.

    Readings that are absent, or hold no number, are passed over.
    """
    look = _Look(readings)
    found: list[Finding] = []
    for group, finders in FINDERS.items():
        of_group = [replace(finding, group=group) for finder in finders for finding in finder(look)]
        found += sorted(of_group, key=lambda finding: -finding.weight)
    return tuple(found)


def role_group(label: str) -> str:
    """The label under which heads are counted together: all offsets are `offset`."""
    return "offset" if label.startswith("offset ") else label


class _Look:
    """The readings of a model, and how its heads are called."""

    def __init__(self, readings: Readings) -> None:
        self.readings, self.several = readings, len(readings.kinds()) > 1

    def heads(self, name: str, end: int | None = None) -> list[Head]:
        """Every head that has a number in this reading, or (0, 1) at this end of its interval."""
        return [
            Head(Slot(reading.kind, layer), head, value)
            for reading in self.readings.of(name)
            for layer, row in enumerate(_values(reading, end))
            if isinstance(row, Tensor)
            for head, value in enumerate(row.tolist())
            if math.isfinite(value)
        ]

    def at(self, name: str, end: int | None = None) -> dict[tuple[Slot, int], float]:
        """(slot, head) -> value, or one end of its interval."""
        return {head.at: head.value for head in self.heads(name, end)}

    def curves(self, name: str) -> dict[Kind, dict[int, float]]:
        """Of every stack: depth (or layer, or length) -> value, where there is a number."""
        found: dict[Kind, dict[int, float]] = {}
        for reading in self.readings.of(name):
            rows = [row for row in reading.value if isinstance(row, Tensor)]
            if len(reading.axes) == 1 and rows:
                values = torch.stack(rows).flatten() if reading.layered else rows[0]
                found[reading.kind] = {at: value for at, value in enumerate(values.tolist()) if math.isfinite(value)}
        return found

    def labels(self, name: str) -> list[tuple[Slot, int, str]]:
        return [
            (Slot(reading.kind, layer), head, label)
            for reading in self.readings.of(name)
            for layer, row in enumerate(reading.value)
            if isinstance(row, tuple)
            for head, label in enumerate(row)
        ]

    def say(self, head: Head) -> str:
        return head.full_name if self.several else f"{head.slot.layer}.{head.head}"

    def stack(self, kind: Kind) -> str:
        """The name of a stack before "layer 3" or "depth 3"; nothing where there is only one."""
        return f"{STACKS[kind]} " if self.several else ""

    def in_stacks(self, kinds: Iterable[Kind]) -> str:
        """ " in the encoder and the decoder"; nothing where there is only one stack."""
        return f" in {_and([f'the {STACKS[kind]}' for kind in kinds])}" if self.several else ""


def _values(reading: Reading, end: int | None) -> tuple[Tensor | tuple[str, ...], ...]:
    if end is None:
        return reading.value
    return () if reading.interval is None else reading.interval[end]


# What heads do -------------------------------------------------------------------------------------------------------


def _roles(look: _Look) -> Iterator[Finding]:
    """Every label but `first`, which `_first_token` covers; counts are those of the grid of heads."""
    for group, heads in _by_role(look).items():
        if group != "first":
            yield _role(look, group, heads)


def _first_token(look: _Look) -> Iterator[Finding]:
    """Heads labelled `first`, and heads that give the first token more than half."""
    heads = look.heads("sinks.first")
    sinks = [head for head in heads if head.value > SINK]
    if labelled := _by_role(look).get("first"):
        found = _role(look, "first", labelled)
        more = f"; {len(sinks)} of {len(heads)} heads give it more than half" if sinks else ""
        yield replace(found, text=found.text + more, readings=(*found.readings, *["sinks.first"] * bool(sinks)))
    elif sinks:
        gives = f"{_who(look, sinks, len(heads))} {_verb('gives', sinks)} more than half of {_their(sinks)}"
        text = f"{gives} attention to the first token"
        yield Finding(f"{text}: {SINK_ADVICE}", 0.3 + 0.35 * len(sinks) / len(heads), ("sinks.first",), _names(sinks))


def _by_role(look: _Look) -> dict[str, list[Head]]:
    """The heads of each role, the highest score first."""
    scores = look.at("roles.score")
    groups: dict[str, list[Head]] = defaultdict(list)
    for slot, head, label in look.labels("roles.label"):
        if label != NO_ROLE:
            groups[role_group(label)].append(Head(slot, head, scores.get((slot, head), math.nan)))
    for heads in groups.values():
        heads.sort(key=lambda head: -head.value if math.isfinite(head.value) else math.inf)
    return groups


def _role(look: _Look, group: str, heads: list[Head]) -> Finding:
    does = _offsets(look, heads) if group == "offset" else ROLES.get(group, f"has the label {group!r}")
    verb, _, what = does.partition(" ")
    most = f"{look.say(heads[0])} most, " if len(heads) > 1 else ""
    best = heads[0].value
    score = f" ({most}{_score(group, best)})" if math.isfinite(best) else ""
    telling = 1 - TELLING.index(group) / len(TELLING) if group in TELLING else 0.5
    share = len(heads) / len(look.labels("roles.label"))
    weight = 0.2 + 0.4 * share + 0.2 * telling + 0.2 * (best if 0 <= best <= 1 else 0.5)
    text = f"{_who(look, heads)} {_verb(verb, heads)} {what}{_advice(look, group, heads)}{score}"
    return Finding(text, weight, ("roles.label", "roles.score"), _names(heads))


def _advice(look: _Look, group: str, heads: list[Head]) -> str:
    """What a role means and what can be done about it; fixed forms are for self-attention heads that have a form."""
    them = "it" if len(heads) == 1 else "them"
    if group in BY_POSITION:
        if all(head.slot.kind == "cross" for head in heads):
            return ": the order of the two texts decides, as in word-by-word alignment" if group == "offset" else ""
        forms = {(slot, head): form for slot, head, form in look.labels("structure.form")}
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


def _offsets(look: _Look, heads: list[Head]) -> str:
    """attends 2 tokens back; of several offsets: attends at a fixed offset (2 tokens back: 3, ...)."""
    own = {head.at for head in heads}
    counts = Counter(_offset_words(label) for slot, at, label in look.labels("roles.label") if (slot, at) in own)
    if len(counts) == 1:
        return f"attends {next(iter(counts))}"
    return f"attends at a fixed offset ({', '.join(f'{words}: {count}' for words, count in counts.most_common())})"


def _structured(look: _Look) -> Iterator[Finding]:
    """How many heads have a structured form, and the head that its form explains best."""
    labels, explained = look.labels("structure.form"), look.at("structure.explained")
    forms = {(slot, head): form for slot, head, form in labels if form in FORMS and (slot, head) in explained}
    if not forms:
        return
    heads = [Head(*at, explained[at]) for at in sorted(forms, key=lambda at: -explained[at])]
    best, counts = heads[0], Counter(forms.values()).most_common()
    have = "heads have" if len(heads) > 1 else "heads has"
    text = (
        f"{len(heads)} of {len(labels)} {have} a structured form, which explains at least half and is worth the length "
    )
    text += f"of its description ({', '.join(f'{count} {FORMS[form]}' for form, count in counts)}): "
    text += f"{FORMS[forms[best.at]]} explains {_percent(best.value)} of {look.say(best)}"
    if any(head.slot.kind != "cross" for head in heads):
        text += "; try reshape project"
    weight = 0.45 + 0.2 * len(heads) / len(labels)
    yield Finding(text, weight, ("structure.form", "structure.explained"), _names(heads))


# What can be removed or is missing ------------------------------------------------------------------------------------


def _redundant(look: _Look) -> Iterator[Finding]:
    pairs: list[tuple[float, Head, Head]] = []
    for reading in look.readings.of("redundancy.distance"):
        for layer, row in enumerate(reading.value):
            assert isinstance(row, Tensor)
            slot = Slot(reading.kind, layer)
            for one, other in torch.triu_indices(*row.shape, offset=1).T.tolist():
                if (distance := float(row[one, other])) < SAME:
                    pairs.append((distance, Head(slot, one, distance), Head(slot, other, distance)))
    if pairs:
        distance, one, other = min(pairs)
        more = {1: "", 2: "; so does one more pair"}.get(len(pairs), f"; so do {len(pairs) - 1} more pairs")
        text = f"heads {look.say(one)} and {look.say(other)} attend to the same keys: one of them may be enough, try "
        text += f"reshape prune (distance {number(distance)}){more}"
        names = dict.fromkeys(head.full_name for pair in sorted(pairs) for head in pair[1:])
        yield Finding(text, 0.6 + 0.1 * (1 - distance / SAME), ("redundancy.distance",), tuple(names))


def _ablated(look: _Look) -> Iterator[Finding]:
    """Judged by both ends of the interval; a head without one, as after a single sentence, is not judged."""
    name = "ablation.change"
    heads = look.heads(name)
    low, high = (look.at(name, end) for end in (0, 1))
    judged = [(head, low[head.at], high[head.at]) for head in heads if head.at in low and head.at in high]
    idle = [head for head, least, most in judged if max(abs(least), abs(most)) < LITTLE]
    harmful = [head for head, _, most in judged if most < -LITTLE]
    needed = [head for head, least, _ in judged if least > LITTLE]
    idle.sort(key=lambda head: abs(head.value))
    if idle:
        one_by_one = ", one at a time" if len(idle) > 1 else ""
        listed = f" ({_listed(look, idle)})" if len(idle) > 1 else ""
        text = f"{_who(look, idle, len(heads))}{listed} can probably be removed{one_by_one}: try reshape prune; "
        text += f"the loss changes by less than {number(LITTLE)} without {'any of them' if len(idle) > 1 else 'it'}"
        yield Finding(text, 0.65 + 0.2 * len(idle) / len(heads), (name,), _names(idle))
    if harmful:
        worst = min(harmful, key=lambda head: head.value)
        without = f"{look.say(worst)}, the worst" if len(harmful) > 1 else "it"
        text = f"{_who(look, harmful)} {_verb('does', harmful)} harm on this text: try reshape prune; "
        text += f"the loss is {number(-worst.value)} lower without {without}"
        yield Finding(text, 0.75, (name,), _names(harmful))
    if needed and len(heads) > 1:
        most = max(needed, key=lambda head: head.value)
        text = f"head {look.say(most)} matters most: keep it; the loss is {number(most.value)} higher without it"
        yield Finding(text, 0.6, (name,), (most.full_name,))


def _faint(look: _Look) -> Iterator[Finding]:
    heads = look.heads("importance.gradient")
    if len(heads) < 2 or look.readings.of("ablation.change"):
        return
    loudest = max(heads, key=lambda head: head.value)
    faint = sorted((head for head in heads if head.value < FAINT * loudest.value), key=lambda head: head.value)
    if faint:
        listed = f" ({_listed(look, faint)})" if len(faint) > 1 else ""
        text = f"{_who(look, faint, len(heads))}{listed} hardly {_verb('affects', faint)} the loss: measure "
        text += f"ablation to see what can be removed (gradient below {_percent(FAINT)} of that of {look.say(loudest)})"
    else:
        text = f"the loss depends most on head {look.say(loudest)}: keep it (gradient {number(loudest.value)})"
    yield Finding(text, 0.55, ("importance.gradient",), _names(faint or [loudest]))


def _narrow(look: _Look) -> Iterator[Finding]:
    for what in ("keys", "values"):
        name = f"bottleneck.{what}"
        all_heads = look.heads(name)
        heads = [head for head in all_heads if head.value > 0]
        if heads:
            most = max(heads, key=lambda head: head.value)
            text = f"{_who(look, heads, len(all_heads))} would gain from wider {what}: try reshape grow; "
            text += f"the loss should fall by {number(most.value)} per 1000 parameters"
            text += f" in {look.say(most)}, the most" if len(heads) > 1 else ""
            yield Finding(text, 0.7, (name,), _names(heads))
        elif all_heads:
            text = f"no head needs wider {what}: growth in no direction lowers the loss on other sentences"
            yield Finding(text, 0.5, (name,), ())


# Health of gradients and the residual stream --------------------------------------------------------------------------


def _saturated(look: _Look) -> Iterator[Finding]:
    """A small Jacobian alone could also mean attention spread over many keys: the largest weight tells them apart."""
    top = look.at("saturation.max_weight")
    flat = [head for head in look.heads("saturation.jacobian") if head.value < SATURATED]
    found = sorted((head for head in flat if top.get(head.at, 0.0) > ONE_KEY), key=lambda head: head.value)
    if found:
        most = f"{look.say(found[0])} most, " if len(found) > 1 else ""
        text = f"{_who(look, found)} {_verb('is', found)} saturated: each query attends to almost one key, so little "
        text += f"gradient reaches {_their(found)} scores ({most}mean Jacobian norm {number(found[0].value)})"
        weight = 0.5 + 0.2 * (1 - found[0].value / SATURATED)
        yield Finding(text, weight, ("saturation.jacobian", "saturation.max_weight"), _names(found))


def _collapse(look: _Look) -> Iterator[Finding]:
    """Whether tokens become alike, by cosine and by residual; that there is no collapse only if both agree.

    The residual is judged by the depth where least is left, wherever it lies.
    """
    alike, falls, kept = list(_alike(look)), [], []
    for kind, curve in look.curves("rank.residual").items():
        if len(curve) < 2 or curve[min(curve)] <= 0:
            continue
        lowest = min(curve, key=lambda depth: curve[depth])
        left = curve[lowest] / curve[min(curve)]
        if left < APART:
            falls.append((left, kind, lowest))
        else:
            kept.append((curve[lowest], kind, lowest))
    yield from alike
    if falls:
        yield _falling(look, sorted(falls))
    elif kept and min(kept)[0] >= KEPT and not alike:
        least, kind, lowest = min(kept)
        text = "no rank collapse: tokens stay apart at every depth "
        text += f"(they differ in {number(least)} of the stream or more, least at {look.stack(kind)}depth {lowest})"
        yield Finding(text, 0.35, ("rank.residual",))


def _alike(look: _Look) -> Iterator[Finding]:
    places, most = [], 0.0
    for kind, curve in look.curves("rank.cosine").items():
        for first, last in _runs(depth for depth, value in curve.items() if value >= ALIKE):
            places.append(_after(first, last, look.stack(kind)))
            most = max(most, *(curve[depth] for depth in range(first, last + 1)))
    if places:
        text = f"tokens are nearly the same {_and(places)}: attention can hardly tell them apart there "
        text += f"(mean cosine{' up to' if len(places) > 1 else ''} {number(most)})"
        yield Finding(text, 0.8 + 0.2 * min(1.0, (most - ALIKE) / (1 - ALIKE)), ("rank.cosine",))


def _falling(look: _Look, falls: list[tuple[float, Kind, int]]) -> Finding:
    """About all stacks where tokens come together, with the numbers of the one where they do most."""
    _, kind, lowest = falls[0]
    curve = look.curves("rank.residual")[kind]
    first, last = min(curve), max(curve)
    before, least, after = curve[first], curve[lowest], curve[last]
    where = look.in_stacks(kind for _, kind, _ in falls)
    text = f"tokens become alike with depth{where}: later layers can hardly tell them apart, check skip connections "
    text += f"and norms ({number(before)} of the stream differs at depth {first}, "
    text += f"{number(least)} at {look.stack(kind) if len(falls) > 1 else ''}depth {lowest}"
    text += f", {number(after)} at depth {last})" if after > least else ")"
    return Finding(text, 0.9 - 0.2 * min(1.0, after / before), ("rank.residual",))


def _paths(look: _Look) -> Iterator[Finding]:
    """How many attention layers the output passes; of every stack in one finding."""
    carried: list[tuple[float, str]] = []
    against: list[tuple[float, str]] = []
    for kind, share in look.curves("paths.share").items():
        if len(share) < 2:
            continue
        longest = max(share)
        least = min(share, key=lambda length: share[length])
        enough = next((n for n in sorted(share) if sum(share[m] for m in share if m <= n) >= MOST), longest)
        if share[least] < -AGAINST:
            lost = f"{_percent(-share[least])} of the output{look.in_stacks([kind])}"
            against.append((-share[least], f"those through {_layers(least)} take away {lost}"))
        else:
            part = _percent(sum(share[length] for length in share if length <= enough))
            carried.append((enough / longest, f"{look.stack(kind)}{part} through at most {enough} of {longest}"))
    if against:
        text = f"some paths work against the others: {'; '.join(text for _, text in against)}"
        yield Finding(text, 0.45 + 0.1 * min(1.0, max(against)[0]), ("paths.share",))
    if carried:
        most = max(carried)[0]
        few = "most of the output passes few attention layers: they hardly build on one another"
        many = "much of the output passes many attention layers: they build on one another"
        text = f"{few if most <= FEW_LAYERS else many} ({', '.join(text for _, text in carried)})"
        yield Finding(text, 0.3 + 0.3 * (1 - min(carried)[0]), ("paths.share",))


def _bounds(look: _Look) -> Iterator[Finding]:
    curves = look.curves("bounds.ratio")
    ratios = [(ratio, look.stack(kind), layer) for kind, curve in curves.items() for layer, ratio in curve.items()]
    if ratios:
        ratio, stack, layer = min(ratios)
        where = f"{stack}layer {layer}"
        if ratio < LOOSE:
            text = f"the diameter bound nearly tells how far apart tokens stay in {where} "
            text += f"({number(ratio)} times what was measured)"
        else:
            text = "the diameter bound is too loose to tell how far apart tokens stay "
            text += f"({number(ratio)} times what was measured in {where}, more in others)"
        yield Finding(text, 0.5 if ratio < LOOSE else 0.3, ("bounds.ratio",))


FINDERS: dict[str, tuple[Callable[[_Look], Iterable[Finding]], ...]] = {
    "What heads do": (_roles, _first_token, _structured),
    "What can be removed or is missing": (_ablated, _faint, _redundant, _narrow),
    "Health of gradients and the residual stream": (_saturated, _collapse, _paths, _bounds),
}
"""Group -> its finders, in the order in which groups are shown."""


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


def _after(first: int, last: int, stack: str) -> str:
    """Depth d is what block d - 1 leaves; depth 0 are the embeddings."""
    if last == 0:
        return f"at the {stack}embeddings"
    if first == 0:
        return f"from the {stack}embeddings to layer {last - 1}"
    return f"after {stack}layer {first - 1}" if first == last else f"after {stack}layers {first - 1}-{last - 1}"


def _offset_words(label: str) -> str:
    """offset -2: 2 tokens back."""
    offset = label.removeprefix("offset ")
    if not offset.lstrip("-").isdigit():
        return f"at {label}"
    if offset == "0":
        return "to the same position"
    away = abs(int(offset))
    return f"{away} token{'s' if away > 1 else ''} {'back' if offset[0] == '-' else 'ahead'}"


def _who(look: _Look, heads: list[Head], of: int | None = None) -> str:
    """head 0.2; 3 heads; 3 of 8 heads."""
    if len(heads) == 1:
        return f"head {look.say(heads[0])}"
    return f"{len(heads)} heads" if of is None else f"{len(heads)} of {of} heads"


def _verb(verb: str, heads: list[Head]) -> str:
    """As one head, or as several do it."""
    return verb if len(heads) == 1 else {"has": "have", "is": "are", "does": "do"}.get(verb, verb.removesuffix("s"))


def _their(heads: list[Head]) -> str:
    return "its" if len(heads) == 1 else "their"


def _layers(layers: int) -> str:
    return f"{layers} attention layer{'s' if layers != 1 else ''}"


def _and(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _names(heads: list[Head]) -> tuple[str, ...]:
    return tuple(head.full_name for head in heads)


def _listed(look: _Look, heads: list[Head]) -> str:
    names = [look.say(head) for head in heads[:NAMED]]
    return ", ".join(names) + (", ..." if len(heads) > NAMED else "")
