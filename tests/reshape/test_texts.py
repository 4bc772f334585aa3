"""Text to learn from, and text to be judged by."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnworks
from attnworks.api.reshapes import read_split
from attnworks.core.errors import UsageError
from attnworks.reshape.texts import (
    HELD_OUT_TOKENS,
    MIN_PASSAGES,
    split_corpus,
    split_file,
    split_texts,
    texts_of_receipt,
)
from attnworks.text.passage_size import PassageSize
from attnworks.text.tokenizers import VocabularyReader
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.subject import wrap
from tests.exam_helpers import TINY, tiny_folder, tiny_tokenizer
from tests.reshape.reshape_helpers import PASSAGES

LINES = [f"sentence number {number} ." for number in range(9)]


def sources(passages: object) -> set[str]:
    return {passage.source.text for passage in passages}  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]


def test_nothing_that_is_learned_from_is_judged_by() -> None:
    texts = split_texts([*LINES, *LINES, "", *LINES])
    assert len(texts.held_out) == 2 and len(texts.learn) == 7
    assert sources(texts.learn).isdisjoint(sources(texts.held_out))
    corpus = split_corpus("grammar", pairs=50, held_out=20)
    assert len(corpus.learn) == 50 and sources(corpus.learn).isdisjoint(sources(corpus.held_out))
    with pytest.raises(UsageError, match="4 different sentences"):
        split_texts(["the same ."] * 20)


def test_lines_of_a_file_at_most_so_many(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    texts = split_file(tmp_path / "lines.txt", pairs=3, held_out=1)
    assert (len(texts.learn), len(texts.held_out)) == (3, 1)


def test_found_again_only_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    monkeypatch.chdir(tmp_path)
    texts = split_file(Path("lines.txt"), pairs=5)
    monkeypatch.chdir("/")
    assert texts_of_receipt(texts.about).learn == texts.learn
    (tmp_path / "lines.txt").write_text("\n".join(LINES[1:]))
    with pytest.raises(UsageError, match="which changed"):
        texts_of_receipt(texts.about)
    corpus = split_corpus("grammar", pairs=9, held_out=3)
    assert texts_of_receipt(corpus.about).held_out == corpus.held_out
    with pytest.raises(UsageError, match="which changed"):
        texts_of_receipt({**corpus.about, "sha256": "0"})


@pytest.mark.parametrize("missing", ["corpus", "pairs", "seed", "held_out"])
def test_what_is_not_told_is_refused(missing: str) -> None:
    about = {key: value for key, value in split_corpus("grammar", pairs=9).about.items() if key != missing}
    for odd in (about, {**about, missing: ["x"]}, split_texts(PASSAGES).about):
        with pytest.raises(UsageError, match="given in Python"):
            texts_of_receipt(odd)


LONG = [f"line {number} of a text that is {'very ' * (number % 5)}long ." for number in range(2_000)]
READER = VocabularyReader(Vocabulary.train("word", [line.split() for line in LONG]), "target", max_length=100)


def lines_of(passages: object) -> list[str]:
    return [line for source in map(str.splitlines, sorted(sources(passages))) for line in source]


def test_no_line_of_a_joined_text_is_on_both_sides(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join([*LONG, *LONG[:50]]))
    texts = split_file(tmp_path / "lines.txt", passage_size=PassageSize.of(READER))
    assert texts.passage_tokens == 100 and texts.about["held_out"] == HELD_OUT_TOKENS // 100
    learned, held = lines_of(texts.learn), lines_of(texts.held_out)
    assert len({*learned}) == len(learned) and {*learned}.isdisjoint(held) and {*learned, *held} <= {*LONG}
    sizes = [READER.count(passage.source) for passage in texts.held_out]
    assert len(sizes) == 61 and max(sizes) <= 100 and sum(sizes) > 0.8 * HELD_OUT_TOKENS
    few, every = (
        split_file(tmp_path / "lines.txt", held_out=count, passage_size=PassageSize.of(READER)) for count in (5, 10**6)
    )
    assert len(few.held_out) == 5 and {*lines_of(few.held_out)} <= {*lines_of(every.held_out)}
    numbers = [int(line.split()[1]) for line in lines_of(few.held_out)]
    assert min(numbers) < 100 and max(numbers) > 1_500, "they are from everywhere"


def test_a_short_text_is_held_out_in_short_passages() -> None:
    texts = split_texts(LONG[:200], passage_size=PassageSize.of(READER))
    assert texts.passage_tokens is not None and texts.passage_tokens < 100
    assert MIN_PASSAGES - 1 <= len(texts.held_out) <= MIN_PASSAGES + 1


def test_texts_to_calibrate_on_are_counted_in_tokens_if_they_were_joined() -> None:
    joined, apart = split_texts(LONG, passage_size=PassageSize.of(READER)), split_texts(LONG)
    assert len(apart.calibration(10, 1_000)) == 10 and len(joined.calibration(10, 1_000)) == 10
    assert len(joined.calibration(10, 100)) == MIN_PASSAGES
    assert joined.calibration(10, 1_000)[-1] in joined.learn[-len(joined.learn) // 10 :]


def test_joined_texts_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LONG[:400]))
    for texts in (
        split_file(tmp_path / "lines.txt", held_out=3, passage_size=PassageSize.of(READER)),
        split_corpus("pydoc", passage_size=PassageSize.of(READER)),
    ):
        again = texts_of_receipt(texts.about, READER)
        assert (again.learn, again.held_out, again.about) == (texts.learn, texts.held_out, texts.about)
        apart = texts_of_receipt({key: value for key, value in texts.about.items() if key != "passage_tokens"}, READER)
        assert len(apart.learn) > len(texts.learn), "older receipts have sentences"
        for odd in (0, -(10**9), 10**9):
            texts_of_receipt({**texts.about, "passage_tokens": odd}, READER).calibration(1, 1)


def test_texts_that_were_given_keep_their_numbers() -> None:
    texts = split_texts([*LINES, LINES[0], ""])
    assert texts.texts == 10 and texts.learn_numbers is not None and texts.held_out_numbers is not None
    given = [*LINES, LINES[0]]
    for passages, numbers in ((texts.learn, texts.learn_numbers), (texts.held_out, texts.held_out_numbers)):
        assert [passage.source.text for passage in passages] == [given[number] for number in numbers]


@pytest.mark.parametrize(
    ("name", "objective", "corpus", "joined"),
    [
        ("gpt2", None, "pydoc", True), ("gpt2", "lm", "pydoc", True), ("gpt2", "embedding", "pydoc", False),
        ("bert", None, "grammar", False), ("bart", None, "grammar", False), ("t5-gated", None, "grammar", False),
    ],
)  # fmt: skip
def test_language_models_read_prose_in_passages(name: str, objective: str | None, corpus: str, joined: bool) -> None:
    model = TINY[name].build()
    who = wrap(model, tiny_tokenizer(model.config.model_type))
    texts = read_split(who, None, pairs=200, sentences=None, seed=0, objective=objective)
    assert texts.about["corpus"] == corpus and (texts.passage_tokens is not None) == joined
    if joined:
        assert texts.passage_tokens == 37
        read = who.read(texts.held_out, batch_tokens=99)
        assert read.split == (0, 0) and HELD_OUT_TOKENS * 0.7 < read.tokens <= HELD_OUT_TOKENS


def test_a_reshape_of_a_language_model_is_replayed_on_the_same_passages(tmp_path: Path) -> None:
    folder = str(tiny_folder("gpt2"))
    _, receipt = attnworks.prune(folder, heads="0.1", pairs=60, sentences=9, heal=1, out=tmp_path / "new")
    ((then, now),) = attnworks.replay(tmp_path / "new", folder, tmp_path / "again")
    assert (then.text, then.loss) == (now.text, now.loss) == (receipt.text, receipt.loss)
    assert now.text["evaluation"] == 9 and now.fingerprint == receipt.fingerprint and now.probes == receipt.probes
