"""The process in which the memory of one mechanism is measured. `peaks_in_child` starts it with a job as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

from attnworks.attention.benchmark.memory import measure_cells
from attnworks.attention.benchmark.versus_dense import BenchmarkTask, build_mechanism, core_of, draw_inputs, passes_over

SMALL_LENGTH = 512
"""Positions, at most, of a first run: it loads what every first run loads."""
USAGE = (
    "usage: python -m attnworks.attention.benchmark JOB\n"
    "JOB is JSON with text, task, passes, threads, seconds and seed; attnworks bench starts this process by itself."
)


def measure_job(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit(USAGE)
    job = json.loads(arguments[0])
    torch.set_num_threads(job["threads"])
    task, seed = BenchmarkTask(*job["task"]), job["seed"]

    def passes(task: BenchmarkTask) -> dict[str, Callable[[], object]]:
        torch.manual_seed(seed)
        core = core_of(build_mechanism(job["text"], task), task)
        return passes_over(core, draw_inputs(task, seed=seed), job["passes"])

    for run in passes(task._replace(n=min(task.n, SMALL_LENGTH))).values():
        run()
    measure_cells(passes(task).items(), seconds=job["seconds"])


if __name__ == "__main__":
    measure_job(sys.argv[1:])
