"""debian-descriptions:LANGUAGE: lists of translated descriptions, joined on their md5."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from attnworks.data.corpora import Corpus, open_corpus
from attnworks.data.readers import descriptions
from attnworks.errors import AttnworksError

PREFIX = "mirror_debian_dists_stable_main_i18n_Translation-"


def stanza(language: str, md5: str, short: str, *paragraphs: str) -> str:
    long = "\n .\n".join("\n".join(f" {line}" for line in paragraph.split("\n")) for paragraph in paragraphs)
    description = f"Description-{language}: {short}" + (f"\n{long}" if long else "")
    return f"Package: p\nDescription-md5: {md5 * 32}\n{description}\n"


def put(folder: Path, language: str, *stanzas: str, suffix: str = "", pack: Callable[[bytes], bytes] = bytes) -> None:
    (folder / f"{PREFIX}{language}{suffix}").write_bytes(pack("\n".join(stanzas).encode()))


def read(folder: Path) -> Corpus:
    return open_corpus(f"debian-descriptions:it,{folder}")


def texts(corpus: Corpus) -> dict[str, str]:
    pairs = [*corpus.train, *corpus.valid, *corpus.test]
    return {" ".join(pair.source): " ".join(pair.target) for pair in pairs}


def error_of(spec: str) -> str:
    with pytest.raises(AttnworksError) as caught:
        open_corpus(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_short_descriptions_and_paragraphs(tmp_path: Path) -> None:
    put(tmp_path, "en", stanza("en", "a", "a game", "First line\nsecond line.", "Last."), stanza("en", "b", "a tool"))
    put(
        tmp_path,
        "it",
        stanza("it", "b", "uno strumento"),
        stanza("it", "a", "un gioco", "Prima riga\nseconda.", "Fine."),
    )
    corpus = read(tmp_path)
    assert texts(corpus) == {
        "a game": "un gioco",
        "First line second line .": "Prima riga seconda .",
        "Last .": "Fine .",
        "a tool": "uno strumento",
    }
    assert corpus.report.summary() == "4 pairs"


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    put(
        tmp_path,
        "en",
        stanza("en", "a", "a game", "One.", "Two."),
        stanza("en", "b", "a tool", "One.", "Two."),
        stanza("en", "c", "a tool", "Text."),
    )
    put(
        tmp_path,
        "it",
        stanza("it", "a", "un gioco", "Uno e due."),
        stanza("it", "b", "uno strumento", "Uno.", "Due."),
        stanza("it", "c", "uno strumento", "Testo."),
        stanza("it", "d", "orfano"),
        "Package: p\nno description\n",
    )
    with (tmp_path / f"{PREFIX}it").open("ab") as file:
        file.write(b"\n\n\nPackage: \xff\n\n")
    corpus = read(tmp_path)
    assert texts(corpus) == {
        "a game": "un gioco",
        "a tool": "uno strumento",
        "One .": "Uno .",
        "Two .": "Due .",
        "Text .": "Testo .",
    }
    assert corpus.report.reasons == {
        "long description with other paragraphs": 1,
        "repeated": 1,
        "no English description": 1,
        "no description": 1,
        "not UTF-8": 1,
    }


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)])
def test_packed_lists(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    put(tmp_path, "en", stanza("en", "a", "a game"))
    put(tmp_path, "it", stanza("it", "a", "un gioco"), suffix=suffix, pack=pack)
    assert texts(read(tmp_path)) == {"a game": "un gioco"}
    (file,) = tmp_path.glob("*Translation-it*")
    file.write_bytes(file.read_bytes()[:-15])
    message = error_of(f"debian-descriptions:it,{tmp_path}")
    assert message.startswith(f"read {file}: expected a list of descriptions, got ")
    assert message.endswith("; run apt-get update to fetch it again")


def lz4(data: bytes) -> bytes:
    """An LZ4 frame with one stored block."""
    return b"\x04\x22\x4d\x18\x60\x40\x82" + struct.pack("<I", len(data) | 1 << 31) + data + bytes(4)


def test_lists_that_only_apt_can_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "apt-helper"
    helper.write_text('#!/bin/sh\n[ "$1" = cat-file ] && gzip -dc < "$2"\n')
    helper.chmod(0o755)
    monkeypatch.setattr(descriptions, "APT_HELPER", str(helper))
    put(tmp_path, "en", stanza("en", "a", "a game"))
    put(tmp_path, "it", stanza("it", "a", "un gioco"), suffix=".lz4", pack=gzip.compress)
    assert texts(read(tmp_path)) == {"a game": "un gioco"}


@pytest.mark.skipif(not Path(descriptions.APT_HELPER).is_file(), reason="needs apt")
def test_lists_that_apt_unpacks_in_truth(tmp_path: Path) -> None:
    put(tmp_path, "en", stanza("en", "a", "a game"))
    put(tmp_path, "it", stanza("it", "a", "un gioco"), suffix=".lz4", pack=lz4)
    assert texts(read(tmp_path)) == {"a game": "un gioco"}


def test_a_list_that_apt_cannot_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "apt-helper"
    helper.write_text("#!/bin/sh\necho 'E: bad\nfile' >&2\nexit 100\n")
    helper.chmod(0o755)
    monkeypatch.setattr(descriptions, "APT_HELPER", str(helper))
    put(tmp_path, "en", stanza("en", "a", "a game"))
    put(tmp_path, "it", "", suffix=".lz4")
    assert error_of(f"debian-descriptions:it,{tmp_path}") == (
        f"read {tmp_path / PREFIX}it.lz4: expected a list of descriptions, got E: bad file; "
        "run apt-get update to fetch it again"
    )


def test_no_apt_to_unpack_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "APT_HELPER", "/nowhere/apt-helper")
    put(tmp_path, "en", "", suffix=".lz4")
    put(tmp_path, "it", "", suffix=".lz4")
    assert error_of(f"debian-descriptions:it,{tmp_path}") == (
        f"unpack {tmp_path / PREFIX}en.lz4: expected apt's own /nowhere/apt-helper, got nothing there; "
        f"unpack the list by hand, to {tmp_path / PREFIX}en"
    )


REMEDY = (
    'on Debian write the line Acquire::Languages "en,it"; to /etc/apt/apt.conf.d/zz-translations and run apt-get update'
)


def test_missing_lists_tell_how_to_get_them(tmp_path: Path) -> None:
    expected = f"corpus 'debian-descriptions:it': expected the lists Translation-en and Translation-it in {tmp_path}"
    spec = f"debian-descriptions:it,{tmp_path}"
    assert error_of(spec) == f"{expected}, got no Translation-en and no Translation-it; {REMEDY}"
    put(tmp_path, "en", stanza("en", "a", "a game"))
    put(tmp_path, "it_IT", stanza("it", "a", "un gioco"))
    put(tmp_path, "it", stanza("it", "a", "un gioco"), suffix=".FAILED")
    assert error_of(spec) == f"{expected}, got no Translation-it; {REMEDY}"


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "LISTS", str(tmp_path))
    put(tmp_path, "en", stanza("en", "a", "a game"))
    put(tmp_path, "pt_BR", stanza("pt_BR", "a", "um jogo"))
    assert texts(open_corpus("debian-descriptions:pt_BR")) == {"a game": "um jogo"}


@pytest.mark.parametrize(("argument", "got"), [("", "no language"), ("en", "'en'"), ("../x", "'../x'"), ("*", "'*'")])
def test_a_language_is_needed(argument: str, got: str) -> None:
    assert error_of(f"debian-descriptions:{argument}") == (
        f"corpus 'debian-descriptions:{argument}': expected debian-descriptions:LANGUAGE, a code such as it or pt_BR, "
        f"got {got}; write debian-descriptions:it"
    )
