"""torch.compile without graph breaks, in a process without the shape checks of these tests, which it cannot trace."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from attnworks.mechanisms import Geometry, Mask, MechanismSpec

torch.manual_seed(5)
backend, *specs = sys.argv[1:]
for spec in specs:
    mechanism = MechanismSpec.parse(spec).build(Geometry(3, 8, 8))
    compiled = torch.compile(mechanism, fullgraph=True, backend=backend)
    real = torch.ones(2, 43, dtype=torch.bool)
    real[1, 37:] = False
    masks = [Mask(), Mask(real)] + [Mask(causal=True)] * ("causal" in mechanism.masks)
    for mask in masks:
        torch._dynamo.reset()
        inputs = [torch.randn(2, 3, 43, 8, requires_grad=True) for _ in range(3)]
        outcomes = []
        for attend in (mechanism, compiled):
            Y = attend(*inputs, mask).Y
            outcomes.append([Y, *torch.autograd.grad(Y.square().sum(), inputs)])
        for one, other in zip(*outcomes, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
"""
SPECS = ("dense", "window:window=9", "window:window=3,dilation=2", "linear", "linformer:rank=4,length=64")


def run(backend: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, backend, *SPECS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_no_graph_breaks_and_the_same_numbers() -> None:
    run("aot_eager")


@pytest.mark.slow
def test_compiled_to_machine_code() -> None:
    run("inductor")
