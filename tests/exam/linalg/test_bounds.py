"""Bounds on rank collapse: never violated under their conditions, attained where they are sharp."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.exam.linalg.bounds import (
    LARGEST_ROW_RANGE,
    HeadSizes,
    bound_converges,
    composite_bound,
    composite_factor,
    contraction,
    cubic_bound,
    diameter_bound,
    head_sizes,
    logit_row_range,
    mean_factor,
    product_singular_values,
    published_bound,
    published_factor,
    row_diameter,
    skip_bounds,
)
from attnworks.exam.linalg.residual import best_row, composite, induced_inf, induced_one, residual, residual_norm
from tests.helpers import assert_close

LP = 1e-6
"""Linear programs are solved to 1e-7 of the largest entry."""


class Layer(NamedTuple):
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    b_Q: Tensor  # noqa: N815
    b_K: Tensor  # noqa: N815
    b_V: Tensor  # noqa: N815
    b_O: Tensor  # noqa: N815
    scale: float

    @property
    def sizes(self) -> HeadSizes:
        return head_sizes(self.W_Q, self.W_K, self.W_V, self.W_O)

    def __call__(self, X: Tensor, allowed: Tensor | None = None) -> Tensor:
        Q, K, V = (
            X.unsqueeze(-3) @ W + b.unsqueeze(-2)
            for W, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        S = self.scale * Q @ K.mT
        if allowed is not None:
            S = S.masked_fill(~allowed, -torch.inf)
        return (S.softmax(-1) @ V @ self.W_O).sum(-3) + self.b_O


def drawn(seed: int, spread: float = 1.0, h: int = 3, e: int = 5, k: int = 2, v: int = 3, n: int = 7):
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source, dtype=torch.float64)

    weights = (normal(h, e, k), normal(h, e, k), normal(h, e, v), normal(h, v, e))
    biases = (normal(h, k), normal(h, k), normal(h, v), normal(e))
    return Layer(*weights, *biases, scale=k**-0.5), 3 * normal(1, e) + spread * normal(n, e)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def rounding(*outputs: Tensor) -> float:
    """D7: 100 eps max |Z|."""
    return 100 * torch.finfo(torch.float64).eps * max(float(Z.abs().max()) for Z in outputs)


draws = given(
    st.integers(0, 10_000), st.sampled_from([1e-3, 0.03, 0.3, 1.0, 5.0]), st.integers(1, 3), st.sampled_from([1, 2, 7])
)


# --- diameter ---------------------------------------------------------------------------------------------------------


def test_diameter_by_loops() -> None:
    X = torch.randn(2, 3, 7, 5, dtype=torch.float64) + 11
    real = torch.rand(2, 3, 7) < 0.6
    real[0, 0] = False
    got, among_real = row_diameter(X), row_diameter(X.masked_fill(~real.unsqueeze(-1), torch.nan), real)
    for b in range(2):
        for c in range(3):
            rows, kept = X[b, c], X[b, c][real[b, c]]
            assert_close(got[b, c], max((x - y).norm() for x in rows for y in rows))
            want = max(((x - y).norm() for x in kept for y in kept), default=torch.zeros(()))
            assert_close(among_real[b, c], want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_equal_rows_have_diameter_zero(dtype: torch.dtype) -> None:
    assert (row_diameter(torch.randn(3, 1, 7).to(dtype).expand(3, 11, 7)) == 0).all()
    assert (row_diameter(torch.randn(3, 1, 7).to(dtype)) == 0).all()


@pytest.mark.parametrize("size", [1e-30, 1e-9, 1.0, 1e30])
def test_diameter_keeps_its_digits(size: float) -> None:
    """Far from the origin as well: rows at 1 and 1 + 2^-20 are that far apart, in float32."""
    X = torch.randn(7, 5, dtype=torch.float64)
    assert_close(row_diameter((size * X).float()) / size, row_diameter(X).float())
    far = torch.tensor([[1.0, 1.0], [1.0 + 2**-20, 1.0], [1.0, 1.0]])
    assert row_diameter(far).item() == pytest.approx(2**-20, rel=1e-6)


def test_nan_is_not_hidden() -> None:
    X = torch.randn(2, 5, 3)
    X[0, 2, 1] = torch.nan
    assert row_diameter(X)[0].isnan() and row_diameter(X)[1].isfinite()


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("e", "f", "k"), [(11, 13, 3), (3, 13, 5), (3, 2, 5), (7, 7, 1)])
def test_singular_values_of_a_product(e: int, f: int, k: int) -> None:
    A, B = torch.randn(2, e, k, dtype=torch.float64), torch.randn(2, f, k, dtype=torch.float64)
    got, want = product_singular_values(A, B), torch.linalg.svdvals(A @ B.mT)
    assert got.shape == (2, min(e, f, k))
    assert_close(got, want[:, : got.shape[-1]])


def test_head_sizes_are_norms_of_the_products() -> None:
    layer, _ = drawn(3)
    sizes = layer.sizes
    W_QK, W_VO = layer.W_Q @ layer.W_K.mT, layer.W_V @ layer.W_O
    assert_close(sizes.qk, torch.linalg.matrix_norm(W_QK, 2))
    assert_close(sizes.vo, torch.linalg.matrix_norm(W_VO, 2))
    assert_close(sizes.qk_one, induced_one(W_QK))
    assert_close(sizes.vo_one, induced_one(W_VO))
    assert_close(sizes.vo_inf, induced_inf(W_VO))


# --- D6 ---------------------------------------------------------------------------------------------------------------


@draws
def test_the_diameter_bound_is_never_violated(seed: int, spread: float, h: int, n: int) -> None:
    layer, X = drawn(seed, spread, h=h, n=n)
    Y = layer(X)
    bound = diameter_bound(row_diameter(X), layer.sizes, layer.scale)
    assert row_diameter(Y) <= bound * (1 + 1e-12) + rounding(Y)
    assert bound <= cubic_bound(row_diameter(X), layer.sizes, layer.scale) * (1 + 1e-12)


@draws
def test_the_diameter_bound_holds_if_all_queries_see_the_same_keys(seed: int, spread: float, h: int, n: int) -> None:
    layer, X = drawn(seed, spread, h=h, n=n)
    allowed = torch.rand(1, n, generator=torch.Generator().manual_seed(seed)) < 0.5
    allowed[0, 0] = True
    Y = layer(X, allowed)
    assert row_diameter(Y) <= diameter_bound(row_diameter(X), layer.sizes, layer.scale) * (1 + 1e-12) + rounding(Y)


@draws
def test_skip_bounds_are_never_violated(seed: int, spread: float, h: int, n: int) -> None:
    layer, X = drawn(seed, spread, h=h, n=n)
    Z = X + layer(X)
    low, high = skip_bounds(row_diameter(X), layer.sizes, layer.scale)
    slack = rounding(Z, X)
    assert low * (1 - 1e-12) - slack <= row_diameter(Z) <= high * (1 + 1e-12) + slack


def single(qk: float, vo: float, scale: float = 1.0) -> Layer:
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    return Layer(qk * one, one, vo * one, one, zero, zero, zero, torch.zeros(1, dtype=torch.float64), scale)


@pytest.mark.parametrize("a", [0.01, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("qk", [0.3, 2.0])
def test_the_diameter_bound_is_attained(a: float, qk: float) -> None:
    """n = 2, d = 1, X = +-a: PX = +-a tanh(qk scale a^2), and diam = 2 a."""
    layer, X = single(qk, 1.7, scale=0.5), torch.tensor([[a], [-a]], dtype=torch.float64)
    want = 1.7 * 2 * a * math.tanh(qk * 0.5 * a**2)
    assert_close(row_diameter(layer(X)), number(want))
    assert_close(diameter_bound(row_diameter(X), layer.sizes, layer.scale), number(want))
    assert_close(contraction(row_diameter(X), layer.sizes, layer.scale), number(want / (2 * a)))
    low, high = skip_bounds(row_diameter(X), layer.sizes, layer.scale)
    assert_close(row_diameter(X + layer(X)), high)
    assert_close(low, number(max(2 * a - want, 0.0)))
    if want <= 2 * a:
        assert_close(row_diameter(X - layer(X)), low)


def test_a_causal_mask_breaks_it() -> None:
    """S0.20: X = +-0.1, diam out 0.101, bound 0.0020."""
    layer, X = single(1.0, 1.0), torch.tensor([[0.1], [-0.1]], dtype=torch.float64)
    out = row_diameter(layer(X, torch.ones(2, 2, dtype=torch.bool).tril()))
    bound = diameter_bound(row_diameter(X), layer.sizes, layer.scale)
    assert out.item() == pytest.approx(0.101, abs=1e-4) and bound.item() == pytest.approx(0.0020, abs=1e-4)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_cubic_bound_over_depth(layers: int) -> None:
    """b -> c b^3, L times, is c^{1 + 3 + ... + 3^{L-1}} b^{3^L} = c^{(3^L - 1) / 2} b^{3^L}: the exponents of S0.17."""
    sizes = drawn(5)[0].sizes
    c, bound = cubic_bound(number(1.0), sizes, 0.3), number(0.7)
    for _ in range(layers):
        bound = cubic_bound(bound, sizes, 0.3)
    assert_close(bound.log(), published_bound(number(0.7), c, layers).log())


def test_bounds_are_batched() -> None:
    layer, X = drawn(5)
    several = torch.stack([X, 0.1 * X, 0 * X])
    rho, D = composite(residual(several)), logit_row_range(residual(several), layer.W_Q, layer.W_K, layer.scale)
    for at, one in enumerate(several):
        diam = row_diameter(one)
        assert_close(
            diameter_bound(row_diameter(several), layer.sizes, 0.3)[at], diameter_bound(diam, layer.sizes, 0.3)
        )
        assert_close(cubic_bound(row_diameter(several), layer.sizes, -0.3)[at], cubic_bound(diam, layer.sizes, 0.3))
        assert_close(composite_bound(rho, layer.sizes, -0.3)[at], composite_bound(rho[at], layer.sizes, 0.3))
        assert_close(D[at], logit_row_range(residual(one), layer.W_Q, layer.W_K, layer.scale))
    assert D[2] == 0 and composite_factor(D)[2] == 1


# --- D5 ---------------------------------------------------------------------------------------------------------------


@draws
def test_the_composite_bound_is_never_violated(seed: int, spread: float, h: int, n: int) -> None:
    """With the factor of D any input will do, with 4 those of small D; for the mean residual 8 (1 - 1/n)."""
    layer, X = drawn(seed, spread, h=h, n=n, e=3)
    Y = layer(X)
    slack = 10 * rounding(Y) + LP * float(composite(residual(Y)))
    for R in (residual(X), X - best_row(X, "composite")):
        rho, D = composite(R), logit_row_range(R, layer.W_Q, layer.W_K, layer.scale)
        least = residual_norm(Y, "composite")
        assert least <= composite_bound(rho, layer.sizes, layer.scale, composite_factor(D)) + slack
        if D <= LARGEST_ROW_RANGE:
            assert least <= composite_bound(rho, layer.sizes, layer.scale) + slack
            by_mean = mean_factor(number(n))
            assert composite(residual(Y)) <= composite_bound(rho, layer.sizes, layer.scale, by_mean) + slack


def test_over_heads_it_is_no_larger_than_in_the_claims() -> None:
    """D5: H sqrt(beta_1 beta_inf); the same for one head."""
    for h in (1, 3):
        sizes = drawn(7, h=h)[0].sizes
        first, last = ((sizes.qk_one * size).max() for size in (sizes.vo_one, sizes.vo_inf))
        stated = 4 * 0.5 * h * (first * last).sqrt() * 1.3**3
        got = composite_bound(number(1.3), sizes, 0.5)
        if h == 1:
            assert_close(got, stated)
        assert got <= stated * (1 + 1e-12)


def test_the_factor_reaches_four_at_the_largest_row_range() -> None:
    D = torch.tensor([0.0, 1e-9, 1.0, LARGEST_ROW_RANGE, LARGEST_ROW_RANGE + 1e-5], dtype=torch.float64)
    factor = composite_factor(D)
    assert factor[0] == 1 and (factor.diff() >= 0).all()
    assert factor[3] <= 4 < factor[4]
    assert_close(factor[2], number(math.sqrt(math.e - 1)))
    assert math.exp(LARGEST_ROW_RANGE) < 1 + 16 * LARGEST_ROW_RANGE


def test_row_range_by_loops() -> None:
    """Of the scores themselves, with biases: row i of S less the row that the mean query would have."""
    layer, X = drawn(11)
    real = torch.tensor([True, True, False, True, True, False, True])
    R = residual(X.masked_fill(~real[:, None], torch.nan), real)
    got = logit_row_range(R, layer.W_Q, layer.W_K, layer.scale, real)
    assert_close(got, logit_row_range(residual(X[real]), layer.W_Q, layer.W_K, layer.scale))
    Q, K = X[real] @ layer.W_Q + layer.b_Q[:, None], X[real] @ layer.W_K + layer.b_K[:, None]
    E = layer.scale * (Q - Q.mean(-2, keepdim=True)) @ K.mT
    assert_close(got, max(row.max() - row.min() for head in E for row in head))


# --- as published -----------------------------------------------------------------------------------------------------


def test_published_factor() -> None:
    layer, _ = drawn(13)
    W_QK, W_VO = layer.W_Q @ layer.W_K.mT, layer.W_V @ layer.W_O
    beta = max(float(induced_one(A) * composite(B)) for A, B in zip(W_QK, W_VO, strict=True))
    assert_close(published_factor(layer.sizes, -0.3), number(4 * beta * 3 * 0.3))


@pytest.mark.parametrize(
    ("c", "rho", "want"),
    [(0.5, 2.0, (4.0, 32.0, 16384.0, 2.2e12)), (10.0, 0.2, (0.08, 5.12e-3, 1.342e-6, 2.42e-17))],
)
def test_published_bounds_over_depth(c: float, rho: float, want: tuple[float, ...]) -> None:
    """S0.18: c < 1 diverges, c > 1 converges; c rho^2 < 1 tells them apart."""
    at = number(rho)
    assert [published_bound(at, c, layers).item() for layers in (1, 2, 3, 4)] == pytest.approx(want, rel=1e-2)
    assert bound_converges(at, c).item() == (want[-1] < want[0])
    assert_close(published_bound(at, c), number(c * rho**3))


def test_the_printed_bound_of_many_layers() -> None:
    """c rho^2 below one: it falls to zero, and above it grows beyond all numbers, but never becomes none."""
    rho = torch.tensor([5.0, 10.0, 20.0], dtype=torch.float64)
    assert published_bound(rho, 0.0099, 64).tolist() == [0.0, 0.0, torch.inf]
    log = 364 * math.log(0.0099) + 729 * math.log(10.0)
    assert published_bound(rho, 0.0099, 6)[1].log().item() == pytest.approx(log)
