"""The three families: what is built is a member, what is drawn is drawn evenly, what does not fit is refused."""

from __future__ import annotations

import pytest
import torch

from attnworks.core.errors import UsageError
from attnworks.exam.structure import search
from attnworks.theory import structured_sets
from attnworks.theory.structured_sets import ColumnBlock
from tests.helpers import unchecked


def test_a_band_as_one_would_draw_it() -> None:
    """b_ij = 0 if i > j + 1 or j > i + 2 (S4.140)."""
    want = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]
    assert search.band_mask(5, 1, 2).int().tolist() == want
    assert search.band_mask(5, 7, 7).all()
    assert torch.equal(search.band_mask(5, 0, 0), torch.eye(5, dtype=torch.bool))


def test_is_band_per_matrix() -> None:
    inside = torch.rand(5, 5) * search.band_mask(5, 1, 2)
    outside = inside.clone()
    outside[3, 1] = 0.1
    assert structured_sets.is_band(torch.stack([inside, outside]), 1, 2).tolist() == [True, False]
    assert structured_sets.is_band(outside, 2, 2)


@pytest.mark.parametrize("rescale", [False, True])
def test_dropout_leaves_its_share(rescale: bool) -> None:
    B = torch.ones(101, 101, dtype=torch.float64)
    P = structured_sets.drop_band(B, 0.3, torch.Generator().manual_seed(7), rescale=rescale)
    survivors = P[P != 0]
    assert survivors.unique().tolist() == [pytest.approx(1 / 0.7 if rescale else 1.0)]
    assert len(survivors) / B.numel() == pytest.approx(0.7, abs=0.02)  # four deviations


def test_a_drawn_band_has_rows_of_weights_before_dropout() -> None:
    B = structured_sets.sample_band(11, 2, 3, 0.0, torch.Generator().manual_seed(3), dtype=torch.float64)
    assert structured_sets.is_band(B, 2, 3) and (B[search.band_mask(11, 2, 3)] > 0).all()
    torch.testing.assert_close(B.sum(-1), torch.ones(11, dtype=torch.float64))
    again, other = (structured_sets.sample_band(11, 2, 3, 0.5, torch.Generator().manual_seed(seed)) for seed in (3, 4))
    assert structured_sets.is_band(again, 2, 3) and not torch.equal(again, other)
    assert torch.equal(again, structured_sets.sample_band(11, 2, 3, 0.5, torch.Generator().manual_seed(3)))


def test_one_block_of_the_claims() -> None:
    """S4.134, S4.138, S4.141: n = 7, w = 3 gives an idempotent of rank 5 that no permutation makes diagonal."""
    P = structured_sets.column_blocks(7, [ColumnBlock(2, 3, 2)], dtype=torch.float64)
    assert P.sum(0).tolist() == [1, 1, 3, 0, 0, 1, 1]
    assert torch.equal(P @ P, P) and torch.linalg.matrix_rank(P) == 5
    assert structured_sets.is_assignment(P) and not structured_sets.is_permutation(P)
    P_r = torch.zeros(3, 3, dtype=torch.float64)
    P_r[:, 0] = 1
    assert torch.equal(
        P, torch.block_diag(structured_sets.identity_map(2), P_r, structured_sets.identity_map(2)).double()
    )


def test_figure_13() -> None:
    """Tokens 3, 4, 5 attend token 4 (S4.136)."""
    assert structured_sets.column_blocks(7, [(3, 3, 4)])[3:6].argmax(-1).tolist() == [4, 4, 4]


def test_windows_around_tokens() -> None:
    assert structured_sets.blocks_around(11, (3, 8), (5, 2)) == (ColumnBlock(1, 5, 3), ColumnBlock(8, 2, 8))
    assert structured_sets.blocks_around(11, (8, 3), (2, 5), "first") == (ColumnBlock(3, 5, 3), ColumnBlock(8, 2, 8))
    assert structured_sets.blocks_around(11, (), ()) == ()


@pytest.mark.parametrize("blocks", [[(0, 3, 1), (2, 2, 3)], [(5, 3, 6)], [(-1, 3, 0)], [(1, 2, 3)], [(1, 0, 1)]])
def test_blocks_that_do_not_fit_are_refused_in_one_line(blocks: list[tuple[int, int, int]]) -> None:
    with pytest.raises(UsageError, match=r"expected disjoint windows inside 0 \.\. 6.* got ColumnBlock") as caught:
        structured_sets.column_blocks(7, blocks)
    assert "\n" not in str(caught.value)


def test_windows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="disjoint windows"):
        structured_sets.blocks_around(11, (3, 5), (3, 3))
    with pytest.raises(UsageError, match="one window per token"):
        structured_sets.blocks_around(11, (3, 5), (3,))
    with unchecked(), pytest.raises(UsageError, match="'centre' or 'first'"):
        structured_sets.blocks_around(11, (3,), (3,), "last")  # pyright: ignore[reportArgumentType]


def test_blocks_of_members_and_of_others() -> None:
    assert structured_sets.blocks_of(structured_sets.identity_map(5)) == ()
    assert structured_sets.blocks_of(structured_sets.column_blocks(5, [(1, 1, 1), (2, 3, 4)])) == (
        ColumnBlock(2, 3, 4),
    )
    others = [[1, 0, 2], [1, 2, 2], [2, 2, 2, 2, 0], [1, 1, 0], [0, 0, 0, 1]]
    for tau in others:
        assert structured_sets.blocks_of(search.assignment(torch.tensor(tau), len(tau))) is None
    assert structured_sets.blocks_of(torch.full((3, 3), 1 / 3)) is None


def test_counting_blocks() -> None:
    taus = torch.tensor([[0, 1, 2, 3, 4], [1, 1, 2, 4, 4], [2, 2, 2, 2, 2]])
    assert search.block_count(taus).tolist() == [0, 2, 1]


def test_assignments() -> None:
    P = search.assignment(torch.tensor([[2, 0], [-1, 1]]), 3)
    assert P.tolist() == [[[0, 0, 1], [1, 0, 0]], [[0, 0, 0], [0, 1, 0]]]
    assert structured_sets.is_assignment(P).tolist() == [True, False]
    assert structured_sets.is_permutation(structured_sets.identity_map(5)[torch.randperm(5)])
    assert not structured_sets.is_assignment(torch.full((2, 2), 0.5)) and not structured_sets.is_assignment(
        2 * torch.eye(2)
    )
    assert search.shift_map(4, torch.tensor([-1, 0, 2])).tolist() == [[-1, 0, 1, 2], [0, 1, 2, 3], [2, 3, -1, -1]]


def test_other_values_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="widths of 0 or more"):
        search.band_mask(5, -1, 2)
    with pytest.raises(UsageError, match="a number from 0 and below 1"):
        structured_sets.drop_band(torch.ones(3, 3), 1.0)
    with pytest.raises(UsageError, match="keys: expected 0 to 2"):
        search.assignment(torch.tensor([0, 3]), 3)
