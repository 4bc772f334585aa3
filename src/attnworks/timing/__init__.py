"""Timing that survives a noisy machine: candidates take turns, and only ratios inside one round are compared."""

from attnworks.timing.attention import BOTH, FORWARD, Core, Inputs, Task, core_of, draw, passes_over, roofline
from attnworks.timing.interleaved import Race, interleave
from attnworks.timing.memory import Peak, ask_child, peak_above
from attnworks.timing.versus_dense import Comparison, Row, compare, verdict

__all__ = [
    "BOTH",
    "FORWARD",
    "Comparison",
    "Core",
    "Inputs",
    "Peak",
    "Race",
    "Row",
    "Task",
    "ask_child",
    "compare",
    "core_of",
    "draw",
    "interleave",
    "passes_over",
    "peak_above",
    "roofline",
    "verdict",
]
