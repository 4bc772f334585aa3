"""Kernels against their definitions: inner products, integrals, and the least constant of evaluation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.theory.kernels import (
    circle,
    circle_integral,
    evaluation_norm,
    features_of,
    function_norm,
    gaussian_gram,
    gram,
    least_eigenvalue,
    trigonometric_features,
    trigonometric_kernel,
)
from tests.helpers import assert_close


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_features_give_the_gram_matrix_back() -> None:
    for G in (gram(_normal(3, 7, 5)), gaussian_gram(_normal(3, 7, 2))):
        assert_close(gram(features_of(G)), G)


def test_gaussian_by_hand() -> None:
    """Points 0, 1 and 3 of the line: exp(-1/2), exp(-9/2) and exp(-4/2) off the diagonal."""
    G = gaussian_gram(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64))
    a, b, c = (math.exp(-exponent) for exponent in (0.5, 4.5, 2.0))
    assert_close(G, torch.tensor([[1, a, b], [a, 1, c], [b, c, 1]], dtype=torch.float64))


def test_least_eigenvalue() -> None:
    """[[1, a], [a, 1]] has the eigenvalues 1 - a and 1 + a; a kernel's are never negative, those of a distance are."""
    G = torch.tensor([[[1.0, 0.3], [0.3, 1.0]], [[1.0, -1.5], [-1.5, 1.0]]], dtype=torch.float64)
    assert_close(least_eigenvalue(G), torch.tensor([0.7, -0.5], dtype=torch.float64))
    assert least_eigenvalue(gram(_normal(7, 3))) > -1e-12


def test_norm_of_a_function() -> None:
    """f = sum_i c_i K(x_i, .) is w = Phi^T c in the space of features, so that ||f|| = ||w||."""
    features, c = _normal(3, 7, 5), _normal(3, 7)
    w = torch.einsum("anf,an->af", features, c)
    assert_close(function_norm(gram(features), c), w.norm(dim=-1))
    assert function_norm(gram(features), torch.zeros_like(c)).tolist() == [0, 0, 0]


@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 10_000))
def test_evaluation_is_bounded_by_its_norm(n: int, f: int, seed: int) -> None:
    """|f(x)| = |(f, K_x)| <= ||f|| ||K_x|| by Cauchy and Schwarz, with equality for f = K_x: c = e_x."""
    torch.manual_seed(seed)
    G, c = gram(_normal(n, f)), _normal(n)
    M = evaluation_norm(G)
    assert ((G @ c).abs() <= M * function_norm(G, c) + 1e-12).all()
    attained = function_norm(G, torch.eye(n, dtype=torch.float64)[0]) * M[0]
    assert_close(attained, G[0, 0])


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_trigonometric_features_are_orthonormal_and_give_the_kernel(degree: int) -> None:
    """int b_m b_n = [m = n], on more points than the degree 2 N of a product; sum_m b_m(x) b_m(y) = K(x, y)."""
    t = circle(2 * degree + 1)
    B = trigonometric_features(t, degree)
    assert B.shape == (len(t), 2 * degree + 1)
    products = circle_integral((B.unsqueeze(-1) * B.unsqueeze(-2)).movedim(0, -1))
    assert_close(products, torch.eye(2 * degree + 1, dtype=torch.float64))
    x, y = _normal(2, 11).unbind()
    by_features = (trigonometric_features(x, degree) * trigonometric_features(y, degree)).sum(-1)
    assert_close(trigonometric_kernel(x, y, degree), by_features)


def test_trigonometric_kernel_reproduces_by_an_integral() -> None:
    """f = 0.3 + 1.2 cos - 0.7 sin at x = 1.3."""
    t, x = circle(7), torch.tensor(1.3, dtype=torch.float64)
    f = 0.3 + 1.2 * t.cos() - 0.7 * t.sin()
    found = circle_integral(f * trigonometric_kernel(x.expand(7), t, 1))
    assert_close(found, 0.3 + 1.2 * x.cos() - 0.7 * x.sin())
