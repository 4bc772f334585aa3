"""What is said of readings that were made up to say it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.display import format_number
from attnworks.core.places import Kind
from attnworks.exam.examination import ExamFinding, Examination
from attnworks.exam.findings import FINDERS, find
from attnworks.exam.findings.forms import FORM_NAMES
from attnworks.exam.measures.structure import BASELINE_FAMILIES, FAMILY_DESCRIPTIONS
from attnworks.exam.reading import Reading, Readings
from tests.exam.test_examination import examined, screen, stated

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
    def places(*curve: float) -> str:
        (text,) = said(by_depth("rank.cosine", list(curve)))
        return text.partition(":")[0].removeprefix("tokens are nearly the same ")

    assert said(by_depth("rank.cosine", [0.1, 0.5, 0.95, 0.97])) == [
        "tokens are nearly the same after layers 1-2: attention can hardly distinguish them there, "
        "check skip connections and norms (mean cosine 0.970)"
    ]
    assert places(0.1, 0.5, 0.95) == "after layer 1"
    assert places(0.95, 0.5) == "at the embeddings"
    assert places(0.95, 0.99) == "from the embeddings to layer 0"
    assert places(0.1, 0.95, 0.2, 0.99, NAN) == "after layer 0 and after layer 2"
    assert said(by_depth("rank.cosine", [0.1, 0.8])) == []


def test_a_falling_residual() -> None:
    (text,) = said(by_depth("rank.residual", [0.8, 0.5, 0.2]))
    assert text == (
        "tokens become alike with depth: later layers can hardly distinguish them, check skip connections and norms "
        "(0.800 of the stream differs at depth 0, 0.200 at depth 2)"
    )
    (text,) = said(by_depth("rank.residual", [0.8, 0.5, 0.7]))
    assert text.startswith("no rank collapse") and "0.500" in text and "depth 1" in text
    assert said(by_depth("rank.residual", [0.9, 0.36]))[0].startswith("no rank collapse")
    assert said(by_depth("rank.residual", [0.8])) == said(by_depth("rank.residual", [NAN, NAN, 0.3])) == []


def test_a_collapse_on_the_way_is_told_though_the_end_is_better() -> None:
    (text,) = said(by_depth("rank.residual", [0.02, 0.001, 0.011]))
    assert text.endswith("(0.020 of the stream differs at depth 0, 0.001 at depth 1, 0.011 at depth 2)")
    assert said(by_depth("rank.residual", [0.002, 0.0018, 0.0019])) == []
    assert "no rank collapse" in said(by_depth("rank.residual", [0.2, 0.11, 0.15]))[0]


def test_no_collapse_is_not_told_beside_tokens_that_are_alike() -> None:
    kept = by_depth("rank.residual", [0.3, 0.25])
    assert len(said(kept, by_depth("rank.cosine", [0.9, 0.95]))) == 1
    assert len(said(kept, by_depth("rank.cosine", [0.1, 0.95], "decoder"))) == 1


def test_short_paths_that_carry_most() -> None:
    def path(*share: float) -> list[str]:
        return said(stated("paths.share", ("length",), [list(share)]))

    few = "most of the output passes few attention layers: they hardly build on one another, so fewer may be enough"
    assert path(0.5, 0.3, 0.2) == [f"{few} (80 % through at most 1 of 2)"]
    assert path(0.9, 0.1) == [f"{few} (90 % through at most 0 of 1)"]
    assert path(0.1, 0.2, 0.7) == [
        "much of the output passes many attention layers: they build on one another, so keep all of them "
        "(100 % through at most 2 of 2)"
    ]
    assert path(1.5, -0.7, 0.2) == [
        "some paths work against the others: measure ablation to see which heads can be removed "
        "(those through 1 attention layer subtract 70 % of the output)"
    ]
    assert path(0.6, 0.4, -1e-8) == path(0.6, 0.4, -0.009) == [f"{few} (100 % through at most 1 of 2)"]
    assert "2 attention layers subtract 2 % of the output" in path(0.6, 0.42, -0.02)[0]
    assert path(1.0) == path(NAN, NAN) == []


def test_bounds() -> None:
    assert said(stated("bounds.ratio", ("layer",), [30.0, 3.0, NAN])) == [
        "the weights of layer 1 limit how far apart tokens stay: only larger ones would allow more "
        "(the diameter bound is 3.00 times the measured diameter)"
    ]
    assert "too loose" in said(stated("bounds.ratio", ("layer",), [30.0, 300.0]))[0]


# --- heads ------------------------------------------------------------------------------------------------------------


def test_roles_are_grouped_and_the_best_is_named() -> None:
    labels = [["previous", "none", "previous"], ["induction", "previous", "offset -2"]]
    scores = [[0.3, NAN, 0.94], [0.7, 0.5, 0.6]]
    texts = said(by_head("roles.label", labels), by_head("roles.score", scores))
    assert set(texts) == {
        "3 heads attend to the previous token: content matters little, so a fixed form may replace them; "
        "try attnworks project (most in head 0.2: 0.940 of the attention outside the sinks)",
        "head 1.0 continues what was repeated (induction): without it the model may not copy from its context, "
        "so keep it (0.700 of the attention outside the sinks)",
        "head 1.2 attends 2 tokens back: content matters little, so a fixed form may replace it; "
        "try attnworks project (0.600 of the attention outside the sinks)",
    }


@pytest.mark.parametrize(
    ("label", "words"),
    [("offset 1", "attends 1 token ahead"), ("offset 0", "attends to the same position"),
     ("odd", "has the label 'odd'"), ("{odd}", "has the label '{odd}'"), ("offset {}", "attends at offset {}")],
)  # fmt: skip
def test_labels_that_are_not_in_the_list(label: str, words: str) -> None:
    (text,) = said(by_head("roles.label", [[label]]))
    assert text.partition(":")[0] == f"head 0.0 {words}"


def test_offsets_are_counted_together_as_in_the_legend() -> None:
    (text,) = said(by_head("roles.label", [["offset -2", "offset 3", "offset -2"]]))
    assert text.startswith("3 heads attend at a fixed offset (2 tokens back: 2, 3 tokens ahead: 1)")


def test_fixed_forms_are_not_offered_for_cross_attention() -> None:
    (text,) = said(by_head("roles.label", [["offset 0"]], "cross"))
    assert "reshape" not in text


def test_heads_that_rest_without_labels() -> None:
    few = said(by_head("sinks.first", [[0.6, 0.1], [0.7, NAN]]))
    assert few == [
        "2 of 3 heads rest on the first token: a place for attention that is not needed elsewhere, "
        "so look at where the rest of their attention goes (65 % of their attention there)"
    ]
    (one,) = said(by_head("sinks.first", [[0.6, 0.1]]))
    assert one.startswith("head 0.0 rests on the first token: ")
    assert one.endswith("so look at where the rest of its attention goes (60 % of its attention there)")
    assert said(by_head("sinks.first", [[0.5]])) == []


def test_heads_that_rest_and_what_they_add() -> None:
    rests = by_head("roles.sink", [["first", "none", "first"], ["delimiter", "first", "none"]])
    shares = by_head("sinks.first", [[0.6, 0.8, 0.9], [0.1, 0.3, 0.2]])
    effects = by_head("sinks.first_effect", [[0.2, 0.1, 0.4], [0.3, 0.3, 0.3]])
    elsewhere = by_head("sinks.rest_effect", [[0.7, 0.9, 0.05], [0.5, 0.09, 0.4]])
    delimiters = by_head("sinks.delimiter", [[0.1, 0.1, 0.1], [0.7, 0.1, 0.1]])
    assert said(rests, shares, effects, elsewhere, delimiters) == [
        "3 of 6 heads rest on the first token: 2 of them (0.2, 1.1) do little else, so try attnworks prune "
        "(60 % of their attention, 30 % of their effect there)",
        "head 1.0 rests on delimiters: a place for attention that is not needed elsewhere, so look at where the "
        "rest of its attention goes (70 % of its attention there)",
    ]


def test_heads_with_a_role_are_not_called_idle() -> None:
    rests, labels = by_head("roles.sink", [["first", "first"]]), by_head("roles.label", [["induction", "none"]])
    (text,) = (
        text
        for text in said(rests, labels, by_head("sinks.rest_effect", [[0.01, 0.02]]))
        if "rest on the first token" in text
    )
    assert "1 of them (0.1) do" in text


def test_heads_that_average() -> None:
    assert said(by_head("roles.evenness", [[0.95, 0.4, 0.91]])) == [
        "2 of 3 heads attend to all tokens nearly evenly, as untrained heads do: they may not have learned yet, or a "
        "mean of all tokens may replace them (most in head 0.0: evenness 0.950)"
    ]
    assert said(by_head("roles.evenness", [[0.89]])) == []


def test_second_roles_are_counted_after_the_first() -> None:
    texts = said(
        by_head("roles.label", [["previous", "rare"]]), by_head("roles.second", [["rare", "none"]]),
        by_head("roles.score", [[0.5, 0.3]]),
    )  # fmt: skip
    (rare,) = (text for text in texts if text.startswith("2 heads attend to the rarest token"))
    assert "(most in head 0.1: 0.300 of" in rare
    assert any(text.startswith("head 0.0 attends to the previous token") for text in texts)


@pytest.mark.parametrize(
    ("first", "copied", "after", "words"),
    [
        (14.0, 2.0, 12.0, "without it the model cannot copy from its context, so keep it; "),
        (11.0, 6.0, 11.0, "without it the model cannot copy from its context, so keep it; "),
        (14.0, 2.0, 5.0, "without it the model copies less well from its context; "),
        (14.0, 2.0, 2.1, "without it the model still copies from its context; "),
        (12.0, 0.01, 0.03, "without it the model still copies from its context; "),
        (12.0, 11.9, 11.95, "but the model does not copy random tokens; "),
    ],
)
def test_what_is_copied_without_induction_heads(first: float, copied: float, after: float, words: str) -> None:
    """By the share of what copying saves that is left, not by a ratio of losses."""
    names = {"first_loss": first, "copy_loss": copied, "copy_loss_without": after}
    losses = [stated(f"probes.{name}", (), [value]) for name, value in names.items()]
    (text,) = said(by_head("roles.label", [["induction", "none"]]), *losses)
    numbers = f"loss on repeated random tokens {format_number(copied)}, without it {format_number(after)}"
    assert text == f"head 0.0 continues what was repeated (induction): {words}{numbers}"


def test_heads_with_a_second_role_by_content_are_not_offered_for_projection() -> None:
    labels = by_head("roles.label", [["previous", "previous"]]), by_head("roles.second", [["syntactic", "none"]])
    (found,) = (one for one in find(Readings([*labels])) if "to the previous token" in one.text)
    assert "a fixed form may replace 1 of them" in found.text and "--heads enc.0.1 " in found.command


def test_heads_whose_content_decides_are_not_offered_for_projection() -> None:
    forms = by_head("structure.form", [["column", "offset"]]), by_head("structure.explained", [[0.99, 0.8]])
    both = said(*forms)
    assert "try attnworks project (1 one column, 1 shifted diagonal; one column explains 99 % of head 0.0)" in both[0]
    (_, text) = sorted(said(*forms, by_head("roles.label", [["induction", "none"]])), key=len)
    assert ": try attnworks project, but keep 0.0, where content decides" in text and "80 % of head 0.1" in text


ROLE = st.sampled_from(["none", "previous", "offset -2", "offset 3", "rare"])
LABELS = st.lists(st.lists(ROLE, min_size=4, max_size=4), min_size=1, max_size=3)
SAID = {
    "to the previous token": "previous", "to the rarest token": "rare",
    "at a fixed offset": "offset", "tokens back": "offset", "tokens ahead": "offset",
}  # fmt: skip


@given(LABELS, LABELS, LABELS)
def test_counts_are_those_of_the_legend(encoder: list[Any], decoder: list[Any], cross: list[Any]) -> None:
    stacks: dict[Kind, list[Any]] = {"encoder": encoder, "decoder": decoder, "cross": cross}
    readings = [by_head("roles.label", rows, kind) for kind, rows in stacks.items()]
    readings += [by_head("roles.sink", [["first"] * 4 for _ in rows], kind) for kind, rows in stacks.items()]
    exam = Examination({}, {}, Readings(readings), find(Readings(readings)))
    text = screen(exam, 200)
    legend = dict(re.findall(r" (previous|offset|rare) (\d+)", text))
    labelled = [finding for finding in exam.findings if "roles.label" in finding.readings]
    told = {words: finding for finding in labelled for words in SAID if words in finding.text}
    assert {SAID[words]: str(len(finding.heads)) for words, finding in told.items()} == legend
    assert all(finding.text.startswith((f"{len(finding.heads)} heads", "head ")) for finding in told.values())
    heads = sum(len(row) for rows in stacks.values() for row in rows)
    (resting,) = (finding for finding in exam.findings if "roles.sink" in finding.readings)
    assert len(resting.heads) == heads
    with_role = sum(map(int, legend.values()))
    only, both = (re.search(rf"{words} (\d+)", text) for words in ("only rests on the first token", "role and rests"))
    assert (int(only[1]) if only else 0, int(both[1]) if both else 0) == (heads - with_role, with_role)


def test_saturation_is_no_spreading() -> None:
    jacobian = by_head("saturation.jacobian", [[0.003, 0.02, 0.01]])
    assert said(jacobian, by_head("saturation.max_weight", [[0.99, 0.95, 0.02]])) == [
        "2 heads attend to almost one key per query, and their queries and keys hardly learn any more: little gradient "
        "reaches the scores, so to train further, scale the queries down (most in head 0.0: mean Jacobian norm 0.003)"
    ]
    alone = by_head("saturation.max_weight", [[0.99, 0.5, 0.02]])
    (text,) = said(jacobian, alone)
    assert text.startswith("head 0.0 attends to almost one key per query, and its queries and keys hardly learn")
    texts = said(jacobian, alone, by_head("roles.label", [["previous", "none", "none"]]))
    assert any(text.startswith("head 0.0 always attends to the previous token, and its queries") for text in texts)
    assert said(jacobian) == []


def test_heads_that_see_the_same() -> None:
    def distances(*pairs: tuple[int, int]) -> Reading:
        D = torch.full((2, 3, 3), 0.7)
        D.diagonal(dim1=1, dim2=2).zero_()
        for number_of_pairs, (one, other) in enumerate(pairs):
            D[1, one, other] = D[1, other, one] = 0.02 + 0.01 * number_of_pairs
        return Reading("redundancy.distance", "encoder", ("layer", "head", "other"), tuple(D), "", "")

    assert said(distances()) == []
    assert said(distances((0, 2))) == [
        "heads 1.0 and 1.2 attend to the same keys: one of them may be enough; try attnworks prune (distance 0.020)"
    ]
    assert said(distances((0, 2), (0, 1)))[0].endswith("(distance 0.020; 1 more pair)")
    assert said(distances((1, 2), (0, 1), (0, 2)))[0].endswith("(distance 0.020; 2 more pairs)")
    (finding,) = find(Readings([distances((0, 2), (0, 1))]))
    assert finding.heads == ("enc.1.0", "enc.1.2", "enc.1.1")


def test_structured_forms() -> None:
    forms = by_head("structure.form", [["column", "none"], ["columns", "column"]])
    explained = by_head("structure.explained", [[0.625, 0.9], [0.75, 0.5]])
    assert said(forms, explained) == [
        "3 of 4 heads have a structured form, which explains at least half of their attention: try attnworks project "
        "(2 one column, 1 blocks of columns; blocks of columns explains 75 % of head 1.0)"
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
    for form, name in FORM_NAMES.items():
        assert f'  {form}: "{name}",' in page, form
    assert {*FORM_NAMES} == {*FAMILY_DESCRIPTIONS} - {*BASELINE_FAMILIES}


def test_heads_that_can_go_do_harm_or_matter() -> None:
    assert said(ablated([[0.0001, -0.0004, 0.5], [-0.03, NAN, 0.2]])) == [
        "head 1.0 does harm on this text: try attnworks prune; the loss is 0.030 lower without it",
        "2 of 5 heads (0.0, 0.1) can probably be removed, one at a time: try attnworks prune; "
        "the loss changes by less than 0.001 without any of them",
        "head 0.2 matters most: keep it; the loss is 0.500 higher without it",
    ]
    assert said(ablated([[-0.03, -0.02]])) == [
        "2 heads do harm on this text: try attnworks prune; the loss is 0.030 lower without 0.0, the worst"
    ]


IDLE = "can probably be removed: try attnworks prune; the loss changes by less than 0.001 without it"


def test_what_is_uncertain_is_not_called_dispensable() -> None:
    ends = ((torch.tensor([-0.5, -1e-4, -1e-4]),), (torch.tensor([1e-4, 0.5, 1e-4]),))
    change = Reading("ablation.change", "encoder", ("layer", "head"), (torch.zeros(3),), "", "", interval=ends)
    assert said(change) == [f"head 0.2 {IDLE}"]


def test_without_an_interval_no_head_is_judged() -> None:
    """One sentence has a change, but no interval."""
    rows = [[0.0001, -0.03, 0.5]]
    assert said(by_head("ablation.change", rows)) == said(ablated(rows, [[NAN] * 3])) == []
    assert said(ablated(rows, [[1e-5, NAN, NAN]])) == [f"head 0.0 {IDLE}"]
    change = ablated(rows)
    assert change.interval is not None
    half = replace(change, interval=(change.interval[0], (torch.full((3,), NAN),)))
    assert said(half) == []


def test_gradients_speak_where_nothing_was_ablated() -> None:
    gradient = by_head("importance.gradient", [[1.0, 0.001, 0.5], [0.002, 0.3, NAN]])
    assert said(gradient) == [
        "2 of 5 heads (0.1, 1.0) hardly affect the loss: measure ablation to see what can be removed "
        "(gradient below 1 % of that of 0.0)"
    ]
    assert said(by_head("importance.gradient", [[0.4, 0.7]])) == [
        "the loss depends most on head 0.1: keep it (gradient 0.700)"
    ]
    assert not any("gradient" in text for text in said(gradient, by_head("ablation.change", [[0.0, 0.0]])))


# --- all together -----------------------------------------------------------------------------------------------------


def test_several_kinds_are_told_apart() -> None:
    readings = [
        by_head("roles.label", [["previous"]], "decoder"),
        by_head("roles.label", [["rare"]], "cross"),
        by_depth("rank.cosine", [0.1, 0.95], "encoder"),
    ]
    assert {text.partition(":")[0] for text in said(*readings)} == {
        "head dec.0.0 attends to the previous token",
        "head cross.0.0 attends to the rarest token",
        "tokens are nearly the same after encoder layer 0",
    }


def test_one_statement_for_each_question_about_the_model() -> None:
    """Where stacks differ, the finding names the stack; no two findings answer the same question."""

    def of_all(*readings: Reading) -> list[str]:
        return said(*readings, by_head("saturation.entropy", [[0.1]], "cross"))

    needed = [replace(ablated([[change, 0.0]]), kind=kind) for change, kind in ((0.1, "encoder"), (0.3, "decoder"))]
    most = [text for text in of_all(*needed) if "matters most" in text]
    assert most == ["head dec.0.0 matters most: keep it; the loss is 0.300 higher without it"]
    enough, lacking = by_head("bottleneck.keys", [[0.0, 0.0]]), by_head("bottleneck.keys", [[0.2, 0.0]], "decoder")
    assert of_all(enough, lacking) == [
        "head dec.0.0 would gain from wider keys: try attnworks grow; the loss should fall by 0.200 per 1000 parameters"
    ]
    (none,) = of_all(enough, replace(enough, kind="decoder"))
    assert none.startswith("no head needs wider keys")
    falls = by_depth("rank.residual", [0.8, 0.2], "decoder")
    (text,) = of_all(by_depth("rank.residual", [0.8, 0.7]), falls)
    assert text.startswith("tokens become alike with depth in the decoder:")
    (text,) = of_all(by_depth("rank.residual", [0.8, 0.25]), falls)
    assert text.startswith("tokens become alike with depth in the decoder and the encoder:")
    assert "0.200 at decoder depth 1" in text
    ratio, share = stated("bounds.ratio", ("layer",), [2.0]), stated("paths.share", ("length",), [[0.9, 0.1]])
    (text,) = of_all(ratio, stated("bounds.ratio", ("layer",), [3.0], "decoder"))
    assert "encoder layer 0" in text
    (text,) = of_all(share, replace(share, kind="decoder"))
    assert "(encoder 90 % through at most 0 of 1, decoder 90 % through at most 0 of 1)" in text


def test_groups_come_in_order_and_in_each_the_largest_effect_first() -> None:
    exam = examined("encoder", "decoder", "cross")
    found = find(Readings([*exam.readings.values(), ablated([[0.0001, 0.5]])]))
    assert list(dict.fromkeys(finding.group for finding in found)) == list(FINDERS)
    for group in FINDERS:
        weights = [finding.weight for finding in found if finding.group == group]
        assert weights == sorted(weights, reverse=True) and all(0 < weight <= 1 for weight in weights)
    assert [finding.group for finding in found] == sorted((finding.group for finding in found), key=list(FINDERS).index)


def test_what_many_heads_do_comes_before_what_one_does() -> None:
    labels = [["first"] * 7 + ["previous"]]
    texts = said(by_head("roles.label", labels), by_head("roles.score", [[0.6] * 8]))
    assert ["first" in text for text in texts] == [True, False]


def test_findings_are_short() -> None:
    """With two stacks, each with every role."""
    exam = examined("encoder", "decoder")
    assert all(len(finding.text) <= 200 for finding in exam.findings)


KINDS = st.sampled_from(["encoder", "decoder", "cross"])
NUMBERS = st.floats(-2, 2) | st.sampled_from([NAN, math.inf, 0.0])
HEADS = st.lists(st.lists(NUMBERS, min_size=1, max_size=3), min_size=1, max_size=3)


@given(st.dictionaries(st.tuples(st.sampled_from(
    ["sinks.first", "saturation.jacobian", "saturation.max_weight", "ablation.change", "importance.gradient"]
), KINDS), HEADS, max_size=6), st.dictionaries(st.tuples(st.sampled_from(
    ["rank.cosine", "rank.residual", "bounds.ratio", "rank.outliers", "rank.largest_norm", "rank.outliers_first"]
), KINDS), st.lists(NUMBERS, min_size=1, max_size=4), max_size=3))  # fmt: skip
def test_odd_numbers_never_break_it(heads: dict[Any, Any], depths: dict[Any, Any]) -> None:
    readings = [by_head(name, rows, kind) for (name, kind), rows in heads.items()]
    readings += [by_depth(name, rows, kind) for (name, kind), rows in depths.items()]
    for finding in find(Readings(readings)):
        assert isinstance(finding, ExamFinding) and "nan" not in finding.text and "inf" not in finding.text
        assert finding.text and "\n" not in finding.text and set(finding.readings)


def test_every_finder_is_in_one_group() -> None:
    finders = [finder for group in FINDERS.values() for finder in group]
    assert len(finders) == len(set(finders)) == 14


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.12345, "0.123"), (-1.5, "-1.50"), (12.34, "12.3"), (1234.5, "1,234"), (1e-5, "1.0e-05"),
     (3e7, "3.0e+07"), (NAN, "-"), (math.inf, "inf")],
)  # fmt: skip
def test_numbers_for_people(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("forms", "advice"),
    [
        (("offset", "offset"), "so a fixed form may replace them; try attnworks project"),
        (("offset", "none"), "so a fixed form may replace 1 of them; try attnworks project"),
        (("none", "none"), None),
    ],
)
def test_fixed_forms_are_advised_for_heads_that_have_one(forms: tuple[str, str], advice: str | None) -> None:
    labels = stated("roles.label", ("layer", "head"), [["previous", "previous"]])
    form = stated("structure.form", ("layer", "head"), [list(forms)])
    (found,) = [finding for finding in find(Readings([labels, form])) if "previous token" in finding.text]
    assert "content matters little" in found.text
    assert (advice in found.text) if advice is not None else ("fixed form" not in found.text)


def test_cross_attention_along_the_diagonal_is_called_alignment() -> None:
    labels = stated("roles.label", ("layer", "head"), [["offset 0", "offset 0"]], "cross")
    (found,) = find(Readings([labels]))
    assert "word-by-word alignment" in found.text and "content matters little" not in found.text
