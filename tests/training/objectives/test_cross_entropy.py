"""Cross-entropy of a linear read-out against torch's, values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnworks.training.objectives import language
from attnworks.training.objectives.language import linear_cross_entropy
from tests.helpers import assert_close


def reference(X: Tensor, M: Tensor, bias: Tensor | None, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """The same by torch, which stores all logits."""
    return F.cross_entropy(F.linear(X, M, bias), target, reduction="sum", label_smoothing=smoothing)


@pytest.fixture(params=[1, 7, 53, 10_000], ids=lambda rows: f"{rows} rows at a time")
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "LOGITS_AT_ONCE", 31 * request.param)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_torch_with_gradients(smoothing: float, with_bias: bool) -> None:
    X, M = torch.randn(53, 11, dtype=torch.float64), torch.randn(31, 11, dtype=torch.float64)
    inputs = [X, M, torch.randn(31, dtype=torch.float64)] if with_bias else [X, M]
    for tensor in inputs:
        tensor.requires_grad_()
    bias, target = inputs[2] if with_bias else None, torch.randint(31, (53,))
    ours, theirs = linear_cross_entropy(X, M, bias, target, smoothing), reference(X, M, bias, target, smoothing)
    assert_close(ours, theirs)
    for mine, torchs in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs), strict=True
    ):
        assert_close(mine, torchs)


def test_hopeless_targets_have_a_finite_loss() -> None:
    X, M = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[0.0], [5000.0]], dtype=torch.float64)
    assert linear_cross_entropy(X, M, None, torch.tensor([0])).item() == pytest.approx(5000.0)


def test_without_gradients_none_are_computed() -> None:
    X, M = torch.randn(5, 3), torch.randn(7, 3)
    assert not linear_cross_entropy(X, M, None, torch.randint(7, (5,))).requires_grad


def test_half_precision_sums_in_single() -> None:
    X, M, target = torch.randn(53, 11), torch.randn(31, 11), torch.randint(31, (53,))
    half = linear_cross_entropy(X.bfloat16().requires_grad_(), M.requires_grad_(), None, target)
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(reference(X, M, None, target).item(), rel=0.03)
    half.backward()
    assert M.grad is not None and M.grad.dtype == torch.float32


def test_no_rows_cost_nothing() -> None:
    X = torch.zeros(0, 3, requires_grad=True)
    loss = linear_cross_entropy(X, torch.randn(7, 3), None, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0.0
