"""Training killed with SIGKILL at random moments: the folder always loads, resumes, and ends with the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.training.training_helpers import write_pairs

DRIVER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from attnworks.errors import AttnworksError
from attnworks.models import load
from attnworks.models.presets import PRESETS
from attnworks.storage.pointer import LAST, pointed_at
from attnworks.training.metrics import read_lines
from attnworks.training.run import Run
from attnworks.training.trained import open_run
from tests.training.training_helpers import SMALL, metrics_of, recipe, state_of

home, corpus, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
torch.optim.Adam([torch.zeros(1)])  # slow the first time, and children inherit it
PRESETS.update(SMALL)
os.fsync = lambda descriptor: None  # what is written survives the process, if not the machine
chance = random.Random(seed)
settings = recipe(
    corpus,
    steps=40,
    accumulate=chance.choice([1, 2]),
    validate_every=chance.randint(1, 3),
    keep_every=chance.choice([None, 7]),
    score_sentences=0,
)

def child(work, delay=None):
    "Run work in a child, killed after a delay; False if it came to its end before."
    process = os.fork()
    if process == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(1)
    if delay is not None:
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)

def go_on(folder):
    run = Run.resume(folder) if folder.exists() else Run.create(settings, folder)
    run.train()

def report(folder):
    "Steps, hashes and metrics of a run that is done, by way of a file: this process must never have trained."
    (home / f"{folder.name}.txt").write_text(repr((state_of(Run.resume(folder)), metrics_of(folder))))

began = time.monotonic()
assert not child(lambda: go_on(home / "whole"))
whole_seconds = time.monotonic() - began

def check(folder):
    "Whatever moment it was: the folder loads and resumes, and so does what a user would open."
    if not folder.exists():
        return 0
    run = Run.resume(folder)
    last = pointed_at(folder, LAST)
    if last is not None:
        load(folder), open_run(folder)
    assert run.progress.step == (0 if last is None else int(last.name[5:]))
    return run.progress.step

step, reached, killed = 0, [], 0
folder = home / "killed"
while killed < kills:
    killed += child(lambda: go_on(folder), chance.uniform(0.0, 0.5) * whole_seconds)
    now = check(folder)
    assert now >= step, (now, step)
    step = now
    reached.append(step)
    if step == 40:
        report(folder)
        os.rename(folder, home / f"done-{killed}")
        os.rename(home / "killed.txt", home / f"done-{killed}.txt")
        step = 0
if folder.exists():
    assert not child(lambda: go_on(folder))
    report(folder)
report(home / "whole")
expected = (home / "whole.txt").read_text()
for path in home.glob("*.txt"):
    assert path.read_text() == expected, path
left = [path.name for path in home.glob("*/checkpoints/.*")]
assert not left, left
print(killed, len(set(reached)), len(list(home.glob("*.txt"))))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 8), *(pytest.param(seed, 25, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_killed_at_random_moments(seed: int, kills: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), write_pairs(tmp_path / "pairs.tsv"), str(kills), str(seed)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    killed, different, runs = map(int, done.stdout.split())
    assert killed >= kills and different >= 3 and runs >= 2
