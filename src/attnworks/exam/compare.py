"""Two examinations side by side: what changed, head by head and depth by depth, and whether chance explains it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, get_args

import numpy as np
from scipy.stats import t as student
from torch import Tensor

from attnworks.core.display import rich_html
from attnworks.exam.examination import Examination
from attnworks.exam.head_matches import Match, State, match_heads
from attnworks.exam.lineage import LINEAGE, Lineage, read_lineage
from attnworks.exam.reading import LayerValues, Reading
from attnworks.exam.statistics import CONFIDENCE
from attnworks.exam.verdict import ScoreRecord, verdict_of
from attnworks.training.curves import TRAINING

COMPARISON_FORMAT = 2
FALSE_DISCOVERY_RATE = 0.05
COMPARE_ROUNDING = 1e-5
LABEL_READING = "roles.label"
DERIVED_READINGS = {
    "roles.score", "roles.baseline", "roles.syntactic_baseline", "redundancy.nearest", "structure.shift",
    "structure.explained",
}  # fmt: skip
"""Readings that follow from others, which are compared."""
UNLISTED_KEYS = ("cost", LINEAGE, TRAINING)
"""Entries of the description of a model that are not listed among its differences."""
COMPARED_AXES = {("depth",), ("layer",), ("layer", "head")}
"""Axes of readings that are compared number by number."""


class Estimate(NamedTuple):
    """A mean over sentences; without spread or count its certainty is unknown."""

    value: float
    spread: float = math.nan
    sentences: int = 0


@dataclass(frozen=True)
class NumberChange:
    """One number of one head (enc.3.7), layer (enc.3) or depth (4), before and after.

    where          the head, layer or depth in the first examination
    where_after    the same in the second; heads have other numbers where some were cut
    margin         half of the 95 % interval of the difference; None where certainty is unknown
    chance         probability of a difference this large by chance; None where unknown
    certain        whether it is significant among all numbers compared, with 5 % false discoveries; None where unknown
    """

    reading: str
    where: str
    where_after: str
    before: float
    after: float
    margin: float | None
    chance: float | None
    certain: bool | None = None

    @property
    def difference(self) -> float:
        return self.after - self.before

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"difference": self.difference}


class NewRole(NamedTuple):
    """A head, by its names in both examinations, with another role."""

    head: str
    head_after: str
    before: str
    after: str


class DepthCurve(NamedTuple):
    """A reading along depth in both examinations; None where there is no number."""

    reading: str
    before: tuple[float | None, ...]
    after: tuple[float | None, ...]


@dataclass(frozen=True)
class Comparison:
    """All that changed.

    compared          how many numbers both examinations have
    changes           those that differ, the most certain first, then those of unknown certainty, the largest first
    heads             every head of both models: compared, cut, new, or not compared and why
    roles_compared    how many heads have a label in both examinations
    roles             those of them whose label changed
    curves            readings along depth
    notes             what cannot be compared, what changed but is not compared number by number, and what else differs
    verdict           the result in clauses, the most important first
    names             what the two examinations are called
    top               how many changes are shown; `changes` has all of them
    """

    compared: int
    changes: tuple[NumberChange, ...]
    heads: tuple[Match, ...]
    roles_compared: int
    roles: tuple[NewRole, ...]
    curves: tuple[DepthCurve, ...]
    notes: tuple[str, ...]
    names: tuple[str, str] = ("before", "after")
    verdict: tuple[str, ...] = ()
    top: int = 10

    @property
    def certain(self) -> tuple[NumberChange, ...]:
        """Changes that chance does not explain."""
        return tuple(change for change in self.changes if change.certain)

    @property
    def nothing_changed(self) -> bool:
        """Whether all readings, to the last bit, and all notes are the same: any difference is a change or a note."""
        same = all(match.state == "compared" and match.before == match.after for match in self.heads)
        return same and not (self.changes or self.roles or self.notes)

    def __rich__(self) -> Any:
        from attnworks.exam.compare_render import ComparisonSummary

        return ComparisonSummary(self)

    def _repr_html_(self) -> str:
        return rich_html(self)

    def heads_that_are(self, state: State) -> tuple[Match, ...]:
        return tuple(match for match in self.heads if match.state == state)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": COMPARISON_FORMAT,
            "verdict": list(self.verdict),
            "compared": self.compared,
            "nothing_changed": self.nothing_changed,
            "changes": [change.to_json() for change in self.changes],
            "heads": {
                **{state.replace(" ", "_"): len(self.heads_that_are(state)) for state in get_args(State)},
                "roles_compared": self.roles_compared,
                "matches": [match._asdict() for match in self.heads],
            },
            "roles": [role._asdict() for role in self.roles],
            "curves": [
                curve._asdict() | {"before": list(curve.before), "after": list(curve.after)} for curve in self.curves
            ],
            "notes": list(self.notes),
        }


def compare_exams(before: Examination, after: Examination, receipts: Sequence[ScoreRecord] = ()) -> Comparison:
    """Compare every number that both have: per head, per layer and along depth. Notes name all other changes.

    The verdict tells scores, such as BLEU, from the `receipts` of the second model.

    Heads of a reshaped model are matched by their names in the original model, which its examination holds. Heads that
    one model lacks are listed as cut or new; heads that cannot be matched are listed with the reason.

    Two means m, m' over n, n' sentences with standard deviations s, s' differ by chance with probability
    2 P(T > |m' - m| / sqrt(s^2 / n + s'^2 / n')), T Student's with Welch's degrees of freedom. Many numbers are
    compared at once, so a change is called certain if Benjamini and Hochberg's procedure keeps it. About 5 % of the
    certain changes are false.

    Holds when: the sentences of one examination are independent. On the same corpus the two share their sentences; then
    the probability is too large rather than too small.
    """
    firsts, seconds = _by_key(before), _by_key(after)
    notes = [*_differing(before, after), *_noted(before, after), *_readings_of_one(firsts, seconds)]
    several = len(before.readings.kinds()) > 1
    heads = match_heads(_heads(firsts), _heads(seconds), (before.model, after.model))
    pairs = _pairs(heads)
    uncompared = _Uncompared()
    changes: list[NumberChange] = []
    roles: list[NewRole] = []
    curves: list[DepthCurve] = []
    compared = roles_compared = 0
    for key in (key for key in firsts if key in seconds):
        one, other = firsts[key], seconds[key]
        label = key if several else one.name
        if one.axes != other.axes:
            notes.append(f"{label} has axes {', '.join(one.axes)} against {', '.join(other.axes)}")
            continue
        if one.axes not in COMPARED_AXES or one.name in DERIVED_READINGS:
            uncompared.unlike += [] if _same(one, other) else [label]
            continue
        noted, uneven = (len(changes), len(roles), len(uncompared.lost)), False
        for row in range(min(len(one.value), len(other.value))):
            by_head = one.axes == ("layer", "head")
            places = pairs.get(one.row_name(row), {}) if by_head else {0: 0}
            most_heads = max(_size(one.value[row]), _size(other.value[row]))
            uneven |= by_head and [*places.items()] != [(head, head) for head in range(most_heads)]
            if one.name == LABEL_READING:
                known = _roles(one, other, row, places)
                roles_compared += len(known)
                roles += [role for role in known if role.before != role.after]
            values = _row(one, row), _row(other, row)
            for place, place_after in places.items() if all(values) else ():
                first, second = values[0][place], values[1][place_after]
                where, where_after = _name(one, row, place), _name(other, row, place_after)
                if math.isfinite(first.value) and math.isfinite(second.value):
                    compared += 1
                    changes += _change(label, (where, where_after), first, second)
                elif first.value != second.value and not (math.isnan(first.value) and math.isnan(second.value)):
                    uncompared.lost.setdefault(label, []).append(where)
        has_labels = any(isinstance(row, tuple) for row in (*one.value, *other.value))
        if len(one.value) != len(other.value):
            uncompared.longer.append(label)
        elif has_labels and one.name != LABEL_READING:
            uncompared.unlike += [] if _same(one, other) else [label]
        elif not uneven and noted == (len(changes), len(roles), len(uncompared.lost)) and not _same(one, other):
            (uncompared.unlike if one.name == LABEL_READING else uncompared.nearly).append(label)
        if one.axes == ("depth",):
            curves.append(DepthCurve(label, _numbers(one), _numbers(other)))
    found = Comparison(
        compared=compared,
        changes=tuple(_kept(changes, compared)),
        heads=tuple(heads),
        roles_compared=roles_compared,
        roles=tuple(roles),
        curves=tuple(curves),
        notes=(*notes, *uncompared.notes()),
    )
    return replace(found, verdict=verdict_of(found, before, after, receipts))


@dataclass
class _Uncompared:
    """Readings with a difference that is not in the list of changes.

    lost      reading -> where a number is finite on one side only, or infinite on both and not the same
    unlike    readings that differ and are not compared number by number
    nearly    readings that differ only by rounding, certainty or ticks
    longer    readings with more layers or depths on one side
    """

    lost: dict[str, list[str]] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)
    nearly: list[str] = field(default_factory=list)
    longer: list[str] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        lost = [
            f"{reading} at {places[0]}" + (f" and {len(places) - 1} more" if len(places) > 1 else "")
            for reading, places in self.lost.items()
        ]
        for what, readings in (
            ("a number is missing, or infinite, on one side", lost),
            ("changed, though not compared number by number", self.unlike),
            ("changed only by rounding, or in spread, interval, count or ticks", self.nearly),
            ("not as many layers or depths in both", self.longer),
        ):
            if readings:
                yield f"{what}: {', '.join(readings)}"


def _change(reading: str, where: tuple[str, str], before: Estimate, after: Estimate) -> Iterator[NumberChange]:
    """Nothing if both are the same, up to rounding where the spread is unknown."""
    one, other = before.value, after.value
    sides = (before, after)
    variances = [side.spread * side.spread / side.sentences if side.sentences > 1 else math.nan for side in sides]
    total = sum(variances)
    known = 0 < total < math.inf
    if one == other or (not known and math.isclose(one, other, rel_tol=COMPARE_ROUNDING)):
        return
    if not known:
        yield NumberChange(reading, *where, one, other, None, None)
        return
    parts = zip(variances, sides, strict=True)
    degrees = 1 / sum((variance / total) ** 2 / (side.sentences - 1) for variance, side in parts)
    error = math.sqrt(total)
    margin = float(student.ppf((1 + CONFIDENCE) / 2, degrees)) * error
    chance = float(2 * student.sf(abs(other - one) / error, degrees))
    yield NumberChange(reading, *where, one, other, margin, chance)


def _kept(changes: list[NumberChange], compared: int) -> list[NumberChange]:
    """Mark the certain ones: the k-th smallest chance is, if it or a later one is at most 5 % of k / compared."""
    known = sorted((c for c in changes if c.chance is not None), key=lambda c: (c.chance, -_size_of(c)))
    last = 0
    for rank, change in enumerate(known, 1):
        if change.chance is not None and change.chance <= FALSE_DISCOVERY_RATE * rank / compared:
            last = rank
    unknown = sorted((c for c in changes if c.chance is None), key=lambda c: -_size_of(c))
    return [replace(change, certain=rank < last) for rank, change in enumerate(known)] + unknown


def _size_of(change: NumberChange) -> float:
    """The difference over its margin, or over the larger value where the margin is not known."""
    scale = max(abs(change.before), abs(change.after)) if change.margin is None else change.margin
    return abs(change.difference) / scale


def _row(reading: Reading, row: int) -> list[Estimate]:
    value = reading.value[row]
    if not isinstance(value, Tensor):
        return []
    values = value.double().reshape(-1).tolist()
    if reading.spread is None or reading.count is None:
        return [Estimate(value) for value in values]
    spreads, counts = (part[row].expand(value.shape).reshape(-1).tolist() for part in (reading.spread, reading.count))
    return [Estimate(*entry) for entry in zip(values, spreads, counts, strict=True)]


def _name(reading: Reading, row: int, head: int) -> str:
    if reading.axes != ("layer", "head"):
        return reading.row_name(row) if reading.axes == ("layer",) else f"depth {row}"
    return f"{reading.row_name(row)}.{head}"


def _roles(one: Reading, other: Reading, row: int, places: Mapping[int, int]) -> list[NewRole]:
    """The labels of every head that both have, changed or not."""
    first, second = one.value[row], other.value[row]
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return []
    return [
        NewRole(_name(one, row, place), _name(other, row, after), first[place], second[after])
        for place, after in places.items()
    ]


def _numbers(reading: Reading) -> tuple[float | None, ...]:
    values = [float(row) for row in reading.value if isinstance(row, Tensor) and row.dim() == 0]
    return tuple(value if math.isfinite(value) else None for value in values)


def _size(row: LayerValues) -> int:
    return len(row) if isinstance(row, tuple) or row.dim() else 1


def _same(one: Reading, other: Reading) -> bool:
    """Whether axes, ticks, labels and every tensor are the same; NaN is the same as NaN."""
    parts, others = one.parts(), other.parts()
    if one.axes != other.axes or dict(one.ticks) != dict(other.ticks) or parts.keys() != others.keys():
        return False
    return all(
        len(rows) == len(others[part]) and all(map(_same_row, rows, others[part])) for part, rows in parts.items()
    )


def _same_row(one: LayerValues, other: LayerValues) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return np.array_equal(one.numpy(), other.numpy(), equal_nan=True)
    return isinstance(one, tuple) and isinstance(other, tuple) and one == other


def _by_key(exam: Examination) -> dict[str, Reading]:
    """name@kind -> reading."""
    return {f"{reading.name}@{reading.kind}": reading for reading in exam.readings.values()}


def _heads(readings: dict[str, Reading]) -> dict[str, int]:
    """Layer -> number of heads."""
    found: dict[str, int] = {}
    for reading in readings.values():
        if reading.axes[:2] == ("layer", "head"):
            for layer, row in enumerate(reading.value):
                slot = reading.row_name(layer)
                found[slot] = min(_size(row), found.get(slot, _size(row)))
    return found


def _pairs(heads: Sequence[Match]) -> dict[str, dict[int, int]]:
    """Layer -> the heads that both models have, by number: before -> after."""
    found: dict[str, dict[int, int]] = {}
    for match in heads:
        if match.before is not None and match.after is not None:
            (slot, _, number), after = match.before.rpartition("."), match.after.rpartition(".")[2]
            found.setdefault(slot, {})[int(number)] = int(after)
    return found


def _differing(before: Examination, after: Examination) -> Iterator[str]:
    for what, one, other, so in (
        ("models", before.model, after.model, ""),
        ("texts", before.corpus, after.corpus, "; differences may come from the text"),
    ):
        odd = [key for key in sorted({**one, **other}) if one.get(key) != other.get(key) and key not in UNLISTED_KEYS]
        nested = [key for key in odd if any(isinstance(side.get(key), dict | list) for side in (one, other))]
        plain = [f"{key} {one.get(key)} against {other.get(key)}" for key in odd if key not in nested]
        if odd:
            yield f"different {what}: {', '.join([*plain, *nested])}{so}"
    yield from _reshaped(read_lineage(before.model), read_lineage(after.model))


def _reshaped(first: Lineage | None, second: Lineage | None) -> Iterator[str]:
    """How each model was reshaped, where that differs."""
    if first == second:
        return
    for lineage, which in ((first, "first"), (second, "second")):
        if lineage is not None:
            yield f"the {which} model was reshaped: {'; '.join(lineage.reshapes)}"
    if first is not None and second is not None and first.original != second.original:
        yield "the two models were reshaped from different weights; heads are matched by their numbers in those"


def _noted(before: Examination, after: Examination) -> Iterator[str]:
    for exam, other, which in ((before, after, "first"), (after, before, "second")):
        if lone := [note for note in exam.notes if note not in other.notes]:
            yield f"only the {which} notes: {'; '.join(lone)}"
    if before.notes != after.notes and set(before.notes) == set(after.notes):
        yield "the same notes, in another order or number"


def _readings_of_one(before: dict[str, Reading], after: dict[str, Reading]) -> Iterator[str]:
    for readings, others, which in ((before, after, "first"), (after, before, "second")):
        if lone := [name for name in readings if name not in others]:
            shown = ", ".join(lone[:4]) + (f" and {len(lone) - 4} more" if len(lone) > 4 else "")
            yield f"only the {which} has {shown}"
