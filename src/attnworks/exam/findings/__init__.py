"""Findings: what stands out in the readings, in plain sentences.

Each finder answers one question about the whole model, so that no two findings contradict each other. A finding says
what it means and what to do about it, then the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from attnworks.exam.examination import ExamFinding
from attnworks.exam.findings.capacity import ablated_heads, faint_heads, narrow_heads, redundant_heads
from attnworks.exam.findings.forms import structured_heads
from attnworks.exam.findings.roles import even_heads, head_roles, resting_heads
from attnworks.exam.findings.sides import aligning_heads
from attnworks.exam.findings.streams import (
    diameter_bounds,
    massive_activations,
    path_lengths,
    rank_collapse,
    saturated_heads,
)
from attnworks.exam.reading import ModelReadings, Readings

FINDERS: dict[str, tuple[Callable[[ModelReadings], Iterable[ExamFinding]], ...]] = {
    "What heads do": (head_roles, resting_heads, even_heads, structured_heads, aligning_heads),
    "What can be removed or is missing": (ablated_heads, faint_heads, redundant_heads, narrow_heads),
    "Health of gradients and the residual stream": (
        saturated_heads,
        rank_collapse,
        massive_activations,
        path_lengths,
        diameter_bounds,
    ),
}
"""Group -> its finders, in the order in which groups are shown."""


def find(readings: Readings) -> tuple[ExamFinding, ...]:
    """All findings by group, in each the largest effect first. Missing readings and NaN are ignored."""
    model = ModelReadings(readings)
    found: list[ExamFinding] = []
    for group, finders in FINDERS.items():
        of_group = [replace(finding, group=group) for finder in finders for finding in finder(model)]
        found += sorted(of_group, key=lambda finding: -finding.weight)
    return tuple(found)
