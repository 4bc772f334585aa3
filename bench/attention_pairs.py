"""Who meets whom: functions, ours and the peers that compute them, and the check that they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from attention_peers import (
    BLOCK,
    DEGREE,
    LAYOUTS,
    PEERS,
    RANDOM,
    RANK,
    STEPPERS,
    WINDOW,
    Built,
    Function,
    Step,
    banded,
    heads_first,
    installed,
    kernelised,
    ring,
    softmax,
)
from torch import Tensor

from attnworks.attention import MECHANISMS, Mechanism, MechanismSpec
from attnworks.attention.benchmark.versus_dense import (
    BOTH,
    FORWARD,
    BenchmarkTask,
    Inputs,
    core_of,
    draw_inputs,
    passes_over,
)
from attnworks.attention.patterns import WherePattern

OURS = "attnworks"
STEP = "step"
STEPS_PER_RUN = 64
NOT_BUILT, NOT_INSTALLED = "not built yet", "not installed"
CHECKED = BenchmarkTask(n=1024, heads=2)
CLOSE = 1e-4


@dataclass(frozen=True)
class Pair:
    """One function by several hands; `ours` is a spec, in which {n} is the length."""

    function: str
    ours: str
    peers: tuple[str, ...]
    expected: Callable[[BenchmarkTask, Any], Function]
    """What our mechanism must compute. Where chance takes part, its own path by way of the n x n table has to do."""
    causal: bool = False
    stepwise: bool = False
    build: Callable[[MechanismSpec, BenchmarkTask], Mechanism] = lambda spec, task: spec.build(task.geometry)

    @property
    def passes(self) -> tuple[str, ...]:
        return (STEP,) if self.stepwise else (FORWARD, BOTH)

    def task(self, n: int, **sizes: Any) -> BenchmarkTask:
        return BenchmarkTask(n=n, causal=self.causal, **sizes)


@cache
def ring_attention(task: BenchmarkTask) -> Mechanism:
    """Our graph attention on the graph of degree 64; its edges are collected before the clock runs, as masks are."""
    apart = task.n // DEGREE
    mechanism: Any = MECHANISMS["graph"](graph=WherePattern(lambda i, j: (j - i) % apart == 0))  # pyright: ignore[reportCallIssue]
    mechanism.collected(task.heads, task.n, task.n, task.causal)
    return mechanism


PAIRS = (
    Pair("dense", "dense", ("torch SDPA",), expected=lambda task, _: softmax(task)),
    Pair("dense, causal", "dense", ("torch SDPA",), causal=True, expected=lambda task, _: softmax(task)),
    Pair(
        f"window of {WINDOW} to each side",
        f"window:window={WINDOW}",
        ("HF Longformer", "local-attention", "FlexAttention, compiled"),
        expected=lambda task, _: banded(task),
    ),
    Pair(
        f"BigBird, blocks of {BLOCK}: 3 window, 2 global, {RANDOM} random",
        f"bigbird:block={BLOCK},window={BLOCK},n_global=2,n_random={RANDOM}",
        ("HF BigBird",),
        expected=lambda task, ours: lambda Q, K, V: ours(Q, K, V, weights=True).Y,
    ),
    Pair(
        f"Linformer, rank {RANK}",
        f"linformer:rank={RANK},length={{n}}",
        ("linformer",),
        expected=lambda task, ours: lambda Q, K, V: softmax(task)(Q, ours.E @ K, ours.F @ V),
    ),
    Pair(
        f"graph of degree {DEGREE}",
        "graph",
        ("torch SDPA, dense mask",),
        expected=lambda task, _: softmax(task, ring(task.n)),
        build=lambda _, task: ring_attention(task),
    ),
    Pair(
        "linear, elu + 1",
        "linear",
        ("fast-transformers", "performer-pytorch", "linear-attention-transformer"),
        expected=lambda task, _: kernelised(task),
    ),
    Pair(
        "linear, elu + 1, causal",
        "linear",
        (
            "fast-transformers",
            "performer-pytorch",
            "linear-attention-transformer",
            "flash-linear-attention, naive",
        ),
        causal=True,
        expected=lambda task, _: kernelised(task),
    ),
    Pair(
        "one step of causal linear attention after n positions",
        "linear",
        ("fast-transformers", "torch SDPA over a cache"),
        causal=True,
        expected=lambda task, _: kernelised(task),
        stepwise=True,
    ),
)


@dataclass(frozen=True)
class Contestant:
    pair: Pair
    name: str

    @property
    def key(self) -> str:
        return f"{self.pair.function} / {self.name}"

    @property
    def absent(self) -> str | None:
        """Why it cannot take part."""
        if self.name == OURS:
            return None if self.pair.ours.partition(":")[0] in MECHANISMS else NOT_BUILT
        package = STEPPERS[self.name][0] if self.pair.stepwise else PEERS[self.name].package
        return None if installed(package) else NOT_INSTALLED

    @property
    def passes(self) -> tuple[str, ...]:
        backward = self.name == OURS or self.pair.stepwise or PEERS[self.name].backward
        return self.pair.passes if backward else (FORWARD,)

    @property
    def remark(self) -> str:
        return "" if self.name == OURS or self.pair.stepwise else PEERS[self.name].remark

    @property
    def layout(self) -> str:
        return "b h n d" if self.name == OURS or self.pair.stepwise else PEERS[self.name].layout

    def mechanism(self, task: BenchmarkTask) -> Mechanism:
        torch.manual_seed(0)
        return self.pair.build(MechanismSpec.parse(self.pair.ours.format(n=task.n)), task)

    def built(self, task: BenchmarkTask) -> Built:
        if self.name == OURS:
            mechanism = self.mechanism(task)
            return Built(core_of(mechanism, task), self.pair.expected(task, mechanism))
        torch.manual_seed(0)
        return PEERS[self.name].build(task)

    def stepper(self, task: BenchmarkTask) -> Step:
        if self.name != OURS:
            return STEPPERS[self.name][1](task)
        mechanism, memory = self.mechanism(task), {"state": None}

        def step(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
            Y, memory["state"] = mechanism.step(Q, K, V, memory["state"])  # pyright: ignore
            return Y

        return step

    def runs(self, task: BenchmarkTask, inputs: Inputs) -> dict[str, Callable[[], object]]:
        """What is timed, on inputs in this contestant's layout."""
        if not self.pair.stepwise:
            return passes_over(self.built(task).core, inputs, self.passes)
        step = self.stepper(task)
        query, key, value, _ = (T[:, :, :1].detach().clone() for T in inputs)

        def steps() -> None:
            with torch.no_grad():
                for _ in range(STEPS_PER_RUN):
                    step(query, key, value)

        return {STEP: steps}

    def check(self) -> str:
        """Compare outputs and gradients with what is to be computed; how far they are off, in words."""
        task = self.pair.task(CHECKED.n, heads=CHECKED.heads)
        if self.pair.stepwise:
            return self._check_steps(task)
        built = self.built(task)
        if built.expected is None:
            return self.remark
        Q, K, V, G = draw_inputs(task)
        shaped = Inputs(*(LAYOUTS[self.layout](T) for T in (Q, K, V, G)))
        leaves = [T.requires_grad_() for T in (Q, K, V)]
        want = built.expected(*leaves)
        wanted = [want, *torch.autograd.grad(want, leaves, G)]
        if BOTH in self.passes:
            runs = passes_over(built.core, shaped)
            got = [runs[FORWARD](), *list(runs[BOTH]())[:3]]  # pyright: ignore
        else:
            got = [passes_over(built.core, shaped, (FORWARD,))[FORWARD]()]
        off = 0.0
        for mine, true in zip(got, wanted, strict=False):
            assert isinstance(mine, Tensor)
            gap = (heads_first(mine, self.layout, task.heads) - true).abs().max() / true.abs().max().clamp(min=1)
            off = max(off, gap.item())
        assert off <= CLOSE, f"{self.key} is off by {off:.1e}: like is not compared with like"
        return f"agrees to {off:.0e}"

    def _check_steps(self, task: BenchmarkTask, positions: int = 17) -> str:
        task = task._replace(n=positions)
        Q, K, V, _ = draw_inputs(task)
        step = self.stepper(task._replace(n=0))
        truth = softmax if self.name == "torch SDPA over a cache" else kernelised
        want = truth(task)(Q, K, V)
        with torch.no_grad():
            rows = [step(*(T[:, :, at : at + 1].clone() for T in (Q, K, V))) for at in range(positions)]
        off = (torch.cat(rows, 2) - want).abs().max().item()
        assert off <= CLOSE, f"{self.key} is off by {off:.1e}: like is not compared with like"
        return f"agrees to {off:.0e}"


def contestants(only: str = "") -> Iterator[Contestant]:
    for pair in PAIRS:
        if only in pair.function:
            yield from (Contestant(pair, name) for name in (OURS, *pair.peers))


def shaped_inputs(task: BenchmarkTask) -> Callable[[str], Inputs]:
    """The same inputs in any layout, each made once."""
    drawn = {"b h n d": draw_inputs(task)}

    def in_layout(layout: str) -> Inputs:
        if layout not in drawn:
            drawn[layout] = Inputs(*(LAYOUTS[layout](T) for T in draw_inputs(task)))
        return drawn[layout]

    return in_layout
