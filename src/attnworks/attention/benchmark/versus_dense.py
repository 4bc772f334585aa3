"""Mechanisms against dense attention on this machine: time, memory, and the share of a matrix product's speed.

Only the core is timed, (Q, K, V) -> Y without projections: one forward pass, or forward and backward.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from attnworks.attention import MECHANISMS, Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.benchmark.memory import Peak, peaks_in_child
from attnworks.attention.contract import option_names
from attnworks.core.errors import UsageError
from attnworks.core.timing import Race, interleave

FORWARD, BOTH = "forward", "forward+backward"

FLOPS_IN_FORWARD_PASSES = {FORWARD: 1, BOTH: 3}
"""FLOPs in units of the forward pass: every product has two gradients. Recomputation does not count."""

FILLED_FIELDS = frozenset({"global_tokens", "global_qkv"})
"""Fields of Context that a benchmark can fill."""


class BenchmarkTask(NamedTuple):
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
    """Attention without its projections: (Q, K, V) -> Y, and its trained parameters."""

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    parameters: tuple[Tensor, ...] = ()


def draw_inputs(task: BenchmarkTask, *, seed: int = 0) -> Inputs:
    """Standard normal inputs [1 h n width]."""
    source = torch.Generator().manual_seed(seed)
    shape = (1, task.heads, task.n, task.width)
    return Inputs(*(torch.randn(shape, generator=source, dtype=getattr(torch, task.dtype)) for _ in Inputs._fields))


def core_of(mechanism: Mechanism, task: BenchmarkTask) -> Core:
    """A mechanism with the mask of the task; if it needs global tokens, the first position is one."""
    mechanism = mechanism.to(getattr(torch, task.dtype))
    mask = Mask(causal=task.causal)
    first = torch.arange(task.n)[None] == 0
    for needed in sorted(mechanism.needs - FILLED_FIELDS):
        expected, found = "a mechanism that runs on Q, K, V and global tokens", f"one that needs Context({needed}=...)"
        raise UsageError(f"timing {mechanism.name}", expected, found, "leave it out")

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        context = Context(
            global_tokens=first if "global_tokens" in mechanism.needs else None,
            global_qkv=(Q, K, V) if "global_qkv" in mechanism.needs else None,
        )
        return mechanism(Q, K, V, mask, context).Y

    return Core(attend, tuple(mechanism.parameters()))


def passes_over(core: Core, inputs: Inputs, passes: Sequence[str] = (FORWARD, BOTH)) -> dict[str, Callable[[], object]]:
    """A function for each pass: without gradients, or with those of Q, K, V and the core's own parameters."""
    *leaves, G = inputs
    asked = [*(leaf.requires_grad_() for leaf in leaves), *core.parameters]

    def forward() -> Tensor:
        with torch.no_grad():
            return core.attend(*leaves)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(core.attend(*leaves), asked, G, allow_unused=True)

    return {name: run for name, run in ((FORWARD, forward), (BOTH, both)) if name in passes}


def roofline(dtype: str, side: int = 1024) -> tuple[Callable[[], object], int]:
    """A large matrix product, which shows how fast this machine multiplies, and its FLOPs."""
    A, B, C = (torch.randn(side, side).to(getattr(torch, dtype)) for _ in range(3))
    return lambda: torch.mm(A, B, out=C), 2 * side**3


DENSE, ROOF = "dense", "matrix product"
TRIAL_POSITIONS = 512
"""Positions of the run from which the time of a longer one is predicted."""


@dataclass(frozen=True)
class BenchmarkRow:
    """One mechanism at one length; each figure by pass, and only of passes that were run."""

    mechanism: str
    n: int
    seconds: dict[str, float] = field(default_factory=dict)
    faster: dict[str, float] = field(default_factory=dict)
    """Median over the rounds of dense's time over ours."""
    surely: dict[str, float] = field(default_factory=dict)
    """The first quartile of the same."""
    share: dict[str, float] = field(default_factory=dict)
    """Flops of the mechanism's own count per second, over those of a large matrix product in the same rounds."""
    memory: dict[str, int | None] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchmarkResult:
    task: BenchmarkTask
    threads: int
    roof: dict[int, float]
    """Flops per second of the matrix product, by length."""
    rows: tuple[BenchmarkRow, ...]


def benchmark(
    specs: Sequence[MechanismSpec],
    lengths: Sequence[int],
    task: BenchmarkTask,
    *,
    passes: Sequence[str] = (FORWARD, BOTH),
    rounds: int = 5,
    limit: float = 20.0,
    seed: int = 0,
    advance: Callable[[str], None] = lambda _: None,
) -> BenchmarkResult:
    """Time dense and the mechanisms in turn at every length; skip passes that would take longer than `limit` s."""
    texts = list(dict.fromkeys((DENSE, *map(str, specs))))
    check_causal(texts, task)
    rows: list[BenchmarkRow] = []
    roof: dict[int, float] = {}
    for n in lengths:
        here = task._replace(n=n)
        peaks: dict[str, dict[str, Peak | str]] = {}
        for text in texts:
            peaks[text] = _peaks(text, here, passes, limit, seed)
            advance(f"memory of {text} at {n:,}")
        race, flops = _race(peaks, here, rounds, seed)
        advance(f"time at {n:,}")
        roof[n] = flops / race.median(ROOF)
        rows += [_row(text, here, race, flops, found) for text, found in peaks.items()]
    return BenchmarkResult(task, torch.get_num_threads(), roof, tuple(rows))


def benchmark_steps(specs: Sequence[MechanismSpec], lengths: Sequence[int]) -> int:
    """How often `benchmark` calls `advance`."""
    return len(lengths) * (1 + len({DENSE, *map(str, specs)}))


def benchmark_verdict(comparison: BenchmarkResult) -> str:
    """One sentence: which mechanisms were no faster than dense in at least a quarter of the rounds, and where."""
    others = [row for row in comparison.rows if row.mechanism != DENSE]
    compared = [row for row in others if row.surely]
    slow: dict[int, list[str]] = {}
    for row in compared:
        passes = [name for name, low in row.surely.items() if low <= 1]
        if passes:
            which = "" if len(passes) == len(row.surely) else f" ({' and '.join(passes)})"
            slow.setdefault(row.n, []).append(f"{row.mechanism}{which}")
    if slow:
        where = "; ".join(f"at n = {n:,} {', '.join(names)}" for n, names in slow.items())
        sentence = f"No faster than dense in at least a quarter of the rounds: {where}."
    elif compared:
        sentence = "Every mechanism was faster than dense wherever both ran."
    else:
        return "Nothing was compared with dense."
    alone = [f"{row.mechanism} at n = {row.n:,}" for row in others if not row.surely]
    return sentence + (f" Not compared with dense: {', '.join(alone)}." if alone else "")


def check_causal(texts: Sequence[str], task: BenchmarkTask) -> None:
    """Refuse mechanisms without a causal form if the task is causal."""
    for name in (MechanismSpec.parse(text).name for text in texts):
        if task.causal and "causal" not in MECHANISMS[name].supported_masks:
            able = [other for other in MECHANISMS if "causal" in MECHANISMS[other].supported_masks]
            expected, remedy = f"one of {', '.join(able)}", "leave out one of them"
            raise UsageError(f"{name} with --causal", expected, "no causal form", remedy)


def predicted_seconds(text: str, task: BenchmarkTask, chosen: str) -> float:
    """Seconds of a run, from one of at most TRIAL_POSITIONS positions and the mechanism's own count of flops."""
    trial = task._replace(n=min(task.n, TRIAL_POSITIONS))
    mechanism = build_mechanism(text, trial)
    run = passes_over(core_of(mechanism, trial), draw_inputs(trial), (chosen,))[chosen]
    took = []
    for _ in range(2):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took) * _flops_of(mechanism, task) / _flops_of(mechanism, trial)


def _peaks(text: str, task: BenchmarkTask, passes: Sequence[str], limit: float, seed: int) -> dict[str, Peak | str]:
    expected = {name: predicted_seconds(text, task, name) for name in passes}
    slow: dict[str, Peak | str] = {
        name: f"would take about {seconds:.0f} s a run, over the limit of {limit:g} s"
        for name, seconds in expected.items()
        if seconds > limit
    }
    job = {"text": text, "task": task, "threads": torch.get_num_threads(), "seconds": 5 * limit, "seed": seed}
    possible = [name for name in passes if name not in slow]
    command = [sys.executable, "-m", "attnworks.attention.benchmark"]
    return slow | peaks_in_child(lambda left: [*command, json.dumps({**job, "passes": list(left)})], possible)


def _race(
    peaks: Mapping[str, Mapping[str, Peak | str]], task: BenchmarkTask, rounds: int, seed: int
) -> tuple[Race, int]:
    inputs = draw_inputs(task, seed=seed)
    product, flops = roofline(task.dtype)
    candidates: dict[str, Callable[[], object]] = {ROOF: product}
    for text, found in peaks.items():
        ran = [name for name, peak in found.items() if isinstance(peak, Peak)]
        torch.manual_seed(seed)
        for name, run in passes_over(core_of(build_mechanism(text, task), task), inputs, ran).items():
            candidates[f"{text} {name}"] = run
    return interleave(candidates, rounds=rounds, warmup=1), flops


def _row(text: str, task: BenchmarkTask, race: Race, roof_flops: int, found: Mapping[str, Peak | str]) -> BenchmarkRow:
    peaks = {name: peak for name, peak in found.items() if isinstance(peak, Peak)}
    beside = [name for name in peaks if f"{DENSE} {name}" in race.seconds]
    flops = _flops_of(build_mechanism(text, task), task)
    return BenchmarkRow(
        text,
        task.n,
        seconds={name: race.median(f"{text} {name}") for name in peaks},
        faster={name: race.speedup(f"{text} {name}", over=f"{DENSE} {name}") for name in beside},
        surely={name: race.spread(f"{text} {name}", over=f"{DENSE} {name}")[0] for name in beside},
        share={
            name: race.speedup(f"{text} {name}", over=ROOF) * FLOPS_IN_FORWARD_PASSES[name] * flops / roof_flops
            for name in peaks
        },
        memory={name: peak.bytes for name, peak in peaks.items()},
        skipped={name: why for name, why in found.items() if isinstance(why, str)},
    )


def build_mechanism(text: str, task: BenchmarkTask) -> Mechanism:
    """Build from a spec; an option `length` that the spec leaves out is that of the task."""
    spec = MechanismSpec.parse(text)
    known = option_names(MECHANISMS[spec.name])
    length = {"length": task.n} if "length" in known else {}
    return MechanismSpec(spec.name, {**length, **spec.options}).build(task.geometry)


def _flops_of(mechanism: Mechanism, task: BenchmarkTask) -> int:
    return mechanism.cost(task.n, task.n, task.geometry, causal=task.causal).flops
