"""Findings about what can be removed, and where capacity is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnworks.core.display import counted, format_number
from attnworks.core.places import HeadId, Slot
from attnworks.exam.examination import ExamFinding
from attnworks.exam.findings.words import (
    ABLATION_COMMAND,
    count_heads,
    head_names,
    list_heads,
    percent_of,
    prune_command,
    verb_for,
)
from attnworks.exam.reading import HeadValue, ModelReadings

MAX_TWIN_DISTANCE = 0.1
"""Heads nearer than this attend to the same keys."""
NEGLIGIBLE_LOSS_CHANGE = 1e-3
"""A head can be removed if the loss changes by less than this without it."""
FAINT_GRADIENT_SHARE = 0.01
"""Heads whose gradient is below this share of the largest hardly affect the loss."""


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
        yield ExamFinding(text, weight, ("redundancy.distance",), tuple(names), command=prune_command([other.id]))


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
        listed = f" ({list_heads(model, idle)})" if several else ""
        text = (
            f"{count_heads(model, idle, len(heads))}{listed} can probably be removed{', one at a time' * several}: try "
        )
        text += f"attnworks prune; the loss changes by less than {format_number(NEGLIGIBLE_LOSS_CHANGE)} without "
        text += "any of them" if several else "it"
        keep = math.ceil(100 * (1 - len(idle) / len(heads))) / 100
        command = f"attnworks prune MODEL --keep {keep:g} --out pruned" if several else prune_command([idle[0].id])
        yield ExamFinding(text, 0.65 + 0.2 * len(idle) / len(heads), (name,), head_names(idle), command=command)
    if harmful:
        worst = min(harmful, key=lambda head: head.value)
        without = f"{model.name_of(worst)}, the worst" if len(harmful) > 1 else "it"
        text = f"{count_heads(model, harmful)} {verb_for('does', harmful)} harm on this text: try attnworks prune; "
        text += f"the loss is {format_number(-worst.value)} lower without {without}"
        yield ExamFinding(text, 0.75, (name,), head_names(harmful), command=prune_command([worst.id]))
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
    command = ABLATION_COMMAND if faint else ""
    if faint:
        listed = f" ({list_heads(model, faint)})" if len(faint) > 1 else ""
        text = f"{count_heads(model, faint, len(heads))}{listed} hardly {verb_for('affects', faint)} the loss: "
        text += "measure ablation to see what can be removed "
        text += f"(gradient below {percent_of(FAINT_GRADIENT_SHARE)} of that of {model.name_of(largest)})"
    else:
        size = format_number(largest.value)
        text = f"the loss depends most on head {model.name_of(largest)}: keep it (gradient {size})"
    yield ExamFinding(text, 0.55, ("importance.gradient",), head_names(faint or [largest]), command=command)


def narrow_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    for what in ("keys", "values"):
        name = f"bottleneck.{what}"
        all_heads = model.heads(name)
        heads = [head for head in all_heads if head.value > 0]
        if heads:
            most = max(heads, key=lambda head: head.value)
            text = f"{count_heads(model, heads, len(all_heads))} would gain from wider {what}: try attnworks grow; "
            text += f"the loss should fall by {format_number(most.value)} per 1000 parameters"
            text += f" in {model.name_of(most)}, the most" if len(heads) > 1 else ""
            command = f"attnworks grow MODEL --where {most.id}:{what}=8 --out grown"
            yield ExamFinding(text, 0.7, (name,), head_names(heads), command=command)
        elif all_heads:
            text = f"no head needs wider {what}: growing them would not lower the loss on other sentences"
            yield ExamFinding(text, 0.5, (name,), ())
