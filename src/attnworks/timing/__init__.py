"""Timing that survives a noisy machine: candidates take turns, and only ratios inside one round are compared."""

from attnworks.core.timing import (
    CONFIDENCE,
    Interval,
    Race,
    contains_one,
    interleave,
    interleave_within,
    median_interval,
)
from attnworks.timing.attention import BOTH, FORWARD, Core, Inputs, Task, core_of, draw, passes_over, roofline
from attnworks.timing.memory import Peak, ask_child, peak_above
from attnworks.timing.versus_dense import Comparison, Row, compare, verdict

__all__ = [
    "BOTH",
    "CONFIDENCE",
    "FORWARD",
    "Comparison",
    "Core",
    "Inputs",
    "Interval",
    "Peak",
    "Race",
    "Row",
    "Task",
    "ask_child",
    "compare",
    "contains_one",
    "core_of",
    "draw",
    "interleave",
    "interleave_within",
    "median_interval",
    "passes_over",
    "peak_above",
    "roofline",
    "verdict",
]
