"""All claims with what their checks found, as the page shows them: plain data, formulas still LaTeX."""

from __future__ import annotations

import math
from typing import Any

from attnworks.theory.checks import Checked, check_claims
from attnworks.theory.contract import in_order
from attnworks.theory.sides import Sides, number

DIGITS = 4
NOTHING = 1e-12
"""What is smaller comes from rounding, and is another number on every machine."""
TELLING = 1e-6
"""Sides that count as equal though they differ by more than this share of them are shown with their slack."""


def page_claims() -> list[dict[str, Any]]:
    """Every claim in its order, checked with seed 0."""
    return [_shown(checked) for checked in check_claims(in_order())]


def rounded(value: float) -> float | int | str:
    """Whole numbers as they are, others to four digits, and zero for what is rounding alone.

    >>> rounded(357.6412), rounded(393.0), rounded(2e-16), rounded(float("nan"))
    (357.6, 393, 0, 'NaN')
    """
    if not math.isfinite(value):
        return number(value)
    short = value if value.is_integer() else float(f"{value:.{DIGITS - 1}e}")
    return 0 if abs(short) < NOTHING else int(short) if short.is_integer() else short


def _shown(checked: Checked) -> dict[str, Any]:
    claim, finding = checked.claim, checked.finding
    data = checked.to_json()
    for left_out in ("holds", "seconds"):
        del data[left_out]
    for name in ("stated", "corrected", "without"):
        data[name] = _sides(getattr(finding, name, None))
    figures = {} if finding is None else finding.figures
    return data | {
        "verdict": claim.verdict.name.lower().replace("_", " "),
        "proof": claim.proof or None,
        "figures": {name: rounded(float(value)) for name, value in figures.items()},
    }


def _sides(sides: Sides | None) -> dict[str, Any] | None:
    if sides is None:
        return None
    telling = sides.relation == "=" and sides.slack > TELLING * max(1.0, abs(sides.left), abs(sides.right))
    return {
        "left": rounded(sides.left),
        "relation": sides.relation,
        "right": rounded(sides.right),
        "within": rounded(sides.slack) if telling else None,
        "holds": sides.holds,
    }
