"""Peak memory, and children that do not come back."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from attnworks.attention.benchmark import memory
from attnworks.attention.benchmark.memory import Peak, peaks_in_child

MEGABYTE = 10**6
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


ALLOCATE = """
import runpy, sys
memory = runpy.run_path(sys.argv[1])
def allocate(size):
    block = bytearray(size)
    block[::1024] = b"x" * len(range(0, size, 1024))
"""


def in_a_child(program: str) -> list[int]:
    """What a fresh process prints: in this one, a heap that other tests have left would hide what a run takes.

    A shell starts it, since a process begins with the largest size of the one that starts it, and tests grow large.
    """
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", ALLOCATE + program, memory.__file__]
    environment = {**os.environ, **memory.PROMPT_MALLOC}
    child = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert child.returncode == 0, child.stderr
    return [int(word) for word in child.stdout.split()]


@linux
def test_the_peak_is_what_the_run_held_and_earlier_peaks_do_not_count() -> None:
    held, nothing = in_a_child("""
allocate(300_000_000)
print(memory["peak_above"](lambda: allocate(100_000_000)), memory["peak_above"](lambda: None))
""")
    assert 90 * MEGABYTE < held < 150 * MEGABYTE
    assert nothing < 10 * MEGABYTE


@linux
def test_where_proc_does_not_tell_the_largest_size_ever_does() -> None:
    """The run must exceed what the process needed to start."""
    (held,) = in_a_child("""
memory["_line"].__globals__["_line"] = lambda path, name: None
ever = memory["_high_water"]()
print(memory["peak_above"](lambda: allocate(ever + 100_000_000)))
""")
    assert 90 * MEGABYTE < held < 150 * MEGABYTE


CHILD = """
import itertools, runpy, sys, time
measure_cells = runpy.run_path(sys.argv.pop(1))["measure_cells"]
def fail(): raise ValueError("no such thing")
runs = {
    "nothing": lambda: None,
    "small": lambda: bytearray(30_000_000),
    "slow": lambda: time.sleep(3600),
    "huge": lambda: bytearray(1 << 50),
    "wrong": fail,
    "last": lambda: None,
}
print("noise of some library")
for slow, names in itertools.groupby(sys.argv[1:], lambda name: name == "slow"):
    measure_cells([(name, runs[name]) for name in names], seconds=0.1 if slow else 600.0)
"""


@linux
def test_a_child_that_dies_is_started_again_on_the_rest() -> None:
    started: list[Sequence[str]] = []

    def command(left: Sequence[str]) -> list[str]:
        started.append(left)
        return [sys.executable, "-c", CHILD, memory.__file__, *left]

    found = peaks_in_child(command, ["nothing", "small", "slow", "huge", "wrong", "last"])
    assert [len(left) for left in started] == [6, 3, 2, 1]
    small = found["small"]
    assert isinstance(small, Peak) and isinstance(found["nothing"], Peak) and isinstance(found["last"], Peak)
    assert 25 * MEGABYTE < (small.bytes or 0) < 45 * MEGABYTE and small.seconds >= 0
    assert found["slow"] == "too slow"
    assert found["huge"] == "not enough memory"
    assert found["wrong"] == "ValueError: no such thing"


LIMITED = """
import resource, runpy, sys
memory = runpy.run_path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
limits = []
memory["_line"].__globals__["_line"] = lambda path, name: int(sys.argv[2])
memory["measure_cells"]([("a", lambda: limits.append(resource.getrlimit(resource.RLIMIT_AS)))], seconds=600.0)
print(*limits[0])
"""


@linux
@pytest.mark.parametrize(("free", "soft"), [(1 << 31, int(1.8 * 2**31)), (1 << 40, 1 << 33)])
def test_a_lower_hard_limit_stays(free: int, soft: int) -> None:
    command = [sys.executable, "-c", LIMITED, memory.__file__, str(free)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == f"{soft} {1 << 33}"


def test_a_child_without_a_word_is_told_by_its_code() -> None:
    found = peaks_in_child(lambda left: [sys.executable, "-c", "raise SystemExit(7)"], ["a"])
    assert found == {"a": "ended with code 7"}


def test_the_childs_malloc_gives_blocks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def run(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        seen.update(env)
        return subprocess.CompletedProcess([], 0, '{"cell": "a", "seconds": 1.5, "bytes": 11}\n', "")

    monkeypatch.setattr(memory.subprocess, "run", run)
    assert peaks_in_child(lambda left: [], ["a"]) == {"a": Peak(1.5, 11)}
    assert seen.items() >= memory.PROMPT_MALLOC.items()
