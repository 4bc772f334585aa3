"""Text to learn from, and text to be judged by."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnworks.core.errors import UsageError
from attnworks.reshape.texts import found_again, from_corpus, from_lines, from_texts
from tests.reshape.reshape_helpers import PASSAGES

LINES = [f"sentence number {number} ." for number in range(9)]


def sources(passages: object) -> set[str]:
    return {passage.source.text for passage in passages}  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]


def test_nothing_that_is_learned_from_is_judged_by() -> None:
    texts = from_texts([*LINES, *LINES, "", *LINES])
    assert len(texts.held_out) == 2 and len(texts.learn) == 7
    assert sources(texts.learn).isdisjoint(sources(texts.held_out))
    corpus = from_corpus("grammar", pairs=50, held_out=20)
    assert len(corpus.learn) == 50 and sources(corpus.learn).isdisjoint(sources(corpus.held_out))
    with pytest.raises(UsageError, match="4 sentences or more"):
        from_texts(["the same ."] * 20)


def test_lines_of_a_file_at_most_so_many(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    texts = from_lines(tmp_path / "lines.txt", pairs=3, held_out=1)
    assert (len(texts.learn), len(texts.held_out)) == (3, 1)


def test_found_again_only_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    monkeypatch.chdir(tmp_path)
    texts = from_lines(Path("lines.txt"), pairs=5)
    monkeypatch.chdir("/")
    assert found_again(texts.about).learn == texts.learn
    (tmp_path / "lines.txt").write_text("\n".join(LINES[1:]))
    with pytest.raises(UsageError, match="which changed"):
        found_again(texts.about)
    corpus = from_corpus("grammar", pairs=9, held_out=3)
    assert found_again(corpus.about).held_out == corpus.held_out
    with pytest.raises(UsageError, match="which changed"):
        found_again({**corpus.about, "sha256": "0"})


@pytest.mark.parametrize("missing", ["corpus", "pairs", "seed", "held_out"])
def test_what_is_not_told_is_refused(missing: str) -> None:
    about = {key: value for key, value in from_corpus("grammar", pairs=9).about.items() if key != missing}
    for odd in (about, {**about, missing: ["x"]}, from_texts(PASSAGES).about):
        with pytest.raises(UsageError, match="given in Python"):
            found_again(odd)
