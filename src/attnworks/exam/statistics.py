"""Statistics over sentences with exact sums: batches and processes in any order give the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import t as student
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.places import KINDS, Kind, Slot
from attnworks.exam.measure import PlacedSample, ReadingSpec
from attnworks.exam.reading import Reading, Readings

CONFIDENCE = 0.95

Key = tuple[str, Slot | Kind]
"""The name of a reading and its place: a layer, a depth of a stack, or a kind of attention."""
Pending = tuple[Key, Tensor, Tensor | None]
"""Key, values [b ...], and which of them are valid."""


class Exact:
    """A sum kept as two float64 numbers, hi + lo with |lo| <= ulp(hi) / 2: 106 bits, so that order does not matter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.hi, self.lo = torch.zeros(2, *shape, dtype=torch.float64)

    def add(self, value: Float[Tensor, "*a"], rest: Float[Tensor, "*a"] | None = None) -> None:
        """Add `value` and its low part `rest`: the high parts exactly, then the low parts."""
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
        """Add one value per sentence; those that are not valid are left out.

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
        """The mean; NaN without a sentence."""
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
        """Both ends; NaN below two sentences."""
        if self._single:
            return self.spread, self.spread
        degrees = (self.count - 1).clamp_min(1).numpy()
        factor = torch.as_tensor(student.ppf((1 + CONFIDENCE) / 2, degrees), dtype=torch.float64)
        half = factor * self.spread / self.count.double().sqrt()
        return self.value - half, self.value + half

    @property
    def _single(self) -> bool:
        """Whether no entry has two sentences: then there is no spread."""
        return not bool((self.count > 1).any())


class Largest:
    """The largest value over all sentences; NaN without a sentence."""

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
    """a + b, rounded, and the rounding error: Knuth's two-sum."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _half(value: Float[Tensor, "*a"]) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
    """The upper and the lower half of the digits, 26 bits each: Veltkamp's split."""
    scaled = 134217729.0 * value
    upper = scaled - (scaled - value)
    return upper, value - upper


def _product(a: Float[Tensor, "*a"], b: Float[Tensor, "*a"]) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
    """a b, rounded, and the rounding error: Dekker's product."""
    (a_up, a_low), (b_up, b_low) = _half(a), _half(b)
    product = a * b
    return product, ((a_up * b_up - product) + a_up * b_low + a_low * b_up) + a_low * b_low


FOLDS: dict[str, type[Moments | Largest]] = {"mean": Moments, "largest": Largest}


class Accumulator:
    """Accumulates samples: (reading, place) -> statistics so far."""

    def __init__(self, declared: Iterable[ReadingSpec]) -> None:
        self.declared = {reading.name: reading for reading in declared}
        self._folds: dict[Key, Moments | Largest] = {}
        self._constants: dict[Key, Tensor] = {}
        self._pending: dict[tuple[int, str], list[Pending]] = {}
        self._rows: dict[tuple[str, tuple[tuple[Key, tuple[int, ...]], ...]], Moments | Largest] = {}

    def add(self, placed: PlacedSample, *, heads: slice | None = None, of: int = 0) -> None:
        """Add one value per sentence; with `heads`, only for these heads of the `of` heads of the layer."""
        name, where, (values, valid) = placed
        key = (name, where)
        if self.declared[name].fold == "constant":
            self._constants[key] = values.detach().cpu().double()
            return
        if heads is not None:
            whole = values.new_zeros(len(values), of, *values.shape[2:])
            whole[:, heads] = values
            counted = torch.zeros(whole.shape, dtype=torch.bool, device=values.device)
            counted[:, heads] = True if valid is None else valid
            values, valid = whole, counted
        self._pending.setdefault((len(values), self.declared[name].fold), []).append((key, values, valid))

    def flush(self) -> None:
        """Fold all samples since the last flush as one long row, which is many times faster than one by one."""
        for (sentences, fold), samples in self._pending.items():
            row = torch.cat([values.detach().cpu().reshape(sentences, -1) for _, values, _ in samples], 1)
            counted = torch.cat([_counted(values, valid) for _, values, valid in samples], 1)
            places = tuple((key, tuple(values.shape[1:])) for key, values, _ in samples)
            broken = (~torch.isfinite(row) & counted).any(0)
            if bool(broken.any()):
                sizes = [torch.Size(shape).numel() for _, shape in places]
                first = next(at for at, part in enumerate(broken.split(sizes)) if bool(part.any()))
                raise not_finite("{} at {}".format(*places[first][0]))
            if (fold, places) not in self._rows:
                self._rows[fold, places] = FOLDS[fold]((row.shape[1],))
            self._rows[fold, places].add(row, counted)
        self._pending.clear()

    def _distribute(self) -> None:
        """Distribute the long rows to the statistics of each reading and place."""
        self.flush()
        for (_, places), row in self._rows.items():
            tensors = row.tensors().split([torch.Size(shape).numel() for _, shape in places], 1)
            for (key, shape), part in zip(places, tensors, strict=True):
                self._merge(key, part.reshape(-1, *shape))
        self._rows.clear()

    def _merge(self, key: Key, tensors: Tensor) -> None:
        if key not in self._folds:
            self._folds[key] = FOLDS[self.declared[key[0]].fold](tuple(tensors.shape[1:]))
        self._folds[key].merge(tensors)

    def state(self) -> dict[Key, Tensor]:
        self._distribute()
        return {key: fold.tensors() for key, fold in self._folds.items()}

    def merge(self, state: Mapping[Key, Tensor]) -> None:
        """Add the state of another process."""
        self._distribute()
        for key, tensors in state.items():
            self._merge(key, tensors)

    def readings(self, heads: Mapping[Slot, int] | None = None) -> Readings:
        """All readings so far: row l is always layer l.

        heads    slot -> number of heads; the row of a layer without a sample is NaN for each of its heads, and the row
                 of a layer without attention has no heads
        """
        self._distribute()
        found = Readings([])
        for name, declared in self.declared.items():
            places: list[Slot | Kind] = [where for other, where in (*self._folds, *self._constants) if other == name]
            for kind in KINDS:
                own: list[Slot | Kind] = [at for at in places if (at.kind if isinstance(at, Slot) else at) == kind]
                if own:
                    if declared.axes[:1] == ("layer",) and isinstance(own[0], Slot):
                        known = {**(heads or {}), **dict.fromkeys(own)}
                        last = max(slot.layer for slot in known if isinstance(slot, Slot) and slot.kind == kind)
                        slots = (Slot(kind, layer) for layer in range(last + 1))
                        missing = {slot: (heads or {}).get(slot, 0) for slot in slots if slot not in own}
                        own += self._without_samples(declared, own[0], missing)
                    own.sort(key=lambda where: where.layer if isinstance(where, Slot) else 0)
                    found.add(self._reading(declared, kind, own))
        return found

    def _without_samples(self, declared: ReadingSpec, like: Slot, missing: Mapping[Slot, int]) -> Iterable[Slot]:
        """The layers without a sample of this reading; each gets empty statistics for its heads."""
        sizes = (self._constants if declared.fold == "constant" else self._folds)[declared.name, like].shape
        over_heads = ("head", "other") if declared.axes[1:] == ("head", "other") else ("head",)
        for slot, heads in missing.items():
            shape = tuple(heads if axis in over_heads else n for axis, n in zip(declared.axes[1:], sizes, strict=True))
            if declared.fold == "constant":
                self._constants[declared.name, slot] = torch.full(shape, torch.nan, dtype=torch.float64)
            else:
                self._folds[declared.name, slot] = FOLDS[declared.fold](shape)
        return missing

    def _reading(self, declared: ReadingSpec, kind: Kind, places: list[Slot | Kind]) -> Reading:
        if declared.fold == "constant":
            return declared.reading(kind, (self._constants[declared.name, where].clone() for where in places))
        folds = [self._folds[declared.name, where] for where in places]
        value, count = tuple(fold.value for fold in folds), tuple(fold.count.clone() for fold in folds)
        moments = [fold for fold in folds if isinstance(fold, Moments)]
        if not moments:
            return declared.reading(kind, value, count=count)
        low, high = zip(*(fold.interval for fold in moments), strict=True)
        spread = tuple(fold.spread for fold in moments)
        return declared.reading(kind, value, spread=spread, low=low, high=high, count=count)


def _counted(values: Tensor, valid: Tensor | None) -> Bool[Tensor, "b n"]:
    counted = torch.ones((), dtype=torch.bool) if valid is None else valid.cpu()
    return counted.expand(values.shape).reshape(len(values), -1)


def not_finite(what: str) -> UsageError:
    return UsageError(what, "finite numbers", "NaN, infinity or an overflow", "examine in --dtype float32 or float64")
