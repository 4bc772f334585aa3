"""Several processes examine as one does, to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.exam_helpers import LINES, save_tiny, write_lines

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


def examined(processes: int, *arguments: object) -> dict[str, Any]:
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    command = [*start, "attnworks", "examine", *map(str, arguments), "--json", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "processes", "batch_tokens", "measures"),
    [
        ("bert", 2, 40, "rank,roles,saturation,sinks,importance,bounds,paths,cost"),
        pytest.param("gpt2", 3, 4096, "rank,roles", marks=pytest.mark.slow),
    ],
)
def test_two_processes_find_what_one_finds(
    name: str, processes: int, batch_tokens: int, measures: str, tmp_path: Path
) -> None:
    """Three processes share one batch: two have nothing to do."""
    model = save_tiny(name, tmp_path / name)
    text = write_lines(tmp_path / "text.txt", LINES)
    arguments = (model, "--text", text, "--batch-tokens", batch_tokens, "--measures", measures)
    one, several = (examined(number, *arguments) for number in (1, processes))
    assert one.keys() == several.keys()
    assert list(one["readings"]) == list(several["readings"])
    for reading, expected in one["readings"].items():
        for part, numbers in expected.items():
            assert several["readings"][reading][part] == numbers, (reading, part)
    assert one == several
