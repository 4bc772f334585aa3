"""gettext:DIR: message catalogs, whole and broken."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from attnworks.core.errors import FolderError
from attnworks.text.corpora import Corpus, open_corpus
from attnworks.text.readers.gettext import has_letters, without_mnemonics

HEADER = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n"


def catalog(messages: dict[str, str], header: str = HEADER) -> bytes:
    """A little-endian .mo file: magic, version, count, two tables of (length, offset), the texts."""
    entries = sorted({"": header, **messages}.items())
    texts = [text.encode() for column in zip(*entries, strict=True) for text in column]
    start = 28 + 8 * len(texts)
    table, data = b"", b""
    for text in texts:
        table += struct.pack("<II", len(text), start + len(data))
        data += text + b"\0"
    count = len(entries)
    return struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, start) + table + data


def put(folder: Path, name: str, content: bytes) -> None:
    place = folder / "it" / "LC_MESSAGES"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content)


def texts(corpus: Corpus) -> dict[str, str]:
    pairs = [*corpus.train, *corpus.valid, *corpus.test]
    return {" ".join(pair.words[0]): " ".join(pair.words[1]) for pair in pairs}


def test_messages_become_pairs(tmp_path: Path) -> None:
    put(
        tmp_path,
        "a.mo",
        catalog({"Open the file": "Apri il file", "menu\x04Quit": "Esci", "No space\n": "Spazio finito\n"}),
    )
    corpus = open_corpus(f"gettext:{tmp_path}")
    assert texts(corpus) == {"Open the file": "Apri il file", "Quit": "Esci", "No space": "Spazio finito"}
    assert corpus.report.summary() == "3 pairs"


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    put(tmp_path, "a.mo", catalog({"Quit": "Esci", "%s: %d": "%s: %d", "one\ntwo": "uno\ndue", "gone": ""}))
    put(tmp_path, "b.mo", catalog({"Quit": "Abbandona", "Hello": "Ciao", "%d file\0%d files": "%d file\0%d file"}))
    put(tmp_path, "c.mo", b"no catalog")
    corpus = open_corpus(f"gettext:{tmp_path}")
    assert texts(corpus) == {"Quit": "Esci", "Hello": "Ciao"}
    assert corpus.report.reasons == {
        "no words": 1,
        "empty side": 1,
        "several lines": 1,
        "repeated": 1,
        "malformed catalog c.mo": 1,
    }
    assert corpus.report.summary().startswith("2 pairs; 5 entries left out: ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        catalog({"a": "b"})[:40],
        catalog({"a": "b"}, header="Content-Type: text/plain; charset=klingon\n"),
        catalog({"a": "b"}, header="Content-Type: text/plain; charset=hex\n"),
        catalog({"a": "perché"}, header="Content-Type: text/plain; charset=ascii\n"),
        catalog({"a": "b"}, header="Content-Type: text/plain\nPlural-Forms: nothing\n"),
        catalog({"a": "b"}, header="Plural-Forms: nplurals=2; plural=__import__('os');\n"),
        catalog({"a": "b"}, header=f"Plural-Forms: nplurals=2; plural={'(' * 400}n{')' * 400};\n"),
        struct.pack("<7I", 0x950412DE, 0, 2**31, 28, 36, 0, 44),
    ],
)
def test_a_malformed_catalog_stops_nobody(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, "bad.mo", content)
    put(tmp_path, "good.mo", catalog({"Quit": "Esci"}))
    corpus = open_corpus(f"gettext:{tmp_path}")
    assert corpus.report.reasons == {"malformed catalog bad.mo": 1}
    assert texts(corpus) == {"Quit": "Esci"}


def test_random_damage_is_always_a_count(tmp_path: Path) -> None:
    whole = catalog({f"message {n}": f"messaggio {n}" for n in range(20)})
    put(tmp_path, "good.mo", catalog({"Quit": "Esci"}))
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 8)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        put(tmp_path, "bad.mo", bytes(damaged))
        assert open_corpus(f"gettext:{tmp_path}").report.read >= 1


def test_no_catalogs(tmp_path: Path) -> None:
    with pytest.raises(FolderError) as caught:
        open_corpus(f"gettext:{tmp_path}")
    assert str(caught.value) == (
        f"corpus 'gettext:{tmp_path}': expected catalogs {tmp_path}/it/LC_MESSAGES/*.mo, got none; name their folder"
    )


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.mo", catalog({"Quit": "Esci"}))
    monkeypatch.setattr("attnworks.text.readers.gettext.DEFAULT_FOLDER", str(tmp_path))
    assert texts(open_corpus("gettext:")) == texts(open_corpus("gettext")) == {"Quit": "Esci"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("_Open", "_Apri"), ("Open", "Apri")),
        (("Save _As", "Sal_va come"), ("Save As", "Salva come")),
        (("&File", "&File"), ("File", "File")),
        (("R&D", "R&S"), ("R&D", "R&S")),
        (("use file_name", "usa file_name"), ("use file_name", "usa file_name")),
        (("_Open", "Apri"), ("_Open", "Apri")),
        (("a & b", "a & b"), ("a & b", "a & b")),
        (("_one _two", "_uno _due"), ("_one _two", "_uno _due")),
    ],
)
def test_mnemonics(given: tuple[str, str], expected: tuple[str, str]) -> None:
    assert without_mnemonics(*given) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s", False),
        ("%1$s: %-5.2lf %%", False),
        ("%(name)s {0} {key}", False),
        ("-- 12 --", False),
        ("%s is open", True),
        ("è", True),
    ],
)
def test_letters_outside_directives(text: str, expected: bool) -> None:
    assert has_letters(text) == expected
