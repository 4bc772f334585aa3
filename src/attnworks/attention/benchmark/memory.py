"""Peak memory of one run above what was there before, measured in a process of its own.

`ask_child` starts the process and `answer` is what happens in it. The child's malloc gives large blocks back to the
system at once, so that its resident size is what the computation holds and not what the allocator keeps for later. A
run that takes too long, or more memory than is free, ends the child and not its parent.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

if sys.platform != "win32":
    import resource

PROMPT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
SPARE = 0.8
"""The share of free memory that a run may take."""


class Peak(NamedTuple):
    """What one run took."""

    seconds: float
    bytes: int | None


def peak_above(run: Callable[[], object]) -> int | None:
    """Bytes by which the resident high-water mark rises; None on systems that do not tell."""
    gc.collect()
    before = _reset_high_water()
    kept = run()
    after = _high_water()
    del kept
    return None if before is None or after is None else max(0, after - before)


def answer(cells: Iterable[tuple[str, Callable[[], object]]], *, seconds: float) -> None:
    """In the child: run each cell once and print what it took, one JSON object a line."""
    for name, run in cells:
        with _limits(seconds):
            began = time.perf_counter()
            size = peak_above(run)
            took = time.perf_counter() - began
        sys.stdout.write(json.dumps({"cell": name, "seconds": took, "bytes": size}) + "\n")
        sys.stdout.flush()


def ask_child(command: Callable[[Sequence[str]], Sequence[str]], cells: Sequence[str]) -> dict[str, Peak | str]:
    """What each cell took, or in a few words why it could not be had; a child that dies is started on the rest."""
    found: dict[str, Peak | str] = {}
    while left := [cell for cell in cells if cell not in found]:
        environment = {**os.environ, **PROMPT_MALLOC}
        child = subprocess.run(list(command(left)), capture_output=True, text=True, env=environment)
        for line in child.stdout.splitlines():
            if not line.startswith('{"cell"'):  # what some library had to say
                continue
            said = json.loads(line)
            found[said["cell"]] = Peak(said["seconds"], said["bytes"])
        if died := [cell for cell in left if cell not in found]:
            found[died[0]] = _reason(child)
    return found


def _reason(child: subprocess.CompletedProcess[str]) -> str:
    if sys.platform != "win32" and child.returncode == -signal.SIGALRM:
        return "too slow"
    if child.returncode == -9 or any(word in child.stderr for word in ("allocate memory", "MemoryError", "bad_alloc")):
        return "not enough memory"
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"ended with code {child.returncode}"


@contextlib.contextmanager
def _limits(seconds: float) -> Iterator[None]:
    """The process ends when the time is up, even inside a kernel; memory beyond what is free is refused."""
    if sys.platform == "win32":
        yield
        return
    free = _line("/proc/meminfo", "MemAvailable")
    mapped = _line("/proc/self/status", "VmSize")
    if free is not None and mapped is not None:
        wanted, (_, hard) = int(mapped + SPARE * free), resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _reset_high_water() -> int | None:
    """Lower the mark to what is resident now, where the system can; then where it stands."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _high_water()


def _high_water() -> int | None:
    mark = _line("/proc/self/status", "VmHWM")
    if mark is not None or sys.platform == "win32":
        return mark
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _line(path: str, name: str) -> int | None:
    """Bytes of one line of a file that counts kilobytes."""
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return 1024 * int(line.split()[1])
    return None
