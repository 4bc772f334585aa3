"""Forked processes for tests: a team over gloo, and children that are killed at a counted moment."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch.distributed as dist

PATIENCE = 300.0
"""Seconds until a child counts as hung. Nothing depends on it while children end by themselves."""

needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork") or torch.accelerator.is_available(),
    reason="needs fork, which PyTorch refuses after a backward pass where there is an accelerator",
)


def fork(work: Callable[[], object], log: Path) -> int:
    """Run `work` in a copy of this process and return its id. An error goes to `log`, and the exit code is 1."""
    child = os.fork()
    if child:
        return child
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
            try:
                work()
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=file)
    finally:
        os._exit(1)


def wait_for(children: Sequence[int], log: Callable[[int], Path], *, may_be_killed: bool = False) -> list[int]:
    """The wait statuses of all children, in their order. When one fails or hangs, all end and the test fails.

    A child that a signal ends has failed too, unless it may be killed.
    """
    left, statuses = dict(enumerate(children)), [0] * len(children)
    deadline = time.monotonic() + PATIENCE
    try:
        while left:
            for place, child in list(left.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    del left[place]
                    statuses[place] = status
                    if status and not (may_be_killed and os.WIFSIGNALED(status)):
                        pytest.fail(f"child {place} {_ending(status)}:\n{log(place).read_text()}")
            if left and time.monotonic() > deadline:
                pytest.fail(f"after {PATIENCE:.0f} s the children {list(left)} still run")
            time.sleep(0.002)
    finally:
        for child in left.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return statuses


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"failed with exit code {code}" if code >= 0 else f"was ended by signal {-code}"


def in_processes(size: int, work: Callable[[int], object], home: Path) -> None:
    """Run `work` with each rank in a process of its own, which joins a team as torchrun has its processes do.

    They meet over a file, so that no port is needed.
    """
    home.mkdir()

    def member(rank: int) -> None:
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false"}
        os.environ |= {"WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        store = {"init_method": f"file://{home / 'store'}", "rank": rank, "world_size": size}
        dist.init_process_group = partial(dist.init_process_group, **store)
        work(rank)

    def log(rank: int) -> Path:
        return home / f"{rank}.log"

    children = [fork(lambda rank=rank: member(rank), log(rank)) for rank in range(size)]
    wait_for(children, log)


class Countdown:
    """Counts moments, and ends this process with SIGKILL at the n-th, if there is such a moment.

    A moment is when a function of Python or C is entered or left, in files whose path has `within` in it.
    """

    def __init__(self, moment: int = 0, within: str = "") -> None:
        self.moment, self.within, self.count = moment, within, 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def at_calls(self, frame: FrameType, event: str, argument: object) -> None:
        """For sys.setprofile."""
        del event, argument
        if self.within in frame.f_code.co_filename:
            self.step()

    def before_file_operations(self, event: str, arguments: object) -> None:
        """An audit hook, which a process cannot take off again: only for children."""
        del arguments
        if event.startswith(("os.", "open", "shutil.", "tempfile.", "ctypes.")):
            self.step()


def moments_in(work: Callable[[], object], *within: str) -> list[int]:
    """How many moments `work` has within each of these parts of the program."""
    countdowns = [Countdown(within=part) for part in within]

    def at_calls(frame: FrameType, event: str, argument: object) -> None:
        for countdown in countdowns:
            countdown.at_calls(frame, event, argument)

    sys.setprofile(at_calls)
    try:
        work()
    finally:
        sys.setprofile(None)
    return [countdown.count for countdown in countdowns]


def killed(
    work: Callable[[], object], moment: int, log: Path, *, within: str = "", file_operations: bool = False
) -> bool:
    """Run `work` in a child that is killed at this moment, or before this file operation; False if it ended earlier.

    The child counts and kills itself, so that the place in the program does not depend on the clock.
    """

    def counted() -> None:
        countdown = Countdown(moment, within)
        if file_operations:
            sys.addaudithook(countdown.before_file_operations)
        else:
            sys.setprofile(countdown.at_calls)
        work()

    (status,) = wait_for([fork(counted, log)], lambda _: log, may_be_killed=True)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"ended by signal {os.WTERMSIG(status)}: {log.read_text()}"
    return os.WIFSIGNALED(status)
