"""Labels and forms that rest on few sentences say so, and there are no labels from too few."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from scipy.stats import t

from attnworks import examine
from attnworks.cli import main
from attnworks.exam.examination import Examination
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.labels import MIN_GAIN, MIN_LABEL_SENTENCES, RELIABLE_LABEL_SENTENCES
from attnworks.exam.measures.structure import FIT_MAX_TOKENS, MIN_RELIABLE_SENTENCES
from attnworks.page.contents import PageExam, page_contents
from tests.exam_helpers import LINES, tiny_folder, tiny_tokenizer, write_lines
from tests.tiny_models import TINY

LONG = "the cat sees a bird and " * 12
LABELS = ("roles.label", "roles.score", "roles.baseline", "roles.second", "roles.sink")


@pytest.fixture(scope="module")
def model() -> Any:
    return TINY["bert"].build(dtype=torch.float32, max_position_embeddings=128)


def examined(model: Any, texts: Sequence[str], measure: str) -> Examination:
    return examine(model, texts, tokenizer=tiny_tokenizer("bert"), measures=[measure], pin=())


def many(count: int) -> list[str]:
    return [LINES[number % len(LINES)] for number in range(count)]


def about(exam: Examination, words: str) -> list[str]:
    return [note for note in exam.notes if words in note]


@pytest.mark.parametrize("count", [1, MIN_LABEL_SENTENCES - 1])
def test_too_few_sentences_give_no_labels(model: Any, count: int) -> None:
    exam = examined(model, many(count), "roles")
    assert not {*LABELS} & {*exam.readings} and "roles.offset" in exam.readings
    are = "1 sentence is" if count == 1 else f"{count} sentences are"
    assert about(exam, "role labels") == [f"no role labels: {are} too few, because labels need 3 or more"]
    assert f"{are} too few for intervals and comparisons" in exam.notes
    assert not [finding for finding in exam.findings if "roles.label" in finding.readings]


def test_few_sentences_are_told(model: Any) -> None:
    for count in (MIN_LABEL_SENTENCES, RELIABLE_LABEL_SENTENCES - 1):
        exam = examined(model, many(count), "roles")
        assert {*LABELS} <= {*exam.readings}
        note = f"role labels are unreliable: they come from {count} sentences; examine 30 or more"
        assert about(exam, "role labels") == [note]
    assert not about(examined(model, many(RELIABLE_LABEL_SENTENCES), "roles"), "role labels")


def test_few_sentences_do_not_matter_to_probes() -> None:
    """A causal model has the labels that probes decide from any text, and the note is about the others."""
    causal = TINY["gpt2"].build(dtype=torch.float32)
    for count, said in ((1, "no {}: 1 sentence is too few, because labels need 3 or more"),
                        (5, "{} are unreliable: they come from 5 sentences; examine 30 or more")):  # fmt: skip
        exam = examine(causal, many(count), tokenizer=tiny_tokenizer("gpt2"), measures=["roles"], probe=True, pin=())
        assert {*LABELS} <= {*exam.readings} and "probes.offset" in exam.readings
        assert about(exam, "role labels") == [said.format("role labels other than those of probes")]


def test_the_threshold_is_where_intervals_are_half_of_the_least_gain() -> None:
    """t s / sqrt(n) for s = 0.25: the reasoning beside the constant."""
    half = {n: float(t.ppf(0.975, n - 1)) * 0.25 / n**0.5 for n in (8, RELIABLE_LABEL_SENTENCES)}
    assert half[8] > MIN_GAIN and half[RELIABLE_LABEL_SENTENCES] < MIN_GAIN / 2


def test_long_texts_are_left_out_of_forms(model: Any) -> None:
    """One of many texts is short enough."""
    exam = examined(model, [LINES[0]] + [LONG] * 12, "structure")
    assert about(exam, "structured forms") == [
        "structured forms are unreliable: they come from 1 of 13 texts, of which 12 are longer than 64 tokens; "
        "cut texts with --max-length 64"
    ]
    enough = examined(model, [*many(MIN_RELIABLE_SENTENCES), LONG], "structure")
    assert about(enough, "structured forms") == [
        "structured forms come from 8 of 9 texts, of which 1 is longer than 64 tokens; "
        "cut texts with --max-length 64 to use more"
    ]


def test_forms_of_few_sentences(model: Any) -> None:
    few = examined(model, many(2), "structure")
    assert about(few, "forms") == ["structured forms are unreliable: they come from 2 sentences; examine 8 or more"]
    assert not about(examined(model, many(MIN_RELIABLE_SENTENCES), "structure"), "forms")


def test_no_text_is_short_enough(model: Any) -> None:
    exam = examined(model, [LONG] * 4, "structure")
    assert not {"structure.form", "structure.distance"} & {*exam.readings}, "no list of forms of nothing"
    (note,) = exam.notes
    assert note == "structure was not computed: no text has 64 tokens or fewer; cut texts with --max-length 64"


def test_long_texts_do_not_thin_out_the_short_ones() -> None:
    """The draw is among the texts that can be used, not among all."""
    assert MeasureContext(9, sentences=5).up_to(FIT_MAX_TOKENS) == 5, "where lengths are not known, all count"
    assert MeasureContext(99, sentences=3, lengths=(64, 65, 1)).up_to(FIT_MAX_TOKENS) == 2


def test_it_is_in_the_summary_and_on_the_page(model: Any, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text.txt", many(8))
    said = CliRunner().invoke(main, ["examine", str(tiny_folder("bert")), "--text", str(text), "--measures", "roles"])
    assert said.exit_code == 0, said.output
    words = " ".join(said.output.split())
    assert "role labels are unreliable: they come from 8 sentences; examine 30 or more" in words
    page = page_contents([PageExam(examined(model, many(2), "roles"), "two")]).page
    (exam,) = page["exams"]
    assert any(note.startswith("no role labels: 2 sentences are too few") for note in exam["notes"])
    assert not [name for name in exam["readings"] if name.startswith("roles.label")]
