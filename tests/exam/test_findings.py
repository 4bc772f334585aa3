"""What is said of readings that were made up to say it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.exam.test_examination import examined, stated

from attnworks.exam.examination import Finding
from attnworks.exam.findings import FINDERS, FORMS, find
from attnworks.measures.reading import Reading, Readings
from attnworks.measures.structure_fit import BASELINES, FAMILIES
from attnworks.measures.table import number
from attnworks.traces.layer import Kind

NAN = math.nan


def said(*readings: Reading) -> list[str]:
    return [finding.text for finding in find(Readings(list(readings)))]


def by_head(name: str, rows: list[Any], kind: Kind = "encoder") -> Reading:
    return stated(name, ("layer", "head"), rows, kind)


def by_depth(name: str, rows: list[Any], kind: Kind = "encoder") -> Reading:
    return stated(name, ("depth",), rows, kind)


def ablated(rows: list[list[float]], margins: list[list[float]] | None = None) -> Reading:
    """Changes of the objective without each head, with the interval value -+ margin."""
    values = [torch.tensor(row, dtype=torch.float64) for row in rows]
    halves = [torch.full_like(row, 1e-5) for row in values] if margins is None else [torch.tensor(m) for m in margins]
    low, high = (tuple(row + sign * half for row, half in zip(values, halves, strict=True)) for sign in (-1, 1))
    return replace(by_head("ablation.change", rows), interval=(low, high))


def test_nothing_is_said_of_nothing() -> None:
    assert find(Readings([])) == ()


# --- depth ------------------------------------------------------------------------------------------------------------


def test_tokens_that_became_alike() -> None:
    assert said(by_depth("rank.cosine", [0.1, 0.5, 0.95, 0.97])) == ["layers 1-2: tokens are 0.970 alike (mean cosine)"]
    assert said(by_depth("rank.cosine", [0.1, 0.5, 0.95])) == ["layer 1: tokens are 0.950 alike (mean cosine)"]
    assert said(by_depth("rank.cosine", [0.95, 0.5])) == ["at the embeddings tokens are 0.950 alike (mean cosine)"]
    assert said(by_depth("rank.cosine", [0.95, 0.99])) == [
        "from the embeddings to layer 0 tokens are 0.990 alike (mean cosine)"
    ]
    assert said(by_depth("rank.cosine", [0.1, 0.8])) == []
    apart = said(by_depth("rank.cosine", [0.1, 0.95, 0.2, 0.99, NAN]))
    assert [text.partition(":")[0] for text in apart] == ["layer 2", "layer 0"]


def test_a_falling_residual() -> None:
    (text,) = said(by_depth("rank.residual", [0.8, 0.5, 0.2]))
    assert text == "what tells tokens apart falls from 0.800 to 0.200 of the stream between depth 0 and 2"
    (text,) = said(by_depth("rank.residual", [0.8, 0.5, 0.7]))
    assert text.startswith("no rank collapse") and "0.500" in text and "depth 1" in text
    (text,) = said(by_depth("rank.residual", [0.8, 0.1, 0.2]))
    assert text.endswith(
        "falls from 0.800 to 0.100 of the stream between depth 0 and 1, then grows to 0.200 at depth 2"
    )
    assert said(by_depth("rank.residual", [0.8])) == said(by_depth("rank.residual", [NAN, NAN, 0.3])) == []


def test_a_collapse_on_the_way_is_told_though_the_end_is_better() -> None:
    (text,) = said(by_depth("rank.residual", [0.02, 0.001, 0.011]))
    assert text == (
        "what tells tokens apart falls from 0.020 to 0.001 of the stream between depth 0 and 1, "
        "then grows to 0.011 at depth 2"
    )
    assert said(by_depth("rank.residual", [0.002, 0.0018, 0.0019])) == []
    assert "no rank collapse" in said(by_depth("rank.residual", [0.2, 0.11, 0.15]))[0]


def test_short_paths_that_carry_most() -> None:
    def path(*share: float) -> list[str]:
        return said(stated("paths.share", ("length",), [list(share)]))

    assert path(0.5, 0.3, 0.2) == ["paths of length 0-1 carry 80 % of the output"]
    assert path(0.9, 0.1) == ["paths of length 0 (no attention at all) carry 90 % of the output"]
    assert path(1.5, -0.7, 0.2) == ["paths of length 1 work against the others (-70 % of the output)"]
    assert path(0.6, 0.4, -1e-8) == path(0.6, 0.4, -0.009) == ["paths of length 0-1 carry 100 % of the output"]
    assert path(0.6, 0.42, -0.02) == ["paths of length 2 work against the others (-2 % of the output)"]
    assert path(1.0) == path(NAN, NAN) == []


def test_bounds() -> None:
    assert said(stated("bounds.ratio", ("layer",), [30.0, 3.0, NAN])) == [
        "layer 1 comes within a factor 3.00 of the diameter bound"
    ]
    assert "says little: 30.0 times what layer 0 does" in said(stated("bounds.ratio", ("layer",), [30.0, 300.0]))[0]


# --- heads ------------------------------------------------------------------------------------------------------------


def test_roles_are_grouped_and_the_best_is_named() -> None:
    labels = [["previous", "none", "previous"], ["induction", "previous", "offset -2"]]
    scores = [[0.3, NAN, 0.94], [0.7, 0.5, 0.6]]
    texts = said(by_head("roles.label", labels), by_head("roles.score", scores))
    assert set(texts) == {
        "3 heads look at the previous token, 0.2 most (0.940)",
        "head 1.0 continues patterns seen before (induction) (0.700)",
        "head 1.2 looks 2 tokens back (0.600)",
    }


@pytest.mark.parametrize(
    ("label", "words"),
    [("offset 1", "looks 1 token ahead"), ("offset 0", "looks at the same position"), ("odd", "is labelled 'odd'")],
)
def test_labels_that_are_not_in_the_list(label: str, words: str) -> None:
    assert said(by_head("roles.label", [[label]])) == [f"head 0.0 {words}"]


def test_sinks() -> None:
    few = said(by_head("sinks.first", [[0.6, 0.1], [0.7, NAN]]))
    assert few == ["2 of 3 heads give more than half of their attention to the first token"]
    assert said(by_head("sinks.first", [[0.6, 0.1]])) == [
        "head 0.0 gives more than half of its attention to the first token"
    ]
    assert said(by_head("sinks.first", [[0.5]])) == []


def test_sinks_are_told_once() -> None:
    first = by_head("roles.label", [["first", "first"]])
    assert said(first) == ["2 heads look at the first token, 0.0 most"]
    assert len(said(first, by_head("sinks.first", [[0.6, 0.7]]))) == 1


def test_saturation_is_no_spreading() -> None:
    jacobian = by_head("saturation.jacobian", [[0.003, 0.02, 0.01]])
    assert said(jacobian, by_head("saturation.max_weight", [[0.99, 0.95, 0.02]])) == [
        "2 heads saturate, 0.0 most: mean Jacobian norm 0.003"
    ]
    assert said(jacobian, by_head("saturation.max_weight", [[0.99, 0.5, 0.02]])) == [
        "head 0.0 saturates: mean Jacobian norm 0.003"
    ]
    assert said(jacobian) == []


def test_heads_that_see_the_same() -> None:
    def distances(*pairs: tuple[int, int]) -> Reading:
        D = torch.full((2, 3, 3), 0.7)
        D.diagonal(dim1=1, dim2=2).zero_()
        for number_of_pairs, (one, other) in enumerate(pairs):
            D[1, one, other] = D[1, other, one] = 0.02 + 0.01 * number_of_pairs
        return Reading("redundancy.distance", "encoder", ("layer", "head", "other"), tuple(D), "", "")

    assert said(distances()) == []
    assert said(distances((0, 2))) == ["heads 1.0 and 1.2 see the same (distance 0.020)"]
    assert said(distances((0, 2), (0, 1)))[0].endswith(", and so does one more pair")
    assert said(distances((1, 2), (0, 1), (0, 2)))[0].endswith(", and so do 2 more pairs")
    (finding,) = find(Readings([distances((0, 2), (0, 1))]))
    assert finding.heads == ("enc.1.0", "enc.1.2", "enc.1.1")


def test_structured_forms() -> None:
    forms = by_head("structure.form", [["column", "none"], ["columns", "column"]])
    explained = by_head("structure.explained", [[0.625, 0.9], [0.75, 0.5]])
    assert said(forms, explained) == [
        "3 of 4 heads have a structured form that explains at least half of the attention "
        "(2 one column, 1 blocks of columns): blocks of columns explains 75 % of 1.0; "
        "attnworks reshape project can put fixed forms in their place"
    ]
    (finding,) = find(Readings([forms, explained]))
    assert finding.heads == ("enc.1.0", "enc.0.0", "enc.1.1")
    one = said(by_head("structure.form", [["band", "none"]]), by_head("structure.explained", [[0.7, 0.9]]))[0]
    assert one.startswith("1 of 2 heads has a structured form")
    assert said(by_head("structure.form", [["none", "none"]]), by_head("structure.explained", [[0.1, 0.9]])) == []


def test_cross_attention_cannot_be_projected() -> None:
    readings = by_head("structure.form", [["column"]], "cross"), by_head("structure.explained", [[0.7]], "cross")
    assert "project" not in said(*readings)[0]


def test_forms_are_called_as_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "web/src/views/roles.ts").read_text()
    for form, name in FORMS.items():
        assert f'  {form}: "{name}",' in page, form
    assert {*FORMS} == {*FAMILIES} - {*BASELINES}


def test_heads_that_can_go_do_harm_or_matter() -> None:
    assert said(ablated([[0.0001, -0.0004, 0.5], [-0.03, NAN, 0.2]])) == [
        "head 1.0 does harm: the objective is 0.030 better without it",
        "2 of 5 heads (0.0, 0.1) can probably go, one at a time: "
        "removing any of them changes the objective by less than 0.001",
        "head 0.2 matters most: the objective is 0.500 worse without it",
    ]
    assert said(ablated([[-0.03, -0.02]])) == [
        "2 heads do harm, most of all 0.0: the objective is 0.030 better without it"
    ]


def test_what_is_uncertain_is_not_called_dispensable() -> None:
    ends = ((torch.tensor([-0.5, -1e-4, -1e-4]),), (torch.tensor([1e-4, 0.5, 1e-4]),))
    change = Reading("ablation.change", "encoder", ("layer", "head"), (torch.zeros(3),), "", "", interval=ends)
    assert said(change) == ["head 0.2 can probably go: removing it changes the objective by less than 0.001"]


def test_without_an_interval_no_head_is_judged() -> None:
    """One sentence has a change, but no interval."""
    rows = [[0.0001, -0.03, 0.5]]
    assert said(by_head("ablation.change", rows)) == said(ablated(rows, [[NAN] * 3])) == []
    assert said(ablated(rows, [[1e-5, NAN, NAN]])) == [
        "head 0.0 can probably go: removing it changes the objective by less than 0.001"
    ]
    change = ablated(rows)
    assert change.interval is not None
    half = replace(change, interval=(change.interval[0], (torch.full((3,), NAN),)))
    assert said(half) == []


def test_gradients_speak_where_nothing_was_ablated() -> None:
    gradient = by_head("importance.gradient", [[1.0, 0.001, 0.5], [0.002, 0.3, NAN]])
    assert said(gradient) == ["the loss hardly feels 2 of 5 heads (0.1, 1.0): gradient below 1 % of that of 0.0"]
    assert said(by_head("importance.gradient", [[0.4, 0.7]])) == ["the loss depends most on head 0.1 (gradient 0.700)"]
    assert not any("gradient" in text for text in said(gradient, by_head("ablation.change", [[0.0, 0.0]])))


# --- all together -----------------------------------------------------------------------------------------------------


def test_several_kinds_are_told_apart() -> None:
    readings = [
        by_head("roles.label", [["previous"]], "decoder"),
        by_head("roles.label", [["rare"]], "cross"),
        by_depth("rank.cosine", [0.1, 0.95], "encoder"),
    ]
    assert set(said(*readings)) == {
        "head dec.0.0 looks at the previous token",
        "head cross.0.0 looks at the rarest token",
        "encoder: layer 0: tokens are 0.950 alike (mean cosine)",
    }


def test_the_weightiest_comes_first_and_nothing_crowds_out_the_rest() -> None:
    found = find(examined("encoder", "decoder", "cross").readings)
    weights = [finding.weight for finding in found]
    assert weights == sorted(weights, reverse=True) and all(0 < weight <= 1 for weight in weights)
    labels = [["previous", "induction", "syntactic", "next", "duplicate", "rare"]]
    crowd = (by_head("roles.label", labels), by_head("roles.score", [[0.9] * 6]))
    assert any("residual" in " ".join(finding.readings) for finding in find(
        Readings([*crowd, by_depth("rank.residual", [0.9, 0.8])])
    )[:4])  # fmt: skip


KINDS = st.sampled_from(["encoder", "decoder", "cross"])
NUMBERS = st.floats(-2, 2) | st.sampled_from([NAN, math.inf, 0.0])
HEADS = st.lists(st.lists(NUMBERS, min_size=1, max_size=3), min_size=1, max_size=3)


@given(st.dictionaries(st.tuples(st.sampled_from(
    ["sinks.first", "saturation.jacobian", "saturation.max_weight", "ablation.change", "importance.gradient"]
), KINDS), HEADS, max_size=6), st.dictionaries(st.tuples(st.sampled_from(
    ["rank.cosine", "rank.residual", "bounds.ratio"]
), KINDS), st.lists(NUMBERS, min_size=1, max_size=4), max_size=3))  # fmt: skip
def test_odd_numbers_never_break_it(heads: dict[Any, Any], depths: dict[Any, Any]) -> None:
    readings = [by_head(name, rows, kind) for (name, kind), rows in heads.items()]
    readings += [by_depth(name, rows, kind) for (name, kind), rows in depths.items()]
    for finding in find(Readings(readings)):
        assert isinstance(finding, Finding) and "nan" not in finding.text and "inf" not in finding.text
        assert finding.text and "\n" not in finding.text and set(finding.readings)


def test_every_finder_has_a_say() -> None:
    assert len(FINDERS) == len(set(FINDERS)) == 12


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.12345, "0.123"), (-1.5, "-1.50"), (12.34, "12.3"), (1234.5, "1,234"), (1e-5, "1.0e-05"),
     (3e7, "3.0e+07"), (NAN, "-"), (math.inf, "inf")],
)  # fmt: skip
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value) == text
