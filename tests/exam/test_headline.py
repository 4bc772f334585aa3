"""What headlines say of readings that were made up, and what they say of any readings at all."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.places import Kind
from attnworks.exam.headline import NOTHING, headline_of
from attnworks.exam.reading import Reading, Readings
from attnworks.exam.shares import FRACTIONS, number_words, share_words
from tests.exam.test_examination import examined, screen, stated

NAN = math.nan


def by_head(name: str, rows: list[Any], kind: Kind = "encoder") -> Reading:
    return stated(name, ("layer", "head"), rows, kind)


def certain(reading: Reading, margin: float = 1e-5) -> Reading:
    ends = [tuple(row + sign * margin for row in reading.value) for sign in (-1, 1)]  # type: ignore[operator]
    return replace(reading, interval=(ends[0], ends[1]))


def said(*readings: Reading) -> str:
    return headline_of(Readings(list(readings))).text


# --- words ------------------------------------------------------------------------------------------------------------


@given(st.floats(0.0, 1.0))
def test_shares_in_words_are_true(share: float) -> None:
    words = share_words(share)
    name = words.removeprefix("nearly ").removeprefix("over ")
    fraction = {words: value for value, words in FRACTIONS}.get(name)
    if fraction is None:
        assert words in ("all", "almost all", "almost nothing") or words.endswith(" %")
        assert (share > 0.95) == (words in ("all", "almost all"))
    elif words.startswith("nearly "):
        assert fraction - 0.06 < share < fraction
    elif words.startswith("over "):
        assert fraction < share < fraction + 0.06
    else:
        assert abs(share - fraction) <= 0.01 + 1e-9


def test_small_numbers_in_words() -> None:
    assert [number_words(n) for n in (0, 1, 12, 13, 1300)] == ["no", "one", "twelve", "13", "1,300"]


# --- facts ------------------------------------------------------------------------------------------------------------


def test_nothing_is_said_of_nothing() -> None:
    assert said() == f"{NOTHING}."
    assert headline_of(Readings([])).evidence == ""


def test_one_layer_does_most_of_the_work() -> None:
    changes = certain(by_head("ablation.change", [[0.1, 0.1], [0.08, 0.02], [0.3, 0.4]]))
    headline = headline_of(Readings([changes]))
    assert headline.text == "Over two thirds of the work is done in the last layer."
    assert headline.evidence == "layer 2: 70 % of what the loss rises without each head, one at a time"
    first = certain(by_head("ablation.change", [[0.9, 0.1], [0.02, 0.1]]))
    assert said(first) == "Nine tenths of the work is done in the first layer."


def test_the_work_is_done_in_few_layers_or_in_all() -> None:
    rows = [[0.2, 0.1], [0.05, 0.05], [0.05, 0.05], [0.05, 0.05], [0.2, 0.1], [0.05, 0.05]]
    assert said(certain(by_head("ablation.change", rows))).startswith("Three fifths of the work is done in two of 6")
    even = certain(by_head("ablation.change", [[0.1, 0.1]] * 4))
    assert said(even) == "No layer does more than a quarter of the work."
    assert said(certain(by_head("ablation.change", [[0.11, 0.1], [0.1, 0.1], [0.1, 0.1]]))).startswith(
        "No layer does more than 35 %"
    )


def test_uncertain_ablations_give_way_to_gradients() -> None:
    noise = certain(by_head("ablation.change", [[0.1, 0.0], [0.0, 0.0]]), margin=0.5)
    gradient = by_head("importance.gradient", [[0.1, 0.0], [0.9, 0.0]])
    assert "work" not in said(noise)
    headline = headline_of(Readings([noise, gradient]))
    assert headline.text == "Nine tenths of the work is done in the last layer."
    assert "gradients of the loss" in headline.evidence


def test_cross_attention_has_layers_of_its_own() -> None:
    encoder = certain(by_head("ablation.change", [[0.1], [0.1]]))
    cross = certain(by_head("ablation.change", [[0.1], [0.7]], "cross"))
    assert said(encoder, cross) == "Over two thirds of the work is done in the last layer of the cross-attention."


def test_heads_that_rest() -> None:
    sinks = by_head("roles.sink", [["first", "first"], ["none", "none"]])
    headline = headline_of(
        Readings([sinks, by_head("sinks.first", [[0.8, 0.6], [0.1, 0.1]]), by_head("sinks.first_effect", [[0.2, 0.1]])])
    )
    assert headline.text == "Half of the heads rest on the first token."
    assert headline.evidence == (
        "2 of 4 heads rest: 2 on the first token, with 70 % of their attention and 15 % of their effect"
    )
    both = by_head("roles.sink", [["first", "delimiter"], ["delimiter", "delimiter"]])
    assert said(both) == "All heads rest on the first token or on delimiters."


def test_untrained_heads_come_first() -> None:
    """Nothing else is said of heads that attend evenly: their ranks and roles are noise."""
    even = by_head("roles.evenness", [[0.95, 0.99], [0.97, 0.96]])
    sinks = by_head("roles.sink", [["first", "none"], ["none", "none"]])
    changes = certain(by_head("ablation.change", [[0.9, 0.0], [0.0, 0.0]]))
    assert said(even, sinks, changes) == "All heads attend nearly evenly, as in an untrained model."
    some = by_head("roles.evenness", [[0.95, 0.2], [0.3, 0.1]])
    assert "untrained" not in said(some, sinks) and "; a quarter attend nearly evenly" in said(some, sinks)


def test_copying_with_induction_heads() -> None:
    labels = by_head("roles.label", [["none", "induction"], ["induction", "none"]], "decoder")

    def loss(name: str, value: float) -> Reading:
        return Reading(f"probes.{name}", "decoder", (), (torch.tensor(value, dtype=torch.float64),), "", "")

    first, before, after = loss("first_loss", 6.0), loss("copy_loss", 1.0), loss("copy_loss_without", 5.0)
    headline = headline_of(Readings([labels, first, before, after]))
    assert headline.text == "Without its two induction heads it cannot copy from its context."
    assert headline.evidence == "loss on repeated random tokens 1.00, without 2 induction heads 5.00"
    assert "cannot" not in said(labels, first, before, loss("copy_loss_without", 3.0))
    assert said(labels) == "Two induction heads continue what was repeated."


def test_heads_of_position_and_of_alignment() -> None:
    self_attention = by_head("roles.label", [["previous", "none"], ["offset -2", "none"]])
    cross = by_head("roles.label", [["offset 0", "self"]], "cross")
    assert said(self_attention) == "Half of the heads attend at a fixed offset."
    text = said(self_attention, cross)
    assert "all cross-attention heads align the two texts by position" in text.lower()
    assert "half of the self-attention heads attend at a fixed offset" in text
    none = by_head("roles.label", [["none", "none"]])
    assert said(none) == "None of the 2 heads attends by position or by content."


def test_heads_that_can_go() -> None:
    changes = certain(by_head("ablation.change", [[0.5, 0.0], [0.5, 0.0]]))
    assert "half of the heads can be removed at almost no loss, one at a time" in said(changes).lower()
    wide = certain(by_head("ablation.change", [[0.5, 0.0], [0.5, 0.0]]), margin=0.01)
    assert "removed" not in said(wide)


@pytest.mark.parametrize(
    ("curve", "cosine", "words"),
    [
        ([0.9, 0.5, 0.2], [0.1, 0.2, 0.3], "Tokens become alike with depth: 20 % of their size still differs"),
        ([0.9, 0.8, 0.7], [0.1, 0.2, 0.3], "Tokens stay distinct at every depth."),
        ([0.9, 0.8, 0.7], [0.1, 0.95, 0.3], NOTHING),
        ([0.9, 0.2, 0.7], [0.1, 0.2, 0.3], NOTHING),
        ([0.9, NAN, 0.7], [NAN, NAN, NAN], "Tokens stay distinct at every depth."),
    ],
)
def test_tokens_along_depth(curve: list[float], cosine: list[float], words: str) -> None:
    readings = [stated("rank.residual", ("depth",), curve), stated("rank.cosine", ("depth",), cosine)]
    assert said(*readings).startswith(words)


def test_the_largest_effects_come_first() -> None:
    changes = certain(by_head("ablation.change", [[0.01, 0.01], [0.9, 0.9]]))
    sinks = by_head("roles.sink", [["first", "none"], ["none", "none"]])
    headline = headline_of(Readings([sinks, changes]))
    effects = [fact.effect for fact in headline.facts]
    assert effects == sorted(effects, reverse=True) and len(effects) == 2
    assert headline.facts[0].topic == "work"


# --- everything -------------------------------------------------------------------------------------------------------

PLAIN = re.compile(r"[A-Z0-9][A-Za-z0-9 ,.:;%-]*\.")


@given(
    share=st.lists(st.floats(-1, 1) | st.just(NAN), min_size=6, max_size=6),
    roles=st.lists(st.sampled_from(["none", "previous", "induction", "offset 3", "syntactic"]), min_size=6, max_size=6),
    sinks=st.lists(st.sampled_from(["none", "first", "delimiter"]), min_size=6, max_size=6),
    curve=st.lists(st.floats(0, 1.2) | st.just(NAN), min_size=1, max_size=4),
)
def test_any_headline_is_plain(share: list[float], roles: list[str], sinks: list[str], curve: list[float]) -> None:
    """One sentence in words, with at most three facts, no NaN, no empty places, and no two facts about one topic."""
    values = [share[:3], share[3:]]
    readings = [
        certain(by_head("ablation.change", values)),
        by_head("roles.evenness", [[abs(value) for value in row] for row in values]),
        by_head("roles.label", [roles[:3], roles[3:]]),
        by_head("roles.sink", [sinks[:3], sinks[3:]]),
        stated("rank.residual", ("depth",), curve),
    ]
    headline = headline_of(Readings(readings))
    assert PLAIN.fullmatch(headline.text), headline.text
    assert "nan" not in f"{headline.text} {headline.evidence}".lower() and "  " not in headline.text
    assert len(headline.facts) <= 3 and all(math.isfinite(fact.effect) and fact.evidence for fact in headline.facts)
    assert len({fact.topic for fact in headline.facts}) == len(headline.facts)
    topics = {fact.topic for fact in headline.facts if "untrained" in fact.text}
    assert not topics or {fact.topic for fact in headline.facts} <= {"even", "depth"}


def test_the_headline_is_the_first_line() -> None:
    exam = examined("encoder")
    assert " ".join(screen(exam, 200).splitlines()[0].split()) == exam.headline.text == str(exam.headline)
    assert exam.to_json()["headline"] == {
        "text": exam.headline.text,
        "evidence": [f.evidence for f in exam.headline.facts],
    }


def test_a_special_first_token_is_named() -> None:
    """Where all sentences begin with it; elsewhere it is the first token."""
    sinks = by_head("roles.sink", [["first", "first"], ["first", "none"]])
    readings = Readings([sinks])
    assert headline_of(readings, "[CLS]").text == "Three quarters of the heads rest on [CLS]."
    assert headline_of(readings).text == "Three quarters of the heads rest on the first token."
