"""Findings about what heads do: their roles, and where they rest."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from attnworks.core.display import format_number
from attnworks.core.places import HeadId
from attnworks.exam.examination import ExamFinding
from attnworks.exam.findings.words import (
    count_heads,
    head_names,
    list_heads,
    percent_of,
    project_command,
    prune_command,
    their,
    verb_for,
)
from attnworks.exam.probes.copy_losses import CopyLosses
from attnworks.exam.probes.roles import ROLES_WITH_A_PROBE, probes_decide
from attnworks.exam.reading import NO_ROLE, HeadValue, ModelReadings, role_group

EVEN_ATTENTION = 0.9
"""A head averages all tokens if exp(entropy) is this share of the visible keys or more."""
IDLE_EFFECT = 0.1
"""A head that rests and has no role does nothing else if less than this share of its effect comes from other tokens."""
SINK_SHARE = 0.5
"""A head without labels rests on the first token if its mean attention to it is above this."""

ROLE_SENTENCES = {
    "previous": "attends to the previous token",
    "next": "attends to the next token",
    "self": "attends to the token itself",
    "offset": "attends at another fixed offset",
    "syntactic": "attends to the syntactic head",
    "rare": "attends to the rarest token",
    "induction": "continues what was repeated (induction)",
    "duplicate": "attends to the same token elsewhere",
    "retrieval": "finds in a text what is to be copied (retrieval)",
}
POSITION_ROLES = ("previous", "next", "self", "offset")
CONTENT_ROLES = ("syntactic", "rare", "induction", "duplicate", "retrieval")
ROLES_BY_INTEREST = (
    "induction", "retrieval", "syntactic", "previous", "next", "duplicate", "rare", "self",
)  # fmt: skip
SINK_NAMES = {"first": "the first token", "delimiter": "delimiters"}


def head_roles(model: ModelReadings) -> Iterator[ExamFinding]:
    """One finding for every role except `aligns`, which `aligning_heads` covers."""
    return (_role(model, group, heads) for group, heads in _by_role(model).items() if group != "aligns")


def roles_of_heads(model: ModelReadings) -> dict[HeadId, tuple[str, ...]]:
    """The roles of each head that has one or two."""
    seconds = model.labels("roles.second")
    both = {head: (label, seconds.get(head, NO_ROLE)) for head, label in model.labels("roles.label").items()}
    named = {head: tuple(role for role in roles if role != NO_ROLE) for head, roles in both.items()}
    return {head: roles for head, roles in named.items() if roles}


def _by_role(model: ModelReadings) -> dict[str, list[HeadValue]]:
    """The heads of each role, the highest score first; those that have it as their second role come last."""
    scores = model.at("roles.score")
    groups: dict[str, list[HeadValue]] = defaultdict(list)
    for head, roles in roles_of_heads(model).items():
        for place, group in enumerate(dict.fromkeys(map(role_group, roles))):
            groups[group].append(HeadValue(head, scores.get(head, math.nan) if place == 0 else math.nan))
    for heads in groups.values():
        heads.sort(key=lambda head: -head.value if math.isfinite(head.value) else math.inf)
    return groups


def _role(model: ModelReadings, group: str, heads: list[HeadValue]) -> ExamFinding:
    does = _offsets(model, heads) if group == "offset" else ROLE_SENTENCES.get(group, f"has the label {group!r}")
    verb, _, what = does.partition(" ")
    most = f"most in head {model.name_of(heads[0])}: " if len(heads) > 1 else ""
    best = heads[0].value
    score = f" ({most}{_score(model, group, heads[0])})" if math.isfinite(best) else ""
    rank = ROLES_BY_INTEREST.index(group) / len(ROLES_BY_INTEREST) if group in ROLES_BY_INTEREST else 0.5
    share = len(heads) / len(model.labels("roles.label"))
    weight = 0.4 + 0.2 * share + 0.2 * (1 - rank) + 0.2 * (best if 0 <= best <= 1 else 0.5)
    text = f"{count_heads(model, heads)} {verb_for(verb, heads)} {what}{_advice(model, group, heads)}{score}"
    fixed = _fixed_heads(model, group, heads)
    command = project_command([head.id for head in fixed]) if fixed else ""
    return ExamFinding(text, weight, ("roles.label", "roles.score"), head_names(heads), command=command)


def _fixed_heads(model: ModelReadings, group: str, heads: list[HeadValue]) -> list[HeadValue]:
    """Heads of a role of position that a fixed form may replace: those of self-attention that have a form.

    Heads with a second role that content decides are left out.
    """
    if group not in POSITION_ROLES:
        return []
    forms, roles = model.labels("structure.form"), roles_of_heads(model)
    return [
        head
        for head in heads
        if not head.crosses
        and forms.get(head.id, group) != NO_ROLE
        and not any(role in CONTENT_ROLES for role in roles.get(head.id, ()))
    ]


def _advice(model: ModelReadings, group: str, heads: list[HeadValue]) -> str:
    """What a role means and what to do about it; a fixed form is advised for self-attention heads that have one."""
    them = "it" if len(heads) == 1 else "them"
    if group == "induction":
        return f": {_copying(model, them)}"
    if group in POSITION_ROLES:
        if all(head.crosses for head in heads):
            return ": the order of the two texts decides, as in word-by-word alignment" if group == "offset" else ""
        fixed = _fixed_heads(model, group, heads)
        which = them if len(fixed) == len(heads) else f"{len(fixed)} of them"
        return (
            f": content matters little{f', so a fixed form may replace {which}; try attnworks project' * bool(fixed)}"
        )
    return f": content decides, so no fixed form can replace {them}" if group in CONTENT_ROLES else ""


def _copying(model: ModelReadings, them: str) -> str:
    """What the model copies without its induction heads, where that was measured."""
    copying = copy_losses_without_induction(model)
    if copying is None:
        return f"without {them} the model may not copy from its context, so keep {them}"
    before, without = copying.copy_loss, copying.first_loss - copying.changed_saved
    numbers = f"loss on repeated random tokens {format_number(before)}, without {them} {format_number(without)}"
    if not copying.copies:
        return f"but the model does not copy random tokens; {numbers}"
    if copying.is_lost:
        return f"without {them} the model cannot copy from its context, so keep {them}; {numbers}"
    copies = "copies less well" if copying.is_harmed else "still copies"
    return f"without {them} the model {copies} from its context; {numbers}"


def copy_losses_without_induction(model: ModelReadings) -> CopyLosses | None:
    """What the model saves by copying, and what it saves without its induction heads; None if not measured."""
    found = [model.readings.of(f"probes.{name}") for name in ("first_loss", "copy_loss", "copy_loss_without")]
    if not all(found):
        return None
    first, copied, without = (float(readings[0].tensor) for readings in found)
    return CopyLosses(first, copied, first - without)


def _score(model: ModelReadings, group: str, head: HeadValue) -> str:
    number = format_number(head.value)
    if group == "syntactic":
        return f"right for {number} of the tokens"
    if group in (*POSITION_ROLES, *ROLES_WITH_A_PROBE) and probes_decide(model.readings, head.id.slot.kind):
        return f"{number} of the attention on {'needles' if group == 'retrieval' else 'random tokens'}"
    return f"{number} of the attention outside the sinks"


def _offsets(model: ModelReadings, heads: list[HeadValue]) -> str:
    """attends 2 tokens back; for several offsets: attends at a fixed offset (2 tokens back: 3, ...)."""
    roles = roles_of_heads(model)
    labels = (role for head in heads for role in roles[head.id] if role_group(role) == "offset")
    counts = Counter(map(_offset, labels))
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


def resting_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """Heads that rest on the first token or on delimiters; without labels, those with over half of it on the first."""
    sinks, all_heads = model.labels("roles.sink"), model.heads("sinks.first")
    for sink, place in SINK_NAMES.items():
        attention = model.at(f"sinks.{sink}")
        if sinks:
            heads = [HeadValue(head, attention.get(head, math.nan)) for head, rest in sinks.items() if rest == sink]
        else:
            heads = [head for head in all_heads if sink == "first" and head.value > SINK_SHARE]
        if heads:
            heads.sort(key=lambda head: -head.value)
            yield _resting(model, sink, place, heads, len(sinks or all_heads))


def _resting(model: ModelReadings, sink: str, place: str, heads: list[HeadValue], every: int) -> ExamFinding:
    """How much of the attention is on the sink, how little it adds, and which heads do nothing else."""
    given = [head.value for head in heads if math.isfinite(head.value)]
    effects = model.at(f"sinks.{sink}_effect")
    added = [effects[head.id] for head in heads if head.id in effects]
    elsewhere = model.at("sinks.rest_effect") or model.at("sinks.rest")
    roles = roles_of_heads(model)
    idle = [head for head in heads if elsewhere.get(head.id, 1.0) < IDLE_EFFECT and head.id not in roles]
    text = f"{count_heads(model, heads, every)} {verb_for('rests', heads)} on {place}"
    if idle:
        which = "it" if len(heads) == 1 else f"{len(idle)} of them ({list_heads(model, idle)})"
        text += f": {which} {verb_for('does', idle)} little else, so try attnworks prune"
    else:
        text += ": a place for attention that is not needed elsewhere, so look at where the rest of "
        text += f"{their(heads)} attention goes"
    numbers = [f"{percent_of(sum(given) / len(given))} of {their(heads)} attention"] if given else []
    numbers += [f"{percent_of(sum(added) / len(added))} of {their(heads)} effect"] if added else []
    text += f" ({', '.join(numbers)} there)" if numbers else ""
    found = [name for name in ("roles.sink", f"sinks.{sink}", f"sinks.{sink}_effect") if model.readings.of(name)]
    weight, command = 0.45 + 0.4 * len(heads) / every, prune_command([head.id for head in idle]) if idle else ""
    return ExamFinding(text, weight, tuple(found), head_names(heads), command=command)


def even_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """Heads that average all tokens, as the heads of untrained models do."""
    all_heads = model.heads("roles.evenness")
    heads = sorted((head for head in all_heads if head.value >= EVEN_ATTENTION), key=lambda head: -head.value)
    if heads:
        text = f"{count_heads(model, heads, len(all_heads))} {verb_for('attends', heads)} to all tokens nearly evenly, "
        text += f"as untrained heads do: {'it' if len(heads) == 1 else 'they'} may not have learned yet, or a mean of "
        text += (
            f"all tokens may replace {'it' if len(heads) == 1 else 'them'} (most in head {model.name_of(heads[0])}: "
        )
        text += f"evenness {format_number(heads[0].value)})"
        yield ExamFinding(text, 0.3 + 0.2 * len(heads) / len(all_heads), ("roles.evenness",), head_names(heads))
