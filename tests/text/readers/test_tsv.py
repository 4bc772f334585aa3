"""tsv:FILE: good and bad files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from attnworks.core.errors import AttnworksError
from attnworks.text.corpora import Corpus, open_corpus
from attnworks.text.passages import MAX_LINE_BYTES


def read(path: Path, content: bytes | str) -> Corpus:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_corpus(f"tsv:{path}")


def texts(corpus: Corpus) -> set[tuple[str, str]]:
    pairs = [*corpus.train, *corpus.valid, *corpus.test]
    return {(" ".join(pair.words[0]), " ".join(pair.words[1])) for pair in pairs}


def error_of(spec: str) -> str:
    with pytest.raises(AttnworksError) as caught:
        open_corpus(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pairs.tsv"


def test_columns_become_words(path: Path) -> None:
    corpus = read(path, "Hi.\tCiao!\nI see.\tL'amica c'è.\tCC-BY\tmore\n")
    assert texts(corpus) == {("Hi .", "Ciao !"), ("I see .", "L' amica c' è .")}
    assert corpus.spec == f"tsv:{path}"
    assert corpus.report.summary() == "2 pairs"


def test_byte_order_mark_windows_line_ends_blank_lines_and_no_last_line_end(path: Path) -> None:
    corpus = read(path, "\ufeffHi\tCiao\r\n\r\n   \nGo\tVai\r\n\n\nRun\tCorri")
    assert texts(corpus) == {("Hi", "Ciao"), ("Go", "Vai"), ("Run", "Corri")}
    assert corpus.report.bad == 0


def test_gzip(tmp_path: Path) -> None:
    assert texts(read(tmp_path / "pairs.tsv.gz", gzip.compress(b"Hi\tCiao\n"))) == {("Hi", "Ciao")}


def test_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pairs.tsv").write_text("Hi\tCiao\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_corpus("tsv:~/pairs.tsv").report.read == 1


def test_bad_lines_are_left_out_and_reported(path: Path) -> None:
    long = "word " * 1_001
    corpus = read(path, f"Hi\tCiao\nno tab\n\n\tCiao\nHi\t \na\0b\tc\n{long}\tx\nx\t{long}\n\u200b\tx\nanother\n")
    report = corpus.report
    assert report.read == 1
    assert report.bad == 8
    assert report.reasons == {"no tab": 2, "empty side": 3, "NUL byte": 1, "more than 1,000 words": 2}
    assert report.first_lines == {
        "no tab": (2, 10),
        "empty side": (4, 5, 9),
        "NUL byte": (6,),
        "more than 1,000 words": (7, 8),
    }
    assert report.summary() == (
        "1 pair; 8 lines left out: no tab (lines 2, 10), empty side (lines 4, 5, 9), NUL byte (line 6), "
        "more than 1,000 words (lines 7, 8)"
    )


def test_the_first_five_numbers_are_remembered(path: Path) -> None:
    report = read(path, "bad\n" * 9 + "Hi\tCiao\n").report
    assert report.summary() == "1 pair; 9 lines left out: no tab (lines 1, 2, 3, 4, 5 and 4 more)"


@pytest.mark.parametrize("surplus", [1, 2, MAX_LINE_BYTES, 3 * MAX_LINE_BYTES + 5])
def test_a_huge_line_is_passed_over(path: Path, surplus: int) -> None:
    corpus = read(path, b"Hi\tCiao\n" + b"x" * (MAX_LINE_BYTES + surplus) + b"\nGo\tVai\n")
    assert texts(corpus) == {("Hi", "Ciao"), ("Go", "Vai")}
    assert corpus.report.first_lines == {"more than 1,048,576 bytes": (2,)}


def test_a_thousand_words_are_not_too_many(path: Path) -> None:
    assert read(path, "word " * 1_000 + "\tx\n").report.bad == 0


def test_bytes_that_are_no_text(path: Path) -> None:
    path.write_bytes("Hi\tCiao\nperché\tperch".encode() + b"\xe9\n")
    assert error_of(f"tsv:{path}") == (
        f"read {path}: expected UTF-8 text, got byte 0xe9 at offset 21 (line 2); save the file as UTF-8"
    )


def test_the_offset_counts_the_mark_and_overlong_lines(path: Path) -> None:
    content = b"\xef\xbb\xbfHi\tCiao\n" + b"x" * (2 * MAX_LINE_BYTES) + b"\n"
    path.write_bytes(content + b"\xff")
    assert f"got byte 0xff at offset {len(content):,} (line 3)" in error_of(f"tsv:{path}")


def test_utf_16_is_refused(path: Path) -> None:
    path.write_bytes("Hi\tCiao\n".encode("utf-16"))
    assert "got byte 0xff at offset 0 (line 1); save the file as UTF-8" in error_of(f"tsv:{path}")


def test_no_file_named() -> None:
    expected = "corpus 'tsv:': expected tsv:FILE, got no file; name a file of lines: source TAB target"
    assert error_of("tsv:") == error_of("tsv") == expected


def test_a_missing_file(path: Path) -> None:
    assert error_of(f"tsv:{path}") == f"read {path}: expected a text file, got nothing there; check the name"


def test_a_folder(tmp_path: Path) -> None:
    assert error_of(f"tsv:{tmp_path}") == f"read {tmp_path}: expected a text file, got a folder; name a file in it"


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"" if path.suffix == ".tsv" else gzip.compress(b""))
    assert error_of(f"tsv:{path}") == (
        f"read {path}: expected a text file, got an empty file; choose a file with text in it"
    )


WHOLE = gzip.compress("".join(f"sentence {n}\tfrase {n}\n" for n in range(999)).encode())


@pytest.mark.parametrize(
    "content",
    [b"Hi\tCiao\n", WHOLE[:-40], WHOLE[:-3], WHOLE[:200] + bytes(50) + WHOLE[250:], WHOLE + b"Hi\tCiao"],
    ids=["no gzip at all", "cut off", "end cut off", "damaged", "something behind"],
)
def test_a_broken_gzip_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(content)
    message = error_of(f"tsv:{path}")
    assert message.startswith(f"read {path}: expected a text file, got a broken gzip file (")
    assert message.endswith("); make or fetch the file again")


def test_a_name_that_no_file_can_have() -> None:
    assert error_of("tsv:a\0b") == (
        "read a\\x00b: expected a text file, got embedded null byte; choose a file that can be read"
    )
