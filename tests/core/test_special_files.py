"""Only regular files are read from folders; text that a user names may be a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import attnworks
from attnworks.core.errors import FolderError, UsageError, printable
from attnworks.core.folders import disk_errors, read_file, set_aside
from attnworks.hf.open import open_model
from attnworks.reshape.texts import split_file
from attnworks.studies.results import read_results
from attnworks.text import passages
from attnworks.text.corpora import open_corpus
from attnworks.text.passages import from_file
from attnworks.text.vocabulary import Vocabulary
from tests.exam_helpers import LINES, save_tiny, tiny_run
from tests.faults.campaign import SPECIAL, time_limit

NOT_REGULAR = [kind for kind in SPECIAL if kind != "missing"]


@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_a_file_that_is_not_regular_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    SPECIAL[kind](path)
    with (
        time_limit(180),
        pytest.raises(FolderError, match=r"expected (a regular file|a file or|a link that)"),
    ):
        read_file(path)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(FolderError, match="expected at most 4 bytes, got 5 bytes; cut it"):
        read_file(path, 4, "cut it")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("kind", ["pipe", "endless device"])
def test_folders_of_hugging_face(name: str, kind: str, tmp_path: Path) -> None:
    folder = save_tiny("bert", tmp_path / "bert")
    (folder / name).unlink()
    SPECIAL[kind](folder / name)
    with time_limit(180), pytest.raises(FolderError, match=f"{name}: expected a regular file, got a "):
        open_model(str(folder))


def test_catalogs_that_are_no_files_are_passed_over(tmp_path: Path) -> None:
    home = tmp_path / "it" / "LC_MESSAGES"
    home.mkdir(parents=True)
    os.mkfifo(home / "a.mo")
    with time_limit(180), pytest.raises(FolderError, match="got none"):
        open_corpus(f"gettext:{tmp_path}")


def test_an_experiment_that_was_killed_before_its_first_result_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / ".results.json.0f.partial").write_text("{")
    assert read_results(tmp_path, "study", 1, dict) is None
    (tmp_path / "mine").touch()
    with pytest.raises(FolderError, match="expected a new folder"):
        read_results(tmp_path, "study", 1, dict)


def without_unknown(made: dict[str, Any]) -> str:
    made["added_tokens"] = [token for token in made["added_tokens"] if token["content"] != "<unk>"]
    made["model"]["vocab"] = {word: place for word, place in made["model"]["vocab"].items() if word != "<unk>"}
    return json.dumps(made)


def test_tokenizers_without_a_token_for_unknown_words(tmp_path: Path) -> None:
    folder = save_tiny("bert", tmp_path / "bert")
    path = folder / "tokenizer.json"
    path.write_text(without_unknown(json.loads(path.read_text())))
    with pytest.raises(UsageError, match=r"expected a tokenizer that can read any text.*token for unknown words"):
        attnworks.examine(str(folder), texts=["the zebra sees a bird ."], measures=["rank"])
    run = Path(shutil.copytree(tiny_run(), tmp_path / "run"))
    path = run / "source.json"
    path.write_text(without_unknown(json.loads(path.read_text())))
    with pytest.raises(FolderError, match="expected one that attnworks saved"):
        Vocabulary.load(path)


def piped(path: Path, data: bytes) -> threading.Thread:
    os.mkfifo(path)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(data)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    return writer


def test_text_may_come_from_a_pipe_and_is_read_once(tmp_path: Path) -> None:
    data = ("\n".join(LINES) + "\n").encode()
    file, pipe = tmp_path / "lines.txt", tmp_path / "pipe"
    file.write_bytes(data)
    writer = piped(pipe, data)
    with time_limit(180):
        found = split_file(pipe)
    writer.join()
    assert found.about["sha256"] == split_file(file).about["sha256"]
    assert found.learn == split_file(file).learn


@pytest.mark.parametrize("device", ["/dev/zero", "pipe"])
def test_text_without_an_end_is_read_up_to_a_limit(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "MAX_TEXT_BYTES", 3 * passages.MAX_LINE_BYTES)
    if device == "pipe":
        device = str(tmp_path / "pipe")
        piped(Path(device), b"word word\n" * passages.MAX_LINE_BYTES)
    with time_limit(180), pytest.raises(UsageError, match=r"expected at most 3,145,728 bytes of text, got more"):
        from_file(device)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(36, "a shorter file name"), (2, "a file or folder that exists"), (30, "a disk that can be written to")],
)
def test_errors_of_the_system_say_what_was_missing(number: int, expected: str) -> None:
    remedy = "choose a shorter name" if number == 36 else "do y"
    with pytest.raises(FolderError, match=f"save x: expected {expected}, got {os.strerror(number)}; {remedy}"):  # noqa: SIM117
        with disk_errors("save x", "do y"):
            raise OSError(number, os.strerror(number), "x")


def test_set_aside_never_overwrites(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / "x").write_text(str(number))
        assert set_aside(tmp_path / "x") == tmp_path / f"x.damaged-{number}"
    assert [(tmp_path / f"x.damaged-{number}").read_text() for number in (1, 2, 3)] == ["1", "2", "3"]


@pytest.mark.parametrize("text", ["plain", "è ü 漢字 🙂", "👩\u200d👧", "a\tb"])
def test_printable_keeps_letters(text: str) -> None:
    assert printable(text, keep="\t") == text


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x9b", "\u202e", "\u2066", "\u2028", "\x7f", "\ud800", "\0", "\n", "\ufeff"]
)
def test_printable_escapes_unsafe_characters(text: str) -> None:
    assert printable(f"a{text}b").isascii() and printable(f"a{text}b").isprintable()
