"""Training killed with SIGKILL at random moments: the folder always loads, resumes, and ends with the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kills import kill_training, without_waiting
from tests.training.processes import needs_fork

SWEEP = [pytest.param(seed, 25, 40, marks=pytest.mark.slow) for seed in range(2, 6)]


@needs_fork
@pytest.mark.parametrize(("seed", "kills", "steps"), [(1, 8, 20), *SWEEP])
def test_killed_at_random_moments(seed: int, kills: int, steps: int, tmp_path: Path) -> None:
    with without_waiting():
        assert kill_training(tmp_path, seed, kills, steps) == kills
