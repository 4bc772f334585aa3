"""Statistics over sentences against numpy and scipy, and their independence of the order of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.exam.measure import PlacedSample, ReadingSpec, Sample
from attnworks.exam.statistics import Accumulator, Exact, Largest, Moments

SENTENCES, HEADS = 31, 3
SLOT = Slot("encoder", 0)
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
batches = st.lists(st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=5), min_size=1, max_size=5)


Piece = tuple[Tensor, Tensor | None]


def folded(pieces: Sequence[Piece]) -> Moments:
    fold = Moments(tuple(pieces[0][0].shape[1:]))
    for values, valid in pieces:
        fold.add(values, valid)
    return fold


def largest_of(pieces: Sequence[Piece]) -> Largest:
    fold = Largest(tuple(pieces[0][0].shape[1:]))
    for values, valid in pieces:
        fold.add(values, valid)
    return fold


def same(one: Tensor, other: Tensor) -> bool:
    """To the last bit; NaN equals NaN."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


def all_of(fold: Moments) -> list[Tensor]:
    return [fold.value, fold.spread, *fold.interval, fold.count.double()]


@pytest.mark.parametrize("mean", [0.0, 0.3, -7e5])
def test_mean_spread_and_interval_are_those_of_scipy(mean: float) -> None:
    values = torch.randn(SENTENCES, HEADS, dtype=torch.float64) + mean
    fold = folded([(part, None) for part in values.split(7)])
    x = values.numpy()
    low, high = scipy.stats.t.interval(0.95, SENTENCES - 1, x.mean(0), scipy.stats.sem(x, axis=0))
    np.testing.assert_allclose(fold.value, x.mean(0), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(fold.spread, x.std(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(torch.stack(fold.interval), [low, high], rtol=1e-12)
    assert torch.equal(fold.count, torch.full((HEADS,), SENTENCES))


@pytest.mark.parametrize("size", [1, 5, SENTENCES])
@pytest.mark.parametrize("spread", [1e-3, 1e-9])
def test_a_small_spread_around_a_large_mean(size: int, spread: float) -> None:
    """Where the sum of squares in float64 would know nothing of it."""
    values = 1.0 + spread * torch.randn(SENTENCES, HEADS, dtype=torch.float64)
    fold = folded([(part, None) for part in values.split(size)])
    np.testing.assert_allclose(fold.spread, values.numpy().std(0, ddof=1), rtol=1e-5)


def test_equal_sentences_have_no_spread() -> None:
    fold = folded([(torch.full((size, HEADS), 0.1, dtype=torch.float64), None) for size in (7, 2, 13)])
    assert bool((fold.spread < 1e-12).all()) and torch.equal(fold.value, torch.full_like(fold.value, 0.1))


def test_sums_keep_what_float64_would_lose() -> None:
    total = Exact((1,))
    parts = [1e16, 1.0, -1e16, 1e-9, 2.0**-40]
    for part in parts:
        total.add(torch.tensor([part], dtype=torch.float64))
    assert float(total.hi) == float(sum(map(Fraction, parts)))


def test_only_valid_sentences_count() -> None:
    values = torch.randn(SENTENCES, HEADS, 2, dtype=torch.float64)
    valid = torch.rand(SENTENCES, HEADS, 1) < 0.4
    dirty = torch.where(valid, values, torch.nan)
    pieces = [(dirty[:11], valid[:11]), (dirty[11:], valid[11:])]
    fold, largest = folded(pieces), largest_of(pieces)
    for head in range(HEADS):
        x = values[valid[:, head, 0], head].numpy()
        np.testing.assert_allclose(fold.value[head], x.mean(0), rtol=1e-13)
        np.testing.assert_allclose(fold.spread[head], x.std(0, ddof=1), rtol=1e-12)
        np.testing.assert_array_equal(largest.value[head], x.max(0))
        assert fold.count[head].tolist() == largest.count[head].tolist() == [len(x)] * 2


def test_no_number_where_no_sentence_counted() -> None:
    valid = torch.tensor([[True, False, True], [True, False, False]])
    fold = folded([(torch.ones(2, 3, dtype=torch.float64), valid)])
    assert fold.value.isnan().tolist() == [False, True, False]
    assert fold.spread.isnan().tolist() == [False, True, True], "one sentence has no spread"
    assert fold.interval[0].isnan().tolist() == fold.interval[1].isnan().tolist() == [False, True, True]
    assert largest_of([(torch.ones(2, 3), valid)]).value.isnan().tolist() == [False, True, False]
    empty = Moments((2,))
    assert all(part.isnan().all() for part in all_of(empty)[:-1])


@given(batches)
def test_merging_is_adding(made: list[list[tuple[float, bool]]]) -> None:
    pieces = [
        (
            torch.tensor([[value] for value, _ in rows], dtype=torch.float64),
            torch.tensor([[counts] for _, counts in rows]),
        )
        for rows in made
    ]
    for fold, merged in ((folded, Moments((1,))), (largest_of, Largest((1,)))):
        whole = fold(pieces)
        for piece in reversed(pieces):
            merged.merge(fold([piece]).tensors())
        assert same(whole.value, merged.value) and torch.equal(whole.count, merged.count)
    counted = [value for rows in made for value, counts in rows if counts]
    if counted:
        exact = float(sum(map(Fraction, counted)) / len(counted))
        rounding = 1e-15 * max(1.0, *map(abs, counted))  # values of one batch are summed in float64
        assert math.isclose(float(folded(pieces).value), exact, rel_tol=1e-15, abs_tol=rounding)


def test_every_order_of_batches_gives_the_same_bits() -> None:
    scales = 10.0 ** torch.randint(-3, 4, (HEADS, 11))
    values = (torch.rand(23, HEADS, 11, dtype=torch.float64) + 0.5) * scales
    pieces = [(part, None) for part in values.split([3, 7, 1, 7, 5])]
    expected = all_of(folded(pieces))
    for order in permutations(pieces):
        assert all(map(same, all_of(folded(list(order))), expected))
        first, second = folded(list(order[:2])), folded(list(order[2:]))
        first.merge(second.tensors())
        assert all(map(same, all_of(first), expected))


# Accumulator ----------------------------------------------------------------------------------------------------------

DECLARED = (
    ReadingSpec("a.mean", ("layer", "head"), "words", "S0.14"),
    ReadingSpec("a.most", ("layer", "head"), "words", "S0.14", fold="largest"),
    ReadingSpec("a.weight", ("layer", "head"), "words", "S0.14", fold="constant"),
    ReadingSpec("a.depth", ("depth",), "words", "S0.14"),
    ReadingSpec("a.share", ("length",), "words", "S0.14", ticks={"length": (1.0, 3.0)}),
)


def test_readings_come_by_layer_and_kind() -> None:
    folds = Accumulator(DECLARED)
    for slot in (Slot("decoder", 1), Slot("decoder", 0), Slot("encoder", 0)):
        folds.add(PlacedSample("a.mean", slot, Sample(torch.full((2, HEADS), 10.0 + slot.layer))))
        folds.add(PlacedSample("a.most", slot, Sample(torch.arange(2 * HEADS).view(2, HEADS).double())))
        folds.add(PlacedSample("a.weight", slot, Sample(torch.full((HEADS,), 5.0))))
    folds.add(PlacedSample("a.share", "cross", Sample(torch.rand(2, 2))))
    readings = folds.readings()
    assert set(readings) == {
        "a.mean@encoder", "a.mean@decoder", "a.most@encoder", "a.most@decoder", "a.weight@encoder", "a.weight@decoder",
        "a.share@cross",
    }  # fmt: skip
    mean = readings["a.mean@decoder"]
    assert [float(row[0]) for row in mean.value if isinstance(row, Tensor)] == [10.0, 11.0]
    assert mean.spread is not None and mean.interval is not None and mean.count is not None
    most, weight, share = readings["a.most@encoder"], readings["a.weight@encoder"], readings["a.share"]
    assert most.value[0].tolist() == [3.0, 4.0, 5.0]  # type: ignore[union-attr]
    assert most.spread is None and most.count is not None
    assert weight.spread is weight.interval is weight.count is None
    assert share.axes == ("length",) and len(share.value) == 1 and share.ticks == {"length": (1.0, 3.0)}


def test_a_layer_that_gave_nothing_keeps_its_place() -> None:
    """Row l is layer l: a layer without samples has NaN, and as many heads as it has in the model."""
    folds = Accumulator(DECLARED)
    for layer in (1, 3):
        slot = Slot("encoder", layer)
        folds.add(PlacedSample("a.mean", slot, Sample(torch.full((2, HEADS), 10.0 + layer))))
        folds.add(PlacedSample("a.most", slot, Sample(torch.full((2, HEADS), 20.0 + layer))))
        folds.add(PlacedSample("a.weight", slot, Sample(torch.full((HEADS,), 30.0 + layer))))
    readings = folds.readings({Slot("encoder", layer): heads for layer, heads in enumerate((5, HEADS, 0, HEADS))})
    for name, base in (("a.mean", 10.0), ("a.most", 20.0), ("a.weight", 30.0)):
        rows = [row for row in readings[name].value if isinstance(row, Tensor)]
        assert [len(row) for row in rows] == [5, HEADS, 0, HEADS], name
        assert rows[0].isnan().all() and (rows[1] == base + 1).all() and (rows[3] == base + 3).all(), name
    count = readings["a.mean"].count
    assert count is not None and not count[0].any() and (count[1] == 2).all()


def test_some_heads_at_a_time_are_all_heads() -> None:
    values, valid = torch.rand(7, 5, 2, dtype=torch.float64), torch.rand(7, 5, 1) < 0.6
    whole, parts = Accumulator(DECLARED), Accumulator(DECLARED)
    whole.add(PlacedSample("a.mean", SLOT, Sample(values, valid)))
    for heads in (slice(0, 2), slice(2, 5)):
        parts.add(PlacedSample("a.mean", SLOT, Sample(values[:, heads], valid[:, heads])), heads=heads, of=5)
    one, other = whole.readings()["a.mean"], parts.readings()["a.mean"]
    assert one.count is not None and other.count is not None and torch.equal(one.count[0], other.count[0])
    torch.testing.assert_close(one.value[0], other.value[0], rtol=1e-15, atol=0, equal_nan=True)


def test_what_another_process_folded() -> None:
    values = torch.rand(9, HEADS, dtype=torch.float64)
    whole, first, second = (Accumulator(DECLARED) for _ in range(3))
    for name in ("a.mean", "a.most"):
        for folds in (whole, first):
            folds.add(PlacedSample(name, SLOT, Sample(values[:4])))
        for folds in (whole, second):
            folds.add(PlacedSample(name, SLOT, Sample(values[4:])))
            folds.add(PlacedSample(name, Slot("encoder", 1), Sample(values[4:])))
    idle = Accumulator(DECLARED)
    idle.merge(first.state())
    idle.merge(second.state())
    first.merge(second.state())
    first.merge(Accumulator(DECLARED).state())
    expected = whole.readings()
    for found in (first.readings(), idle.readings()):
        assert set(found) == set(expected)
        for name in expected:
            one, other = found[name].to_json(), expected[name].to_json()
            assert one == other


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_names_reading_and_layer(bad: float) -> None:
    values = torch.ones(2, HEADS)
    values[1, 2] = bad
    with pytest.raises(UsageError, match=r"a\.mean at enc\.3: expected finite numbers"):
        folds = Accumulator(DECLARED)
        folds.add(PlacedSample("a.mean", Slot("encoder", 3), Sample(values)))
        folds.flush()
    valid = torch.isfinite(values)
    folds = Accumulator(DECLARED)
    folds.add(PlacedSample("a.mean", SLOT, Sample(values, valid)))
    assert folds.readings()["a.mean"].value[0].tolist() == [1.0] * HEADS  # type: ignore[union-attr]
