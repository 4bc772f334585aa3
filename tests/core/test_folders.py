"""Files and folders that appear whole or not at all, and pointers to them.

JSON with its own hash, and tensors checked against a table.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core import folders
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import (
    BEST_POINTER,
    LAST_POINTER,
    best_checkpoint,
    disk_errors,
    new_folder,
    read_pointer,
    read_sealed,
    read_tensors,
    seal,
    write_file,
    write_pointer,
    write_tensors,
)


def test_write_file_replaces(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_who_may_read_a_file_is_told_by_the_umask_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    before = os.umask(0o077)
    try:
        write_file(path, b"one")
    finally:
        os.umask(before)
    write_file(path, b"two")
    assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_leads_to_what_is_replaced(tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link"
    place.write_bytes(b"one")
    link.symlink_to(place)
    write_file(link, b"two")
    assert link.is_symlink() and place.read_bytes() == b"two"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_file(path, b"one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FolderError, match="No space left"):
        write_file(path, b"two")
    assert path.read_bytes() == b"one" and list(tmp_path.iterdir()) == [path]


def test_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(FolderError):
        write_file(tmp_path / "no" / "x", b"one")


def test_new_folder_appears_when_it_is_done(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "down"
    with new_folder(place) as scratch:
        (scratch / "a").write_text("1")
        assert not place.exists() and scratch.parent == place.parent
    assert (place / "a").read_text() == "1"
    assert [path.name for path in place.parent.iterdir()] == ["down"]


@pytest.mark.parametrize("exchange", [True, False])
def test_new_folder_takes_the_place_of_an_old_one(
    exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    place = tmp_path / "x"
    for text in ("1", "2"):
        with new_folder(place) as scratch:
            (scratch / text).touch()
    assert [path.name for path in place.iterdir()] == ["2"]
    assert list(tmp_path.iterdir()) == [place]


def test_a_new_folder_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    place = tmp_path / "x"
    with new_folder(place) as scratch:
        (scratch / "old").touch()
    with pytest.raises(KeyboardInterrupt), new_folder(place) as scratch:
        (scratch / "new").touch()
        raise KeyboardInterrupt
    assert [path.name for path in place.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [place]


def test_errors_of_the_disk_are_one_line_and_ours_pass() -> None:
    with pytest.raises(FolderError, match="a b: expected a readable file, got x y; try again"):  # noqa: SIM117
        with disk_errors("a\nb", remedy="try again"):
            raise OSError("x\ny")
    ours = UsageError("a", "b", "c", "d")
    with pytest.raises(UsageError), disk_errors("x", remedy="y"):
        raise ours


def test_pointers(tmp_path: Path) -> None:
    assert read_pointer(tmp_path, LAST_POINTER) is None and best_checkpoint(tmp_path) is None
    write_pointer(tmp_path, LAST_POINTER, tmp_path / "checkpoints" / "step-00000007")
    assert (
        best_checkpoint(tmp_path) == read_pointer(tmp_path, LAST_POINTER) == tmp_path / "checkpoints" / "step-00000007"
    )
    write_pointer(tmp_path, BEST_POINTER, tmp_path / "checkpoints" / "step-00000003")
    assert best_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-00000003"


@pytest.mark.parametrize("name", [None, 3, "../elsewhere", "/etc", "a/b", "", "..", "."])
def test_a_pointer_stays_inside(name: object, tmp_path: Path) -> None:
    (tmp_path / LAST_POINTER).write_bytes(seal({"checkpoint": name}))
    with pytest.raises(FolderError, match="the name of a checkpoint"):
        read_pointer(tmp_path, LAST_POINTER)


LETTERS = st.characters(exclude_categories=["Cs"])

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(LETTERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


def refused(path: Path) -> str:
    with pytest.raises(FolderError) as caught:
        read_sealed(path)
    assert "\n" not in str(caught.value) and path.name in str(caught.value)
    return str(caught.value)


@given(st.dictionaries(st.text("abcé", min_size=1), VALUES, max_size=4))
def test_there_and_back(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("sealed") / "x.json"
    path.write_bytes(seal(data))
    assert read_sealed(path) == data
    assert seal(read_sealed(path)) == path.read_bytes()


def test_every_byte_counts(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    whole = seal({"name": "è", "number": 1.5})
    for index in range(len(whole)):
        for other in (whole[index] ^ 1, whole[index] ^ 32, 0x20):
            if other != whole[index]:
                path.write_bytes(whole[:index] + bytes([other]) + whole[index + 1 :])
                refused(path)
    path.write_bytes(whole + b"\n")
    refused(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"sha256": 3}', b"[" * 10**5, b"\xff", b"NaN"])
def test_what_was_never_sealed(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    refused(tmp_path / "x.json")


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.json").write_bytes(seal({"text": "x" * 100}))
    monkeypatch.setattr(folders, "MAX_JSON_BYTES", 50)
    assert "at most 50 bytes" in refused(tmp_path / "x.json")


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "strided": torch.randn(3, 5, generator=generator).T,
        "counter": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(4, generator=generator).bfloat16(),
        "double": torch.randn(2, generator=generator).double(),
    }


def test_tensors_there_and_back(tmp_path: Path) -> None:
    table = write_tensors(tmp_path / "x.safetensors", tensors())
    table = json.loads(json.dumps(table))
    assert folders.is_tensor_table(table)
    for name, tensor in read_tensors(tmp_path / "x.safetensors", table).items():
        assert tensor.dtype == tensors()[name].dtype and torch.equal(tensor, tensors()[name])


def test_no_tensors(tmp_path: Path) -> None:
    assert read_tensors(tmp_path / "x", write_tensors(tmp_path / "x", {})) == {}


@pytest.mark.parametrize("what", ["missing", "extra", "shape", "dtype", "sha256"])
def test_tensors_other_than_the_table_says(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    table = write_tensors(path, tensors())
    other = tensors()
    match what:
        case "missing":
            del other["counter"]
        case "extra":
            other["more"] = torch.ones(1)
        case "shape":
            other["strided"] = other["strided"].reshape(3, 5)
        case "dtype":
            other["double"] = other["double"].float()
        case _:
            other["strided"][0, 0] += 1
    write_tensors(path, other)
    with pytest.raises(FolderError) as caught:
        read_tensors(path, table)
    assert what in str(caught.value) and "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(FolderError):
        read_tensors(path, table)
