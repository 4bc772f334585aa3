"""The curves of a run from its metrics.jsonl, thinned, for an examination of the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from attnworks.core.errors import AttnworksError
from attnworks.core.folders import read_file
from attnworks.training.events import METRICS_FILE
from attnworks.training.run_folder import RECIPE_FILE

TRAINING = "training"
"""The key of the curves in the description of an examined model."""
MAX_METRICS_BYTES = 2**26
MAX_CURVE_POINTS = 200
CURVES = {"training": ("loss",), "validation": ("loss", "bleu", "chrf")}
"""Kind of line -> the numbers of it that become curves."""


def read_curves(folder: Path) -> dict[str, dict[str, list[float]]]:
    """The curves of a run, each as {"step": [...], "value": [...]}; nothing for a folder that is no run.

    Lines that are not JSON, and numbers that are not finite, are skipped. A curve with more than 200 points becomes the
    means of 200 equal parts of it.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for line in _lines(folder):
        for name in CURVES.get(str(line.get("kind")), ()):
            step, value = line.get("step"), line.get(name)
            if _is_number(step) and _is_number(value):
                points.setdefault(f"{line['kind']} {name}", []).append((float(step), float(value)))
    return {name: _thinned(sorted(curve)) for name, curve in points.items()}


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    file = folder / METRICS_FILE
    if not (folder / RECIPE_FILE).is_file() or not file.is_file():
        return
    try:
        text = read_file(file, MAX_METRICS_BYTES, "train with fewer steps")
    except AttnworksError:
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _thinned(curve: list[tuple[float, float]]) -> dict[str, list[float]]:
    count = min(len(curve), MAX_CURVE_POINTS)
    ends = [round(at * len(curve) / count) for at in range(count + 1)]
    parts = [curve[start:end] for start, end in pairwise(ends)]
    means = [[sum(side) / len(part) for side in zip(*part, strict=True)] for part in parts]
    return {"step": [step for step, _ in means], "value": [value for _, value in means]}
