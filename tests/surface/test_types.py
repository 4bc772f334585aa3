"""What type checkers take results for, checked by pyright when this file is, against what the results are."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from torch import Tensor

import attnworks
from attnworks import Activations, Comparison, Examination, Reading, Receipt, Subject, TraceCache, WrittenPage
from attnworks.api.tables import MechanismCount, MechanismTable, ParameterCount, PublishedCount
from attnworks.exam.examination import ExamFinding
from tests.exam_helpers import LINES, tiny_folder


def test_counts() -> None:
    assert isinstance(assert_type(attnworks.count(), PublishedCount), PublishedCount)
    assert isinstance(assert_type(attnworks.count("tiny"), ParameterCount), ParameterCount)
    assert isinstance(assert_type(attnworks.count("tiny", vocabulary_size=9), ParameterCount), ParameterCount)
    assert isinstance(assert_type(attnworks.count(mechanism="window", length=9), MechanismCount), MechanismCount)
    assert isinstance(assert_type(attnworks.count(compare=True, length=9), MechanismTable), MechanismTable)


def test_an_examination_and_its_parts(tmp_path: Path) -> None:
    exam = attnworks.examine(tiny_folder("gpt2"), LINES, measures=["saturation"])
    assert isinstance(assert_type(exam, Examination), Examination)
    assert isinstance(assert_type(exam["saturation.entropy"], Reading), Reading)
    assert isinstance(assert_type(exam["saturation.entropy"].tensor, Tensor), Tensor)
    assert isinstance(assert_type(exam.findings, tuple[ExamFinding, ...]), tuple)
    assert isinstance(assert_type(exam.save(tmp_path / "exam"), Path), Path)
    assert isinstance(assert_type(exam.report(tmp_path / "a.html"), WrittenPage), WrittenPage)
    assert isinstance(assert_type(attnworks.report(exam, tmp_path / "b.html"), WrittenPage), WrittenPage)
    assert isinstance(assert_type(attnworks.compare(exam, exam), Comparison), Comparison)


def test_a_trace_and_a_reshape() -> None:
    cache = attnworks.trace(tiny_folder("gpt2"), LINES[0])
    assert isinstance(assert_type(cache, TraceCache), TraceCache)
    assert isinstance(assert_type(cache["0.1"], Activations), Activations)
    assert isinstance(assert_type(cache["0.1"].weights, Tensor), Tensor)
    made = attnworks.prune(tiny_folder("gpt2"), LINES, heads="0.1")
    assert [*map(type, assert_type(made, tuple[Subject, Receipt]))][1] is Receipt and isinstance(made[0], Subject)
    assert isinstance(assert_type(made[0].logits(LINES[0]), Tensor), Tensor)
