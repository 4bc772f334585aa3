"""Curves of a run: read from its lines, thinned, and never an error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from attnworks import examine
from attnworks.exam.folder import read_exam, write_exam
from attnworks.training.curves import MAX_CURVE_POINTS, read_curves
from tests.exam_helpers import LINES, tiny_run


def run_with(folder: Path, lines: list[str]) -> Path:
    (folder / "run.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def step(number: float, loss: object, kind: str = "training", **more: object) -> str:
    return json.dumps({"kind": kind, "step": number, "loss": loss, **more})


def test_curves_of_a_run(tmp_path: Path) -> None:
    lines = [step(1, 4.0), step(2, 3.0), step(2, 3.5, "validation", bleu=10.0, best=True), step(3, 2.0)]
    assert read_curves(run_with(tmp_path, lines)) == {
        "training loss": {"step": [1.0, 2.0, 3.0], "value": [4.0, 3.0, 2.0]},
        "validation loss": {"step": [2.0], "value": [3.5]},
        "validation bleu": {"step": [2.0], "value": [10.0]},
    }


def test_long_curves_become_means_of_equal_parts(tmp_path: Path) -> None:
    count = 5 * MAX_CURVE_POINTS
    found = read_curves(run_with(tmp_path, [step(number, float(number)) for number in range(count)]))["training loss"]
    assert len(found["step"]) == len(found["value"]) == MAX_CURVE_POINTS
    assert found["value"][:2] == [2.0, 7.0] and math.fsum(found["value"]) / MAX_CURVE_POINTS == (count - 1) / 2


@pytest.mark.parametrize(
    "odd",
    [
        "{",
        "[1]",
        "null",
        "[" * 5000,
        step(1, "x"),
        step(1, None),
        step(1, True),
        '{"kind": "training", "step": 1, "loss": NaN}',
    ],
)
def test_other_lines_are_skipped(tmp_path: Path, odd: str) -> None:
    found = read_curves(run_with(tmp_path, [odd, step(5, 1.5), odd]))
    assert found == {"training loss": {"step": [5.0], "value": [1.5]}}


def test_a_folder_that_is_no_run_has_none(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(step(1, 1.0))
    assert read_curves(tmp_path) == {} and read_curves(tmp_path / "missing") == {}


def test_examinations_of_runs_keep_them(tmp_path: Path) -> None:
    exam = examine(str(tiny_run()), texts=LINES, measures=["rank"])
    curves = exam.model["training"]
    assert curves == read_curves(tiny_run()) and curves["training loss"]["step"][-1] > 1
    assert read_exam(write_exam(exam, tmp_path / "exam")).model["training"] == curves
