"""Text to learn from, and text to be judged by."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnworks.core.errors import UsageError
from attnworks.reshape.texts import split_corpus, split_file, split_texts, texts_of_receipt
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
