"""The two computed sides of a statement, and whether their relation holds."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance

Relation = Literal["=", "<=", ">=", "<", ">"]
Number = float | int | bool | Tensor

_EXCESS: dict[str, Callable[[Any], Any]] = {"=": abs, "<": operator.pos, ">": operator.neg}
"""By the first sign of a relation: the part of left - right that breaks it."""


@dataclass(frozen=True)
class Sides:
    """`left relation right`. Sides that differ by no more than `slack` count as equal."""

    left: float
    relation: Relation
    right: float
    slack: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the relation holds; False where a side is NaN."""
        return self.excess <= self.slack if "=" in self.relation else self.excess < -self.slack

    @property
    def excess(self) -> float:
        """By how much the relation is broken; negative where it holds strictly."""
        gap = 0.0 if self.left == self.right else self.left - self.right
        return _EXCESS[self.relation[0]](gap)

    def to_json(self) -> dict[str, float | str | bool]:
        """For JSON, which has no infinity and no NaN: they become words that Python and JavaScript can read."""
        left, right = (as_number(side) for side in (self.left, self.right))
        return {"left": left, "relation": self.relation, "right": right, "slack": self.slack, "holds": self.holds}


def same(left: Number, right: Number, *, slack: float | None = None) -> Sides:
    """left = right. Of two tensors, the entries that differ most, or the largest if all differ by rounding only.

    slack    how far apart they may be; by default, the rounding of float64
    """
    return _worst(left, "=", right, slack)


def at_most(left: Number, right: Number, *, slack: float | None = None) -> Sides:
    """left <= right. Of two tensors, the entries that come nearest to breaking it."""
    return _worst(left, "<=", right, slack)


def at_least(left: Number, right: Number, *, slack: float | None = None) -> Sides:
    """left >= right. Of two tensors, the entries that come nearest to breaking it."""
    return _worst(left, ">=", right, slack)


def both(first: Sides, second: Sides) -> Sides:
    """The second if it fails, else the first: for two statements that must both hold, each with its own slack."""
    return first if second.holds else second


def less(left: Number, right: Number) -> Sides:
    """left < right by more than rounding."""
    return _worst(left, "<", right, None)


def more(left: Number, right: Number) -> Sides:
    """left > right by more than rounding."""
    return _worst(left, ">", right, None)


def as_number(value: float) -> float | str:
    """A number as JSON can hold it."""
    return float(value) if math.isfinite(value) else str(float(value)).replace("inf", "Infinity").replace("nan", "NaN")


def _worst(left: Number, relation: Relation, right: Number, slack: float | None) -> Sides:
    L, R = torch.broadcast_tensors(*(torch.as_tensor(side, dtype=torch.float64) for side in (left, right)))
    if not L.numel():
        found = f"shape {tuple(L.shape)}"
        raise UsageError("compare two sides", "at least one number on each", found, "draw another case")
    L, R = L.flatten(), R.flatten()
    gap = torch.where(L == R, 0.0, L - R)
    worst = int(_EXCESS[relation[0]](gap).nan_to_num(nan=math.inf).argmax())
    if slack is not None:
        return Sides(float(L[worst]), relation, float(R[worst]), slack)
    rtol, atol = tolerance(torch.float64)
    finite = torch.cat([L, R])
    slack = atol + rtol * float(finite[finite.isfinite()].abs().max()) if bool(finite.isfinite().any()) else atol
    found = Sides(float(L[worst]), relation, float(R[worst]), slack)
    if relation != "=" or not found.holds:
        return found
    # the first of those that equal the largest to six digits: the same entry however a machine rounds
    largest = int((L.abs() >= (1 - 1e-6) * L.abs().max()).int().argmax())
    return Sides(float(L[largest]), relation, float(R[largest]), slack)


def stacked(*parts: Number) -> Float[Tensor, " n"]:
    """All entries in one vector, in float64, for a statement of several parts that must hold together.

    Holds when: the parts are of about the same size, as the tolerance for rounding follows from the largest.
    """
    return torch.cat([torch.as_tensor(part, dtype=torch.float64).flatten() for part in parts])
