"""The verdict of a comparison: heads, scores, parameters, roles and means, in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from attnworks.exam.compare import compare_exams
from attnworks.exam.examination import Examination
from attnworks.exam.lineage import LINEAGE, Lineage
from attnworks.exam.reading import Reading, Readings
from attnworks.reshape.receipt import Figures
from tests.exam.test_examination import stated


@dataclass
class Scored:
    scores: dict[str, Any] = field(default_factory=dict)


def exam(heads: int, *readings: Reading, **model: Any) -> Examination:
    labels = stated("roles.label", ("layer", "head"), [["previous"] * heads])
    return Examination({"name": "m", "heads": {"enc.0": heads}, **model}, {}, Readings([labels, *readings]))


CUT = {
    LINEAGE: Lineage(
        original="a", reshapes=("cut 2 of 4 heads",), counts={"enc.0": 4}, heads={"enc.0": ("enc.0.1", "enc.0.3")}
    ).to_json()
}
BLEU = Scored({"BLEU": Figures(before=63.8, after=52.0, healed=66.0)})


def test_of_a_pruned_model() -> None:
    before, after = exam(4, parameters=1000), exam(2, parameters=850, **CUT)
    assert compare_exams(before, after, [BLEU]).verdict == (
        "2 of 4 heads are gone",
        "BLEU 63.8 -> 66.0 after healing",
        "15 % fewer parameters",
        "all 2 remaining heads keep their role",
    )


def test_scores_go_from_the_first_receipt_to_the_last() -> None:
    last = Scored({"BLEU": Figures(before=66.0, after=65.5, healed=None), "new": Figures(before=1.0, after=2.0)})
    verdict = compare_exams(exam(4), exam(2, **CUT), [BLEU, last]).verdict
    assert "BLEU 63.8 -> 65.5" in verdict and not any("new 1" in clause for clause in verdict)


def test_receipts_that_both_models_have_are_left_out() -> None:
    last = Scored({"BLEU": Figures(before=66.0, after=65.5, healed=None)})
    verdict = compare_exams(exam(2, **CUT), exam(2, **CUT, parameters=3), [BLEU, last]).verdict
    assert "BLEU 66.0 -> 65.5" in verdict


@pytest.mark.parametrize(
    ("after", "told"), [(0.3, "heads rest more on the first token (0.200 -> 0.300 of it)"), (0.21, "")]
)
def test_means_are_told_where_they_change_much(after: float, told: str) -> None:
    one, other = (exam(2, stated("sinks.first", ("layer", "head"), [[value, value]])) for value in (0.2, after))
    verdict = compare_exams(one, other).verdict
    assert verdict[:2] == ("both have the same 2 heads", "all 2 heads keep their role")
    assert list(verdict[2:]) == ([told] if told else [])


def test_means_are_over_the_heads_that_both_have() -> None:
    before = exam(4, stated("saturation.entropy", ("layer", "head"), [[9.0, 1.0, 9.0, 1.0]]))
    after = exam(2, stated("saturation.entropy", ("layer", "head"), [[2.0, 2.0]]), **CUT)
    assert compare_exams(before, after).verdict[-1] == "attention is more spread out (mean entropy 1.00 -> 2.00)"


def test_of_other_roles_and_of_models_that_have_no_head_in_common() -> None:
    other = Examination(exam(2).model, {}, Readings([stated("roles.label", ("layer", "head"), [["previous", "next"]])]))
    assert compare_exams(exam(2), other).verdict[1] == "1 of the 2 heads keep their role"
    assert compare_exams(exam(2), exam(3)).verdict[0] == "no head can be matched: the models differ"


def test_of_the_same() -> None:
    assert compare_exams(exam(2), exam(2)).verdict == ("nothing changed",)
