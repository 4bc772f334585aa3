"""Several processes make the steps of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from attnworks.cli import main
from attnworks.core.team import Team, join_team
from attnworks.training.run import Run
from attnworks.training.run_folder import read_recipe
from tests.training.processes import in_processes, needs_fork
from tests.training.training_helpers import metrics_of, state_of, weights_of, write_pairs

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "attnworks"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def test_alone_nothing_happens() -> None:
    with join_team("cpu") as team:
        assert team == Team() and team.leads
        assert team.share([5, 3, 8]) == [5, 3, 8]
        assert team.add([1.5, 2.0]) == [1.5, 2.0]
        assert team.any(True) and not team.any(False)
        team.wait()
        model = torch.nn.Linear(2, 2)
        team.add_gradients(model)
        assert model.weight.grad is None


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shares_cover_a_batch_once(size: int) -> None:
    rows = [4, 9, 1, 7]
    shares = [Team(rank, size).share(rows) for rank in range(size)]
    assert sorted(row for share in shares for row in share) == sorted(rows)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [Team(rank, size).leads for rank in range(size)] == [True] + [False] * (size - 1)


@needs_fork
def test_two_processes_make_the_steps_of_one(tmp_path: Path) -> None:
    """Batches of one to a few sentences: now and then a process has nothing to do. Clipping sees the whole gradient.

    Each process runs the command as under torchrun, which itself starts the processes of the test below and of
    tests/exam/test_torchrun.py.
    """
    corpus = write_pairs(tmp_path / "pairs.tsv")
    options = f"tiny --corpus {corpus} --steps 9 --batch-tokens 16 --accumulate 2 --dropout 0 --validate-every 4"
    options += " --warmup 2 --clip 0.5 --threads 1 --vocabulary bpe --vocabulary-size 80"
    out = tmp_path / "two"

    def train(rank: int) -> None:
        done = CliRunner().invoke(main, ["train", *options.split(), "--out", str(out)])
        assert done.exit_code == 0, done.output
        (tmp_path / f"stdout {rank}").write_text(done.stdout)
        (tmp_path / f"stderr {rank}").write_text(done.stderr)

    in_processes(2, train, tmp_path / "logs")
    assert (tmp_path / "stdout 0").read_text() == f"{out}\n"
    assert (tmp_path / "stderr 0").read_text().count("held-out loss") == 3
    assert (tmp_path / "stdout 1").read_text() == (tmp_path / "stderr 1").read_text() == "", "only one of them talks"

    recipe, _ = read_recipe(out)
    one = Run.create(recipe, tmp_path / "one")
    assert any(len(one.fit.order.rows(batch)) == 1 for batch in range(18)), "a batch that cannot be shared"
    one.train()
    exact = ("kind", "step", "epoch", "learning_rate", "tokens")
    assert metrics_of(out, *exact) == metrics_of(tmp_path / "one", *exact)
    for field in ("loss", "gradient_norm", "perplexity"):
        losses, expected = ([x for (x,) in metrics_of(f, field) if x is not None] for f in (out, tmp_path / "one"))
        assert losses == pytest.approx(expected, rel=1e-5 if field == "loss" else 1e-3)
    two = Run.resume(out)
    for name, weight in weights_of(two.model).items():
        if name.endswith("b_K"):  # softmax takes it out: its gradient is rounding, which Adam blows up to full steps
            continue
        torch.testing.assert_close(weight, weights_of(one.model)[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_two_processes_resume_what_they_left(tmp_path: Path) -> None:
    """Stopped by a signal to torchrun, as Ctrl-C would, both leave together; the end is that of a straight run."""
    corpus = write_pairs(tmp_path / "pairs.tsv")
    options = ["tiny", "--corpus", corpus, "--batch-tokens", "60", "--threads", "1", "--validate-every", "1000"]
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*TORCHRUN, "train", *options, "--steps", "100000", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        deadline = time.monotonic() + 300
        while not (out / "metrics.jsonl").is_file() or (out / "metrics.jsonl").read_bytes().count(b"\n") < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert f"attnworks train --resume {out}" in stderr
    step = Run.resume(out).progress.step
    assert step >= 3
    resume = [*TORCHRUN, "train", "--resume", str(out), "--steps", str(step + 3)]
    subprocess.run(resume, check=True, capture_output=True, timeout=300, env=ENVIRONMENT)
    straight = [*TORCHRUN, "train", *options, "--steps", str(step + 3), "--out", str(tmp_path / "straight")]
    subprocess.run(straight, check=True, capture_output=True, timeout=300, env=ENVIRONMENT)
    parts, whole = Run.resume(out), Run.resume(tmp_path / "straight")
    assert replace(parts.recipe, steps=step + 3) == whole.recipe
    assert state_of(parts) == state_of(whole)
