"""Two examinations side by side."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import ttest_ind

from attnworks.core.places import Kind
from attnworks.exam.compare import Comparison, compare_exams
from attnworks.exam.examination import Examination
from attnworks.exam.reading import Reading, Readings
from attnworks.exam.statistics import Moments
from tests.exam.test_examination import HEADS, LAYERS, examined, stated


def holding(*readings: Reading, **model: Any) -> Examination:
    return Examination({"name": "m", **model}, {"spec": "t"}, Readings(list(readings)))


def folded(values: torch.Tensor, name: str = "sinks.first", kind: Kind = "encoder") -> Reading:
    """[sentence layer head] -> a reading by layer and head."""
    folds = [Moments(values.shape[2:]) for _ in range(values.shape[1])]
    for layer, fold in enumerate(folds):
        fold.add(values[:, layer])
    value, spread, count = (tuple(getattr(fold, part) for fold in folds) for part in ("value", "spread", "count"))
    return Reading(name, kind, ("layer", "head"), value, "", "", spread, None, count)


def compared(one: Reading, other: Reading) -> Comparison:
    return compare_exams(holding(one), holding(other))


def test_the_same_twice() -> None:
    found = compare_exams(examined("encoder", "cross"), examined("encoder", "cross"))
    assert found.nothing_changed and found.compared > 100 and not found.changes and not found.roles
    assert {match.state for match in found.heads} == {"compared"} and not found.notes


def test_chance_and_margin_are_welchs() -> None:
    before, after = torch.rand(13, 2, 3, dtype=torch.float64), 0.3 + 2 * torch.rand(17, 2, 3, dtype=torch.float64)
    found = compared(folded(before), folded(after))
    assert found.compared == len(found.changes) == 6
    changes = {change.where: change for change in found.changes}
    for layer in range(2):
        for head in range(3):
            change = changes[f"enc.{layer}.{head}"]
            expected = ttest_ind(after[:, layer, head], before[:, layer, head], equal_var=False)
            assert change.chance == pytest.approx(expected.pvalue, rel=1e-9)  # type: ignore[attr-defined]
            low, high = expected.confidence_interval(0.95)  # type: ignore[attr-defined]
            assert change.margin == pytest.approx((high - low) / 2, rel=1e-9)
            assert change.difference == pytest.approx((high + low) / 2, rel=1e-9)


def test_one_head_among_many() -> None:
    """A real change is found first; chance alone, over many numbers, is hardly ever called certain."""
    source = torch.Generator().manual_seed(7)
    before, after = torch.randn(2, 31, 7, 11, generator=source, dtype=torch.float64)
    assert not compared(folded(before), folded(after)).certain
    after[:, 3, 5] += 3
    found = compared(folded(before), folded(after))
    assert [change.where for change in found.certain] == ["enc.3.5"] and found.changes[0].where == "enc.3.5"
    assert found.changes[0].certain and found.changes[-1].certain is False
    chances = [change.chance for change in found.changes if change.chance is not None]
    assert chances == sorted(chances) and len(chances) == 77
    assert sum(chance < 0.05 for chance in chances) > 1


def test_verdicts_follow_benjamini_and_hochberg() -> None:
    """All p <= p_k stand for the largest k with p_k <= 0.05 k / m, even those above their own line."""
    source = torch.Generator().manual_seed(11)
    before, after = torch.randn(2, 13, 1, 41, generator=source, dtype=torch.float64)
    after += torch.linspace(0, 2, 41, dtype=torch.float64)
    found = compared(folded(before), folded(after))
    chances = sorted(change.chance for change in found.changes if change.chance is not None)
    line = max(rank for rank, chance in enumerate(chances, 1) if chance <= 0.05 * rank / 41)
    assert 5 < line < 41
    assert [change.certain for change in found.changes] == [rank < line for rank in range(41)]


def test_numbers_of_unknown_certainty() -> None:
    one = stated("weights.norm", ("layer", "head"), [[1.0, 2.0, math.nan, 4.0, 5.0]])
    other = stated("weights.norm", ("layer", "head"), [[1.5, 2.0, 3.0, 8.0, 5.0 + 1e-9]])
    found = compared(one, other)
    assert found.compared == 4
    assert [(change.where, change.difference) for change in found.changes] == [("enc.0.3", 4.0), ("enc.0.0", 0.5)]
    assert all(change.margin is change.chance is change.certain is None for change in found.changes)
    assert not found.certain and not found.nothing_changed


def test_one_sentence_says_nothing_of_certainty() -> None:
    found = compared(folded(torch.zeros(1, 1, 2)), folded(torch.ones(1, 1, 2)))
    assert [change.margin for change in found.changes] == [None, None]


def test_new_roles() -> None:
    one = stated("roles.label", ("layer", "head"), [["previous", "none"], ["rare", "first"]])
    other = stated("roles.label", ("layer", "head"), [["previous", "self"], ["none", "first"]])
    found = compared(one, other)
    assert [tuple(role) for role in found.roles] == [
        ("enc.0.1", "enc.0.1", "none", "self"),
        ("enc.1.0", "enc.1.0", "rare", "none"),
    ]
    assert found.roles_compared == 4


def test_depth_curves_side_by_side() -> None:
    one = stated("rank.cosine", ("depth",), [0.1, 0.2, math.nan])
    other = stated("rank.cosine", ("depth",), [0.1, 0.4])
    found = compared(one, other)
    (curve,) = found.curves
    assert curve == ("rank.cosine", (pytest.approx(0.1), pytest.approx(0.2), None), pytest.approx((0.1, 0.4)))
    assert [change.where for change in found.changes] == ["depth 1"]


def test_layers_of_one_and_layers_with_other_heads() -> None:
    one = stated("sinks.first", ("layer", "head"), [[0.1, 0.2], [0.3, 0.4, 0.5]])
    other = stated("sinks.first", ("layer", "head"), [[0.1, 0.7], [0.3, 0.4], [0.9]])
    found = compared(one, other)
    assert [change.where for change in found.changes] == ["enc.0.1"]
    left = {match.why: [] for match in found.heads_that_are("not compared")}
    for match in found.heads_that_are("not compared"):
        left[match.why].append((match.before, match.after))
    assert left == {
        "3 heads against 2, and no receipt says which head became which":
            [("enc.1.0", None), ("enc.1.1", None), ("enc.1.2", None), (None, "enc.1.0"), (None, "enc.1.1")],
        "the first model has no such layer": [(None, "enc.2.0")],
    }  # fmt: skip
    assert len(found.heads_that_are("compared")) == 2 and not found.nothing_changed
    assert found.notes == ("not as many layers or depths in both: sinks.first",)


def test_readings_of_one_and_other_axes() -> None:
    shared = stated("rank.cosine", ("depth",), [0.1])
    odd = stated("x.y", ("layer",), [0.1]), stated("x.y", ("depth",), [0.1])
    lone = [stated("a.b", ("depth",), [0.1], kind) for kind in ("encoder", "decoder")]
    found = compare_exams(holding(shared, odd[0], lone[0]), holding(shared, odd[1], lone[1]))
    assert found.notes == (
        "only the first has a.b@encoder",
        "only the second has a.b@decoder",
        "x.y has axes layer against depth",
    )


def test_other_models_and_texts_are_named() -> None:
    exam = examined()
    other = replace(exam, model={**exam.model, "name": "big", "layers": {"encoder": 7}}, corpus={"spec": "books"})
    first, second = compare_exams(exam, other).notes
    assert first == "different models: name tiny against big, layers"
    assert (
        second.startswith("different texts: ")
        and "spec grammar against books" in second
        and second.endswith("from the text")
    )


def test_what_follows_from_others_is_left_out() -> None:
    one, other = (stated("roles.score", ("layer", "head"), [[score]]) for score in (0.1, 0.9))
    found = compared(one, other)
    assert found.compared == 0 and found.notes == ("changed, though not compared number by number: roles.score",)


OFFSETS = ("layer", "head", "offset")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (stated("paths.share", ("length",), [[0.6, 0.4]]), stated("paths.share", ("length",), [[0.5, 0.5]])),
        (stated("roles.offset", OFFSETS, [[[0.1, 0.2]]]), stated("roles.offset", OFFSETS, [[[0.1, 0.3]]])),
        (stated("paths.bias", (), [0.1]), stated("paths.bias", (), [math.nan])),
        (stated("redundancy.twin", ("layer", "head"), [["enc.0.1"]]),
         stated("redundancy.twin", ("layer", "head"), [["enc.0.2"]])),
        (stated("redundancy.nearest", ("layer", "head"), [[0.1]]),
         stated("redundancy.nearest", ("layer", "head"), [[0.2]])),
        (stated("x.y", ("layer",), [["a"]]), stated("x.y", ("layer",), [0.1])),
        (stated("roles.label", ("layer", "head"), [["a"]]), stated("roles.label", ("layer", "head"), [[0.1]])),
    ],
)  # fmt: skip
def test_what_is_not_compared_number_by_number_is_named(one: Reading, other: Reading) -> None:
    found = compared(one, other)
    assert not found.changes and not found.nothing_changed
    assert found.notes == (f"changed, though not compared number by number: {one.name}",)
    assert compared(one, one).nothing_changed and compared(other, other).nothing_changed


def test_all_that_changed_is_named() -> None:
    names = [f"x.{number}" for number in range(11)]
    one, other = (holding(*(stated(name, (), [value]) for name in names)) for value in (1.0, 2.0))
    assert compare_exams(one, other).notes == (f"changed, though not compared number by number: {', '.join(names)}",)


def test_other_ticks_are_a_change() -> None:
    one = stated("roles.offset", OFFSETS, [[[0.1, 0.2]]])
    other = replace(one, ticks={"offset": (-1.0, 0.0)})
    assert not compared(one, other).nothing_changed and compared(other, other).nothing_changed


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_number_that_became_no_number(odd: float) -> None:
    one = stated("sinks.first", ("layer", "head"), [[0.1, 0.2, odd]])
    other = stated("sinks.first", ("layer", "head"), [[0.1, odd, odd]])
    for found in (compared(one, other), compared(other, one)):
        assert found.compared == 1 and not found.changes and not found.nothing_changed
        assert found.notes == ("a number is missing, or infinite, on one side: sinks.first at enc.0.1",)
    assert compared(other, other).nothing_changed
    gone = stated("sinks.first", ("layer", "head"), [[odd, odd, odd]])
    assert compared(one, gone).notes[0].endswith("sinks.first at enc.0.0 and 1 more")


def test_rounding_and_certainty_are_no_change_but_not_nothing() -> None:
    one, other = (stated("weights.norm", ("layer",), [value]) for value in (5.0, 5.0 + 1e-9))
    found = compared(one, other)
    note = "changed only by rounding, or in spread, interval, count or ticks: weights.norm"
    assert not found.changes and found.notes == (note,)
    values = torch.rand(13, 2, 3, dtype=torch.float64)
    reading = folded(values)
    assert reading.count is not None
    fewer = replace(reading, count=tuple(count - 1 for count in reading.count))
    assert compared(reading, replace(reading)).nothing_changed
    assert compared(reading, fewer).notes == (note.replace("weights.norm", "sinks.first"),)


def test_layers_with_other_heads_are_no_rounding() -> None:
    def exam(heads: int, twin: str) -> Examination:
        twins = stated("redundancy.twin", ("layer", "head"), [[twin], ["enc.1.0"] * heads])
        numbers = [stated(name, ("layer", "head"), [[0.1], [0.1] * heads]) for name in ("sinks.first", "roles.self")]
        return holding(*numbers, twins)

    found = compare_exams(exam(2, "enc.0.1"), exam(3, "enc.0.2"))
    assert found.notes == ("changed, though not compared number by number: redundancy.twin",)
    assert len(found.heads_that_are("not compared")) == 5


def test_more_depths_are_a_change() -> None:
    one, other = stated("rank.cosine", ("depth",), [0.1, 0.2]), stated("rank.cosine", ("depth",), [0.1, 0.2, 0.3])
    assert compared(one, other).notes == ("not as many layers or depths in both: rank.cosine",)


def test_other_notes_are_named() -> None:
    exam = examined()
    other = replace(exam, notes=("run without mask",))
    assert compare_exams(exam, other).notes == (
        "only the first notes: no gradient: the model has no loss",
        "only the second notes: run without mask",
    )
    one, other = replace(exam, notes=("a", "b")), replace(exam, notes=("b", "a"))
    assert compare_exams(one, other).notes == ("the same notes, in another order or number",)


def test_names_are_gathered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    of = Readings.of
    monkeypatch.setattr(Readings, "of", lambda self, name: asked.append(name) or of(self, name))
    before, after = (holding(*(stated(f"x.{number}", ("depth",), [0.1]) for number in range(41))) for _ in range(2))
    assert compare_exams(before, after).compared == 41
    assert len(asked) < 3 * 41


def test_enormous_spreads_say_nothing_of_certainty() -> None:
    parts: dict[str, Any] = {"spread": (torch.tensor(1e300, dtype=torch.float64),), "count": (torch.tensor(5),)}
    one, other = (replace(stated("x.y", ("layer",), [value]), **parts) for value in (1.0, 2.0))
    (change,) = compared(one, other).changes
    assert change.margin is change.chance is change.certain is None


def test_json_is_plain() -> None:
    found = compare_exams(examined(), examined(seed=5))
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["format"] == 2 and data["compared"] == found.compared == 3 * LAYERS * HEADS + 3 * (LAYERS + 1)
    assert len(data["changes"]) == len(found.changes) and data["changes"][0].keys() == {
        "reading", "where", "where_after", "before", "after", "difference", "margin", "chance", "certain",
    }  # fmt: skip
