"""Every registered measure, held to the promises of `attnworks.exam.measure.Measure`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.exam.examination import Examination
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.measure import MeasureContext, ReadingSpec
from attnworks.exam.measures import all_measures
from attnworks.exam.probes.texts import SEQUENCES as PROBE_SEQUENCES
from attnworks.exam.reading import Reading
from attnworks.hf.subject import HFSubject
from attnworks.text.passages import Text
from attnworks.text.tokenizers import Pieces, TextReader
from attnworks.text.tokens import TokenRow, count_rarity, exam_batches
from attnworks.traces.own import OwnSubject
from attnworks.traces.text import TokenizedText
from tests.covering import thorough
from tests.model_helpers import transformer
from tests.tiny_models import TINY

SOURCE, TARGET, WORDS, MASK = (7, 3, 5, 11, 5, 7, 2), (5, 11, 3, 2, 5, 7, 3), 13, 4
MEASURES = all_measures()
MODELS = ("own", "bert", "gpt2")
STACKS = {"own": "encoder-decoder", "bert": "encoder", "gpt2": "decoder"}


def rows_of_text(lengths: tuple[int, ...], seed: int) -> list[TokenRow]:
    """Sentences with one special token at the end, words of one token, and a head for every word but the first.

    Those of five tokens or more are two texts, whose words are aligned one by one from their beginnings.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = (torch.randint(WORDS - 5, (length,), generator=generator) + 5).tolist()
        above = torch.randint(max(1, length - 1), (length,), generator=generator).tolist()
        head = [-1 if place in (0, length - 1) or up == place else up for place, up in enumerate(above)]
        row = TokenRow(
            tuple(ids),
            (*[False] * (length - 1), length > 2),
            (*range(length - 1), -1 if length > 2 else length - 1),
            tuple(head),
        )
        rows.append(as_two_texts(row) if length >= 5 else replace(row, type_ids=(0,) * length))
    return rows


def as_two_texts(row: TokenRow) -> TokenRow:
    """The same row as two texts of about equal lengths; its last token belongs to neither."""
    last, half = len(row) - 1, len(row) // 2
    side = tuple(-1 if place == last else int(place >= half) for place in range(last + 1))
    links = [() if at == last or half + at % half == last else ((at + half) % (2 * half),) for at in range(last + 1)]
    return replace(row, side=side, type_ids=tuple(max(0, found) for found in side), aligned=tuple(links))


class _WordReader(TextReader):
    """Reads the texts of probes: words by their number of letters, with a special token at the end."""

    pad_id = 1

    def ordinary_ids(self) -> Sequence[int]:
        return range(5, WORDS)

    def _pieces(self, side: Text) -> Pieces:
        ids = [self.ordinary_ids()[len(word) % (WORDS - 5)] for word in side.text.split()]
        return Pieces([*ids, 3], [*[False] * len(ids), True], [*range(len(ids)), -1], {})


def text_of(model: str, tokens_per_batch: int) -> TokenizedText:
    sides = [rows_of_text(SOURCE, 1)] + ([rows_of_text(TARGET, 2)] if model == "own" else [])
    rarities = tuple(count_rarity(rows) for rows in sides)
    batches = exam_batches(*sides, batch_tokens=tokens_per_batch)
    return TokenizedText(tuple(sides), (1,) * len(sides), rarities, batches, range(len(sides[0])), len(sides[0]), 0)


@cache
def subject(model: str) -> Any:
    if model == "own":
        return OwnSubject(transformer(), "own")
    subject = HFSubject(TINY[model].build(), model, mask_id=MASK if model == "bert" else None)
    subject.source = _WordReader(1, subject.max_length)
    return subject


def examined(model: str, measures: list[str], tokens_per_batch: int, monkeypatch: pytest.MonkeyPatch) -> Examination:
    text = text_of(model, tokens_per_batch)
    who = subject(model)
    monkeypatch.setattr(who, "read", lambda *_, **__: text, raising=False)
    return run_examination(who, [], ExamSettings(measures=measures, batch_tokens=tokens_per_batch))


def declared_by(measure: str) -> dict[str, ReadingSpec]:
    return {reading.name: reading for reading in MEASURES[measure](MeasureContext(max(SOURCE + TARGET))).declares()}


def readings_for(measure: str, model: str) -> set[str]:
    """The readings that a measure gives of a model: all that it declares, save of probes.

    Probes are texts for one stack, so that a model with two has none of their readings. An encoder predicts no next
    token and has no loss. None of these models, whose weights are random, has an induction head that could be left out.
    """
    declared = {*declared_by(measure)}
    if measure != "probes":
        return declared
    if STACKS[model] == "encoder-decoder":
        return set()
    losses = {"probes.first_loss", "probes.copy_loss", "probes.needle_loss"}
    return declared - {"probes.copy_loss_without"} - (losses if STACKS[model] == "encoder" else set())


@pytest.mark.parametrize("name", list(MEASURES))
def test_it_says_what_it_is(name: str) -> None:
    measure = MEASURES[name]
    assert measure.name == name and measure.description.strip() and measure.cost.strip() and measure.__doc__
    found = declared_by(name)
    assert found and len(found) == len(MEASURES[name](MeasureContext(11)).declares()), "each reading once"
    for reading in found.values():
        assert reading.name.startswith(f"{name}."), reading.name
        assert reading.description.strip() and reading.source.strip() and "\n" not in reading.description, reading.name
        assert all(axis in reading.axes for axis in reading.ticks), reading.name


def measures_for(model: str) -> list[str]:
    """All of them; `bottleneck`, which tries every wider head of a larger model, only if all tests are asked for."""
    return [name for name in MEASURES if thorough or (name, model) != ("bottleneck", "own")]


@pytest.mark.parametrize(("name", "model"), [(name, model) for model in MODELS for name in measures_for(model)])
def test_what_is_declared_is_given_and_nothing_else(name: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exam = examined(model, [name], 4096, monkeypatch)
    names = (name, *MEASURES[name].requires)
    assert {reading.name for reading in all_of(exam)} == {read for name in names for read in readings_for(name, model)}
    declared = {read: spec for name in names for read, spec in declared_by(name).items()}
    for reading in all_of(exam):
        assert_well_formed(reading, declared[reading.name], exam)


def test_probes_of_a_model_with_two_stacks_are_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [note for note in examined("own", ["rank", "probes"], 4096, monkeypatch).notes if "probes" in note]
    assert notes == ["probes was not computed: probes need a model with one stack of layers, and this model has two"]


@pytest.mark.parametrize("model", MODELS)
def test_padding_and_the_size_of_batches_do_not_count(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sentences padded together, some together, and one by one without any padding; all measures at once."""
    names = measures_for(model)
    together, some, alone = (examined(model, names, size, monkeypatch) for size in (4096, 40, 1))
    assert {reading.name for reading in all_of(together)} == {
        read for name in names for read in readings_for(name, model)
    }
    assert list(together.readings) == list(some.readings) == list(alone.readings)
    for other in (some, alone):
        for reading in all_of(together):
            assert_same(reading, other[f"{reading.name}@{reading.kind}"])


# What is compared ----------------------------------------------------------------------------------------------------


def all_of(exam: Examination) -> Iterator[Reading]:
    for name in exam.readings:
        yield exam[name]


def assert_well_formed(reading: Reading, declared: ReadingSpec, exam: Examination) -> None:
    assert reading.axes == declared.axes and reading.source == declared.source
    assert reading.description.startswith(declared.description), "it may add what else was not measured"
    heads = [number for slot, number in exam.model["heads"].items() if slot.startswith(reading.kind[:3])]
    inner = len(reading.axes) - reading.layered
    if reading.axes[:1] == ("layer",):
        assert len(reading.value) in (len(heads), exam.model["layers"].get("decoder"))
    for layer, row in enumerate(reading.value):
        shape = tuple(row.shape) if isinstance(row, Tensor) else (len(row),)
        assert len(shape) == inner, reading.name
        if reading.axes[:2] == ("layer", "head"):
            assert shape[0] == heads[layer], reading.name
        for axis, labels in reading.ticks.items():
            assert shape[reading.axes.index(axis) - reading.layered] == len(labels), reading.name
    if reading.count is not None and reading.spread is not None:
        sentences = PROBE_SEQUENCES if reading.name.startswith("probes.") else len(SOURCE)
        assert all(int(row.max()) <= sentences for row in reading.count), "one value per sentence"


def assert_same(one: Reading, other: Reading) -> None:
    parts = [(one.value, other.value), (one.spread, other.spread), (one.count, other.count)]
    for ours, theirs in parts:
        assert (ours is None) == (theirs is None), one.name
        for left, right in zip(ours or (), theirs or (), strict=True):
            if isinstance(left, Tensor) and isinstance(right, Tensor):
                message = f"{one.name}@{one.kind}: {left} {right}"
                torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-9, equal_nan=True, msg=message)
            else:
                assert left == right, one.name


def test_neither_the_contract_nor_the_examiner_needs_growth() -> None:
    """Measures of packages above are named as text, and imported when measures are listed."""
    code = """
import sys
import attnworks.exam.examiner, attnworks.exam.measure
assert not [name for name in sys.modules if "growth" in name or "bottleneck" in name]
from attnworks.exam.measures import all_measures
assert "bottleneck" in all_measures()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
