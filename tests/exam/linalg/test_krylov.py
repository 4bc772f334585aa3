"""The leading part of a spectrum agrees with all of it, on easy, clustered and degenerate matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnworks.exam.linalg.krylov import leading_singular_value, leading_spectrum
from tests.helpers import assert_close

N = 149


def with_spectrum(s: Tensor) -> Tensor:
    U, V = (torch.linalg.qr(torch.randn(N, len(s), dtype=torch.float64)).Q for _ in range(2))
    return U @ torch.diag(s.double()) @ V.T


def attention(sharpness: float, *lead: int) -> Tensor:
    Q, K = torch.randn(2, *lead, N, 32)
    return (sharpness * Q @ K.mT / 32**0.5).softmax(-1)


def spectra() -> list[Tensor]:
    n = torch.arange(1.0, N + 1)
    clustered = torch.cat([1 - 1e-6 * n[:40], 0.1 / n[40:]])
    return [0.7**n, 1 / n, n.rsqrt(), torch.ones(N), clustered, torch.tensor([2.0]), torch.tensor([1.0, 1.0, 1.0])]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_leading_value(dtype: torch.dtype) -> None:
    X = torch.stack([with_spectrum(s) for s in spectra()] + [attention(a).double() for a in (0.3, 1, 4)]).to(dtype)
    want = torch.linalg.svdvals(X.double())[:, 0]
    assert ((leading_singular_value(X).double() - want).abs() / want).max() < 1e-5
    assert leading_singular_value(X[None]).shape == (1, len(X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_leading_spectrum(dtype: torch.dtype, share: float) -> None:
    X = torch.stack([with_spectrum(s) for s in spectra()] + [attention(a).double() for a in (0.1, 0.3, 1, 4)]).to(dtype)
    s = torch.linalg.svdvals(X.double())
    energy = s.square().sum(-1, keepdim=True)
    curve = s.square().cumsum(-1) / energy
    found = leading_spectrum(X, share)
    assert_close(found.energy, energy[:, 0], dtype)
    assert ((found.stable_rank() / (energy[:, 0] / s[:, 0].square())) - 1).abs().max() < 3e-5
    for at in range(len(X)):
        rank, known = int(found.rank[at]), int(found.known[at])
        assert rank <= known
        assert curve[at, rank - 1] >= share - 3e-5
        assert rank == 1 or curve[at, rank - 2] < share + 3e-5
        assert (found.cumulative_energy()[at, :known] - curve[at, :known]).abs().max() < 3e-5
        assert (found.values[at, known:] == 0).all()


def test_it_saves_work_where_it_can_and_only_there() -> None:
    easy, flat = with_spectrum(0.7 ** torch.arange(N)), with_spectrum(torch.ones(N))
    known = leading_spectrum(torch.stack([easy, flat])).known.tolist()
    assert known[0] < 10 and known[1] == N


def test_small_zero_and_reproducible() -> None:
    small = torch.randn(3, 7, 5)
    assert_close(leading_spectrum(small).values, torch.linalg.svdvals(small.double()), torch.float32)
    nothing = leading_spectrum(torch.zeros(2, N, N))
    assert not nothing.rank.any() and not nothing.values.any() and not nothing.stable_rank().any()
    assert not leading_singular_value(torch.zeros(2, N, N)).any()
    X = attention(0.5, 2)
    assert torch.equal(leading_spectrum(X).values, leading_spectrum(X).values)
