"""Attention cores side by side with named peers: time, share of the machine's matrix products, peak memory.

    python bench/attention.py [--quick] [--n 1024,4096,16384,65536] [--rounds 5] [--threads 2] [--limit 20]
                              [--only window] [--out docs] [--when "November 2026"]
    python bench/attention.py check         # only whether like is compared with like
    python bench/attention.py report        # tables and picture again, from the JSON of an earlier run

8 heads of width 64, one sequence, float32. Every contestant is checked, then measured in a process of its own for
memory and for whether it stays below the limit of seconds, then all take turns in one run: once under malloc as it
comes, which hands large blocks back to the system and pays for fresh pages every time, and once under a malloc that
keeps them. Writes bench_attention.json, after each of these parts, and at the end .md and .svg. --quick leaves out
memory, and takes about two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from attention_pairs import OURS, Contestant, Pair, contestants, shaped_inputs
from attention_report import write_report

from attnworks.attention.benchmark.memory import Peak, measure_cells, peaks_in_child
from attnworks.attention.benchmark.versus_dense import BenchmarkTask, roofline
from attnworks.core.timing import interleave

ROOF = "matrix product"
PLENTY = str(64 << 30)
ALLOCATORS = {
    "default": {},
    "warm": {
        "MALLOC_TRIM_THRESHOLD_": PLENTY,
        "MALLOC_TOP_PAD_": str(256 << 20),
        "MALLOC_MMAP_THRESHOLD_": PLENTY,
    },
}
WARMUP = {"default": 1, "warm": 2}
FIRST = 1024
"""Positions of a first run, which loads and compiles what every first run does."""


def find(key: str) -> Contestant:
    return next(contestant for contestant in contestants() if contestant.key == key)


def cell(chosen: str, n: int) -> str:
    return f"{chosen}@{n}"


# --- in processes of their own ----------------------------------------------------------------------------------------


def probe(job: dict[str, Any]) -> None:
    """Memory and one time of one contestant at every length."""
    contestant = find(job["key"])

    def runs(n: int) -> dict[str, Callable[[], object]]:
        task = contestant.pair.task(n)
        return contestant.runs(task, shaped_inputs(task)(contestant.layout))

    def cells() -> Iterator[tuple[str, Callable[[], object]]]:
        for run in runs(FIRST).values():
            run()
        for name in job["cells"]:
            chosen, n = name.split("@")
            yield name, runs(int(n))[chosen]

    measure_cells(cells(), seconds=job["limit"])


def race(job: dict[str, Any]) -> None:
    """All cells of each length in turns."""
    seconds: dict[str, dict[str, tuple[float, ...]]] = {}
    for n, keys in job["cells"].items():
        product, _ = roofline("float32")
        candidates: dict[str, Callable[[], object]] = {ROOF: product}
        inputs = shaped_inputs(BenchmarkTask(int(n)))
        for key, passes in keys.items():
            contestant = find(key)
            runs = contestant.runs(contestant.pair.task(int(n)), inputs(contestant.layout))
            candidates |= {f"{key} / {chosen}": runs[chosen] for chosen in passes}
        seconds[n] = interleave(candidates, rounds=job["rounds"], warmup=job["warmup"]).seconds
        print(f"  n = {n}: {len(candidates)} contestants", file=sys.stderr)
    Path(job["to"]).write_text(json.dumps(seconds))


def child(what: str, job: dict[str, Any]) -> list[str]:
    return [sys.executable, __file__, what, "--job", json.dumps(job)]


# --- all of it --------------------------------------------------------------------------------------------------------


def check(only: str) -> tuple[dict[str, str], dict[str, str]]:
    """What each contestant was seen to compute, and why some cannot take part. A wrong result ends everything."""
    told, absent = {}, {}
    for contestant in contestants(only):
        key = contestant.key
        if contestant.absent:
            absent[key] = contestant.absent
        else:
            try:
                told[key] = contestant.check()
            except AssertionError:
                raise
            except Exception as error:
                absent[key] = f"fails: {str(error).splitlines()[0]}"
        print(f"  {key}: {told.get(key) or absent[key]}")
    return told, absent


def peaks(
    present: Sequence[Contestant], lengths: Sequence[int], common: dict[str, Any]
) -> dict[str, dict[str, Peak | str]]:
    """What each contestant took at every length, or why it could not run there."""
    found: dict[str, dict[str, Peak | str]] = {}
    for contestant in present:
        key = contestant.key
        cells = [cell(chosen, n) for chosen in contestant.passes for n in lengths]
        found[key] = peaks_in_child(lambda left, key=key: child("probe", {"key": key, "cells": left, **common}), cells)
        print(f"  {key}: {_told(found[key])}")
    return found


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All that is known, once after the memory and once after each allocator: what comes later may crash."""
    lengths = [int(n) for n in arguments.n.split(",")]
    common = {"threads": arguments.threads, "limit": arguments.limit, "rounds": arguments.rounds}
    print("Is like compared with like?")
    checks, absent = check(arguments.only)
    present = [contestant for contestant in contestants(arguments.only) if contestant.key in checks]
    memory = {}
    if not arguments.quick:
        print("Memory")
        memory = peaks(present, lengths, common)

    def runs(contestant: Contestant, chosen: str, n: int) -> bool:
        return arguments.quick or isinstance(memory[contestant.key][cell(chosen, n)], Peak)

    able = {n: {one.key: [chosen for chosen in one.passes if runs(one, chosen, n)] for one in present} for n in lengths}
    known: dict[str, Any] = {
        "settings": {**common, "lengths": lengths, "torch": torch.__version__, "when": arguments.when},
        "cores": os.cpu_count(),
        "roof_flops": roofline("float32")[1],
        "contestants": [
            {
                "function": contestant.pair.function,
                "name": contestant.name,
                "key": contestant.key,
                "passes": contestant.pair.passes,
                "check": checks.get(contestant.key) or absent[contestant.key],
                "remark": contestant.remark,
                "absent": absent.get(contestant.key),
            }
            for contestant in contestants(arguments.only)
        ],
        "flops": {pair.function: _flops(pair, lengths) for pair in dict.fromkeys(one.pair for one in present)},
        "memory": memory,
        "times": {},
    }
    yield known
    for allocator, environment in ALLOCATORS.items():
        print(f"Time, {allocator} allocator")
        with tempfile.TemporaryDirectory() as folder:
            to = Path(folder) / "race.json"
            job = {"cells": able, "warmup": WARMUP[allocator], "to": str(to), **common}
            subprocess.run(child("race", job), check=True, env={**os.environ, **environment})
            known["times"][allocator] = json.loads(to.read_text())
        yield known


def _told(found: dict[str, Peak | str]) -> str:
    def words(peak: Peak | str) -> str:
        return peak if isinstance(peak, str) else f"{(peak.bytes or 0) / 1e6:.0f} MB"

    return ", ".join(f"{name} {words(peak)}" for name, peak in found.items())


def _flops(pair: Pair, lengths: Sequence[int]) -> dict[str, int] | None:
    """Of the function, as our mechanism counts it; the same for every contestant."""
    ours = Contestant(pair, OURS)
    if ours.absent or pair.stepwise:
        return None
    tasks = [pair.task(n) for n in lengths]
    return {
        str(task.n): ours.mechanism(task).cost(task.n, task.n, task.geometry, causal=task.causal).flops
        for task in tasks
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "check", "report", "probe", "race"], default="all")
    parser.add_argument("--n", default=None, help="lengths, multiples of 512  [1024,4096,16384,65536]")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that one run may take")
    parser.add_argument("--quick", action="store_true", help="1024 and 4096 positions, 3 rounds, no memory")
    parser.add_argument("--only", default="", help="functions with this in their name")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs")
    parser.add_argument("--when", default="", help="a date for the page")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.n = arguments.n or ("1024,4096" if arguments.quick else "1024,4096,16384,65536")
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 5)
    page = arguments.out / "bench_attention.json"
    if arguments.job:
        job = json.loads(arguments.job)
        torch.set_num_threads(job["threads"])
        {"probe": probe, "race": race}[arguments.what](job)
    elif arguments.what == "check":
        torch.set_num_threads(arguments.threads)
        check(arguments.only)
    else:
        if arguments.what == "all":
            torch.set_num_threads(arguments.threads)
            for known in measure(arguments):
                page.write_text(json.dumps(known, indent=1) + "\n")
        write_report(json.loads(page.read_text()), arguments.out)


if __name__ == "__main__":
    main()
