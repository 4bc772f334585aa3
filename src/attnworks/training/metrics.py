"""metrics.jsonl: one line per step, per validation and per growth, in the order in which they count."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from attnworks.storage.disk import disk_errors, write_file
from attnworks.training.events import Event, Grown, Saved, Validated

METRICS = "metrics.jsonl"


class Metrics:
    """Appends what happens. Lines that a lost stretch of a run left behind are dropped first."""

    def __init__(self, run: Path, after: int) -> None:
        self.path = run / METRICS
        kept = [line for line in read_lines(self.path) if line["step"] <= after]
        write_file(self.path, b"".join(_line(line) for line in kept))

    def __call__(self, event: Event) -> None:
        if isinstance(event, Saved):
            return
        kind = {Validated: "validation", Grown: "growth"}.get(type(event), "training")
        with disk_errors(f"write {self.path}", remedy="free space, then resume"), self.path.open("ab") as file:
            file.write(_line({"kind": kind, **asdict(event)}))


def read_lines(path: Path) -> list[dict]:
    """All whole lines; what a crash left behind them is left out."""
    lines = []
    for text in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        lines.append(line)
    return lines


def _line(data: dict) -> bytes:
    return (json.dumps(data) + "\n").encode()
