"""JSON with its own hash, and tensors checked against a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core import sealed
from attnworks.core.errors import FolderError
from attnworks.core.sealed import read_sealed, read_tensors, seal, write_tensors

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
    monkeypatch.setattr(sealed, "LARGEST_JSON", 50)
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
    assert sealed.is_table(table)
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
