"""The nearest convex mix is that of brute force over all supports, and no other mix beats it."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.reshape.projection.forms import nearest_mix

CLOSE = 1e-11


def gram(F: Tensor, H: Tensor) -> Tensor:
    """G_mn = <F_m - H, F_n - H>."""
    D = F - H
    return D @ D.T


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value(G: Tensor, a: Tensor) -> float:
    return float(a @ G @ a)


def is_mix(a: Tensor, m: int) -> bool:
    return a.shape == (m,) and bool((a >= 0).all()) and abs(float(a.sum()) - 1) < 1e-12


def by_supports(G: Tensor) -> tuple[float, Tensor]:
    """On each support G a = mu 1 and sum a = 1; the best of those solutions that are not negative."""
    m = len(G)
    found: list[tuple[float, Tensor]] = []
    for support in map(list, chain.from_iterable(combinations(range(m), size) for size in range(1, m + 1))):
        size = len(support)
        system = torch.zeros(size + 1, size + 1, dtype=torch.float64)
        system[:size, :size] = G[support][:, support]
        system[:size, size] = system[size, :size] = 1.0
        right = torch.zeros(size + 1, dtype=torch.float64)
        right[size] = 1.0
        part = (torch.linalg.pinv(system) @ right)[:size]
        if (part > -1e-9).all() and abs(float(part.sum()) - 1) < 1e-9:
            a = torch.zeros(m, dtype=torch.float64)
            a[support] = part
            found.append((value(G, a), a))
    return min(found, key=lambda one: one[0])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("m", range(1, 7))
def test_the_best_of_all_supports(m: int, seed: int) -> None:
    G = gram(draw(m, 11, seed=seed) + 0.7, draw(11, seed=seed + 100))
    a = nearest_mix(G)
    best, mix = by_supports(G)
    assert is_mix(a, m)
    assert value(G, a) == pytest.approx(best, rel=CLOSE)
    torch.testing.assert_close(a, mix, rtol=0, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("m", range(2, 7))
def test_few_dimensions(m: int, seed: int) -> None:
    """G has rank two at most, and several mixes may be best."""
    G = gram(draw(m, 2, seed=seed), draw(2, seed=seed + 50) * 3)
    a, (best, _) = nearest_mix(G), by_supports(G)
    assert is_mix(a, m) and value(G, a) == pytest.approx(best, abs=CLOSE * float(G.max()))


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 2**31), st.floats(-6, 6))
def test_no_mix_is_nearer(m: int, d: int, seed: int, log_size: float) -> None:
    G = gram(draw(m, d, seed=seed), draw(d, seed=seed + 1)) * 10.0**log_size
    a = nearest_mix(G)
    assert is_mix(a, m)
    others = torch.cat([torch.eye(m, dtype=torch.float64), draw(50, m, seed=seed + 2).mul(3).softmax(-1)])
    beaten = torch.einsum("rm,mn,rn->r", others, G, others)
    assert value(G, a) <= float(beaten.min()) + CLOSE * float(G.diagonal().max())


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**31))
def test_what_is_inside_the_hull_is_met(m: int, d: int, seed: int) -> None:
    F, inside = draw(m, d, seed=seed), draw(m, seed=seed + 1).softmax(0)
    G = gram(F, inside @ F)
    assert value(G, nearest_mix(G)) <= CLOSE * max(float(G.max()), 1e-300)


def test_a_corner_is_met_by_itself() -> None:
    F = draw(5, 7, seed=3)
    torch.testing.assert_close(nearest_mix(gram(F, F[2])), torch.eye(5, dtype=torch.float64)[2], rtol=0, atol=1e-7)


def test_nothing_to_choose_between() -> None:
    assert is_mix(nearest_mix(torch.zeros(5, 5, dtype=torch.float64)), 5)
    assert nearest_mix(torch.tensor([[3.0]])).tolist() == [1.0]


def test_rank_one() -> None:
    """G = d d^T: on a line, the mix that meets H if H lies between, and else the nearest end."""
    between, beyond = torch.tensor([-2.0, 1.0, 4.0]).double(), torch.tensor([5.0, 2.0, 3.0]).double()
    assert value(torch.outer(between, between), nearest_mix(torch.outer(between, between))) < CLOSE
    torch.testing.assert_close(
        nearest_mix(torch.outer(beyond, beyond)), torch.tensor([0.0, 1.0, 0.0]).double(), rtol=0, atol=1e-7
    )


def test_what_is_there_twice_changes_nothing() -> None:
    F, H = draw(3, 7, seed=5), draw(7, seed=6) * 0.1
    once, twice = gram(F, H), gram(torch.cat([F, F[:2]]), H)
    a, b = nearest_mix(once), nearest_mix(twice)
    assert is_mix(b, 5) and value(twice, b) == pytest.approx(value(once, a), rel=1e-10)
    torch.testing.assert_close(b[:3] + torch.cat([b[3:], b.new_zeros(1)]), a, rtol=0, atol=1e-7)


@pytest.mark.parametrize("factor", [1e-12, 1.0, 1e12])
def test_units_do_not_matter(factor: float) -> None:
    G = gram(draw(5, 7, seed=8), draw(7, seed=9) * 0.1)
    torch.testing.assert_close(nearest_mix(G * factor), nearest_mix(G), rtol=0, atol=1e-7)


def test_the_type_is_kept_and_slips_of_rounding_are_forgiven() -> None:
    G = gram(draw(5, 2, seed=8), draw(2, seed=9)).float()
    assert torch.linalg.eigvalsh(G.double()).min() < 0
    a = nearest_mix(G)
    assert a.dtype == torch.float32 and a.isfinite().all() and float(a.sum()) == pytest.approx(1, abs=1e-6)
