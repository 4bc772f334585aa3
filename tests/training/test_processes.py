"""Children of tests: when one of them ends badly, the others do not keep the test waiting."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.processes import in_processes, killed, needs_fork

pytestmark = needs_fork


def ended_by_signal(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def failed(rank: int) -> None:
    if rank == 1:
        raise ValueError("a mistake of the child")
    signal.pause()


@pytest.mark.parametrize(
    ("work", "message"), [(ended_by_signal, "child 1 was ended by signal 9"), (failed, "a mistake of the child")]
)
def test_one_bad_end_ends_all(work: Callable[[int], None], message: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        in_processes(2, work, tmp_path / "team")


def test_a_child_may_be_killed_at_a_moment(tmp_path: Path) -> None:
    assert killed(lambda: sorted([2, 1]), 1, tmp_path / "log")
    assert not killed(lambda: None, 10**6, tmp_path / "log")
