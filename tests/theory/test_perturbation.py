"""Scores split into what all rows share and the rest, and how much the rest can change a row of attention."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention.softmax import score_range
from attnworks.theory.collapse_cases import LARGEST_LEMMA_RANGE, entrywise_gap, row_change, split_logits
from tests.helpers import assert_close

ROUNDING = 1e-9


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]


seeds = st.integers(0, 10_000)
spreads = st.sampled_from([1e-3, 0.1, 1.0, 5.0])


@given(seeds, st.integers(1, 7), st.integers(1, 5), spreads)
def test_attention_from_its_split_scores(seed: int, n: int, e: int, spread: float) -> None:
    """Q K^T with Q = X W_Q + b_Q and K = X W_K + b_K, whatever row x is taken off; b_K is not seen by softmax."""
    k = 3
    X, x, W_Q, W_K, b_Q, b_K = drawn(seed, (2, n, e), (2, e), (e, k), (e, k), (k,), (k,))
    X = spread * X
    P = (0.7 * (X @ W_Q + b_Q) @ (X @ W_K + b_K).mT).softmax(-1)
    split = split_logits(X, W_Q @ W_K.mT, x, 0.7, W_K @ b_Q)
    assert_close(split.P, P)
    assert_close(split.R + x.unsqueeze(-2), X)


def test_equal_rows_leave_nothing_but_what_they_share() -> None:
    X, W = drawn(3, (1, 5), (5, 5))
    split = split_logits(X.expand(7, 5), W, X[0])
    assert bool((split.E == 0).all()) and bool((split.r == 0).all())


@given(seeds, spreads, spreads)
def test_ratios_and_variation_stay_within_their_bounds(seed: int, of_r: float, of_E: float) -> None:
    """Numerator by exp(E_ij) between exp(min E) and exp(max E), and so the denominator: a ratio within exp(+-D).

    For total variation, softmax(r) on a set A goes from a to a t / (a t + 1 - a) with t <= exp(D); the difference is
    largest at a = 1 / (1 + sqrt t), where it is (sqrt t - 1) / (sqrt t + 1) = tanh(D / 4).
    """
    r, E = drawn(seed, (3, 7), (3, 5, 7))
    change = row_change(of_r * r, of_E * E)
    D = change.range
    assert_close(D, score_range(of_E * E))
    assert bool((change.most <= D.exp() * (1 + ROUNDING)).all())
    assert bool((change.least >= (-D).exp() * (1 - ROUNDING)).all())
    assert bool((change.least >= (1 - D) - ROUNDING).all())
    assert bool((change.variation <= (D / 4).tanh() * (1 + ROUNDING) + 1e-15).all())
    small = D <= LARGEST_LEMMA_RANGE
    assert bool((change.most <= 1 + 2 * D + ROUNDING)[small].all())


def test_numbers_of_a_row_by_hand() -> None:
    """r = (0, 0) and E = (ln 3, 0): from (1/2, 1/2) to (3/4, 1/4)."""
    change = row_change(torch.zeros(2).double(), torch.tensor([[math.log(3), 0.0]], dtype=torch.float64))
    want = torch.tensor([math.log(3), 0.5, 1.5, 0.25], dtype=torch.float64)
    assert_close(torch.cat(change), want)


@pytest.mark.parametrize("D", [0.3, 2.0, 7.0])
def test_total_variation_attains_its_bound(D: float) -> None:
    """Two keys with a = 1 / (1 + exp(D / 2)), that is r = (-D / 2, 0), and E = (D, 0)."""
    change = row_change(torch.tensor([-D / 2, 0.0], dtype=torch.float64), torch.tensor([[D, 0.0]], dtype=torch.float64))
    assert change.variation.item() == pytest.approx(math.tanh(D / 4), rel=1e-12)


def test_largest_range_of_the_lemma() -> None:
    """exp(D) = 1 + 2 D there: a key of hardly any weight attains exp(D), so that the lemma ends where they cross."""

    def excess(D: float) -> float:
        rare = torch.tensor([0.0, 40.0], dtype=torch.float64)
        return row_change(rare, torch.tensor([[D, 0.0]], dtype=torch.float64)).most.item() - (1 + 2 * D)

    assert excess(LARGEST_LEMMA_RANGE) < 0 < excess(LARGEST_LEMMA_RANGE + 1e-5)


@given(seeds, st.integers(2, 7), st.integers(1, 5), spreads)
def test_entrywise_gap_stays_within_both_bounds(seed: int, n: int, e: int, spread: float) -> None:
    X, x, W = drawn(seed, (2, n, e), (2, e), (e, e))
    X = spread * X
    split, gap = split_logits(X, W, x), entrywise_gap(X, W, x)
    y = x.unsqueeze(-2) + split.r.softmax(-1).unsqueeze(-2) @ split.R
    assert_close(gap.gap, (split.P @ X - y).abs())
    floor = ROUNDING * X.abs().max() + 1e-12
    assert bool((gap.gap <= gap.by_variation + floor).all())
    small = score_range(split.E) <= LARGEST_LEMMA_RANGE
    assert bool((gap.gap <= gap.by_lemma + floor)[small].all())


@pytest.mark.parametrize("a", [0.1, 0.5, 1.0])
def test_gap_of_two_tokens(a: float) -> None:
    """X = (a, -a), W = 1: r = 0, D = 2 a^2 and PX = +-a tanh(a^2). The bounds are 2 D a and tanh(D / 4) 2 a."""
    X = torch.tensor([[a], [-a]], dtype=torch.float64)
    gap = entrywise_gap(X, torch.ones(1, 1).double(), torch.zeros(1).double())
    want = torch.tensor([a * math.tanh(a**2), 4 * a**3, 2 * a * math.tanh(a**2 / 2)], dtype=torch.float64)
    assert_close(torch.stack(gap).squeeze(-1), want.unsqueeze(-1).expand(3, 2))
