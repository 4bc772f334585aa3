"""Peak memory that one run adds, measured in a process of its own.

`peaks_in_child` starts the process and `measure_cells` runs in it. The child's malloc gives large blocks back to the
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
FREE_MEMORY_SHARE = 0.8
"""The share of free memory that a run may take."""


class Peak(NamedTuple):
    """Seconds and additional bytes of one run."""

    seconds: float
    bytes: int | None


def peak_above(run: Callable[[], object]) -> int | None:
    """Bytes by which the resident high-water mark rises; None on systems that do not report it."""
    gc.collect()
    before = _reset_high_water()
    kept = run()
    after = _high_water()
    del kept
    return None if before is None or after is None else max(0, after - before)


def measure_cells(cells: Iterable[tuple[str, Callable[[], object]]], *, seconds: float) -> None:
    """In the child: run each cell once and print seconds and bytes, one JSON object a line."""
    for name, run in cells:
        with _limits(seconds):
            began = time.perf_counter()
            size = peak_above(run)
            took = time.perf_counter() - began
        sys.stdout.write(json.dumps({"cell": name, "seconds": took, "bytes": size}) + "\n")
        sys.stdout.flush()


def peaks_in_child(command: Callable[[Sequence[str]], Sequence[str]], cells: Sequence[str]) -> dict[str, Peak | str]:
    """Seconds and bytes of each cell, or why there are none; if the child dies, another one runs the rest."""
    found: dict[str, Peak | str] = {}
    while left := [cell for cell in cells if cell not in found]:
        environment = {**os.environ, **PROMPT_MALLOC}
        child = subprocess.run(list(command(left)), capture_output=True, text=True, env=environment)
        for line in child.stdout.splitlines():
            if not line.startswith('{"cell"'):  # printed by some library
                continue
            cell = json.loads(line)
            found[cell["cell"]] = Peak(cell["seconds"], cell["bytes"])
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
    """End the process when the time is up, even inside a kernel, and refuse memory beyond what is free."""
    if sys.platform == "win32":
        yield
        return
    free = _line("/proc/meminfo", "MemAvailable")
    mapped = _line("/proc/self/status", "VmSize")
    if free is not None and mapped is not None:
        wanted, (_, hard) = int(mapped + FREE_MEMORY_SHARE * free), resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _reset_high_water() -> int | None:
    """Lower the mark to what is resident now, where the system can, and read it."""
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
