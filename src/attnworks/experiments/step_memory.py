"""How much memory a computation holds at its worst moment."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes of CPU tensors that `run` holds at once, above those that were there before.

    torch's profiler logs every block that its allocator gives out or takes back, also inside kernels; the highest
    running sum is the peak. Unlike the resident size of the process, it does not depend on what malloc keeps for later
    or on what ran before. What libraries take besides torch's allocator is not seen.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to standard error
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        run()
    with tempfile.TemporaryDirectory() as folder:
        log.export_chrome_trace(str(Path(folder) / "trace.json"))
        events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return max(accumulate(change for _, change in changes), default=0)
