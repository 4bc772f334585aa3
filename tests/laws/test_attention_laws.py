"""What softmax attention must obey whatever its inputs: laws, searched for counterexamples.

Sizes, masks and the size of the scores are drawn; the entries are normal, from a drawn seed.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention import Attended, Geometry, Mask, Mechanism
from attnworks.attention.check_cases import RandomQKV
from attnworks.attention.softmax import masked_softmax
from tests.helpers import assert_close, build, qkv

# Every query scores every key it may see, on equal terms: permutations commute with these, and no key is special.
FAMILY = ["dense", "luong-dot", "luong-multiplicative", "bahdanau-additive"]
every_mechanism = pytest.mark.parametrize("name", FAMILY)
both_paths = pytest.mark.parametrize("weights", [False, True], ids=["fused", "explicit"])

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**31 - 1)
spreads = st.sampled_from([0.0, 0.3, 1.0, 5.0, 50.0])


class Problem(NamedTuple):
    Q: Tensor
    K: Tensor
    V: Tensor
    mask: Mask
    seed: int

    def attend(self, name: str, mask: Mask | None = None, *, weights: bool = True) -> Attended:
        mechanism = self.mechanism(name)
        return mechanism(self.Q, self.K, self.V, self.mask if mask is None else mask, weights=weights)

    def mechanism(self, name: str) -> Mechanism:
        return build(name, Geometry(self.Q.shape[1], self.Q.shape[3], self.V.shape[3]), seed=self.seed)

    def allowed(self) -> Tensor:
        (b, h, i, _), j = self.Q.shape, self.K.shape[2]
        allowed = self.mask.allowed(i, j)
        return torch.ones(b, h, i, j, dtype=torch.bool) if allowed is None else allowed.expand(b, h, i, j)


def draw_bools(draw: st.DrawFn, *shape: int) -> Tensor:
    """Biased towards True by a drawn amount, so that empty and full rows both occur."""
    share = draw(st.sampled_from([0.2, 0.5, 0.8]))
    return torch.rand(shape, generator=torch.Generator().manual_seed(draw(seeds))) < share


@st.composite
def problems(draw: st.DrawFn, *, masked: bool = True, square: bool = False, causal: bool = False) -> Problem:
    b, h, j, k, v = draw(sizes), draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(sizes), draw(sizes)
    i = j if square else draw(st.integers(1, j))
    seed = draw(seeds)
    tensors = qkv(b, h, i, j, k, v, seed=seed, spread=draw(spreads))
    mask = Mask()
    if masked:
        real = draw_bools(draw, b, j) if draw(st.booleans()) else None
        shape = draw(st.sampled_from([None, (i, j), (b, 1, i, j), (b, h, i, j)]))
        dense = None if shape is None else draw_bools(draw, *shape)
        mask = Mask(real, causal or draw(st.booleans()), dense)
    return Problem(*tensors, mask, seed)


# --- weights ----------------------------------------------------------------------------------------------------------


@every_mechanism
@given(problem=problems())
def test_rows_sum_to_one_where_a_key_is_seen_and_to_zero_elsewhere(name: str, problem: Problem) -> None:
    P = problem.attend(name).P
    allowed = problem.allowed()
    assert P is not None and (P >= 0).all() and (P[~allowed] == 0).all()
    assert_close(P.sum(-1), allowed.any(-1))


@given(problem=problems(), shift=st.floats(-100, 100))
def test_shifting_a_row_of_scores_changes_nothing(problem: Problem, shift: float) -> None:
    """softmax(A + x 1^T) = softmax(A) (S0.3)."""
    S, allowed = problem.Q @ problem.K.mT, problem.allowed()
    x = shift * torch.randn(S.shape[:-1], generator=torch.Generator().manual_seed(problem.seed)).double().unsqueeze(-1)
    # Adding a number of size 100 rounds the scores by 1e-14, and P as much.
    assert_close(masked_softmax(S + x, allowed), masked_softmax(S, allowed))


def test_shifting_a_column_of_scores_changes_them() -> None:
    """softmax(A + 1 x^T) is another matrix: a witness against reading S0.3 along columns."""
    A, x = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    shifted = masked_softmax(A + x)
    assert_close(masked_softmax(A), torch.full((2, 2), 0.5))
    assert (shifted - masked_softmax(A)).abs().min() > 0.2


@every_mechanism
@given(problem=problems(), seed=seeds)
def test_hiding_more_keys_never_lowers_the_weight_of_one_that_stays(name: str, problem: Problem, seed: int) -> None:
    allowed, P = problem.allowed(), problem.attend(name).P
    fewer = allowed & (torch.rand(allowed.shape, generator=torch.Generator().manual_seed(seed)) < 0.6)
    Q = problem.attend(name, Mask(dense=fewer)).P
    assert P is not None and Q is not None
    assert (Q[fewer] >= P[fewer] - 1e-12).all()
    # and those that stay keep their proportions: P restricted and renormalised
    kept = P * fewer
    total = kept.sum(-1, keepdim=True)
    usable = (total > 1e-3).expand_as(P)
    assert_close(Q[usable], (kept / total)[usable])


@every_mechanism
@both_paths
@given(problem=problems())
def test_hiding_keys_without_weight_changes_nothing(name: str, weights: bool, problem: Problem) -> None:
    before = problem.attend(name)
    assert before.P is not None
    after = problem.attend(name, Mask(dense=before.P > 0), weights=weights)
    assert_close(after.Y, before.Y)


# --- outputs ----------------------------------------------------------------------------------------------------------


@every_mechanism
@both_paths
@given(problem=problems())
def test_outputs_are_convex_combinations_of_the_values_seen(name: str, weights: bool, problem: Problem) -> None:
    """S4.58: coordinate by coordinate, between the least and the greatest value seen; zero if none is."""
    Y, allowed = problem.attend(name, weights=weights).Y, problem.allowed().unsqueeze(-1)
    values = problem.V.unsqueeze(2)
    least = values.masked_fill(~allowed, torch.inf).amin(3)
    greatest = values.masked_fill(~allowed, -torch.inf).amax(3)
    seeing = allowed.any(3).expand_as(Y)
    assert (Y[seeing] >= least[seeing] - 1e-12).all() and (Y[seeing] <= greatest[seeing] + 1e-12).all()
    assert (Y[~seeing] == 0).all()


@every_mechanism
@both_paths
@given(problem=problems(), shift=st.floats(-10, 10))
def test_shifting_all_values_shifts_the_outputs(name: str, weights: bool, problem: Problem, shift: float) -> None:
    """P (V + 1 c^T) = P V + 1 c^T where P 1 = 1 (S0.5)."""
    c = shift * torch.linspace(1, 2, problem.V.shape[-1], dtype=torch.float64)
    before = problem.attend(name, weights=weights).Y
    after = problem._replace(V=problem.V + c).attend(name, weights=weights).Y
    assert_close(after, before + c * problem.allowed().any(-1, keepdim=True))


@every_mechanism
@both_paths
@given(problem=problems(masked=False, square=True), seed=seeds)
def test_self_attention_without_a_mask_is_permutation_equivariant(
    name: str, weights: bool, problem: Problem, seed: int
) -> None:
    order = torch.randperm(problem.Q.shape[2], generator=torch.Generator().manual_seed(seed))
    Q, K, V = problem[:3]
    got = problem._replace(Q=Q[:, :, order], K=K[:, :, order], V=V[:, :, order]).attend(name, weights=weights)
    want = problem.attend(name)
    assert_close(got.Y, want.Y[:, :, order])
    if weights:
        assert want.P is not None
        assert_close(got.P, want.P[:, :, order][..., order])


def test_causal_self_attention_is_not_permutation_equivariant() -> None:
    problem = Problem(*qkv(1, 1, 5, 5, 2, 3), Mask(causal=True), seed=7)
    order = torch.tensor([4, 3, 2, 1, 0])
    turned = problem._replace(**{letter: getattr(problem, letter)[:, :, order] for letter in RandomQKV._fields})
    assert (turned.attend("dense").Y - problem.attend("dense").Y[:, :, order]).abs().max() > 0.1


@every_mechanism
@both_paths
@given(problem=problems(), seed=seeds)
def test_the_order_of_keys_with_their_values_does_not_matter(
    name: str, weights: bool, problem: Problem, seed: int
) -> None:
    order = torch.randperm(problem.K.shape[2], generator=torch.Generator().manual_seed(seed))
    mask = Mask(dense=problem.allowed()[..., order])
    moved = problem._replace(K=problem.K[:, :, order], V=problem.V[:, :, order], mask=mask)
    assert_close(moved.attend(name, weights=weights).Y, problem.attend(name).Y)


@every_mechanism
@both_paths
@given(problem=problems(causal=True))
def test_no_gradient_reaches_a_hidden_or_later_key(name: str, weights: bool, problem: Problem) -> None:
    Q, K, V = (T.clone().requires_grad_() for T in problem[:3])
    Y = problem._replace(Q=Q, K=K, V=V).attend(name, weights=weights).Y
    i, j = Q.shape[2], K.shape[2]
    query = problem.seed % i
    dQ, dK, dV = torch.autograd.grad(Y[:, :, query].square().sum(), (Q, K, V))
    hidden = ~problem.allowed()[:, :, query]
    assert hidden[..., query + j - i + 1 :].all()
    assert (dK[hidden] == 0).all() and (dV[hidden] == 0).all()
    assert (dQ[:, :, torch.arange(i) != query] == 0).all()
    assert all(gradient.isfinite().all() for gradient in (dQ, dK, dV))


@every_mechanism
@both_paths
@given(problem=problems())
def test_heads_and_sequences_do_not_mix(name: str, weights: bool, problem: Problem) -> None:
    b, h = (size - 1 for size in problem.Q.shape[:2])
    got = problem.attend(name, weights=weights).Y
    noise = 1 + torch.rand(problem.V.shape, generator=torch.Generator().manual_seed(problem.seed)).double()
    noise[b, h] = 0
    changed = problem._replace(Q=problem.Q + noise.sum(), K=problem.K, V=problem.V + noise)
    changed.Q[b, h] = problem.Q[b, h]
    assert_close(changed.attend(name, weights=weights).Y[b, h], got[b, h])
