"""Rows of attention in few passes: the same numbers as the functions of softmax, and sums along diagonals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention.softmax import entropy, jacobian_norm, masked_softmax, score_range
from attnworks.core.tensors import Scratch
from attnworks.traces.maps import RowStatistics, RowSum, attend_rows, diagonal_sums, row_statistics
from tests.helpers import assert_close

B, H, QUERIES, KEYS = 2, 3, 5, 7
SCRATCH = Scratch()


class Weighed(RowStatistics):
    P: Tensor


def weigh_rows(S: Tensor, allowed: Tensor | None = None) -> Weighed:
    """Maps and statistics, in memory that was used before."""
    sums = S.new_empty(len(RowSum), *S.shape[:-1])
    P = attend_rows(S, allowed, sums, SCRATCH)
    weighed = Weighed(*row_statistics(sums))
    weighed.P = P.clone()
    return weighed


def scores(*shape: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    return spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(S: Tensor, allowed: Tensor | None = None) -> None:
    """All that weigh_rows says, against linalg.softmax."""
    P = masked_softmax(S, allowed)
    rows = weigh_rows(S.clone(), allowed)
    assert_close(rows.P, P)
    assert_close(rows.entropy, entropy(P))
    assert_close(rows.max_weight, P.amax(-1))
    assert_close(rows.jacobian_norm, jacobian_norm(P))
    assert_close(rows.score_range, score_range(S, allowed))
    if allowed is not None:
        assert (rows.P[~allowed.expand_as(rows.P)] == 0).all()
    seen = S if allowed is None else S.masked_fill(~allowed, -torch.inf)
    unclear = (seen == seen.amax(-1, keepdim=True)).sum(-1) != 1
    blind = seen.amax(-1) == -torch.inf
    assert torch.equal(rows.argmax, seen.argmax(-1).masked_fill(unclear | blind, -1))


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 5.0, 30.0])
def test_rows_without_a_mask(spread: float) -> None:
    check(scores(B, H, QUERIES, KEYS, spread=spread))


@pytest.mark.parametrize(
    "shape", [(QUERIES, KEYS), (B, 1, QUERIES, KEYS), (B, H, QUERIES, KEYS), (B, 1, 1, KEYS), (H, QUERIES, KEYS)]
)
def test_rows_with_masks_of_any_shape(shape: tuple[int, ...]) -> None:
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.5
    allowed[..., 2] = True
    check(scores(B, H, QUERIES, KEYS, spread=3.0), allowed)


@given(st.integers(1, 7), st.integers(1, 11), st.floats(0.0, 20.0), st.integers(0, 2**16))
def test_rows_of_any_size(i: int, j: int, spread: float, seed: int) -> None:
    allowed = torch.rand(i, j, generator=torch.Generator().manual_seed(seed)) < 0.7
    check(scores(3, i, j, spread=spread, seed=seed), allowed)


def test_causal_rows() -> None:
    """The first row sees one key: entropy, Jacobian and range are exactly zero."""
    past = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    check(scores(B, H, KEYS, KEYS), past)
    rows = weigh_rows(scores(B, H, KEYS, KEYS), past)
    for values in (rows.entropy, rows.jacobian_norm, rows.score_range):
        assert (values[..., 0] == 0).all() and (values[..., 1:] > 0).all()
    assert (rows.max_weight[..., 0] == 1).all() and (rows.argmax[..., 0] == 0).all()


def test_rows_that_see_nothing_are_zero() -> None:
    allowed = torch.ones(B, 1, QUERIES, KEYS, dtype=torch.bool)
    allowed[1, :, 3], allowed[0] = False, False
    rows = weigh_rows(scores(B, H, QUERIES, KEYS), allowed)
    blind = ~allowed.any(-1).expand(B, H, QUERIES)
    for values in (rows.P, rows.entropy, rows.max_weight, rows.jacobian_norm, rows.score_range):
        assert (values[blind] == 0).all() and (values[~blind] > 0).any() and values.isfinite().all()
    assert (rows.argmax[blind] == -1).all() and (rows.argmax[~blind] >= 0).all()


def test_hidden_scores_may_be_anything() -> None:
    S = scores(B, H, QUERIES, KEYS)
    allowed = torch.rand(QUERIES, KEYS, generator=torch.Generator().manual_seed(5)) < 0.5
    allowed[:, 0] = True
    expected = weigh_rows(S.clone(), allowed)
    for hidden in (1e300, -1e300, torch.inf, -torch.inf, torch.nan):
        for got, want in zip(weigh_rows(S.masked_fill(~allowed, hidden), allowed), expected, strict=True):
            assert torch.equal(got, want)


def test_nan_stays_nan() -> None:
    S = scores(QUERIES, KEYS)
    S[2, 3] = torch.nan
    rows = weigh_rows(S)
    for values in (rows.entropy, rows.max_weight, rows.jacobian_norm, rows.score_range):
        assert values[2].isnan() and values[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("exponent", [1, 3, 6, 9, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_saturated_rows_keep_their_digits(dtype: torch.dtype, exponent: int) -> None:
    """P = (1 - d, d) has Jacobian norm 2 d (1 - d) and entropy d (1 - ln d) + O(d^2)."""
    gap = exponent * math.log(10)
    S = torch.tensor([[0.0, -gap]], dtype=dtype)
    rows = weigh_rows(S.clone())
    d = 1 / (1 + math.exp(-float(S[0, 1])))
    assert abs(float(rows.jacobian_norm) / (2 * d * (1 - d)) - 1) < 1e-5
    if exponent > 6:
        assert abs(float(rows.jacobian_norm) / (2 * d) - 1) < 1e-5
    assert abs(float(rows.P[0, 1]) / d - 1) < 1e-5
    assert int(rows.argmax) == 0 and abs(float(rows.score_range) - gap) < 1e-5 * gap


@pytest.mark.parametrize("exponent", [1, 3, 6])
def test_entropy_of_saturated_float32_rows(exponent: int) -> None:
    S = torch.tensor([[0.0, -exponent * math.log(10), -2.0 - exponent * math.log(10)]])
    exact = entropy(S.double().softmax(-1))
    assert abs(float(weigh_rows(S.clone()).entropy) / float(exact) - 1) < 1e-2


def test_ties() -> None:
    """Two or more largest scores: no argmax, and the Jacobian norm of c equal weights is sqrt(c - 1) / c."""
    S = torch.full((3, KEYS), -200.0, dtype=torch.float64)
    S[0, [1, 4]], S[1, [0, 2, 6]], S[2, 5] = 0.0, 0.0, 0.0
    rows = weigh_rows(S.clone())
    assert rows.argmax.tolist() == [-1, -1, 5]
    assert_close(rows.max_weight, torch.tensor([1 / 2, 1 / 3, 1.0], dtype=torch.float64))
    assert_close(rows.entropy, torch.tensor([math.log(2), math.log(3), 0.0], dtype=torch.float64))
    assert_close(rows.jacobian_norm, torch.tensor([1 / 2, math.sqrt(2) / 3, 0.0], dtype=torch.float64))
    check(torch.zeros(B, QUERIES, KEYS, dtype=torch.float64))


def test_large_scores_do_not_overflow() -> None:
    check(torch.tensor([[1000.0, 1000.0, 0.0], [-1000.0, -1001.0, -1003.0]], dtype=torch.float64))
    rows = weigh_rows(torch.tensor([[3e38, 0.0, -3e37]]))
    assert rows.P.tolist() == [[1.0, 0.0, 0.0]] and all(values.isfinite().all() for values in rows)


@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
def test_diagonal_sums(m: int, i: int, j: int) -> None:
    P = scores(m, i, j)
    sums = diagonal_sums(P)
    assert sums.shape == (m, i + j - 1)
    for place, offset in enumerate(range(1 - i, j)):
        assert_close(sums[:, place], P.diagonal(offset, -2, -1).sum(-1))


def test_diagonal_sums_of_views() -> None:
    P = scores(KEYS, QUERIES, B).transpose(0, 2)
    assert torch.equal(diagonal_sums(P), diagonal_sums(P.contiguous()))


def check_sink(S: Tensor, sink: Tensor, allowed: Tensor | None = None) -> None:
    """A sink is one more key, in the last place, for entropy and Jacobian; the others are about keys."""
    with_sink = torch.cat([S, sink.unsqueeze(-1).expand(*S.shape[:-1], 1)], -1)
    shown = None if allowed is None else torch.cat([allowed, torch.ones_like(allowed[..., :1])], -1)
    whole = masked_softmax(with_sink, shown)
    keys = weigh_rows(S.clone(), allowed)
    sums = S.new_empty(len(RowSum), *S.shape[:-1])
    P = attend_rows(S.clone(), allowed, sums, SCRATCH, sink)
    rows = row_statistics(sums)
    blind = torch.zeros_like(rows.entropy, dtype=torch.bool) if allowed is None else ~allowed.any(-1)
    assert_close(P, whole[..., :-1])
    assert_close(rows.sink_weight, whole[..., -1])
    assert_close(rows.entropy, entropy(whole).masked_fill(blind, 0.0))
    assert_close(rows.jacobian_norm, jacobian_norm(whole).masked_fill(blind, 0.0))
    assert_close(rows.max_weight, whole[..., :-1].amax(-1))
    assert_close(rows.key_entropy, keys.entropy)
    assert torch.equal(rows.score_range, keys.score_range) and torch.equal(rows.argmax, keys.argmax)


@pytest.mark.parametrize("height", [-1e4, -30.0, -2.0, 0.0, 2.0, 30.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 20.0])
def test_a_sink_is_one_more_entry_of_the_softmax(height: float, spread: float) -> None:
    S, sink = scores(B, H, QUERIES, KEYS, spread=spread), height + scores(H, 1, seed=5)
    check_sink(S, sink)
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril()
    allowed[1] = False
    check_sink(S, sink, allowed.expand(B, H, QUERIES, KEYS))


def test_a_sink_as_high_as_the_highest_score() -> None:
    S = torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, -1.0]], dtype=torch.float64)
    check_sink(S, torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_a_sink_far_above_all_scores_leaves_nothing_and_nothing_overflows() -> None:
    S, sums = scores(H, QUERIES, KEYS).float(), torch.empty(len(RowSum), H, QUERIES)
    P = attend_rows(S, None, sums, SCRATCH, torch.full((H, 1), 1e4))
    rows = row_statistics(sums)
    assert not P.any() and (rows.sink_weight == 1).all() and not rows.max_weight.any()
    assert not rows.entropy.any() and not rows.jacobian_norm.any()
    assert all(field.isfinite().all() for field in rows)


def test_even_keys_beside_a_sink_keep_the_entropy_of_even_keys() -> None:
    S, sums = (
        torch.zeros(H, QUERIES, KEYS, dtype=torch.float64),
        torch.empty(len(RowSum), H, QUERIES, dtype=torch.float64),
    )
    attend_rows(S, None, sums, SCRATCH, torch.full((H, 1), 3.0, dtype=torch.float64))
    rows = row_statistics(sums)
    assert_close(rows.key_entropy.exp(), torch.full_like(rows.entropy, KEYS))
    weight = rows.sink_weight
    two = torch.special.entr(weight) + torch.special.entr(1 - weight)
    assert_close(rows.entropy, two + (1 - weight) * rows.key_entropy)
