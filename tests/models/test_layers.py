"""Embedding, layer norm and feed-forward against torch and against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnworks.models.config import NormKind
from attnworks.models.layers import Embedding, FeedForward, LayerNorm
from tests.model_helpers import FLOATS, close, filled, gradient, randn, tokens

B, N, D_E, D_FF, VOCABULARY = 2, 5, 7, 11, 13


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_standard_norm_equals_torch(eps: float, dtype: torch.dtype) -> None:
    ours, theirs = filled(LayerNorm(D_E, "standard", eps)).to(dtype), nn.LayerNorm(D_E, eps, dtype=dtype)
    theirs.load_state_dict({"weight": ours.gamma, "bias": ours.beta})
    z, G = randn(B, N, D_E, dtype=dtype).requires_grad_(), randn(B, N, D_E, dtype=dtype, seed=1)
    close(ours(z), theirs(z))
    (ours(z) * G).sum().backward()
    grad, z.grad = z.grad, None
    (theirs(z) * G).sum().backward()
    assert grad is not None and z.grad is not None
    close(grad, z.grad)
    close(gradient(ours.gamma), gradient(theirs.weight))
    close(gradient(ours.beta), gradient(theirs.bias))


def test_documented_norm_by_hand() -> None:
    """Each row alone, entry by entry: gamma_i (z_i - mu) / (sigma + eps) + beta_i, sigma biased, over all d (S4.36)."""
    ours, z = filled(LayerNorm(D_E, "documented", 0.3)).double(), randn(N, D_E)
    for row, out in zip(z.tolist(), ours(z).tolist(), strict=True):
        mu = sum(row) / D_E
        sigma = (sum((entry - mu) ** 2 for entry in row) / D_E) ** 0.5
        expected = [
            gamma * (entry - mu) / (sigma + 0.3) + beta
            for entry, gamma, beta in zip(row, ours.gamma.tolist(), ours.beta.tolist(), strict=True)
        ]
        assert out == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_documented_norm_has_the_right_gradient() -> None:
    ours, z = filled(LayerNorm(D_E, "documented", 0.3)).double(), randn(B, N, D_E).requires_grad_()
    assert torch.autograd.gradcheck(ours, (z,))


@pytest.mark.parametrize("kind", ["standard", "documented"])
@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_gradients_on_constant_rows_are_finite(constant: float, kind: NormKind) -> None:
    ours = filled(LayerNorm(D_E, kind)).double()
    z = randn(B, N, D_E)
    z[0, 1] = constant
    z.requires_grad_()
    out = ours(z)
    close(out[0, 1], ours.beta)
    (out * randn(B, N, D_E, seed=1)).sum().backward()
    assert z.grad is not None and z.grad.isfinite().all() and gradient(ours.gamma).isfinite().all()
    assert z.grad[0, 0].any()


@pytest.mark.parametrize(
    ("scale", "documented", "standard"), [(1e-3, 0.9987, 0.6213), (1e-5, 0.888, 0.0079)], ids=["1e-3", "1e-5"]
)
def test_the_two_norms_part_on_small_inputs(scale: float, documented: float, standard: float) -> None:
    """S4.35: the spread of a row after the norm, eps = 1e-6. For sigma it is sigma/(sigma + eps) or its root form."""
    z = randn(1, D_E)
    figures: dict[NormKind, float] = {"documented": documented, "standard": standard}
    for kind, figure in figures.items():
        ours = LayerNorm(D_E, kind, 1e-6).double()
        spreads = []
        for sigma in (0.7 * scale, 1.4 * scale):
            spreads.append(float(ours(z / z.std(-1, correction=0) * sigma).detach().std(correction=0)))
            expected = sigma / (sigma + 1e-6) if kind == "documented" else sigma / (sigma**2 + 1e-6) ** 0.5
            assert spreads[-1] == pytest.approx(expected, rel=1e-9)
        assert spreads[0] < figure < spreads[1]


def test_feed_forward_by_hand() -> None:
    ours, u = filled(FeedForward(D_E, D_FF)).double(), randn(B, N, D_E)
    hidden = torch.einsum("bie,ef->bif", u, ours.W_1) + ours.b_1
    hidden = torch.where(hidden > 0, hidden, 0.0)
    assert 0.1 < float((hidden == 0).double().mean()) < 0.9
    close(ours(u), torch.einsum("bif,fe->bie", hidden, ours.W_2) + ours.b_2)
    assert ours.b_1.shape == (D_FF,) and ours.b_2.shape == (D_E,)


def test_feed_forward_equals_torch_with_gradients() -> None:
    ours = filled(FeedForward(D_E, D_FF)).double()
    theirs = nn.Sequential(nn.Linear(D_E, D_FF), nn.ReLU(), nn.Linear(D_FF, D_E)).double()
    theirs.load_state_dict({"0.weight": ours.W_1.T, "0.bias": ours.b_1, "2.weight": ours.W_2.T, "2.bias": ours.b_2})
    u = randn(B, N, D_E)
    ours(u).square().sum().backward()
    theirs(u).square().sum().backward()
    for mine, other in zip((ours.W_1, ours.b_1, ours.W_2, ours.b_2), theirs.parameters(), strict=True):
        grad = gradient(mine)
        close(grad.T if grad.dim() == 2 else grad, gradient(other), scale=100)


def test_feed_forward_leaves_its_input_alone() -> None:
    ours, u = filled(FeedForward(D_E, D_FF)).double(), randn(B, N, D_E)
    before = u.clone()
    ours(u)
    assert torch.equal(u, before)


def test_embedding_is_a_row_times_root_d() -> None:
    ours, drawn = filled(Embedding(VOCABULARY, D_E)).double(), tokens(VOCABULARY, B, N)
    one_hot = nn.functional.one_hot(drawn, VOCABULARY).double()
    close(ours(drawn), one_hot @ ours.weight * D_E**0.5)


def test_embedding_starts_at_the_scale_of_the_position_code() -> None:
    """N(0, 1/d) times sqrt(d): unit variance (S4.18)."""
    torch.manual_seed(0)
    out = Embedding(499, 256)(torch.arange(499)[None])
    assert float(out.detach().var()) == pytest.approx(1.0, abs=0.02)
