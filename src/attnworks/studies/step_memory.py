"""How much memory a computation holds at its worst moment."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes of CPU tensors that `run` holds at once, above those that were there before.

    torch's profiler logs every block that its allocator gives out or takes back, also inside kernels; the highest
    running sum is the peak. Unlike the resident size of the process, it does not depend on what malloc keeps for later
    or on what ran before. What libraries take besides torch's allocator is not seen: `attnworks.attention.benchmark.memory` sees it,
    as is due among rival libraries, but needs a process for each run and counts in pages; here cells repeat exactly.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to standard error
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        run()
    with tempfile.TemporaryDirectory() as folder:
        log.export_chrome_trace(str(Path(folder) / "trace.json"))
        events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
    return peak_of((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")


def peak_of(changes: Iterable[tuple[float, int]]) -> int:
    """The highest running sum of (moment, bytes); what has one moment counts in the order in which it was logged."""
    return max(accumulate((size for _, size in sorted(changes, key=itemgetter(0))), initial=0))
