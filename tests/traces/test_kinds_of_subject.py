"""What a subject can do is asked of the subject, not of its class."""

from __future__ import annotations

import re
from pathlib import Path

import attnworks

KIND = re.compile(r"isinstance\([^()]*\b(OwnSubject|HFSubject|AdaptedSubject)\b")


def test_kinds_of_subject_are_told_apart_in_traces_and_hf_alone() -> None:
    assert KIND.search("if isinstance(subject, OwnSubject | HFSubject):")
    home = Path(attnworks.__file__).parent
    found = [file.relative_to(home) for file in home.rglob("*.py") if KIND.search(file.read_text(encoding="utf-8"))]
    assert [file for file in found if file.parts[0] not in ("traces", "hf")] == []
