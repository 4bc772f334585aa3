"""Two examinations side by side."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import ttest_ind
from tests.exam.test_examination import HEADS, LAYERS, examined, stated

from attnworks.exam.comparing import Comparison, compare
from attnworks.exam.examination import Examination
from attnworks.measures.folding import Moments
from attnworks.measures.reading import Reading, Readings
from attnworks.traces.layer import Kind


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
    return compare(holding(one), holding(other))


def test_the_same_twice() -> None:
    found = compare(examined("encoder", "cross"), examined("encoder", "cross"))
    assert found.nothing_changed and found.compared > 100 and not found.changes and not found.roles
    assert found.only == ((), ()) and not found.notes


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
    assert [tuple(role) for role in compared(one, other).roles] == [
        ("enc.0.1", "none", "self"),
        ("enc.1.0", "rare", "none"),
    ]


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
    assert found.only == ((), ("enc.2.0",))
    assert found.notes == ("enc.1: 3 heads against 2, not compared",)


def test_readings_of_one_and_other_axes() -> None:
    shared = stated("rank.cosine", ("depth",), [0.1])
    odd = stated("x.y", ("layer",), [0.1]), stated("x.y", ("depth",), [0.1])
    lone = [stated("a.b", ("depth",), [0.1], kind) for kind in ("encoder", "decoder")]
    found = compare(holding(shared, odd[0], lone[0]), holding(shared, odd[1], lone[1]))
    assert found.notes == (
        "only the first has a.b@encoder",
        "only the second has a.b@decoder",
        "x.y has axes layer against depth",
    )


def test_other_models_and_texts_are_named() -> None:
    exam = examined()
    other = replace(exam, model={**exam.model, "name": "big", "layers": {"encoder": 7}}, corpus={"spec": "books"})
    first, second = compare(exam, other).notes
    assert first == "different models: name tiny against big, layers"
    assert (
        second.startswith("different texts: ")
        and "spec grammar against books" in second
        and second.endswith("from the text")
    )


def test_what_follows_from_others_is_left_out() -> None:
    one, other = (stated("roles.score", ("layer", "head"), [[score]]) for score in (0.1, 0.9))
    assert compared(one, other).compared == 0


def test_json_is_plain() -> None:
    found = compare(examined(), examined(seed=5))
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["format"] == 1 and data["compared"] == found.compared == 3 * LAYERS * HEADS + 3 * (LAYERS + 1)
    assert len(data["changes"]) == len(found.changes) and data["changes"][0].keys() == {
        "reading", "where", "before", "after", "difference", "margin", "chance", "certain",
    }  # fmt: skip
