"""Position codes: the closed form of the sinusoid, its shift, and the other codes."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.models.config import PositionKind
from attnworks.models.layers import Positions, frequencies, sinusoid
from attnworks.theory.claims.s4_positions import shift_matrix
from tests.model_helpers import FLOATS, SOURCE, VOCABULARY, close, randn, tokens, transformer

B, N, D = 3, 5, 14
PADDING = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] + [False] * 4])


def positions(kind: PositionKind, max_length: int = 11) -> Positions:
    return Positions(kind, D, 10_000.0, max_length).double()


# The sinusoid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [10.0, 10_000.0])
def test_sinusoid_in_closed_form(base: float) -> None:
    """S4.20, entry by entry."""
    code = sinusoid(torch.arange(31), D, base)
    assert code.shape == (31, D) and code.dtype == torch.float64
    for t in (0, 1, 7, 30):
        for k in range(D // 2):
            omega = base ** (-2 * k / D)
            assert float(code[t, 2 * k]) == pytest.approx(math.sin(omega * t), abs=1e-12)
            assert float(code[t, 2 * k + 1]) == pytest.approx(math.cos(omega * t), abs=1e-12)


def test_norm_is_the_same_everywhere_and_products_see_the_distance_alone() -> None:
    code = sinusoid(torch.arange(101), D)
    close(code.square().sum(-1), torch.full((101,), D / 2, dtype=torch.float64))
    t = torch.arange(101, dtype=torch.float64)
    distances = (t[:, None] - t[None, :])[..., None] * frequencies(D)
    close(code @ code.T, distances.cos().sum(-1), scale=10)


@given(t=st.integers(0, 1000), s=st.integers(-300, 1000), pairs=st.integers(1, 11), base=st.sampled_from([10.0, 1e4]))
def test_shift_matrix_moves_any_position_and_is_orthogonal(t: int, s: int, pairs: int, base: float) -> None:
    """S4.23-S4.25: one matrix for every t."""
    d = 2 * pairs
    R = shift_matrix(float(s), d, base)
    identity = torch.eye(d, dtype=torch.float64)
    torch.testing.assert_close(R @ R.T, identity, rtol=0, atol=1e-12)
    moved = sinusoid(torch.tensor(float(t)), d, base) @ R.T
    torch.testing.assert_close(moved, sinusoid(torch.tensor(float(t + s)), d, base), rtol=0, atol=1e-12)


def test_shift_matrix_takes_part_in_a_group() -> None:
    close(shift_matrix(3.0, D) @ shift_matrix(4.0, D), shift_matrix(7.0, D))
    close(shift_matrix(-3.0, D), shift_matrix(3.0, D).T)
    close(shift_matrix(0.0, D), torch.eye(D, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16])
def test_sinusoid_is_added_in_the_type_of_the_embeddings(dtype: torch.dtype) -> None:
    X = randn(B, N, D, dtype=dtype)
    got = positions("sinusoid")(X)
    assert got.dtype == dtype
    assert torch.equal(got, X + sinusoid(torch.arange(N), D).to(dtype))


def test_tables_serve_every_length_and_grow() -> None:
    ours = positions("sinusoid")
    for length in (1, 64, 65, 3, 257, 128):
        X = torch.zeros(1, length, D, dtype=torch.float64)
        assert torch.equal(ours(X)[0], sinusoid(torch.arange(length), D))


def test_a_table_made_in_inference_mode_serves_training() -> None:
    ours = Positions("sinusoid", 34, 9_999.0, 11)
    with torch.inference_mode():
        ours(torch.zeros(1, 3, 34))
    X = torch.zeros(1, 3, 34, requires_grad=True)
    ours(X).square().sum().backward()
    assert X.grad is not None and X.grad.any()


# The others ----------------------------------------------------------------------------------------------------------


def code(kind: PositionKind, real: Tensor | None = None, start: int = 0, length: int = N) -> Tensor:
    """What is added, seen on embeddings of zeros."""
    return positions(kind)(torch.zeros(B, length, D, dtype=torch.float64), real, start)


@pytest.mark.parametrize("real", [None, PADDING])
def test_index_and_none(real: Tensor | None) -> None:
    assert torch.equal(code("none", real), torch.zeros(B, N, D, dtype=torch.float64))
    expected = torch.arange(N, dtype=torch.float64)[None, :, None].expand(B, N, D)
    assert torch.equal(code("index", real), expected)


def test_normalised_index_divides_by_the_real_length() -> None:
    index = torch.arange(N, dtype=torch.float64)[None, :, None].expand(B, N, D)
    close(code("normalised-index"), index / N)
    close(code("normalised-index", PADDING), index / torch.tensor([5, 2, 1])[:, None, None])


def test_normalised_index_of_padding_alone_is_finite() -> None:
    assert code("normalised-index", torch.zeros_like(PADDING)).isfinite().all()


def test_learned_rows_are_added_and_learn() -> None:
    ours = positions("learned", max_length=11)
    X = randn(B, N, D)
    assert torch.equal(ours(X), X + ours.table[:N])
    ours(X).square().sum().backward()
    assert ours.table.grad is not None
    assert ours.table.grad[:N].any() and not ours.table.grad[N:].any()


@pytest.mark.parametrize("kind", [kind for kind in get_args(PositionKind) if kind != "normalised-index"])
def test_start_goes_on_where_the_last_call_ended(kind: PositionKind) -> None:
    ours, X = positions(kind), randn(B, 11, D)
    whole = ours(X)
    parts = torch.cat([ours(X[:, :2]), ours(X[:, 2:3], start=2), ours(X[:, 3:], start=3)], 1)
    assert torch.equal(parts, whole)


def test_start_of_normalised_index_counts_towards_the_length() -> None:
    """Decoding step by step, the length is what is there so far."""
    close(code("normalised-index", start=3, length=1)[:, 0], torch.full((B, D), 3 / 4, dtype=torch.float64))
    step = code("normalised-index", torch.tensor([[True], [True], [False]]), start=3, length=1)
    close(step[:, 0, 0], torch.tensor([3 / 4, 3 / 4, 1], dtype=torch.float64))


@pytest.mark.parametrize(("start", "length"), [(0, 12), (11, 1), (8, 4)])
def test_learned_positions_end_at_max_length(start: int, length: int) -> None:
    assert code("learned", start=start, length=11 - start).shape[1] == 11 - start
    with pytest.raises(UsageError) as caught:
        code("learned", start=start, length=length)
    assert str(caught.value) == (
        "learned positions: expected at most 11 tokens, got 12 tokens; "
        "shorten the text, or build with a larger max_length"
    )


@pytest.mark.parametrize("kind", get_args(PositionKind))
def test_only_learned_positions_have_parameters(kind: PositionKind) -> None:
    assert [tuple(p.shape) for p in positions(kind).parameters()] == ([(11, D)] if kind == "learned" else [])


# Permutations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(PositionKind))
def test_the_encoder_is_permutation_equivariant_only_without_positions(kind: PositionKind) -> None:
    """S4.30: without positions permuted tokens give permuted outputs; with any code they do not."""
    ours = transformer(decoder_layers=0, positions=kind)
    drawn, order = tokens(VOCABULARY, 2, SOURCE), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    gap = float((ours.encode(drawn[:, order]) - ours.encode(drawn)[:, order]).detach().abs().max())
    assert gap < 1e-12 if kind == "none" else gap > 1e-3
