"""Attention cores as things to be timed."""

import pytest
import torch

from attnworks.attention import Attended, Context, Mask, Mechanism, MechanismSpec
from attnworks.attention.benchmark.versus_dense import (
    BOTH,
    FORWARD,
    BenchmarkTask,
    Core,
    core_of,
    draw_inputs,
    passes_over,
    roofline,
)
from attnworks.core.errors import UsageError
from tests.helpers import assert_close

TASK = BenchmarkTask(n=13, heads=3, width=7, dtype="float64", causal=True)


def test_inputs_are_the_same_for_the_same_seed() -> None:
    first, again, other = draw_inputs(TASK, seed=5), draw_inputs(TASK, seed=5), draw_inputs(TASK, seed=6)
    assert all(T.shape == (1, 3, 13, 7) and T.dtype == torch.float64 for T in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.Q, other.Q) and not torch.equal(first.K, first.V)


def test_both_passes_run_the_mechanism_under_the_mask_of_the_task() -> None:
    mechanism = MechanismSpec.parse("luong-multiplicative").build(TASK.geometry)
    core = core_of(mechanism, TASK)
    inputs = draw_inputs(TASK)
    runs = passes_over(core, inputs)
    leaves = [T.detach().clone().requires_grad_() for T in inputs[:3]]
    Y = mechanism(*leaves, Mask(causal=True)).Y
    assert (Y - mechanism(*leaves).Y).abs().max() > 1e-3, "a mask that hides nothing"
    forward = runs[FORWARD]()
    assert isinstance(forward, torch.Tensor) and not forward.requires_grad
    assert_close(forward, Y)
    gradients = torch.autograd.grad(Y, [*leaves, *mechanism.parameters()], inputs.G)
    got = runs[BOTH]()
    assert isinstance(got, tuple) and len(got) == 4
    for mine, expected in zip(got, gradients, strict=True):
        assert_close(mine, expected)
    assert got[3].abs().max() > 1e-3


def test_only_the_passes_that_are_asked_for() -> None:
    core = Core(lambda Q, K, V: Q + K + V)
    assert list(passes_over(core, draw_inputs(TASK), (FORWARD,))) == [FORWARD]
    assert list(passes_over(core, draw_inputs(TASK), (BOTH, FORWARD))) == [FORWARD, BOTH]


class Needy(Mechanism):
    name = "needy"
    needs = frozenset({"global_tokens", "global_qkv"})

    def attend(self, Q, K, V, mask: Mask, context: Context, weights: bool) -> Attended:
        assert context.global_tokens is not None and context.global_tokens.tolist() == [[True] + [False] * 12]
        assert context.global_qkv is not None
        return Attended(Q + context.global_qkv[2])


def test_what_a_mechanism_needs_is_filled_in_or_refused() -> None:
    Q, K, V, _ = draw_inputs(TASK)
    assert_close(core_of(Needy(), TASK).attend(Q, K, V), Q + V)
    Needy.needs = frozenset({"scale"})
    with pytest.raises(UsageError, match=r"needs Context\(scale=...\); leave it out"):
        core_of(Needy(), TASK)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_roofline_is_a_matrix_product(dtype: str) -> None:
    run, flops = roofline(dtype, side=11)
    product = run()
    assert isinstance(product, torch.Tensor) and product.shape == (11, 11)
    assert product.dtype == getattr(torch, dtype)
    assert flops == 2 * 11**3
