"""The story of examinations, made up and real: one sentence for each part, and nothing that was not measured."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.places import HeadId, Kind, Slot
from attnworks.exam.examination import Examination
from attnworks.exam.reading import ModelReadings, Reading, Readings
from attnworks.exam.story import StoryPart, stacks_in_words, story_of
from attnworks.exam.work import predicted_rises, work_of
from tests.exam.test_examination import examined, stated
from tests.exam.test_headline import by_head, certain

MODEL = {"name": "/home/somebody/models/tiny", "heads": {"enc.0": 2, "enc.1": 2}, "parameters": 1234}


def told(*readings: Reading, **about: Any) -> dict[str, StoryPart]:
    corpus = {"sentences": 3, "tokens": 20, "name": "lines"}
    exam = Examination(MODEL, corpus, Readings(list(readings)))
    return {part.name: part for part in story_of(replace(exam, **about))}


def test_without_readings_there_is_what_is_known() -> None:
    story = told()
    assert list(story) == ["what", "trust"]
    assert story["what"].text == "tiny: 1,234 parameters in 2 layers of 2 heads."
    assert story["what"].more == ("examined on 3 sentences with 20 tokens of lines",)
    assert story["trust"].text == "All numbers are means over 3 sentences with 20 tokens."
    assert story["trust"].command == "attnworks examine MODEL --sentences 3"


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ({}, "no heads"),
        ({"enc.0": 1}, "1 layer of 1 head"),
        ({"dec.0": 4, "dec.1": 2}, "2 layers of 2 to 4 heads"),
        ({"enc.0": 4, "cross.0": 4}, "1 layer of 4 heads in each of encoder and cross-attention"),
        (
            {"enc.0": 4, "dec.0": 2, "cross.0": 4},
            "1 layer of 4 heads in the encoder, 1 layer of 2 heads in the decoder and 1 layer of 4 heads in the "
            "cross-attention",
        ),
    ],
)
def test_stacks_in_words(heads: dict[str, int], words: str) -> None:
    assert stacks_in_words(heads) == words


def test_what_it_reads() -> None:
    labels = by_head("roles.label", [["previous", "none"], ["syntactic", "previous"]])
    part = told(labels, by_head("roles.score", [[0.5, 0.0], [0.6, 0.9]]))["reads"]
    assert part.text == "Of 4 heads, 2 attend by position and 1 by content."
    assert part.more == ("2 heads: attends to the previous token.", "1 head: attends to the syntactic head.")
    assert part.heads == ("enc.1.0", "enc.1.1")
    assert told(by_head("roles.label", [["previous", "none"]]))["reads"].text == "Of 2 heads, 1 attends by position."
    none = by_head("roles.label", [["none", "none"]])
    assert "more than chance" in told(none)["reads"].text
    assert told(none, by_head("roles.evenness", [[0.95, 0.1]]))["reads"].text.startswith("1 of 2 heads attend")


def test_where_it_rests() -> None:
    first, sinks = by_head("sinks.first", [[0.8, 0.2]]), by_head("roles.sink", [["first", "none"]])
    assert (
        told(first, sinks)["rests"].text == "1 of 2 heads rest on the first token, with 80 % of their attention there."
    )
    none = by_head("roles.sink", [["none", "none"]])
    assert told(first, none)["rests"].text == (
        "No head rests on the first token or on delimiters: the first token gets 50 % of all attention."
    )


def test_where_the_work_is_done() -> None:
    part = told(certain(by_head("ablation.change", [[0.1, 0.1], [0.2, 0.6]])))["work"]
    assert part.text == "The last layer does 80 % of the work, and head 1.1 alone 60 %."
    assert part.heads == ("enc.1.1",)


def test_the_work_of_layers() -> None:
    """A head whose removal lowers the loss does no work; the shares of all layers are one."""
    work = work_of(ModelReadings(Readings([certain(by_head("ablation.change", [[0.1, -0.5], [0.3, 0.0]]))])))
    assert work is not None and work.reading == "ablation.change"
    assert work.heads[HeadId(Slot("encoder", 0), 1)] == 0.0
    assert list(work.layers.values()) == pytest.approx([0.25, 0.75])
    assert work_of(ModelReadings(Readings([by_head("importance.gradient", [[0.0]])]))) is None


def test_whether_tokens_stay_distinct() -> None:
    fall = told(stated("rank.residual", ("depth",), [0.9, 0.27]))["depth"]
    assert (
        fall.text == "Tokens become alike: 90 % of the stream differs between tokens at depth 0, and 27 % at depth 1."
    )
    bound = stated("bounds.ratio", ("layer",), [12.0, 3.0])
    keep = told(stated("rank.residual", ("depth",), [0.9, 0.8]), bound)["depth"]
    assert keep.text.startswith("Tokens stay distinct") and "layer 1: there it is 3.00 times" in keep.more[0]


def test_what_can_go() -> None:
    changes = certain(by_head("ablation.change", [[0.0, 0.01], [0.5, 0.49]]))
    part = told(changes)["removal"]
    assert part.text.startswith("2 of 4 heads can go for a predicted rise of the loss of 0.010")
    assert part.command == "attnworks prune MODEL --keep 0.5 --out pruned"
    assert [heads for heads, _ in part.curve] == [4, 3, 2, 1, 0] and part.curve[-1][1] == pytest.approx(1.0)
    assert predicted_rises(ModelReadings(Readings([]))) == []
    all_needed = certain(by_head("ablation.change", [[0.5, 0.5]]))
    assert told(all_needed)["removal"].text.startswith("No head can go") and not told(all_needed)["removal"].command
    wider = by_head("bottleneck.keys", [[0.1, -0.1], [0.0, 0.2]])
    assert told(wider)["removal"].text == "2 of 4 heads would gain from wider keys, 1.1 most."


def test_how_sure_it_is() -> None:
    part = told(certain(by_head("ablation.change", [[0.1, 0.4]]), 0.05))["trust"]
    assert "without head 0.1 the loss rises by 0.400 (95 % interval 0.350 to 0.450)" in part.text
    assert part.command.endswith("--measures ablation")


@pytest.mark.parametrize("kinds", [("encoder",), ("decoder",), ("encoder", "decoder", "cross")])
def test_a_whole_story(kinds: tuple[Kind, ...]) -> None:
    exam = examined(*kinds)
    parts = story_of(exam)
    data = json.loads(json.dumps([part.to_json() for part in parts], allow_nan=False))
    assert (data[0]["name"], data[-1]["name"]) == ("what", "trust")
    assert len({part.name for part in parts}) == len(parts)
    heads = {str(slot): count for slot, count in exam.model["heads"].items()}
    assert all(name.rpartition(".")[0] in heads for part in parts for name in part.heads)


@given(
    changes=st.lists(st.floats(-1, 1) | st.just(math.nan), min_size=6, max_size=6),
    roles=st.lists(st.sampled_from(["none", "previous", "rare", "offset 2"]), min_size=6, max_size=6),
    sinks=st.lists(st.sampled_from(["none", "first", "delimiter"]), min_size=6, max_size=6),
    curve=st.lists(st.floats(0, 1.2) | st.just(math.nan), min_size=1, max_size=4),
)
def test_any_story_is_plain(changes: list[float], roles: list[str], sinks: list[str], curve: list[float]) -> None:
    """Every part is one sentence that begins with a capital or a name, without NaN, and has a number."""
    attention = [[abs(value) for value in changes[:3]], [abs(value) for value in changes[3:]]]
    story = told(
        certain(by_head("ablation.change", [changes[:3], changes[3:]])),
        by_head("roles.label", [roles[:3], roles[3:]]),
        by_head("roles.sink", [sinks[:3], sinks[3:]]),
        by_head("sinks.first", attention),
        stated("rank.residual", ("depth",), curve),
    )
    for part in story.values():
        words = " ".join((part.text, *part.more, part.command))
        assert "nan" not in words.lower() and "  " not in words and "{" not in words
        assert part.text.endswith(".") and re.search(r"\d|No |None", part.text)
        assert all(math.isfinite(rise) for _, rise in part.curve)
    assert torch.tensor([at for at, _ in story["removal"].curve]).diff().lt(0).all() if "removal" in story else True
