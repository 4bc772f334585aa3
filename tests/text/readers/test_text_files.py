"""text:FILE_SRC,FILE_TGT: line-parallel files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from attnworks.core.errors import AttnworksError
from attnworks.text.corpora import Corpus, open_corpus
from attnworks.text.passages import MAX_LINE_BYTES


def spec(folder: Path, source: str, target: str) -> str:
    (folder / "a.en").write_bytes(source.encode())
    (folder / "a.it.gz").write_bytes(gzip.compress(target.encode()))
    return f"text:{folder / 'a.en'},{folder / 'a.it.gz'}"


def texts(corpus: Corpus) -> set[tuple[str, str]]:
    pairs = [*corpus.train, *corpus.valid, *corpus.test]
    return {(" ".join(pair.words[0]), " ".join(pair.words[1])) for pair in pairs}


def error_of(spec: str) -> str:
    with pytest.raises(AttnworksError) as caught:
        open_corpus(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_lines_are_paired(tmp_path: Path) -> None:
    corpus = open_corpus(spec(tmp_path, "\ufeffHi.\r\nGo\tnow\r\n", "Ciao.\nVai ora"))
    assert texts(corpus) == {("Hi .", "Ciao ."), ("Go now", "Vai ora")}
    assert corpus.report.summary() == "2 pairs"


def test_bad_lines_keep_the_others_aligned(tmp_path: Path) -> None:
    huge = "x" * (MAX_LINE_BYTES + 1)
    corpus = open_corpus(spec(tmp_path, f"Hi\n\n\nGo\n{huge}\nb\0\nRun\n", "Ciao\n\nVuoto\n \nx\nx\nCorri\n"))
    assert texts(corpus) == {("Hi", "Ciao"), ("Run", "Corri")}
    assert corpus.report.first_lines == {
        "empty side": (3, 4),
        "more than 1,048,576 bytes": (5,),
        "NUL byte": (6,),
    }


@pytest.mark.parametrize(("source", "target"), [(3, 2), (2, 3), (1_200, 1)])
def test_other_line_counts(tmp_path: Path, source: int, target: int) -> None:
    message = error_of(spec(tmp_path, "a\n" * source, "b\n" * target))
    assert message == (
        f"{tmp_path / 'a.en'} and {tmp_path / 'a.it.gz'}: expected the same number of lines, "
        f"got {source:,} and {target:,}; align them"
    )


@pytest.mark.parametrize(
    ("argument", "got"), [("", "no files"), ("a", "1 file"), ("a,", "1 file"), ("a,b,c", "3 files")]
)
def test_two_files_are_needed(argument: str, got: str) -> None:
    assert error_of(f"text:{argument}") == (
        f"corpus 'text:{argument}': expected text:FILE_SRC,FILE_TGT, got {got}; name two files"
    )


def test_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("Hi\n")
    message = error_of(f"text:{tmp_path / 'a'},{tmp_path / 'b'}")
    assert message == f"read {tmp_path / 'b'}: expected a text file, got nothing there; check the name"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("Hi\nHi\n")
    (tmp_path / "b").write_bytes(b"Ciao\n\xff\n")
    assert "got byte 0xff at offset 5 (line 2)" in error_of(f"text:{tmp_path / 'a'},{tmp_path / 'b'}")
