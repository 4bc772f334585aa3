"""Spectra of maps and weights against svdvals, and random projections against their expectation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention.heads import HeadWeights
from attnworks.core.places import Slot
from attnworks.exam.measure import MEASURES, MeasureContext
from attnworks.exam.measures.spectra import CURVE_SHARES, SKETCH_RANKS, WHOLE_SPECTRUM_BELOW, Sketch, Spectra
from attnworks.text.tokens import TokenRow, collate
from attnworks.traces.maps import Maps, attend_rows
from tests.helpers import assert_close

B, H, V = 2, 3, 5
SETTING = MeasureContext(11)
SLOT = Slot("encoder", 1)


def maps_of_scores(S: Tensor, values: Tensor | None = None, first_head: int = 0) -> Maps:
    b, h, i, j = S.shape
    values = torch.randn(b, h, j, V, dtype=S.dtype) if values is None else values
    heads = slice(first_head, first_head + h)
    queries = collate([TokenRow((*range(i),), (False,) * i, (*range(i),))] * b, 0)
    return Maps(SLOT, slice(0, b), heads, attend_rows(S.clone()), torch.full((b, i), j), values, queries)


def scores(i: int, j: int, spread: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return (spread * torch.randn(B, H, i, j, dtype=torch.float64)).to(dtype)


def energy_at(s: Tensor, share: float) -> float:
    """The energy of the first `share` of the values, a part of a value counting for that part of it."""
    energies, place = (s**2 / (s**2).sum()).tolist(), share * len(s)
    return sum(energy * min(max(place - rank, 0.0), 1.0) for rank, energy in enumerate(energies))


def test_registered_and_declared() -> None:
    for name, measure in (("spectra", Spectra), ("sketch", Sketch)):
        assert MEASURES[name] is measure and not measure.default
    maps, own = maps_of_scores(scores(5, 7)), Spectra(SETTING)
    given_ = {*own.maps(maps), *own.weights(SLOT, weights_of())}
    assert given_ == {declared.name for declared in own.declares()}
    assert set(Sketch(SETTING).maps(maps)) == {declared.name for declared in Sketch(SETTING).declares()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("i", "j"), [(7, 7), (5, 11), (11, 3), (1, 1), (1, 7)])
def test_maps_by_loops(i: int, j: int, dtype: torch.dtype) -> None:
    maps = maps_of_scores(scores(i, j, dtype=dtype))
    got, n = Spectra(SETTING).maps(maps), min(i, j)
    for b in range(B):
        for h in range(H):
            s = torch.linalg.svdvals(maps.P[b, h].double())
            want = torch.tensor([energy_at(s, share) for share in CURVE_SHARES], dtype=torch.float64)
            assert_close(got["spectra.curve"].values[b, h], want, dtype)
            count = next(r for r in range(1, n + 1) if (s[:r] ** 2).sum() >= 0.9 * (s**2).sum() * (1 - 1e-6))
            assert got["spectra.rank90_count"].values[b, h] == count
            assert got["spectra.rank90"].values[b, h].item() == count / n, "not rounded to float32"
            assert_close(got["spectra.stable_rank"].values[b, h], (s**2).sum() / s[0] ** 2, dtype)


def test_known_maps() -> None:
    """All queries alike: rank one. Every query itself: all values one."""
    n = 7
    alike, itself = torch.zeros(B, H, n, n).double(), (1e4 * torch.eye(n)).double().expand(B, H, n, n)
    got = Spectra(SETTING).maps(maps_of_scores(alike))
    assert_close(got["spectra.stable_rank"].values, torch.ones(B, H))
    assert_close(got["spectra.curve"].values[..., 2:], torch.ones(B, H, 9))
    assert got["spectra.curve"].values[..., 1].max() == pytest.approx(0.1 * n)
    got = Spectra(SETTING).maps(maps_of_scores(itself))
    assert_close(got["spectra.stable_rank"].values, torch.full((B, H), float(n)))
    assert_close(got["spectra.curve"].values[0, 0], torch.tensor(CURVE_SHARES, dtype=torch.float64))
    assert (got["spectra.rank90_count"].values == n).all()


@pytest.mark.parametrize("spread", [0.05, 1.5])
def test_large_maps(spread: float) -> None:
    """Exact up to 90 % of the energy, and a lower bound by at most a tenth beyond; low rank, and a long tail."""
    n = WHOLE_SPECTRUM_BELOW + 1
    low = torch.randn(B, H, n, 3, dtype=torch.float64) @ torch.randn(B, H, 3, n, dtype=torch.float64)
    maps = maps_of_scores(low + spread * scores(n, n, 1.0))
    got = Spectra(SETTING).maps(maps)
    for b in range(B):
        for h in range(H):
            s = torch.linalg.svdvals(maps.P[b, h])
            count = int(((s**2).cumsum(0) < 0.9 * (s**2).sum()).sum()) + 1
            assert got["spectra.rank90_count"].values[b, h] == count
            assert got["spectra.stable_rank"].values[b, h].item() == pytest.approx(
                ((s / s[0]) ** 2).sum().item(), rel=1e-4
            )
            for share, value in zip(CURVE_SHARES, got["spectra.curve"].values[b, h].tolist(), strict=True):
                true = energy_at(s, share)
                assert -0.1 <= value - true <= 1e-4
                if share * n <= count:
                    assert value == pytest.approx(true, abs=1e-4)


def test_leading_part_goes_straight_on() -> None:
    """A map whose 90 % are known from few values: its curve beyond them is the line to (1, 1)."""
    n = WHOLE_SPECTRUM_BELOW + 1
    low = 3 * torch.randn(B, H, n, 1, dtype=torch.float64) @ torch.randn(B, H, 1, n, dtype=torch.float64)
    got = Spectra(SETTING).maps(maps_of_scores(low))
    count, curve = got["spectra.rank90_count"].values, got["spectra.curve"].values
    assert (count < 0.1 * n).all()
    assert (curve[..., 1:] >= 0.9 - 1e-6).all() and (curve[..., -1] == 1).all()
    assert_close(curve[..., 2:].diff().diff(), torch.zeros(B, H, 7))


# --- weights ----------------------------------------------------------------------------------------------------------


def weights_of(**changes: Any) -> HeadWeights:
    shapes = {"W_Q": (H, 11, 2), "W_K": (H, 13, 2), "W_V": (H, 13, 5), "W_O": (H, 5, 11)}
    drawn: dict[str, Any] = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    return HeadWeights(**(drawn | changes), b_Q=None, b_K=None, b_V=None, b_O=None, groups=H, scale=1.0)


def test_weights_against_the_products() -> None:
    W = weights_of()
    got = Spectra(SETTING).weights(SLOT, W)
    for product, whole in (("qk", W.W_Q @ W.W_K.mT), ("vo", W.W_V @ W.W_O)):
        s = torch.linalg.svdvals(whole)
        share = s / s.sum(-1, keepdim=True)
        assert_close(got[f"spectra.{product}_norm"].values, s[:, 0])
        assert_close(got[f"spectra.{product}_stable"].values, (s**2).sum(-1) / s[:, 0] ** 2)
        entropy = -torch.special.xlogy(share, share).sum(-1)
        assert_close(got[f"spectra.{product}_effective"].values, entropy.exp(), torch.float32)


def test_a_head_that_is_off() -> None:
    got = Spectra(SETTING).weights(SLOT, weights_of(W_O=torch.zeros(H, 5, 11).double()))
    for name in ("stable", "effective", "norm"):
        assert (got[f"spectra.vo_{name}"].values == 0).all()


# --- sketch -----------------------------------------------------------------------------------------------------------


def test_sketch_formula_by_loops() -> None:
    maps = maps_of_scores(scores(7, 11))
    got = Sketch(SETTING).maps(maps)["sketch.formula"]
    for b in range(B):
        for h in range(H):
            P, W = maps.P[b, h], maps.V[b, h]
            for at, k in enumerate(SKETCH_RANKS):
                square = sum((P.norm() ** 2 * w.norm() ** 2 + (P @ w).norm() ** 2) / k for w in W.T)
                assert_close(got.values[b, h, at], (square / (P @ W).norm() ** 2) ** 0.5)  # pyright: ignore


def test_sketch_errors_average_to_the_formula() -> None:
    """D8, over 1009 seeds: the mean square error is known exactly."""
    maps = maps_of_scores(scores(7, 11))
    draws = torch.stack([Sketch(MeasureContext(11, seed)).maps(maps)["sketch.error"].values for seed in range(1009)])
    formula = Sketch(SETTING).maps(maps)["sketch.formula"].values
    ratio = draws.square().mean(0).sqrt() / formula
    assert ((ratio - 1).abs() < 0.1).all(), ratio


@given(st.integers(0, 3))
def test_sketch_does_not_depend_on_the_batch(seed: int) -> None:
    S, values = scores(7, 11), torch.randn(B, H, 11, V, dtype=torch.float64)
    sketch = Sketch(MeasureContext(11, seed))
    whole = sketch.maps(maps_of_scores(S, values))["sketch.error"].values
    for b in range(B):
        for h in range(H):
            own = maps_of_scores(S[b : b + 1, h : h + 1], values[b : b + 1, h : h + 1], first_head=h)
            assert_close(sketch.maps(own)["sketch.error"].values[0, 0], whole[b, h])
    other = Sketch(MeasureContext(11, seed + 1)).maps(maps_of_scores(S, values))["sketch.error"].values
    assert (other != whole).any()


def test_values_of_zero_say_nothing() -> None:
    values = torch.randn(B, H, 7, V, dtype=torch.float64)
    values[1, 2] = 0
    for sample in Sketch(SETTING).maps(maps_of_scores(scores(5, 7), values)).values():
        assert sample.valid is not None and sample.valid.sum() == B * H - 1 and not sample.valid[1, 2].any()
        assert sample.values[sample.valid.expand(sample.values.shape)].isfinite().all()
