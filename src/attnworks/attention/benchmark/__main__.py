"""The process that measures the memory of one mechanism: `python -m attnworks.attention.benchmark JSON`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

from attnworks.attention.benchmark.cores import Task, core_of, draw, passes_over
from attnworks.attention.benchmark.memory import answer
from attnworks.attention.benchmark.versus_dense import build

FIRST = 512
"""Positions of a first run at most, which loads what every first run loads."""

job = json.loads(sys.argv[1])
torch.set_num_threads(job["threads"])
task = Task(*job["task"])


def runs_of(task: Task) -> dict[str, Callable[[], object]]:
    torch.manual_seed(job["seed"])
    return passes_over(core_of(build(job["text"], task), task), draw(task, seed=job["seed"]), job["passes"])


for run in runs_of(task._replace(n=min(task.n, FIRST))).values():
    run()
answer(runs_of(task).items(), seconds=job["seconds"])
