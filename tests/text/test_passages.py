"""Lines, files, corpora and the embedded grammar as passages."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnworks.core.errors import AttnworksError, UsageError
from attnworks.text import grammar
from attnworks.text.corpora import from_corpus
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import MAX_LINE_BYTES, Passage, Text, from_file, from_texts


def file(folder: Path, content: bytes | str) -> Path:
    path = folder / "lines.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def file_error(path: Path) -> str:
    with pytest.raises(AttnworksError) as caught:
        from_file(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_blank_texts_are_dropped_and_counted() -> None:
    passages, report = from_texts(["  Luca sings. ", "", " \t ", "a\tb"])
    assert passages == [Passage(Text("Luca sings.")), Passage(Text("a\tb"))]
    assert [passage.source.line for passage in passages] == [1, 4]
    assert (report.read, report.bad, report.first_lines) == (2, 2, {"empty": (2, 3)})
    assert report.summary() == "2 passages; 2 lines left out: empty (lines 2, 3)"


def test_one_text() -> None:
    assert from_texts(["Hi"])[1].summary() == "1 passage"


def test_no_text_left() -> None:
    with pytest.raises(UsageError, match=r"1 line left out: empty \(line 1\); give a line of text"):
        from_texts([" "])
    with pytest.raises(UsageError, match="no line at all"):
        from_texts([])


def test_lines_of_a_file(tmp_path: Path) -> None:
    passages, report = from_file(file(tmp_path, "\ufeffPerché no?\r\n\r\nb\0d\r\n" + "x" * MAX_LINE_BYTES + "y\r\nHi"))
    assert [(passage.source.text, passage.source.line, passage.target) for passage in passages] == [
        ("Perché no?", 1, None),
        ("Hi", 5, None),
    ]
    assert report.first_lines == {"empty": (2,), "NUL byte": (3,), "more than 1,048,576 bytes": (4,)}


def test_a_tab_separates_the_sides(tmp_path: Path) -> None:
    passages, report = from_file(file(tmp_path, "Hi \t Ciao\tignored\n\t \nGo\t\n\tVai\nRun\tCorri\n"))
    assert passages == [Passage(Text("Hi"), Text("Ciao")), Passage(Text("Run"), Text("Corri"))]
    assert report.first_lines == {"empty": (2,), "empty side": (3, 4)}


@pytest.mark.parametrize(
    ("content", "got"),
    [("Hi\tCiao\nGo\nRun\n", "one in line 1 and none in line 2"), ("a\nb\nc\td\n", "one in line 3 and none in line 1")],
)
def test_a_tab_in_some_lines_only(tmp_path: Path, content: str, got: str) -> None:
    assert f"got {got}; give every line a target" in file_error(file(tmp_path, content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "got a folder; name a file in it" in file_error(tmp_path)
    assert "got nothing there; check the name" in file_error(tmp_path / "missing")
    assert "got an empty file" in file_error(file(tmp_path, ""))
    assert "got byte 0xff at offset 3 (line 2); save the file as UTF-8" in file_error(file(tmp_path, b"Hi\n\xff\n"))
    assert "got 2 lines left out: empty (lines 1, 2); choose a file" in file_error(file(tmp_path, "\n \n"))


def test_held_out_pairs_of_the_grammar_with_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.text.grammar.HELD_OUT_PAIRS", 100)
    passages, report = from_corpus("grammar", 103, 5)
    pairs = [*grammar.pairs(100, 5, "test"), *grammar.pairs(3, 5, "valid")]
    assert report.read == len(passages) == len(pairs)
    for passage, pair in zip(passages, pairs, strict=True):
        assert passage == pair and pair.truth is not None
        for words, side in zip(pair.words, (passage.source, passage.target), strict=True):
            assert side is not None and side.governors is not None
            assert side == Text(" ".join(words), words, side.governors)


def test_a_small_corpus_gives_test_then_validation_then_training(tmp_path: Path) -> None:
    path = file(tmp_path, "".join(f"one{n}\tuno{n}\n" for n in range(7)) + "no tab\n")
    everything, report = from_corpus(f"tsv:{path}", 11, 0)
    assert len(everything) == 7 and report.reasons == {"no tab": 1}
    assert report.summary() == "7 passages; 1 line left out: no tab (line 8)"
    assert len({passage.source.text for passage in everything}) == 7
    first, _ = from_corpus(f"tsv:{path}", 2, 0)
    assert first == everything[:2]
    assert everything[0].source.words is not None and everything[0].source.governors is None


def test_the_embedded_text_is_always_the_same() -> None:
    passages = grammar_passages(5)
    assert passages == grammar_passages(7)[:5]
    pair = grammar.pairs(1, 0, "test")[0]
    assert passages[0].source.words == pair.words[0]
    assert passages[0].target is not None and passages[0].target.words == pair.words[1]


@pytest.mark.parametrize("number", [0, -3])
def test_one_passage_at_least(number: int) -> None:
    with pytest.raises(UsageError, match="expected a whole number from 1, got"):
        grammar_passages(number)
    with pytest.raises(UsageError, match="expected a whole number from 1, got"):
        from_corpus("grammar", number, 0)


@pytest.mark.parametrize(
    ("words", "heads", "message"),
    [
        (("Hi", "!"), None, "expected words that spell the text, got 'Hi !'"),
        (None, (-1,), "1 for 0 words"),
        (("Hi", "you"), (-1,), "1 for 2 words"),
        (("Hi", "you"), (-1, 2), "governor 2 of word 1"),
        (("Hi", "you"), (-2, 0), "governor -2 of word 0"),
        (("Hi", "you"), (-1, 1), "governor 1 of word 1"),
    ],
)
def test_sides_that_contradict_themselves(words: tuple[str, ...] | None, heads: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Text("Hi you", words, heads)


def test_words_spell_the_text_blanks_aside() -> None:
    assert Text("Hi,  you!", ("Hi", ",", "you", "!"), (-1, 0, 0, 0)).governors == (-1, 0, 0, 0)
    assert Text("x" * 60).name == f"text '{'x' * 39}…'"
    assert Text("x", line=1_203).name == "line 1,203"
