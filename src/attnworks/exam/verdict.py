"""The result of a comparison in one sentence: heads gone and new, quality, size, roles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from attnworks.core.display import format_number
from attnworks.exam.lineage import read_lineage
from attnworks.exam.reading import STACK_NAMES, Reading

if TYPE_CHECKING:
    from attnworks.exam.compare import Comparison
    from attnworks.exam.examination import Examination

LARGE_CHANGE = 0.1
"""A mean that changes by this share of itself is worth a clause."""
MEANS_TOLD = 2
MEAN_WORDS = {
    "saturation.entropy": ("attention is sharper", "attention is more spread out", "mean entropy {0} -> {1}"),
    "sinks.first": ("heads rest less on the first token", "heads rest more on the first token", "{0} -> {1} of it"),
    "rank.residual": ("tokens differ less", "tokens differ more", "after the last layer {0} -> {1} of their size"),
    "ablation.change": ("single heads matter less", "single heads matter more", "mean effect {0} -> {1}"),
}
"""Reading -> words for a fall and for a rise, and for the numbers."""


@runtime_checkable
class ScoreRecord(Protocol):
    """The part of a receipt that a verdict needs: name of a score -> its values before, after and healed."""

    @property
    def scores(self) -> Mapping[str, Any]: ...


def verdict_of(
    comparison: Comparison, before: Examination, after: Examination, receipts: Sequence[ScoreRecord] = ()
) -> tuple[str, ...]:
    """Clauses, the most important first: heads, scores, parameters, roles, and the largest changes of means.

    receipts    of the second model, first to last; those that the first model has, too, are left out
    """
    if comparison.nothing_changed:
        return ("nothing changed",)
    clauses = [_heads(comparison), *_scores(before, receipts), _parameters(before, after), _roles(comparison)]
    return tuple(clause for clause in (*clauses, *_means(comparison, before, after)) if clause)


def _heads(comparison: Comparison) -> str | None:
    gone = [match for match in comparison.heads_that_are("cut") if match.before is not None]
    new = [match for match in comparison.heads_that_are("new") if match.after is not None]
    there = [match for match in comparison.heads if match.before is not None]
    if not comparison.heads:
        return None
    if not gone and not new:
        apart = len(comparison.heads_that_are("not compared"))
        matched = len(comparison.heads_that_are("compared"))
        if not matched:
            return "no head can be matched: the models differ"
        return f"{matched} heads can be matched, {apart} cannot" if apart else f"both have the same {matched} heads"
    parts = [f"{len(gone)} of {len(there)} heads {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    parts += [f"{len(new)} {'head is' if len(new) == 1 else 'heads are'} new"] if new else []
    return " and ".join(parts)


def _scores(before: Examination, receipts: Sequence[ScoreRecord]) -> list[str]:
    """BLEU 63.8 -> 66.0 after healing: from before the first new reshape to after the last."""
    lineage = read_lineage(before.model)
    chain = receipts[len(lineage.reshapes) if lineage is not None else 0 :]
    found = []
    for name in chain[-1].scores if chain else ():
        if name not in chain[0].scores:
            continue
        last = chain[-1].scores[name]
        end, healed = (last.after, "") if last.healed is None else (last.healed, " after healing")
        found.append(f"{name} {format_number(chain[0].scores[name].before)} -> {format_number(end)}{healed}")
    return found


def _parameters(before: Examination, after: Examination) -> str | None:
    one, other = before.model.get("parameters"), after.model.get("parameters")
    if not isinstance(one, int) or not isinstance(other, int) or not one or one == other:
        return None
    share = abs(other - one) / one
    percent = f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"
    return f"{percent} % {'fewer' if other < one else 'more'} parameters"


def _roles(comparison: Comparison) -> str | None:
    compared, changed = comparison.roles_compared, len(comparison.roles)
    if not compared:
        return None
    which = "remaining heads" if any(match.after is None for match in comparison.heads) else "heads"
    if not changed:
        return f"all {compared} {which} keep their role"
    return f"{compared - changed} of the {compared} {which} keep their role"


def _means(comparison: Comparison, before: Examination, after: Examination) -> list[str]:
    """The means that changed most, in words; readings of both, over the heads that both have."""
    found: list[tuple[float, str]] = []
    for name, (falls, rises, numbers) in MEAN_WORDS.items():
        for one in before.readings.of(name):
            other = next((reading for reading in after.readings.of(name) if reading.kind == one.kind), None)
            ends = None if other is None else _ends(comparison, one, other)
            if ends is None or not ends[0]:
                continue
            change = (ends[1] - ends[0]) / abs(ends[0])
            if abs(change) >= LARGE_CHANGE:
                told = numbers.format(*map(format_number, ends))
                stack = f" in the {STACK_NAMES[one.kind]}" if len(before.readings.kinds()) > 1 else ""
                found.append((abs(change), f"{rises if change > 0 else falls}{stack} ({told})"))
    return [clause for _, clause in sorted(found, key=lambda entry: -entry[0])[:MEANS_TOLD]]


def _ends(comparison: Comparison, one: Reading, other: Reading) -> tuple[float, float] | None:
    """Both values: of the last depth, or means over the heads that both have."""
    if one.axes == ("depth",):
        values = [float(reading.value[-1]) for reading in (one, other) if isinstance(reading.value[-1], Tensor)]
    else:
        heads = [match for match in comparison.heads_that_are("compared") if match.before and match.after]
        pairs = [(_at(one, match.before), _at(other, match.after)) for match in heads]
        known = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
        values = [sum(side) / len(known) for side in zip(*known, strict=True)] if known else []
    return (values[0], values[1]) if len(values) == 2 and all(map(math.isfinite, values)) else None


def _at(reading: Reading, name: str | None) -> float:
    """The number of a head; NaN if it is of another kind or has none."""
    slot, _, head = (name or "").rpartition(".")
    for layer, row in enumerate(reading.value):
        if reading.axes == ("layer", "head") and reading.row_name(layer) == slot and isinstance(row, Tensor):
            return float(row[int(head)]) if int(head) < len(row) else math.nan
    return math.nan
