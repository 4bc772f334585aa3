"""Several processes examine as one does, to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnworks.cli import main
from attnworks.core.team import join_team
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.folder import EXAM_FILES, read_exam, write_exam
from attnworks.text.passages import Passage, Text
from attnworks.traces.subject import open_subject
from tests.exam_helpers import LINES, tiny_folder, tiny_run, write_lines
from tests.training.processes import in_processes, needs_fork


@needs_fork
@pytest.mark.parametrize(
    ("name", "processes", "batch_tokens", "measures"),
    [
        ("bert", 2, 40, "rank roles saturation sinks importance bounds paths cost"),
        ("gpt2", 3, 4096, "rank roles"),
    ],
)
def test_several_processes_find_what_one_finds(
    name: str, processes: int, batch_tokens: int, measures: str, tmp_path: Path
) -> None:
    """Every process of a team ends with the folder that one process writes. Of three with one batch, two are idle."""
    subject = open_subject(str(tiny_folder(name)))
    passages = [Passage(Text(line)) for line in LINES]
    request = ExamSettings(measures=measures.split(), batch_tokens=batch_tokens)

    def write(folder: Path) -> None:
        with join_team("cpu") as team:
            write_exam(run_examination(subject, passages, request, team=team), folder)

    write(tmp_path / "one")
    in_processes(processes, lambda rank: write(tmp_path / f"rank {rank}"), tmp_path / "logs")
    one = read_exam(tmp_path / "one").to_json()
    for rank in range(processes):
        several = read_exam(tmp_path / f"rank {rank}").to_json()
        assert list(one["readings"]) == list(several["readings"])
        for reading, expected in one["readings"].items():
            for part, numbers in expected.items():
                assert several["readings"][reading][part] == numbers, (rank, reading, part)
        assert one == several
        for file in EXAM_FILES:
            assert (tmp_path / f"rank {rank}" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file


def test_torchrun_prints_what_one_process_prints(tmp_path: Path) -> None:
    """The processes themselves: torchrun starts them, they find each other, and one of them prints."""
    text = write_lines(tmp_path / "text.txt", LINES)
    options = [str(tiny_run()), "--text", str(text), "--batch-tokens", "40", "--measures", "rank,roles"]
    command = ["examine", *options, "--json", "--threads", "1"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "attnworks"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    several = subprocess.run([*start, *command], capture_output=True, text=True, timeout=300, env=environment)
    assert several.returncode == 0, several.stderr
    one = CliRunner().invoke(main, command)
    assert one.exit_code == 0, one.output
    assert json.loads(several.stdout) == json.loads(one.stdout)
