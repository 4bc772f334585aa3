"""Mechanisms against dense attention on this machine: time, share of the machine's own speed, memory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from attnworks.attention import MECHANISMS, Mechanism, MechanismSpec
from attnworks.attention.benchmark.cores import BOTH, FLOPS, FORWARD, Task, core_of, draw, passes_over, roofline
from attnworks.attention.benchmark.memory import Peak, ask_child
from attnworks.attention.spec import option_names
from attnworks.core.errors import UsageError
from attnworks.core.timing import Race, interleave

DENSE, ROOF = "dense", "matrix product"
TRIAL = 512
"""Positions of the run from which the time of a longer one is foretold."""


@dataclass(frozen=True)
class Row:
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
class Comparison:
    task: Task
    threads: int
    roof: dict[int, float]
    """Flops per second of the matrix product, by length."""
    rows: tuple[Row, ...]


def compare(
    specs: Sequence[MechanismSpec],
    lengths: Sequence[int],
    task: Task,
    *,
    passes: Sequence[str] = (FORWARD, BOTH),
    rounds: int = 5,
    limit: float = 20.0,
    seed: int = 0,
    advance: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Dense and the mechanisms take turns at every length; passes that would take longer than `limit` are skipped."""
    texts = list(dict.fromkeys((DENSE, *map(str, specs))))
    check_causal(texts, task)
    rows: list[Row] = []
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
    return Comparison(task, torch.get_num_threads(), roof, tuple(rows))


def steps(specs: Sequence[MechanismSpec], lengths: Sequence[int]) -> int:
    """How often `compare` will advance."""
    return len(lengths) * (1 + len({DENSE, *map(str, specs)}))


def verdict(comparison: Comparison) -> str:
    """Where a mechanism was not faster than dense, in one plain sentence; a quarter of the rounds is enough."""
    others = [row for row in comparison.rows if row.mechanism != DENSE]
    compared = [row for row in others if row.surely]
    slow: dict[int, list[str]] = {}
    for row in compared:
        passes = [name for name, low in row.surely.items() if low <= 1]
        if passes:
            which = "" if len(passes) == len(row.surely) else f" ({' and '.join(passes)})"
            slow.setdefault(row.n, []).append(f"{row.mechanism}{which}")
    if slow:
        told = "; ".join(f"at n = {n:,} {', '.join(names)}" for n, names in slow.items())
        sentence = f"No faster than dense in at least a quarter of the rounds: {told}."
    elif compared:
        sentence = "Every mechanism was faster than dense wherever both ran."
    else:
        return "Nothing was compared with dense."
    alone = [f"{row.mechanism} at n = {row.n:,}" for row in others if not row.surely]
    return sentence + (f" Not compared with dense: {', '.join(alone)}." if alone else "")


def check_causal(texts: Sequence[str], task: Task) -> None:
    """Refuse before anything runs."""
    for name in (MechanismSpec.parse(text).name for text in texts):
        if task.causal and "causal" not in MECHANISMS[name].masks:
            able = [other for other in MECHANISMS if "causal" in MECHANISMS[other].masks]
            raise UsageError(
                asked=f"{name} attention with --causal",
                expected=f"a mechanism with a causal form ({', '.join(able)})",
                got="one without",
                remedy="leave out --causal or the mechanism",
            )


def foretell(text: str, task: Task, chosen: str) -> float:
    """Seconds of a run, from one of at most TRIAL positions and the mechanism's own count of flops."""
    trial = task._replace(n=min(task.n, TRIAL))
    mechanism = build(text, trial)
    run = passes_over(core_of(mechanism, trial), draw(trial), (chosen,))[chosen]
    took = []
    for _ in range(2):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took) * flops_of(mechanism, task) / flops_of(mechanism, trial)


def _peaks(text: str, task: Task, passes: Sequence[str], limit: float, seed: int) -> dict[str, Peak | str]:
    expected = {name: foretell(text, task, name) for name in passes}
    slow: dict[str, Peak | str] = {
        name: f"would take about {seconds:.0f} s a run, over the limit of {limit:g} s"
        for name, seconds in expected.items()
        if seconds > limit
    }
    job = {"text": text, "task": task, "threads": torch.get_num_threads(), "seconds": 5 * limit, "seed": seed}
    possible = [name for name in passes if name not in slow]
    return slow | ask_child(lambda left: _child_command({**job, "passes": list(left)}), possible)


def _child_command(job: Mapping[str, object]) -> list[str]:
    return [sys.executable, "-m", "attnworks.attention.benchmark", json.dumps(job)]


def _race(peaks: Mapping[str, Mapping[str, Peak | str]], task: Task, rounds: int, seed: int) -> tuple[Race, int]:
    inputs = draw(task, seed=seed)
    product, flops = roofline(task.dtype)
    candidates: dict[str, Callable[[], object]] = {ROOF: product}
    for text, found in peaks.items():
        ran = [name for name, peak in found.items() if isinstance(peak, Peak)]
        torch.manual_seed(seed)
        for name, run in passes_over(core_of(build(text, task), task), inputs, ran).items():
            candidates[f"{text} {name}"] = run
    return interleave(candidates, rounds=rounds, warmup=1), flops


def _row(text: str, task: Task, race: Race, roof_flops: int, found: Mapping[str, Peak | str]) -> Row:
    peaks = {name: peak for name, peak in found.items() if isinstance(peak, Peak)}
    beside = [name for name in peaks if f"{DENSE} {name}" in race.seconds]
    flops = flops_of(build(text, task), task)
    return Row(
        text,
        task.n,
        seconds={name: race.median(f"{text} {name}") for name in peaks},
        faster={name: race.speedup(f"{text} {name}", over=f"{DENSE} {name}") for name in beside},
        surely={name: race.spread(f"{text} {name}", over=f"{DENSE} {name}")[0] for name in beside},
        share={name: race.speedup(f"{text} {name}", over=ROOF) * FLOPS[name] * flops / roof_flops for name in peaks},
        memory={name: peak.bytes for name, peak in peaks.items()},
        skipped={name: why for name, why in found.items() if isinstance(why, str)},
    )


def build(text: str, task: Task) -> Mechanism:
    """From its spec; a mechanism made for one `length` gets that of the task, if the spec does not say."""
    spec = MechanismSpec.parse(text)
    known = option_names(MECHANISMS[spec.name])
    length = {"length": task.n} if "length" in known else {}
    return MechanismSpec(spec.name, {**length, **spec.options}).build(task.geometry)


def flops_of(mechanism: Mechanism, task: Task) -> int:
    return mechanism.cost(task.n, task.n, task.geometry, causal=task.causal).flops
