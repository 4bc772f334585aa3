"""Every registered measure, held to the promises of `attnworks.exam.measure.Measure`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.exam.examination import Examination
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.measure import MeasureContext, ReadingSpec
from attnworks.exam.measures import all_measures
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
MODELS = ("own", "bert")


def rows_of_text(lengths: tuple[int, ...], seed: int) -> list[TokenRow]:
    """Sentences with one special token at the end, words of one token, and a head for every word but the first."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = (torch.randint(WORDS - 5, (length,), generator=generator) + 5).tolist()
        above = torch.randint(max(1, length - 1), (length,), generator=generator).tolist()
        head = [-1 if place in (0, length - 1) or up == place else up for place, up in enumerate(above)]
        rows.append(
            TokenRow(
                tuple(ids),
                (*[False] * (length - 1), length > 2),
                (*range(length - 1), -1 if length > 2 else length - 1),
                tuple(head),
            )
        )
    return rows


class _Idle(TextReader):
    """A reader with nothing to do: the rows are there already."""

    pad_id = 1

    def _pieces(self, side: Text) -> Pieces:
        raise AssertionError(side)


def text_of(model: str, tokens_per_batch: int) -> TokenizedText:
    sides = [rows_of_text(SOURCE, 1)] + ([rows_of_text(TARGET, 2)] if model == "own" else [])
    rarities = tuple(count_rarity(rows) for rows in sides)
    batches = exam_batches(*sides, batch_tokens=tokens_per_batch)
    return TokenizedText(tuple(sides), (1,) * len(sides), rarities, batches, range(len(sides[0])), len(sides[0]), 0)


@cache
def subject(model: str) -> Any:
    if model == "own":
        return OwnSubject(transformer(), "own")
    return HFSubject(TINY["bert"].build(), "bert", mask_id=MASK)


def examined(model: str, measures: list[str], tokens_per_batch: int, monkeypatch: pytest.MonkeyPatch) -> Examination:
    text = text_of(model, tokens_per_batch)
    who = subject(model)
    monkeypatch.setattr(who, "read", lambda *_, **__: text, raising=False)
    return run_examination(who, [], ExamSettings(measures=measures, batch_tokens=tokens_per_batch))


def declared_by(measure: str) -> dict[str, ReadingSpec]:
    return {reading.name: reading for reading in MEASURES[measure](MeasureContext(max(SOURCE + TARGET))).declares()}


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
    declared = declared_by(name)
    for required in MEASURES[name].requires:
        declared = declared | declared_by(required)
    assert {reading.name for reading in all_of(exam)} == declared.keys()
    for reading in all_of(exam):
        assert_well_formed(reading, declared[reading.name], exam)


@pytest.mark.parametrize("model", MODELS)
def test_padding_and_the_size_of_batches_do_not_count(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sentences padded together, some together, and one by one without any padding; all measures at once."""
    names = measures_for(model)
    together, some, alone = (examined(model, names, size, monkeypatch) for size in (4096, 40, 1))
    assert {reading.name for reading in all_of(together)} == {read for name in names for read in declared_by(name)}
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
        assert all(int(row.max()) <= len(SOURCE) for row in reading.count), "one value per sentence"


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
