"""attnworks examine --join-pairs: pairs of texts in one sequence, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import attnworks
from attnworks.cli import main
from attnworks.core.errors import UsageError
from attnworks.exam.folder import read_exam
from attnworks.exam.reading import tensors
from attnworks.text.passages import Passage, Text
from tests.exam_helpers import LINES, PAIRS, minilm, save_model, tiny_folder, write_lines
from tests.hf.test_pairs import pair_tokenizer
from tests.tiny_models import TINY

SIDES = {"to_first", "to_second", "sharpness", "permutation", "equal", "aligned"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT whose tokenizer has a template for pairs."""
    folder = save_model(TINY["bert"].build(dtype=torch.float32), tmp_path_factory.mktemp("bert") / "model")
    pair_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "pairs.tsv", PAIRS)


def examine(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["examine", *map(str, arguments), "--threads", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def examined(*arguments: object) -> dict[str, Any]:
    result = examine(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def mistake(*arguments: object) -> str:
    result = examine(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def sides_of(found: dict[str, Any]) -> set[str]:
    names = {name.partition(".")[2] for name in found["readings"] if name.startswith("sides.")}
    return {name for name in names if not name.endswith("_chance")}


def test_an_encoder_reads_both_texts(bert: Path, pairs: Path) -> None:
    found = examined(bert, "--text", pairs, "--join-pairs")
    assert found["corpus"]["joined_pairs"] == len(PAIRS) == found["corpus"]["sentences"]
    assert sides_of(found) == SIDES
    for name in ("to_first", "aligned", "aligned_chance"):
        assert [len(row) for row in found["readings"][f"sides.{name}"]["value"]] == [3, 3]
    assert any("two texts" in finding["text"] for finding in found["findings"])
    assert not any(note.startswith("sides") for note in found["notes"])


def test_a_decoder_sees_the_first_text_from_the_second(pairs: Path) -> None:
    found = examined(tiny_folder("gpt2"), "--text", pairs, "--join-pairs", "--measures", "sides")
    assert {name for row in found["readings"]["sides.to_second"]["count"] for name in row} == {0}
    assert {count for row in found["readings"]["sides.to_first"]["count"] for count in row} == {len(PAIRS)}
    assert found["notes"] == []


def test_a_corpus_of_pairs_and_the_embedded_one(bert: Path, pairs: Path) -> None:
    found = examined(bert, "--corpus", f"tsv:{pairs}", "--join-pairs", "--measures", "sides")
    assert found["corpus"]["joined_pairs"] == len(PAIRS)
    found = examined(minilm(), "--sentences", 3, "--join-pairs", "--measures", "sides")
    assert sides_of(found) == SIDES | {"gold"}, "the alignment of its words is known"


def test_without_the_option_a_line_says_that_targets_are_not_read(bert: Path, pairs: Path, tmp_path: Path) -> None:
    told = [
        "--join-pairs" in examine(bert, *text, "--measures", "rank").stderr
        for text in (["--text", pairs], ["--text", write_lines(tmp_path / "text.txt", LINES)], ["--sentences", 2])
    ]
    assert told == [True, False, False]
    alone = examined(bert, "--text", pairs)
    assert not sides_of(alone) and "joined_pairs" not in alone["corpus"]
    assert not any("sides" in note for note in alone["notes"])
    assert alone["readings"] == examined(bert, "--text", write_lines(tmp_path / "one.txt", LINES))["readings"]


def test_a_note_says_why_there_are_no_sides_where_they_were_chosen(bert: Path, pairs: Path) -> None:
    (note,) = examined(bert, "--text", pairs, "--measures", "sides")["notes"]
    assert note.startswith("sides was not computed") and "--join-pairs" in note


def test_pins_are_pairs_too(bert: Path, pairs: Path, tmp_path: Path) -> None:
    pinned = ["--pin", "a cat .\tit is red .", "--pin", PAIRS[1]]
    assert examine(bert, "--text", pairs, "--join-pairs", *pinned, "--out", tmp_path / "exam").exit_code == 0
    exam = read_exam(tmp_path / "exam")
    assert exam.pins[0].tokens == ("<s>", "a", "cat", ".", "</s>", "it", "is", "red", ".", "</s>")
    assert exam.corpus["joined_pairs"] == len(PAIRS)
    alone = mistake(bert, "--text", pairs, "--join-pairs", "--pin", "a cat .", "--out", tmp_path / "other")
    assert "two texts in every passage" in alone


def test_mistakes(bert: Path, pairs: Path, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text.txt", LINES)
    assert "one stack" in mistake(tiny_folder("bart"), "--text", pairs, "--join-pairs")
    assert "two texts in every passage" in mistake(bert, "--text", text, "--join-pairs")
    assert "--max-length 37" in mistake(
        bert, "--text", write_lines(text, [f"{'a ' * 20}\t{'b ' * 20}"]), "--join-pairs"
    )


def test_long_pairs_are_cut(bert: Path, pairs: Path) -> None:
    found = examined(bert, "--text", pairs, "--join-pairs", "--max-length", 9, "--measures", "sides")
    assert found["corpus"]["longest"] == 9 and found["corpus"]["joined_pairs"] == len(PAIRS)


def test_a_head_that_is_made_to_align_is_found(bert: Path) -> None:
    """Each token to the same token of the other text, and the others to themselves: head 1.2 alone."""
    passages = [Passage(Text(line), Text(" ".join(reversed(line.split())))) for line in LINES]
    subject = attnworks.open(bert)

    def to_partner(P: torch.Tensor) -> torch.Tensor:
        n = P.shape[-1]
        return torch.eye(n).flip(-1).expand_as(P)  # <s> and the last </s> are partners as well

    with subject.edit(weights={"1.2": to_partner}):
        exam = attnworks.examine(subject, passages, join_pairs=True, measures=["sides"], batch_tokens=1)
    (found,) = [finding for finding in exam.findings if "sides.aligned" in finding.readings]
    assert found.heads == ("enc.1.2",) and "mostly equal tokens" in found.text
    aligned = tensors(exam["sides.aligned"].value)
    assert aligned[1][2] == pytest.approx(1.0) and max(float(aligned[0].max()), float(aligned[1][:2].max())) < 0.6


def test_a_page_that_was_made_is_not_joined(bert: Path, pairs: Path, tmp_path: Path) -> None:
    page = attnworks.view(bert, pairs, join_pairs=True, out=tmp_path / "pairs.html", open=False)
    assert "sides.aligned" in json.dumps(page.contents.page)
    exam = attnworks.examine(bert, pairs, join_pairs=True, measures=["sides"], out=tmp_path / "exam")
    assert exam.corpus["joined_pairs"] == len(PAIRS)
    with pytest.raises(UsageError, match="join_pairs"):
        attnworks.view(tmp_path / "exam", join_pairs=True, open=False)
