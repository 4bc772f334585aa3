"""Which tokens get attention over a text: against sums over whole maps, in any order of batches, through the folder."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnworks import examine
from attnworks.core.errors import FolderError
from attnworks.core.folders import seal, sha256
from attnworks.core.places import HeadId, Slot
from attnworks.exam.attended import AttendedSums, AttendedTokens, attended_from_json, attended_to_json
from attnworks.exam.examination import Examination
from attnworks.exam.folder import EXAM_FILE, EXAM_MANIFEST_FILE, read_exam, write_exam
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measure_hook import MeasureHook
from attnworks.exam.measures import choose_measures
from attnworks.exam.statistics import Accumulator
from attnworks.text.passages import from_texts
from attnworks.traces.subject import open_subject
from tests.exam_helpers import LINES, PAIRS, tiny_folder, tiny_tokenizer
from tests.tiny_models import TINY

NAMES = ["bert", "gpt2", "bart"]


def made(name: str, **options: Any) -> Examination:
    texts = from_texts(PAIRS)[0] if name == "bart" else LINES
    return examine(str(tiny_folder(name)), texts=texts, measures=["roles"], **options)


def shares_of(exam: Examination, slot: Slot, head: int) -> dict[str, float]:
    """The share of every token, from the whole maps of all lines."""
    found: defaultdict[str, float] = defaultdict(float)
    for pin in exam.pins:
        P, (_, keys) = pin.maps[slot][head].double(), pin.sides(slot.kind)
        received = P.sum(0)
        received[list(pin.sinks[slot])] = 0.0
        for token, weight in zip(keys, (received / received.sum()).tolist(), strict=True):
            found[token] += weight / len(exam.pins)
    return found


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_shares_are_those_of_whole_maps(name: str) -> None:
    exam = made(name, pin=LINES)
    attended, slot = exam.attended, Slot("encoder" if name == "bert" else "decoder", 1)
    assert attended is not None and len(exam.pins) == len(LINES)
    for head in range(2):
        expected = shares_of(exam, slot, head)
        tokens = attended.tokens[HeadId(slot, head)]
        assert tokens and all(one.share > one.even for one in tokens)
        for one in tokens:
            assert one.share == pytest.approx(expected[one.text], abs=2e-3)
            assert one.occurrences == sum(line.split().count(one.text) for line in LINES)
        for number, percent in attended.examples[HeadId(slot, head)]:
            pin = next(pin for pin in exam.pins if pin.tokens == attended.sentences[number])
            received = pin.maps[slot][head].double().sum(0)
            received[list(pin.sinks[slot])] = 0.0
            assert percent == pytest.approx((100 * received / received.sum()).tolist(), abs=1.0)


def test_even_attention_sees_what_a_window_sees() -> None:
    """Against the masks of a sliding window: shares of keys if all queries spread evenly what is not on the sinks."""
    model: Any = TINY["mistral"].build(sliding_window=3)
    exam = examine(model, LINES, tokenizer=tiny_tokenizer("mistral"), measures=["roles"], pin=LINES, probe=False)
    slot, expected = Slot("decoder", 1), defaultdict[str, float](float)
    for pin in exam.pins:
        n = len(pin.tokens)
        sees = torch.ones(n, n).tril().triu(-2)
        sees[:, list(pin.sinks[slot])] = 0.0
        even = (sees / sees.sum(-1, keepdim=True).clamp_min(1)).sum(0)
        for token, weight in zip(pin.tokens, (even / even.sum()).tolist(), strict=True):
            expected[token] += weight / len(exam.pins)
    assert exam.attended is not None
    for head in range(2):
        tokens = exam.attended.tokens[HeadId(slot, head)]
        assert tokens and all(one.even == pytest.approx(expected[one.text], abs=1e-6) for one in tokens)


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_any_size_give_the_same(name: str) -> None:
    one, other = (made(name, batch_tokens=size).attended for size in (16, 4096))
    assert one is not None and other is not None and one.tokens.keys() == other.tokens.keys()
    for head, tokens in one.tokens.items():
        assert [token.text for token in tokens] == [token.text for token in other.tokens[head]]
        assert [token.share for token in tokens] == pytest.approx(
            [token.share for token in other.tokens[head]], abs=1e-6
        )
        assert [one.sentences[number] for number, _ in one.examples[head]] == [
            other.sentences[number] for number, _ in other.examples[head]
        ]


def test_parts_are_merged_exactly() -> None:
    subject = open_subject(str(tiny_folder("bert")))
    text = subject.read(from_texts(LINES)[0], batch_tokens=16)

    def sums(batches: range) -> AttendedSums:
        found = AttendedSums(text)
        measures = [measure(MeasureContext(text.longest)) for measure in choose_measures(("roles",))]
        hook = MeasureHook(measures, Accumulator(spec for one in measures for spec in one.declares()), found)
        with torch.inference_mode():
            for number in batches:
                subject.run(text.batch(number)[0], hook)
        return found

    count = len(text.batches)
    assert count > 2
    whole, first, second = sums(range(count)), sums(range(1)), sums(range(1, count))
    second.merge(first.state())
    assert second.result(subject) == whole.result(subject)


def test_a_folder_keeps_them(tmp_path: Path) -> None:
    exam = made("bert", pin=[LINES[0]])
    again = read_exam(write_exam(exam, tmp_path / "exam"))
    assert exam.attended is not None and again.attended is not None
    assert attended_to_json(again.attended) == attended_to_json(exam.attended)
    (pin,), (same,) = exam.pins, again.pins
    assert same.sinks == pin.sinks and pin.sinks[Slot("encoder", 0)] == (0, len(pin.tokens) - 1)
    assert all(torch.equal(same.sizes[slot], sizes) for slot, sizes in pin.sizes.items()) and pin.sizes


def test_folders_without_them_are_read(tmp_path: Path) -> None:
    exam = made("bert", pin=[LINES[0]])
    old = replace(exam, attended=None, pins=tuple(replace(pin, sizes={}, sinks={}) for pin in exam.pins))
    again = read_exam(write_exam(old, tmp_path / "exam"))
    assert again.attended is None and not again.pins[0].sizes and not again.pins[0].sinks


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("attended", "heads", "enc.0.0", "tokens", 0, 1), 2.0),
        (("attended", "heads", "enc.0.0", "tokens", 0, 0), 7),
        (("attended", "heads", "enc.0.0", "examples", 0, 0), 99),
        (("attended", "heads", "enc.0.0", "examples", 0, 1), [1]),
        (("attended", "sentences"), 3),
        (("pins", 0, "sinks", "enc.0"), [99]),
        (("pins", 0, "sinks", "enc.0"), ["a"]),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    folder = write_exam(made("bert", pin=[LINES[0]]), tmp_path / "exam")
    outline = json.loads((folder / EXAM_FILE).read_bytes())
    place = outline
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    del outline["sha256"]
    (folder / EXAM_FILE).write_bytes(seal(outline))
    manifest = json.loads((folder / EXAM_MANIFEST_FILE).read_bytes())
    del manifest["sha256"]
    manifest["exam_sha256"] = sha256((folder / EXAM_FILE).read_bytes())
    (folder / EXAM_MANIFEST_FILE).write_bytes(seal(manifest))
    with pytest.raises(FolderError, match="outline of an examination"):
        read_exam(folder)


def test_json_there_and_back() -> None:
    attended = made("bert").attended
    assert isinstance(attended, AttendedTokens)
    assert attended_to_json(attended_from_json(attended_to_json(attended))) == attended_to_json(attended)
