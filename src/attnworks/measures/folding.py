"""Statistics over sentences that add up exactly: batches and processes in any order give the same numbers."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import t as student
from torch import Tensor

CONFIDENCE = 0.95


class Exact:
    """A sum kept as two float64 numbers, hi + lo with |lo| <= ulp(hi) / 2: 106 bits, so that order does not matter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.hi, self.lo = torch.zeros(2, *shape, dtype=torch.float64)

    def add(self, value: Float[Tensor, "*a"], rest: Float[Tensor, "*a"] | None = None) -> None:
        """Knuth's two-sum, then the small parts."""
        total = self.hi + value
        part = total - self.hi
        lost = (self.hi - (total - part)) + (value - part) + self.lo
        lost = lost if rest is None else lost + rest
        self.hi = total + lost
        self.lo = lost - (self.hi - total)


class Moments:
    """Mean, spread and confidence interval of one value per sentence, elementwise over `shape`.

    The spread is the standard deviation over sentences, the interval Student's at 95 % for their mean: sentences are
    independent, the rows of one sentence are not.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = torch.zeros(shape, dtype=torch.int64)
        self.sum, self.squares = Exact(shape), Exact(shape)

    def add(self, values: Float[Tensor, "b ..."], valid: Bool[Tensor, "b ..."] | None = None) -> None:
        """One value per sentence; those not valid count for nothing."""
        values = values.detach().cpu().double()
        if valid is None:
            number = torch.full(self.shape, len(values))
        else:
            counted = valid.cpu().expand(values.shape)
            number, values = counted.sum(0), torch.where(counted, values, 0.0)
        self.count += number
        self.sum.add(values.sum(0))
        self.squares.add(values.square().sum(0))

    def tensors(self) -> Float[Tensor, "five ..."]:
        """The state, for `merge` elsewhere."""
        return torch.stack([self.count.double(), self.sum.hi, self.sum.lo, self.squares.hi, self.squares.lo])

    def merge(self, tensors: Float[Tensor, "five ..."]) -> None:
        count, *sums = tensors
        self.count += count.long()
        self.sum.add(sums[0], sums[1])
        self.squares.add(sums[2], sums[3])

    @property
    def value(self) -> Float[Tensor, "*a"]:
        """The mean; NaN where no sentence counted."""
        return self.sum.hi / self.count

    @property
    def spread(self) -> Float[Tensor, "*a"]:
        """The standard deviation; NaN below two sentences."""
        centred = Exact(self.shape)
        centred.add(self.squares.hi, self.squares.lo)
        centred.add(-self.sum.hi * self.value)
        return (centred.hi.clamp_min(0.0) / (self.count - 1).clamp_min(0)).sqrt()

    @property
    def interval(self) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
        degrees = (self.count - 1).clamp_min(1).numpy()
        factor = torch.as_tensor(student.ppf((1 + CONFIDENCE) / 2, degrees), dtype=torch.float64)
        half = factor * self.spread / self.count.double().sqrt()
        return self.value - half, self.value + half


class Largest:
    """The largest value over all sentences; -inf where none counted."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count: Int[Tensor, "*a"] = torch.zeros(shape, dtype=torch.int64)
        self.largest = torch.full(shape, -torch.inf, dtype=torch.float64)

    def add(self, values: Float[Tensor, "b ..."], valid: Bool[Tensor, "b ..."] | None = None) -> None:
        values = values.detach().cpu().double()
        counted = torch.ones_like(values, dtype=torch.bool) if valid is None else valid.cpu().expand(values.shape)
        self.count += counted.sum(0)
        self.largest = torch.maximum(self.largest, torch.where(counted, values, -torch.inf).amax(0))

    def tensors(self) -> Float[Tensor, "two ..."]:
        return torch.stack([self.count.double(), self.largest])

    def merge(self, tensors: Float[Tensor, "two ..."]) -> None:
        self.count += tensors[0].long()
        self.largest = torch.maximum(self.largest, tensors[1])

    @property
    def value(self) -> Float[Tensor, "*a"]:
        return torch.where(self.count > 0, self.largest, torch.nan)


Fold = Moments | Largest
