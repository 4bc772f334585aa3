"""The searches against every member of each family up to five tokens, and against many at thirty-two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from attnworks.exam.structure.search import (
    assignment,
    band_mask,
    best_blocks,
    best_column,
    best_map,
    best_offset,
    best_order,
    best_permutation,
    block_count,
    gain,
    shift_map,
)
from attnworks.theory.structured_sets import is_permutation
from tests.exam.structure.structure_heads import KINDS, heads, l1_beyond
from tests.helpers import assert_close

every_size = pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
every_eps = pytest.mark.parametrize("eps", [0.0, 0.02, 0.3])
WEIGHTS = slice(0, KINDS.index("signed"))
"""Kinds whose entries are between 0 and 1."""


def error(H: Tensor, tau: Tensor, eps: float) -> Tensor:
    return l1_beyond(H, assignment(tau, H.shape[-1], dtype=H.dtype), eps)


def least(H: Tensor, taus: Tensor, eps: float) -> Tensor:
    """The least error of each head over all candidates [t n]."""
    return error(H.unsqueeze(1), taus, eps).amin(-1)


def random_blocks(n: int, widths: Sequence[int], source: torch.Generator) -> Iterator[tuple[int, int, int]]:
    """Disjoint blocks of these widths, in random order and places: first row, width and column of each."""
    widths = [widths[which] for which in torch.randperm(len(widths), generator=source).tolist()]
    slots = sorted(torch.randperm(n - sum(widths) + len(widths), generator=source)[: len(widths)].tolist())
    shift = 0
    for slot, width in zip(slots, widths, strict=True):
        yield slot + shift, width, slot + shift + int(torch.randint(width, (), generator=source))
        shift += width - 1


def block_maps(n: int) -> Iterator[tuple[int, ...]]:
    """Every member of Sigma_3 by its last block."""
    if n == 0:
        yield ()
    for start in range(n):
        for before, column in product(block_maps(start), range(start, n)):
            yield (*before, *[column] * (n - start))


@every_size
@every_eps
def test_gain_is_what_the_error_loses(n: int, eps: float) -> None:
    H, tau = heads(n), torch.randint(n, (len(KINDS), n))
    gained = gain(H, eps).gather(-1, tau.unsqueeze(-1)).sum((-2, -1))
    assert_close(error(H, tau, eps), l1_beyond(H, torch.zeros_like(H), eps) - gained)


@every_size
@every_eps
def test_no_map_is_better(n: int, eps: float) -> None:
    H, taus = heads(n), torch.tensor(list(product(range(n), repeat=n)))
    assert_close(error(H, best_map(H), eps), least(H, taus, eps))


@every_eps
@pytest.mark.parametrize("budget", [0, 1, 3, 7, 16])
def test_no_map_is_better_under_a_budget(eps: float, budget: int) -> None:
    """D12 (i): also if only the largest errors are forgiven."""
    H, taus = heads(4)[WEIGHTS], torch.tensor(list(product(range(4), repeat=4)))

    def remaining(taus: Tensor) -> Tensor:
        D = (H.unsqueeze(1) - assignment(taus, 4, dtype=H.dtype)).abs().flatten(-2)
        return D.sum(-1) - D.clamp_max(eps).topk(budget).values.sum(-1)

    assert_close(remaining(best_map(H).unsqueeze(1))[:, 0], remaining(taus).amin(-1))


def test_the_row_argmax_error_of_the_claims() -> None:
    """2 sum_i (1 - max_j h_ij) for rows of weights (D12 (i))."""
    H = heads(5)[:4]
    assert_close(error(H, best_map(H), 0.0), 2 * (1 - H.amax(-1)).sum(-1))


@every_size
@every_eps
def test_no_offset_is_better(n: int, eps: float) -> None:
    H = heads(n)
    found, furthest = best_offset(H, eps), n // 2
    every = shift_map(n, torch.arange(-furthest, furthest + 1))
    assert_close(error(H, shift_map(n, found), eps), least(H, every, eps))
    assert (2 * (shift_map(n, found) >= 0).sum(-1) >= n).all(), "at least half of the rows have a key"


def test_a_corner_is_no_offset() -> None:
    """All weight is in one corner: the diagonal through it has a key for one row of sixteen alone."""
    H = torch.full((16, 16), 0.02, dtype=torch.float64)
    H[-1] = torch.eye(16)[0]
    assert abs(best_offset(H, 0.02).item()) <= 8


@every_size
@every_eps
def test_no_column_is_better(n: int, eps: float) -> None:
    H = heads(n)
    found = best_column(H, eps).unsqueeze(-1).expand(-1, n)
    assert_close(error(H, found, eps), least(H, torch.arange(n).unsqueeze(-1).expand(-1, n), eps))


def test_columns_and_maps_of_rectangles() -> None:
    H = torch.rand(3, 5, 7, dtype=torch.float64)
    every = l1_beyond(H.unsqueeze(1), assignment(torch.arange(7).unsqueeze(-1).expand(-1, 5), 7).double(), 0.02)
    assert torch.equal(best_column(H, 0.02), every.argmin(-1))
    assert best_map(H).shape == (3, 5)


@every_size
@every_eps
def test_no_permutation_is_better(n: int, eps: float) -> None:
    H, taus = heads(n), torch.tensor(list(permutations(range(n))))
    found = best_permutation(H, eps)
    assert is_permutation(assignment(found, n)).all()
    assert_close(error(H, found, eps), least(H, taus, eps))


@every_size
@every_eps
@pytest.mark.parametrize("price", [0.0, 0.1, 0.7])
def test_no_blocks_are_better(n: int, eps: float, price: float) -> None:
    H, taus = heads(n), torch.tensor(list(block_maps(n)))
    found = best_blocks(H, eps, price)
    assert all(tuple(tau) in set(map(tuple, taus.tolist())) for tau in found.tolist())
    want = (error(H.unsqueeze(1), taus, eps) + price * block_count(taus)).amin(-1)
    assert_close(error(H, found, eps) + price * block_count(found), want)


@every_size
@every_eps
@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (1, 2)])
def test_no_order_of_rows_is_better(n: int, eps: float, left: int, right: int) -> None:
    H, inside = heads(n), band_mask(n, left, right)
    orders = torch.tensor(list(permutations(range(n))))
    found = best_order(H, left, right, eps)
    assert torch.equal(found.sort(-1).values, torch.arange(n).expand_as(found))
    want = l1_beyond(H.unsqueeze(1), H.unsqueeze(1) * inside[orders], eps).amin(-1)
    assert_close(l1_beyond(H, H * inside[found], eps), want)


@pytest.mark.parametrize("eps", [0.0, 0.02])
def test_many_others_at_thirty_two(eps: float) -> None:
    """10,000 random candidates, and every exchange of two rows of what was found."""
    n, count, price = 32, 10_000, 0.3
    source = torch.Generator().manual_seed(53)
    i, k = torch.triu_indices(n, n, 1)
    blocks = torch.arange(n).repeat(count, 1)
    for which, tau in enumerate(blocks):
        for start, width, column in random_blocks(n, (2, 5, 11, 7)[: which % 5], source):
            tau[start : start + width] = column
    for H in heads(n)[[KINDS.index("soft"), KINDS.index("sharp")]]:
        G, drawn = gain(H, eps), torch.rand(count, n, generator=source).argsort(-1)

        def gains(taus: Tensor, G: Tensor = G) -> Tensor:
            return G.gather(-1, taus.mT).sum(0)

        def exchanged(found: Tensor) -> Tensor:
            pairs = found.repeat(len(i), 1)
            row = torch.arange(len(i))
            pairs[row, i], pairs[row, k] = found[k], found[i]
            return pairs

        found = best_permutation(H, eps)
        assert gains(found[None]) >= gains(torch.cat([drawn, exchanged(found)])).max() - 1e-12

        outside = (H - eps).clamp_min(0.0) @ (~band_mask(n, 2, 2)).double()  # by row and place
        order = best_order(H, 2, 2, eps)
        others = torch.cat([drawn, exchanged(order)])
        assert gains(order[None], outside) <= gains(others, outside).min() + 1e-12

        found = best_blocks(H, eps, price)
        worth = gains(blocks) - price * block_count(blocks)
        assert gains(found[None]) - price * block_count(found) >= worth.max() - 1e-12


def test_a_planted_block_is_found() -> None:
    H = torch.eye(11, dtype=torch.float64)
    H[3:7] = 0.0
    H[3:7, 4] = 1.0
    H = 0.8 * H + 0.2 * torch.randn(11, 11, dtype=torch.float64).softmax(-1)
    assert best_blocks(H, 0.02, 0.3).tolist() == [0, 1, 2, 4, 4, 4, 4, 7, 8, 9, 10]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leading_axes_and_precision(dtype: torch.dtype) -> None:
    H = heads(7)[:6].to(dtype).view(2, 3, 7, 7).requires_grad_()
    searches = {
        "offset": lambda X: best_offset(X, 0.02),
        "column": lambda X: best_column(X, 0.02),
        "permutation": lambda X: best_permutation(X, 0.02),
        "blocks": lambda X: best_blocks(X, 0.02, 0.3),
        "order": lambda X: best_order(X, 1, 1, 0.02),
    }
    for name, search in searches.items():
        found = search(H)
        assert found.dtype == torch.int64 and found.shape[:2] == (2, 3), name
        assert torch.equal(found[1, 2], search(H[1, 2])), name
