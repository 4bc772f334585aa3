"""Softmax: masked, its Jacobian, and the measures of saturation."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attnworks.attention.softmax import entropy, jacobian_norm, masked_softmax, score_range, softmax_jacobian
from tests.helpers import assert_close

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def logits(*shape: int, spread: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return (spread * torch.randn(shape, dtype=torch.float64)).to(dtype)


# --- masked softmax ---------------------------------------------------------------------------------------------------


def test_without_a_mask_it_is_softmax() -> None:
    S = logits(2, 3, 5, 7)
    want = S.exp() / S.exp().sum(-1, keepdim=True)
    assert_close(masked_softmax(S), want)
    assert_close(masked_softmax(S, torch.ones(5, 7, dtype=torch.bool)), want)


def test_it_is_softmax_over_the_allowed_keys() -> None:
    S = logits(2, 3, 5, 7)
    allowed = torch.rand(2, 1, 5, 7) < 0.5
    allowed[..., 3] = True
    weights = S.exp() * allowed
    P = masked_softmax(S, allowed)
    assert_close(P, weights / weights.sum(-1, keepdim=True))
    assert (P[~allowed.expand_as(P)] == 0).all()


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (3, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    S, allowed = logits(2, 3, 5, 7), torch.rand(shape) < 0.5
    assert torch.equal(masked_softmax(S, allowed), masked_softmax(S, allowed.expand_as(S)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_without_keys_is_zero_with_zero_gradient(dtype: torch.dtype) -> None:
    S = logits(5, 7, dtype=dtype).requires_grad_()
    allowed = torch.ones(5, 7, dtype=torch.bool)
    allowed[2] = False
    P = masked_softmax(S, allowed)
    (gradient,) = torch.autograd.grad((P * torch.randn(5, 7).to(dtype)).sum(), S)
    assert P.dtype == dtype
    assert (P[2] == 0).all() and (gradient[2] == 0).all()
    assert gradient.isfinite().all() and (gradient[[0, 1, 3, 4]] != 0).any(-1).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hidden_scores_may_be_anything(dtype: torch.dtype) -> None:
    S = logits(5, 7, dtype=dtype)
    allowed = torch.rand(5, 7) < 0.5
    allowed[:, 0] = True
    want = masked_softmax(S, allowed)
    for hidden in (torch.finfo(dtype).max, torch.finfo(dtype).min, torch.inf, -torch.inf, torch.nan):
        odd = S.masked_fill(~allowed, hidden).requires_grad_()
        P = masked_softmax(odd, allowed)
        assert torch.equal(P, want)
        (gradient,) = torch.autograd.grad(P.square().sum(), odd)
        assert gradient.isfinite().all() and (gradient[~allowed] == 0).all()


def test_large_scores_do_not_overflow() -> None:
    S = torch.tensor([[1000.0, 1000.0, 0.0], [-1000.0, -1001.0, -1000.0]])
    P = masked_softmax(S, torch.tensor([[True, True, True], [True, True, False]]))
    assert_close(P[0], torch.tensor([0.5, 0.5, 0.0]))  # ties stay shared (S4.49)
    assert_close(P[1], torch.tensor([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1)), 0.0]))


def test_masked_softmax_gradcheck() -> None:
    allowed = torch.rand(3, 5) < 0.6
    allowed[0], allowed[1, 0] = False, True
    assert torch.autograd.gradcheck(lambda S: masked_softmax(S, allowed), logits(2, 3, 5).requires_grad_())


# --- Jacobian ---------------------------------------------------------------------------------------------------------


def test_jacobian_equals_autograd() -> None:
    """S4.46: ds_i/dz_i = s_i (1 - s_i), ds_i/dz_k = -s_i s_k."""
    for z in logits(5, 7, spread=2):
        want = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), z)
        assert_close(softmax_jacobian(z.softmax(-1)), want)


def test_every_diagonal_entry_is_positive() -> None:
    """S4.47 prints -s_i (1 - s_i) from the second entry on; the sign is plus throughout."""
    s = logits(5, 7).softmax(-1)
    assert_close(softmax_jacobian(s).diagonal(dim1=-2, dim2=-1), s * (1 - s))
    assert (softmax_jacobian(s).diagonal(dim1=-2, dim2=-1) > 0).all()


def test_jacobian_is_symmetric_positive_semidefinite_and_annihilates_ones() -> None:
    J = softmax_jacobian(logits(101, 7, spread=3).softmax(-1))
    assert torch.equal(J, J.mT)
    eigenvalues = torch.linalg.eigvalsh(J)
    assert (eigenvalues > -1e-14).all()
    assert_close(J.sum(-1), torch.zeros(101, 7))
    assert (eigenvalues[:, 1] > 0).all()  # rank n - 1: only the constant vector is lost


def test_the_spectral_norm_is_at_most_one_half() -> None:
    s = logits(10007, 3, spread=5).softmax(-1)
    norms = torch.linalg.matrix_norm(softmax_jacobian(s), 2)
    assert norms.max() <= 0.5 + 1e-12 and norms.max() > 0.49
    attained = torch.linalg.matrix_norm(softmax_jacobian(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)), 2)
    assert_close(attained, torch.tensor(0.5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0, 20.0, 100.0])
def test_jacobian_norm_is_the_norm_of_the_matrix(dtype: torch.dtype, spread: float) -> None:
    s = logits(3, 5, 7, spread=spread, dtype=dtype).softmax(-1)
    exact = softmax_jacobian(s.double() / s.double().sum(-1, keepdim=True))
    assert_close(jacobian_norm(s), torch.linalg.matrix_norm(exact))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("exponent", [1, 3, 5, 7, 9, 12])
def test_jacobian_norm_keeps_its_digits_next_to_a_unit_vector(dtype: torch.dtype, exponent: int) -> None:
    """s = (1 - d, d) has ||J||_F = 2 d (1 - d): small rows are where saturation is measured."""
    d = 10.0**-exponent
    s = torch.tensor([1 - d, d], dtype=torch.float64).to(dtype)
    assert abs(float(jacobian_norm(s)) / (2 * d * (1 - d)) - 1) < 1e-5


def test_jacobian_norm_in_closed_form() -> None:
    for n in (1, 2, 3, 11):
        uniform = torch.full((n,), 1 / n, dtype=torch.float64)
        assert_close(jacobian_norm(uniform), torch.tensor(math.sqrt(n - 1) / n, dtype=torch.float64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_jacobian_norm_is_exactly_zero_at_unit_vectors_and_empty_rows(dtype: torch.dtype) -> None:
    """S4.48, and only there."""
    rows = torch.cat([torch.eye(7), torch.zeros(1, 7)]).to(dtype)
    assert (jacobian_norm(rows) == 0).all()
    assert (softmax_jacobian(rows) == 0).all()
    assert (jacobian_norm(logits(5, 7, dtype=dtype).softmax(-1)) > 0).all()


def test_unscaled_scores_lose_their_gradient_as_keys_grow_wide() -> None:
    """S4.50: median ||J||_F unscaled / scaled about .256 / .133 at k = 64, but .017 / .134 at k = 512."""
    medians = {}
    for k in (64, 512):
        Q, K = torch.randn(2, 257, k, dtype=torch.float64, generator=torch.Generator().manual_seed(7)).unbind()
        S = Q @ K[:64].mT
        assert abs(float(S.var()) / k - 1) < 0.1
        medians[k] = [float(jacobian_norm(scores.softmax(-1)).median()) for scores in (S, S / math.sqrt(k))]
    unscaled, scaled = medians[512]
    assert unscaled < scaled / 3
    assert medians[64][0] > medians[64][1]  # at k = 64 it is still the larger one
    assert abs(medians[64][1] - scaled) < 0.02  # scaled, the width of the keys does not matter


# --- entropy and range ---------------------------------------------------------------------------------------


def test_entropy_in_closed_form() -> None:
    P = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0], [0, 0, 0, 0]])
    want = torch.tensor([0, math.log(4), math.log(2), 1.5 * math.log(2), 0], dtype=torch.float64)
    assert_close(entropy(P.double()), want)


def test_growing_scores_saturate() -> None:
    """S4.49: scaling up the inputs makes the largest dominate."""
    S = logits(5, 7)
    series = [(factor * S).softmax(-1) for factor in (1.0, 4.0, 16.0, 64.0, 256.0)]
    for softer, harder in pairwise(series):
        assert (harder.amax(-1) >= softer.amax(-1)).all() and (entropy(harder) <= entropy(softer)).all()
    assert (series[-1].amax(-1) > 0.99).any() and (series[0].amax(-1) < 0.99).all()
    assert (jacobian_norm(series[-1]) < jacobian_norm(series[0])).any()


def test_score_range() -> None:
    S = torch.tensor([[1.0, -2.0, 5.0], [3.0, 3.0, 3.0], [0.0, -1.0, 1.0]])
    assert score_range(S).tolist() == [7.0, 0.0, 2.0]
    allowed = torch.tensor([[True, True, False], [False, False, False], [False, True, False]])
    assert score_range(S, allowed).tolist() == [3.0, 0.0, 0.0]
    hidden = S.masked_fill(~allowed, torch.nan)
    assert score_range(hidden, allowed).tolist() == [3.0, 0.0, 0.0]


def test_score_range_broadcasts_its_mask() -> None:
    S, allowed = logits(2, 3, 5, 7), torch.rand(2, 1, 1, 7) < 0.7
    assert torch.equal(score_range(S, allowed), score_range(S, allowed.expand_as(S)))
    assert score_range(S, allowed).shape == (2, 3, 5)


def test_the_range_bounds_the_distance_to_uniform() -> None:
    """sum_j |P_ij - 1/n| / 2 <= tanh(range / 4) (S0.34)."""
    for spread in (0.1, 1.0, 5.0):
        S = logits(101, 7, spread=spread)
        distance = (S.softmax(-1) - 1 / 7).abs().sum(-1) / 2
        assert (distance <= torch.tanh(score_range(S) / 4) + 1e-14).all()
    attained = torch.tensor([[math.log(4), 0.0, 0.0]], dtype=torch.float64)  # P = (2/3, 1/6, 1/6), tanh(ln 2 / 2) = 1/3
    distance = (attained.softmax(-1) - 1 / 3).abs().sum(-1) / 2
    assert_close(distance, torch.tanh(score_range(attained) / 4))
