"""Attention cores as things to be timed: inputs, one pass forward, one there and back, and the machine's own limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnworks.attention import Context, Geometry, Mask, Mechanism
from attnworks.core.errors import UsageError

FORWARD, BOTH = "forward", "forward+backward"
FLOPS = {FORWARD: 1, BOTH: 3}
"""In units of the forward pass: every product has two gradients. What is computed a second time does not count."""


FILLED = frozenset({"global_tokens", "second"})
"""Fields of Context that a bench can fill."""


class Task(NamedTuple):
    """Self-attention of one sequence of n positions."""

    n: int
    heads: int = 8
    width: int = 64
    dtype: str = "float32"
    causal: bool = False

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.heads, self.width, self.width)


class Inputs(NamedTuple):
    """Q, K, V, and the gradient G of some loss with respect to Y."""

    Q: Tensor
    K: Tensor
    V: Tensor
    G: Tensor


class Core(NamedTuple):
    """Attention without its projections: (Q, K, V) -> Y, and the parameters that are trained along."""

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    parameters: tuple[Tensor, ...] = ()


def draw(task: Task, *, seed: int = 0) -> Inputs:
    """Standard normal inputs [1 h n width]."""
    source = torch.Generator().manual_seed(seed)
    shape = (1, task.heads, task.n, task.width)
    return Inputs(*(torch.randn(shape, generator=source, dtype=getattr(torch, task.dtype)) for _ in Inputs._fields))


def core_of(mechanism: Mechanism, task: Task) -> Core:
    """A mechanism with the mask of the task; if it needs global tokens, the first position is one."""
    mechanism = mechanism.to(getattr(torch, task.dtype))
    mask = Mask(causal=task.causal)
    first = torch.arange(task.n)[None] == 0
    for field in sorted(mechanism.needs - FILLED):
        raise UsageError(
            asked=f"a bench of {mechanism.name} attention",
            expected="a mechanism that runs on Q, K, V and global tokens",
            got=f"one that needs {field} of its Context",
            remedy="leave it out",
        )

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        context = Context(
            global_tokens=first if "global_tokens" in mechanism.needs else None,
            second=(Q, K, V) if "second" in mechanism.needs else None,
        )
        return mechanism(Q, K, V, mask, context).Y

    return Core(attend, tuple(mechanism.parameters()))


def passes_over(core: Core, inputs: Inputs, passes: Sequence[str] = (FORWARD, BOTH)) -> dict[str, Callable[[], object]]:
    """Each pass as something to run: without gradients, or with those of Q, K, V and the core's own parameters."""
    *leaves, G = inputs
    asked = [*(leaf.requires_grad_() for leaf in leaves), *core.parameters]

    def forward() -> Tensor:
        with torch.no_grad():
            return core.attend(*leaves)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(core.attend(*leaves), asked, G, allow_unused=True)

    return {name: run for name, run in ((FORWARD, forward), (BOTH, both)) if name in passes}


def roofline(dtype: str, side: int = 1024) -> tuple[Callable[[], object], int]:
    """A large matrix product, as fast as this machine multiplies, and how many flops it takes."""
    A, B, C = (torch.randn(side, side).to(getattr(torch, dtype)) for _ in range(3))
    return lambda: torch.mm(A, B, out=C), 2 * side**3
