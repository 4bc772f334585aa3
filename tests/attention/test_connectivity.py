"""Reach, diameter, receptive fields and spectral gaps, against breadth-first search and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnworks.attention.complexity import (
    edge_count,
    graph_diameter,
    layers_needed,
    reached,
    receptive_field,
    spectral_gap,
)
from attnworks.core.errors import UsageError
from tests.helpers import assert_close


def windowed(n: int, window: int, dilation: int = 1) -> Tensor:
    offset = torch.arange(n)[:, None] - torch.arange(n)
    return (offset % dilation == 0) & (offset.abs() <= window * dilation)


def scattered(n: int, share: float, seed: int = 3) -> Tensor:
    return torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < share


def cycle(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.bool).roll(1, 0)


def distances(A: Tensor) -> list[list[float]]:
    """By breadth-first search from every position."""
    found = []
    for start in range(len(A)):
        away = [math.inf] * len(A)
        away[start], border = 0, [start]
        while border:
            reachable = {j for i in border for j in A[i].nonzero().flatten().tolist() if away[j] == math.inf}
            for j in reachable:
                away[j] = away[border[0]] + 1
            border = sorted(reachable)
        found.append(away)
    return found


GRAPHS = {
    "random": scattered(23, 0.08),
    "sparse": scattered(31, 0.03),
    "window": windowed(29, 3),
    "dilated": windowed(29, 3, 2),
    "cycle": cycle(13),
    "complete": torch.ones(7, 7, dtype=torch.bool),
    "empty": torch.zeros(5, 5, dtype=torch.bool),
    "alone": torch.zeros(1, 1, dtype=torch.bool),
}
every_graph = pytest.mark.parametrize("A", GRAPHS.values(), ids=GRAPHS)


@every_graph
def test_reach_and_diameter_by_breadth_first_search(A: Tensor) -> None:
    away = torch.tensor(distances(A))
    for layers in range(15):
        assert torch.equal(reached(A, layers), away <= layers)
    assert graph_diameter(A) == (None if away.max() == math.inf else int(away.max()))


def test_without_a_skip_the_walks_have_exactly_that_length() -> None:
    A = scattered(17, 0.1)
    for layers in range(7):
        walks = torch.linalg.matrix_power(A.double(), layers)
        assert torch.equal(reached(A, layers, skip=False), walks > 0)


def test_tables_come_in_batches() -> None:
    A = torch.stack([scattered(19, 0.1, seed) for seed in range(6)]).view(2, 3, 19, 19)
    together, gaps, edges = reached(A, 3), spectral_gap(A), edge_count(A)
    for b in range(2):
        for h in range(3):
            assert torch.equal(together[b, h], reached(A[b, h], 3))
            assert_close(gaps[b, h], spectral_gap(A[b, h]))
            assert edges[b, h] == len(A[b, h].nonzero())


@pytest.mark.parametrize("n", [2, 13, 29])
def test_one_global_token_makes_two_layers_enough(n: int) -> None:
    """S4.78."""
    A = torch.eye(n, dtype=torch.bool)
    A[0] = A[:, 0] = True
    assert graph_diameter(A) == (2 if n > 2 else 1)


def test_heads_with_other_dilations_fill_the_gaps() -> None:
    heads = torch.stack([windowed(41, 2, 1), windowed(41, 2, 3)])
    assert graph_diameter(heads[1]) is None
    assert graph_diameter(heads.any(-3)) == 8 < (graph_diameter(heads[0]) or 0)


@pytest.mark.parametrize(
    ("layers", "window", "dilations", "expected"),
    [
        (6, 4, (3,), (145, 49)),
        (6, 4, (1, 3), (145, 135)),
        (1, 2, (1,), (5, 5)),
        (3, 2, (2,), (25, 13)),
        (0, 4, (3,), (1, 1)),
        (5, 0, (1,), (1, 1)),
    ],
)
def test_receptive_fields_of_the_claims(
    layers: int, window: int, dilations: tuple[int, ...], expected: tuple[int, int]
) -> None:
    """S4.83, where w is the whole width: 8 there is 4 to each side here."""
    assert receptive_field(layers, window, dilations) == expected


@pytest.mark.parametrize("dilations", [(1,), (2,), (1, 3), (2, 5), (2, 3, 7)])
@pytest.mark.parametrize("window", [1, 3])
def test_a_receptive_field_is_what_the_middle_token_reaches(window: int, dilations: tuple[int, ...]) -> None:
    for layers in range(1, 4):
        n = 2 * layers * window * max(dilations) + 7
        A = torch.stack([windowed(n, window, dilation) for dilation in dilations]).any(0)
        seen = reached(A, layers)[n // 2].nonzero().flatten()
        assert receptive_field(layers, window, dilations) == (int(seen.max() - seen.min()) + 1, len(seen))


@pytest.mark.parametrize("window", [1, 2, 5])
def test_layers_needed_is_the_diameter_of_a_window(window: int) -> None:
    """S4.85."""
    for n in (1, 2, 11, 12, 31):
        assert layers_needed(n, window) == graph_diameter(windowed(n, window))
    for dilation, n in ((2, 31), (3, 31)):  # n - 1 is a multiple, so that the last token is met exactly
        needed = layers_needed(n, window, dilation)
        assert needed is not None
        met = [bool(reached(windowed(n, window, dilation), layers)[0, -1]) for layers in (needed - 1, needed)]
        assert met == [False, True]
    assert layers_needed(7, 0) is None and layers_needed(1, 0) == 0


@pytest.mark.parametrize("n", [3, 5, 13])
def test_gaps_in_closed_form(n: int) -> None:
    complete, self_loops = torch.ones(n, n, dtype=torch.bool), torch.eye(n, dtype=torch.bool)
    lazy = 1 - (1 + 2 * math.cos(2 * math.pi / n)) / 3
    for A, gap in (
        (complete, 1.0),
        (complete & ~self_loops, (n - 2) / (n - 1)),
        (cycle(n), 1 - math.cos(math.pi / n)),
        (cycle(n) | self_loops, lazy),
    ):
        assert_close(spectral_gap(A), torch.tensor(gap, dtype=torch.float64))


def test_pieces_and_two_sides_have_no_gap() -> None:
    pieces = torch.block_diag(torch.ones(5, 5), torch.ones(7, 7)).bool()
    with_a_loner = torch.block_diag(torch.ones(5, 5), torch.zeros(1, 1)).bool()
    for A in (pieces, with_a_loner, cycle(12), torch.zeros(3, 3, dtype=torch.bool)):
        assert_close(spectral_gap(A), torch.tensor(0.0, dtype=torch.float64))
    assert spectral_gap(torch.ones(1, 1, dtype=torch.bool)) == 1.0


@pytest.mark.parametrize("degree", [4, 8, 16])
def test_random_graphs_come_near_the_best_gap(degree: int) -> None:
    """S4.79: each of `degree` / 2 permutations gives every position one neighbour on each side."""
    n, source = 397, torch.Generator().manual_seed(degree)
    A = torch.zeros(n, n, dtype=torch.bool)
    for _ in range(degree // 2):
        A[torch.arange(n), torch.randperm(n, generator=source)] = True
    best = 1 - 2 * math.sqrt(degree - 1) / degree
    assert spectral_gap(A).item() == pytest.approx(best, abs=0.03)
    assert spectral_gap(windowed(n, degree // 2)) < best / 20


def test_fewer_than_no_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="layers=-1: expected a whole number from 0"):
        reached(torch.ones(3, 3, dtype=torch.bool), -1)
