"""torch.compile without graph breaks."""

from __future__ import annotations

import pytest
import torch

from attnworks.attention import Geometry, Mask, MechanismSpec

SPECS = ("dense", "window:window=9", "window:window=3,dilation=2", "linear", "linformer:rank=4,length=64")


def compare(spec: str, backend: str) -> None:
    mechanism = MechanismSpec.parse(spec).build(Geometry(3, 8, 8))
    real = torch.ones(2, 43, dtype=torch.bool)
    real[1, 37:] = False
    masks = [Mask(), Mask(real)] + [Mask(causal=True)] * ("causal" in mechanism.supported_masks)
    for mask in masks:
        torch._dynamo.reset()
        compiled = torch.compile(mechanism, fullgraph=True, backend=backend)
        inputs = [torch.randn(2, 3, 43, 8, requires_grad=True) for _ in range(3)]
        outcomes = []
        for attend in (mechanism, compiled):
            Y = attend(*inputs, mask).Y
            outcomes.append([Y, *torch.autograd.grad(Y.square().sum(), inputs)])
        for one, other in zip(*outcomes, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("spec", SPECS)
def test_no_graph_breaks_and_the_same_numbers(spec: str) -> None:
    compare(spec, "aot_eager")


@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("spec", SPECS)
def test_compiled_to_machine_code(spec: str) -> None:
    compare(spec, "inductor")
