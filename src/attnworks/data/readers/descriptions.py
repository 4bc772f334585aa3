"""`debian-descriptions:it`: package descriptions in English and Italian, from the lists that apt keeps.

The Translation-en and Translation-it lists are joined on Description-md5. A pair is a short description, or a
paragraph (what stands between two lines " .", on one line) of a long description that has as many paragraphs in both
languages; pairs that occur several times count once. Other languages that Debian has work too.
`debian-descriptions:it,DIR` reads the lists in DIR instead of /var/lib/apt/lists.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from attnworks.data.pair import Pair
from attnworks.data.readers.contract import CORPORA
from attnworks.data.readers.report import Tally
from attnworks.data.readers.splitting import split_by_source
from attnworks.errors import FolderError, UsageError

LISTS = "/var/lib/apt/lists"
APT_HELPER = "/usr/lib/apt/apt-helper"
SETTINGS = "/etc/apt/apt.conf.d/zz-translations"

_LANGUAGE = re.compile(r"[a-z]{2,3}(_[A-Z]{2})?")
_MD5 = re.compile(r"^Description-md5: *([0-9a-f]{32})$", re.MULTILINE)
_DESCRIPTION = re.compile(r"^Description-[a-zA-Z_]+: *(.*)((?:\n .*)*)", re.MULTILINE)
_BETWEEN_PARAGRAPHS = re.compile(r"^ \.[ \t]*$", re.MULTILINE)


class Description(NamedTuple):
    """The short description of a package and the paragraphs of the long one."""

    short: str
    paragraphs: tuple[str, ...]


@CORPORA.register("debian-descriptions")
@split_by_source("entry")
def descriptions(argument: str, tally: Tally) -> Iterator[Pair]:
    language, _, folder = argument.partition(",")
    if not _LANGUAGE.fullmatch(language) or language == "en":
        raise UsageError(
            asked=f"corpus 'debian-descriptions:{argument}'",
            expected="debian-descriptions:LANGUAGE, a code such as it or pt_BR",
            got=f"{language!r}" if language else "no language",
            remedy="write debian-descriptions:it",
        )
    english_lists, other_lists = _lists(Path(folder or LISTS).expanduser(), language)
    english = {md5: description for file in english_lists for md5, description in _read(file, tally)}
    seen: set[tuple[str, str]] = set()
    for file in other_lists:
        for md5, translated in _read(file, tally):
            if md5 not in english:
                tally.leave_out("no English description")
                continue
            for texts in _side_by_side(english[md5], translated, tally):
                if texts in seen:
                    tally.leave_out("repeated")
                elif pair := tally.pair(*texts):
                    seen.add(texts)
                    yield pair


def _side_by_side(english: Description, other: Description, tally: Tally) -> Iterator[tuple[str, str]]:
    yield english.short, other.short
    if len(english.paragraphs) == len(other.paragraphs):
        yield from zip(english.paragraphs, other.paragraphs, strict=True)
    else:
        tally.leave_out("long description with other paragraphs")


def _lists(folder: Path, language: str) -> tuple[list[Path], list[Path]]:
    """The English lists and those of the language; an error that tells how to get them if there are none."""
    found = {code: _lists_of(folder, code) for code in ("en", language)}
    missing = [f"Translation-{code}" for code, files in found.items() if not files]
    if missing:
        raise FolderError(
            asked=f"corpus 'debian-descriptions:{language}'",
            expected=f"the lists Translation-en and Translation-{language} in {folder}",
            got=f"no {' and no '.join(missing)}",
            remedy=f'on Debian write the line Acquire::Languages "en,{language}"; to {SETTINGS} and run apt-get update',
        )
    return found["en"], found[language]


def _lists_of(folder: Path, code: str) -> list[Path]:
    ending = re.compile(rf".*_i18n_Translation-{code}({'|'.join(map(re.escape, _UNPACK))})")
    return sorted(file for file in folder.glob("*_i18n_Translation-*") if ending.fullmatch(file.name))


def _read(file: Path, tally: Tally) -> Iterator[tuple[str, Description]]:
    """(md5 of the English description, description) of every package in a list."""
    for stanza in re.split(rb"\n\n+", _content(file)):
        if not stanza.strip():
            continue
        try:
            text = stanza.decode()
        except UnicodeDecodeError:
            tally.leave_out("not UTF-8")
            continue
        md5, description = _MD5.search(text), _DESCRIPTION.search(_MD5.sub("", text))
        if md5 and description:
            short, long = description.groups()
            paragraphs = (" ".join(paragraph.split()) for paragraph in _BETWEEN_PARAGRAPHS.split(long))
            yield md5[1], Description(short.strip(), tuple(filter(None, paragraphs)))
        else:
            tally.leave_out("no description")


def _content(file: Path) -> bytes:
    unpack = _UNPACK.get(file.suffix, Path.read_bytes)
    try:
        return unpack(file)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as wrong:
        if isinstance(wrong, FolderError):
            raise
        raise _broken(file, str(wrong)) from None


def _with_apt_helper(file: Path) -> bytes:
    """What apt unpacks by itself: the formats that Python does not know."""
    if not Path(APT_HELPER).is_file():
        raise FolderError(
            asked=f"unpack {file}",
            expected=f"apt's own {APT_HELPER}",
            got="nothing there",
            remedy=f"unpack the list by hand, to {file.with_suffix('')}",
        )
    run = subprocess.run([APT_HELPER, "cat-file", file.absolute()], stdin=subprocess.DEVNULL, capture_output=True)
    if run.returncode:
        raise _broken(file, run.stderr.decode(errors="replace"))
    return run.stdout


def _broken(file: Path, got: str) -> FolderError:
    return FolderError(
        asked=f"read {file}", expected="a list of descriptions", got=got, remedy="run apt-get update to fetch it again"
    )


_UNPACK: dict[str, Callable[[Path], bytes]] = {
    "": Path.read_bytes,
    ".gz": lambda file: gzip.decompress(file.read_bytes()),
    ".xz": lambda file: lzma.decompress(file.read_bytes()),
    ".bz2": lambda file: bz2.decompress(file.read_bytes()),
    ".lz4": _with_apt_helper,
    ".zst": _with_apt_helper,
}
