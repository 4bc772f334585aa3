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
        """The large parts exactly, then the small ones."""
        total, lost = _sum(self.hi, value)
        lost = lost + self.lo if rest is None else lost + (self.lo + rest)
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
        """One value per sentence; those not valid count for nothing.

        With a number c near the mean of n values x = c + d, sum x = n c + sum d and
        sum x^2 = n c^2 + 2 c sum d + sum d^2, whose large terms are exact.
        """
        values = values.detach().cpu().double()
        if valid is None:
            counted, number = None, torch.full(self.shape, len(values))
        else:
            counted = valid.cpu().expand(values.shape)
            number, values = counted.sum(0), torch.where(counted, values, 0.0)
        self.count = self.count + number
        middle = _half(values.sum(0) / number.clamp_min(1))[0]
        apart = values - middle
        if counted is not None:
            apart = torch.where(counted, apart, 0.0)
        off, (upper, lower) = apart.sum(0), _half(middle * middle)
        self.sum.add(*_sum(number * middle, off))
        self.squares.add(*_sum(number * upper, number * lower + 2 * middle * off + apart.square().sum(0)))

    def tensors(self) -> Float[Tensor, "five ..."]:
        """The state, for `merge` elsewhere."""
        return torch.stack([self.count.double(), self.sum.hi, self.sum.lo, self.squares.hi, self.squares.lo])

    def merge(self, tensors: Float[Tensor, "five ..."]) -> None:
        count, *sums = tensors
        self.count = self.count + count.long()
        self.sum.add(sums[0], sums[1])
        self.squares.add(sums[2], sums[3])

    @property
    def value(self) -> Float[Tensor, "*a"]:
        """The mean; NaN where no sentence counted."""
        return self.sum.hi / self.count

    @property
    def spread(self) -> Float[Tensor, "*a"]:
        """The standard deviation sqrt((n sum x^2 - (sum x)^2) / n (n - 1)); NaN below two sentences."""
        if self._single:
            return torch.full(self.shape, torch.nan, dtype=torch.float64)
        count = self.count.double()
        centred = Exact(self.shape)
        centred.add(*_product(count, self.squares.hi))
        centred.add(count * self.squares.lo)
        centred.add(*(-part for part in _product(self.sum.hi, self.sum.hi)))
        centred.add(-2 * self.sum.hi * self.sum.lo)
        spread = (centred.hi.clamp_min(0.0) / (count * (count - 1)).clamp_min(1)).sqrt()
        return torch.where(self.count > 1, spread, torch.nan)

    @property
    def interval(self) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
        """NaN below two sentences."""
        if self._single:
            return self.spread, self.spread
        degrees = (self.count - 1).clamp_min(1).numpy()
        factor = torch.as_tensor(student.ppf((1 + CONFIDENCE) / 2, degrees), dtype=torch.float64)
        half = factor * self.spread / self.count.double().sqrt()
        return self.value - half, self.value + half

    @property
    def _single(self) -> bool:
        """Whether nothing has two sentences, as in a look at one: then there is nothing to compute."""
        return not bool((self.count > 1).any())


class Largest:
    """The largest value over all sentences; -inf where none counted."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count: Int[Tensor, "*a"] = torch.zeros(shape, dtype=torch.int64)
        self.largest = torch.full(shape, -torch.inf, dtype=torch.float64)

    def add(self, values: Float[Tensor, "b ..."], valid: Bool[Tensor, "b ..."] | None = None) -> None:
        values = values.detach().cpu().double()
        counted = torch.ones_like(values, dtype=torch.bool) if valid is None else valid.cpu().expand(values.shape)
        self.count = self.count + counted.sum(0)
        self.largest = torch.maximum(self.largest, torch.where(counted, values, -torch.inf).amax(0))

    def tensors(self) -> Float[Tensor, "two ..."]:
        return torch.stack([self.count.double(), self.largest])

    def merge(self, tensors: Float[Tensor, "two ..."]) -> None:
        self.count = self.count + tensors[0].long()
        self.largest = torch.maximum(self.largest, tensors[1])

    @property
    def value(self) -> Float[Tensor, "*a"]:
        return torch.where(self.count > 0, self.largest, torch.nan)


def _sum(a: Float[Tensor, "*a"], b: Float[Tensor, "*a"]) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
    """a + b, rounded, and what rounding took away: Knuth's two-sum."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _half(value: Float[Tensor, "*a"]) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
    """The upper and the lower half of the digits, 26 bits each: Veltkamp's split."""
    scaled = 134217729.0 * value
    upper = scaled - (scaled - value)
    return upper, value - upper


def _product(a: Float[Tensor, "*a"], b: Float[Tensor, "*a"]) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
    """a b, rounded, and what rounding took away: Dekker's product."""
    (a_up, a_low), (b_up, b_low) = _half(a), _half(b)
    product = a * b
    return product, ((a_up * b_up - product) + a_up * b_low + a_low * b_up) + a_low * b_low
