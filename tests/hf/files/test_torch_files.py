"""Files of torch.save: the same model as in safetensors, and every file that is refused, before torch reads it."""

from __future__ import annotations

import collections
import datetime
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnworks
from attnworks.core.errors import AttnworksError, FolderError, UnsafeFileError
from attnworks.hf.files import torch_zip
from attnworks.hf.files.from_torch import TorchFile
from attnworks.hf.files.pickle_outline import OutlineError, outline
from attnworks.hf.open import open_model
from attnworks.reshape.history import ModelFolder
from tests.exam_helpers import LINES, minilm
from tests.hf.files.made_files import as_shards, as_torch, bert_copy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bert_copy(tmp_path / "bert")


def refused(path: Path, kind: type[AttnworksError] = FolderError) -> str:
    with pytest.raises(kind) as told:
        open_model(str(path))
    assert type(told.value) is kind and "\n" not in str(told.value)
    return str(told.value)


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


# As it should be -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt"])
def test_the_same_model_as_in_safetensors(folder: Path, name: str) -> None:
    expected = open_model(str(folder))
    as_torch(folder, name)
    for path in (folder, folder / name):
        opened = open_model(str(path))
        assert same(opened.model, expected.model) and opened.tokenizer.get_vocab() == expected.tokenizer.get_vocab()


def test_minilm_gives_equal_outputs(tmp_path: Path) -> None:
    expected = open_model(str(minilm()))
    opened = open_model(str(as_torch(Path(shutil.copytree(minilm(), tmp_path / "minilm")))))
    text = opened.tokenizer("The cat sat on the mat.", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(opened.model(**text)[0], expected.model(**text)[0])


@pytest.mark.parametrize("torch_files", [True, False])
def test_split_over_files(folder: Path, torch_files: bool) -> None:
    expected = open_model(str(folder))
    as_shards(folder, 3, torch_files=torch_files)
    assert same(open_model(str(folder)).model, expected.model)
    index, *shards = ModelFolder.of(str(folder)).place.files  # pyright: ignore[reportOptionalMemberAccess]
    assert len(shards) == 3 and {index, *shards} <= {*ModelFolder.of(str(folder)).files()}


def test_what_is_saved_beside_the_weights(folder: Path) -> None:
    """A module's own state dict, with its `_metadata`; and a dict with it, as training scripts write it."""
    expected = open_model(str(folder)).model
    (folder / "model.safetensors").unlink()
    for made in (
        expected.state_dict(),
        {"model": expected.state_dict(), "step": 7, "loss": 0.5, "name": "x", "done": None, "steps": [1, (2, True)]},
        {"state_dict": {**expected.state_dict(), "more": "text"}, "optimizer": {"state": {0: {"step": torch.ones(2)}}}},
        {name: nn.Parameter(tensor) for name, tensor in expected.state_dict().items()},
        {name: tensor.double() for name, tensor in expected.state_dict().items()},
    ):
        torch.save(made, folder / "pytorch_model.bin")
        assert same(open_model(str(folder)).model, expected)


def test_views_of_one_storage_and_other_strides(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    tensors = {"whole": whole, "part": whole[1:3, 2:5], "turned": whole.T, "tied": whole, "empty": torch.zeros(0, 3)}
    torch.save(
        {**tensors, "half": whole.half(), "long": torch.arange(3), "flag": torch.tensor(True)}, tmp_path / "x.pt"
    )
    weights = TorchFile(tmp_path / "x.pt")
    read = weights.read(None, torch.float16)
    assert weights.tensors["turned"].shape == (6, 4) and weights.tensors["half"].dtype == torch.float16
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert weights.read(None, torch.float64)["half"].dtype == torch.float64 and read["half"].dtype == torch.float16
    assert read["whole"] is read["tied"] and read["turned"].is_contiguous()
    (tmp_path / "x.pt").write_bytes(b"")  # what was read does not depend on the file
    assert torch.equal(read["part"], whole[1:3, 2:5]) and read["flag"].item() is True


def test_half_precision_is_told(folder: Path) -> None:
    model = open_model(str(folder)).model
    (folder / "model.safetensors").unlink()
    torch.save(model.half().state_dict(), folder / "pytorch_model.bin")
    assert open_model(str(folder)).remarks == ("the weights are stored in float16 and were opened in float32",)
    assert open_model(str(folder), dtype=None).model.dtype == torch.float16


def test_reshapes_keep_the_file(folder: Path, tmp_path: Path) -> None:
    as_torch(folder)
    attnworks.prune(folder, LINES * 2, heads="0.1", out=tmp_path / "pruned")
    assert not (tmp_path / "pruned" / "pytorch_model.bin").exists()
    attnworks.undo(tmp_path / "pruned", tmp_path / "undone")
    assert (tmp_path / "undone" / "pytorch_model.bin").read_bytes() == (folder / "pytorch_model.bin").read_bytes()
    kept = tmp_path / "pruned" / "history" / "0" / "before" / "pytorch_model.bin"
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(FolderError, match="expected the file that was kept, got one that was changed since"):
        attnworks.undo(tmp_path / "pruned", tmp_path / "again")


# Not tensors, numbers, text, lists and dicts --------------------------------------------------------------------------


class Touch:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


OTHER_OBJECTS: dict[str, tuple[Any, str]] = {
    "a function": (torch.save, "got torch.serialization.save"),
    "a date": (datetime.date(2020, 1, 2), "got datetime.date"),
    "a set": ({1, 2}, "got __builtin__.set"),
    "bytes": (b"abc", "got _codecs.encode"),
    "an array": (np.ones(3), "got numpy"),
    "a module": (nn.Linear(2, 3), "got torch.nn.modules.linear.Linear"),
    "a size": (torch.Size([2]), "got torch.Size"),
    "a type": (torch.float32, "got torch.float32"),
    "a counter": (collections.Counter("ab"), "got collections.Counter"),
    "sparse": (torch.eye(3).to_sparse(), "got torch._utils._rebuild_sparse_tensor"),
    "float8": (torch.ones(3).to(torch.float8_e4m3fn), "got torch._utils._rebuild_tensor_v3"),
    "complex": (torch.ones(3, dtype=torch.complex64), "got torch.ComplexFloatStorage"),
    "meta": (torch.ones(3, device="meta"), "got torch._utils._rebuild_meta_tensor_no_storage"),
    "a storage": (torch.ones(3).untyped_storage(), "got torch.storage.UntypedStorage"),
    "big number": (10**1000, "got the instruction LONG4"),
}


@pytest.mark.parametrize("name", OTHER_OBJECTS)
def test_other_objects_are_named(name: str, folder: Path) -> None:
    made, said = OTHER_OBJECTS[name]
    as_torch(folder, more=made)
    message = refused(folder, UnsafeFileError)
    assert "expected tensors, numbers, text, lists and dicts alone" in message
    assert said in message, message


def test_nothing_is_run(folder: Path, tmp_path: Path) -> None:
    as_torch(folder, more=Touch(tmp_path / "marker"))
    assert "got __builtin__.getattr" in refused(folder, UnsafeFileError) and not (tmp_path / "marker").exists()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(tmp_path / "marker")))
    assert "got a pickle without a zip file" in refused(folder, UnsafeFileError)
    torch.save({"a": torch.ones(3)}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert "save it again with torch.save of torch 1.6" in refused(folder, UnsafeFileError)
    (folder / "pytorch_model.bin").rename(folder / "model.pkl")
    assert "a pickle, which can run code" in refused(folder, UnsafeFileError)
    assert not (tmp_path / "marker").exists()


def test_torchscript_is_refused(folder: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 3)), folder / "model.pt")  # pyright: ignore
    (folder / "model.safetensors").unlink()
    assert "expected the records of torch.save alone, got also" in refused(folder, UnsafeFileError)


def test_what_is_no_state_dict(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for made, said in (
        (torch.ones(3), "got none"),
        ([torch.ones(3)], "got none"),
        ({}, "got none"),
        ({"a": {"x": torch.ones(3)}, "b": {"x": torch.ones(3)}}, "got 2 dicts with tensors"),
        ({0: torch.ones(3)}, "expected tensors with names, got one with the name 0"),
    ):
        torch.save(made, folder / "pytorch_model.bin")
        assert said in refused(folder)


def test_which_of_several_files(folder: Path) -> None:
    as_torch(folder, "a.pt")
    torch.save({}, folder / "b.pt")
    assert f"expected one file with weights, got 2: a.pt, b.pt; give the file: {folder / 'a.pt'}" in refused(folder)
    assert open_model(str(folder / "a.pt")).name == "a.pt"


# Pickles that are put together by hand --------------------------------------------------------------------------------

NAMES = {
    name: f"c{module}\n{name}\n".encode()
    for module, name in (
        ("torch", "FloatStorage"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("collections", "OrderedDict"),
        ("os", "system"),
    )
}


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value) if -(2**31) <= value < 2**31 else b"\x8a\x09" + struct.pack("<qB", value, 0)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def sizes(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(
    shape: tuple[int, ...], stride: tuple[int, ...], *, key: str = "0", numel: int = 6, offset: int = 0
) -> bytes:
    """A tensor in a pickle, right or wrong."""
    storage = b"(" + text("storage") + NAMES["FloatStorage"] + text(key) + text("cpu") + number(numel) + b"tQ"
    hooks = NAMES["OrderedDict"] + b")R"
    return (
        NAMES["_rebuild_tensor_v2"]
        + b"("
        + storage
        + number(offset)
        + sizes(shape)
        + sizes(stride)
        + b"\x89"
        + hooks
        + b"tR"
    )


def pickled(*values: bytes) -> bytes:
    items = b"".join(text(str(place)) + value for place, value in enumerate(values))
    return b"\x80\x02}(" + items + b"u."


def zipped(
    path: Path,
    data: bytes,
    more: Mapping[str, bytes] | None = None,
    *,
    size: int = 24,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in {"data.pkl": data, "version": b"3\n", "data/0": bytes(size), **(more or {})}.items():
            archive.writestr(f"x/{name}", content)
    return path


def message_of(path: Path) -> str:
    with pytest.raises(FolderError) as told:
        TorchFile(path)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_file_put_together_by_hand_is_read(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.pt", pickled(tensor((2, 3), (3, 1)), tensor((3,), (0,), numel=6)))
    assert [(name, found.shape) for name, found in TorchFile(path).tensors.items()] == [("0", (2, 3)), ("1", (3,))]
    assert torch.equal(TorchFile(path).read(None, torch.float32)["0"], torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (tensor((2, 4), (4, 1)), "a tensor of shape [2, 4] in a storage of 6 numbers"),
        (tensor((2, 3), (3, 1), offset=1), "a tensor of shape [2, 3] in a storage of 6 numbers"),
        (tensor((2**20, 2**20), (0, 0)), "that repeats 6 numbers"),
        (tensor((7,), (0,)), "a tensor of shape [7] that repeats 6 numbers"),
        (tensor((2, 3), (3,)), "a tensor of 2 sizes and 1 strides"),
        (tensor((1,) * 70, (1,) * 70), "a tensor of 70 sizes"),
        (tensor((-2, 3), (3, 1)), "a damaged tensor"),
        (tensor((2, 3), (3, -1)), "a damaged tensor"),
        (tensor((2, 3), (3, 1), offset=-1), "a damaged tensor"),
        (tensor((2, 3), (3, 1), numel=-6), "a storage of -6 numbers"),
        (tensor((2, 3), (3, 1), numel=7), "expected 28 bytes for 0, got 24"),
        (tensor((2**40,), (1,), numel=2**40), "expected 4,398,046,511,104 bytes for 0, got 24"),
        (tensor((2, 3), (3, 1), key="1"), "expected 24 bytes for 0, got none"),
        (tensor((2, 3), (3, 1), key="../0"), "a damaged storage"),
        (NAMES["system"] + b"(" + text("true") + b"tR", "got os.system"),
        (b"\x8c\x02os\x8c\x06system\x93", "got the instruction STACK_GLOBAL"),
        (b"(ios\nsystem\n", "got the instruction INST"),
        (NAMES["OrderedDict"] + b"(]tR", "got collections.OrderedDict with other arguments"),
        (NAMES["OrderedDict"] + b")R}" + text("a") + b"Nsb", "got an object with attributes"),
        (NAMES["FloatStorage"] + b")R", "got torch.FloatStorage with other arguments"),
        (NAMES["FloatStorage"], "got a name"),
        (b")Q", "got a damaged storage"),
        (b"N)R", "got a call of something that is no function"),
        (b"}]Ns", "got a dict with keys that are neither text nor numbers"),
        (b"Ns", "got a damaged"),
        (b"h\x07", "got a damaged pickle (KeyError)"),
        (b"(q\x00", "got a damaged pickle"),
        (b"R", "got a"),
        (b"0", "got the instruction POP"),
        (b"\x8b" + struct.pack("<I", 2**31 - 1), "got a damaged pickle (ValueError)"),
    ],
)  # fmt: skip
def test_pickles_that_are_refused(made: bytes, said: str, tmp_path: Path) -> None:
    assert said in message_of(zipped(tmp_path / "x.pt", pickled(made)))


def test_many_views_of_the_same_numbers(tmp_path: Path) -> None:
    """Each view is possible, and 1,000 of them would take 250 times the file."""
    views = [tensor((1000,), (1,), numel=2000, offset=place) for place in range(1000)]
    message = message_of(zipped(tmp_path / "x.pt", pickled(*views), size=8000))
    assert "expected tensors of at most" in message and "got 4,000,000" in message


def test_a_list_that_holds_itself(tmp_path: Path) -> None:
    itself = b"]q\x00h\x00a"
    path = zipped(tmp_path / "x.pt", pickled(itself, tensor((6,), (1,))))
    assert [*TorchFile(path).tensors] == ["1"]
    with pytest.raises(OutlineError, match="a damaged pickle"):
        outline(b"\x80\x02]")


# Zip files ------------------------------------------------------------------------------------------------------------


def good() -> bytes:
    return pickled(tensor((2, 3), (3, 1)))


def patched(change: Callable[[bytearray], object]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        data = bytearray(zipped(path, good()).read_bytes())
        change(data)
        path.write_bytes(data)
        return path

    return make


def set_bytes(at: Callable[[bytearray], int], value: bytes) -> Callable[[Path], Path]:
    def change(data: bytearray) -> None:
        place = at(data)
        data[place : place + len(value)] = value

    return patched(change)


def twice(path: Path) -> Path:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        for content in (good(), b"."):
            archive.writestr("x/data.pkl", content)
    return path


def nested(path: Path) -> Path:
    """The bytes of a record are those of another record with its header."""
    inner = zipped(path, good(), {"data/1": bytes(24)}).read_bytes()
    start = inner.index(b"x/data/1") - 30
    records = {"data/0": inner[start : start + 62], "data/1": bytes(24)}
    data = bytearray(zipped(path, good(), records).read_bytes())
    at = last_entry(data) + 42
    data[at : at + 4] = struct.pack("<I", data.index(records["data/0"]))
    path.write_bytes(data)
    return path


def last_entry(data: bytearray) -> int:
    """Where the table at the end describes its last record."""
    return data.rindex(b"PK\x01\x02")


ZIPS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "compressed": (lambda path: zipped(path, good(), compression=zipfile.ZIP_DEFLATED), "compressed or encrypted"),
    "big-endian": (
        lambda path: zipped(path, good(), {"byteorder": b"big"}),
        "expected numbers in little-endian order, got b'big'",
    ),
    "another record": (lambda path: zipped(path, good(), {"code/x.py": b""}), "got also 'code/x.py'"),
    "up": (lambda path: zipped(path, good(), {"../data": b""}), "got also '../data'"),
    "comment": (patched(lambda data: data.extend(b"more")), "bytes after its end"),
    "bytes before": (
        patched(lambda data: data.__setitem__(slice(0, 0), b"PK\x03\x04")),
        "bytes before its first record",
    ),
    "cut": (patched(lambda data: data.__delitem__(slice(-30, None))), "is not a zip file"),
    "twice": (twice, "two records of one name"),
    "nested": (nested, "a record 'x/data/1' inside another one"),
    "other name before the bytes": (
        set_bytes(lambda data: data.index(b"x/data/0"), b"x/data/1"),
        "another record in the place",
    ),
    "elsewhere": (set_bytes(lambda data: last_entry(data) + 42, struct.pack("<I", 2**31)), "no record 'x/data/0'"),
    "inside another": (
        set_bytes(lambda data: last_entry(data) + 42, struct.pack("<I", 0)),
        "another record in the place",
    ),
    "size": (
        set_bytes(lambda data: last_entry(data) + 20, struct.pack("<II", 2**30, 2**30)),
        "that ends after the file",
    ),
}


@pytest.mark.parametrize("name", ZIPS)
def test_zip_files_that_are_refused(name: str, tmp_path: Path) -> None:
    make, said = ZIPS[name]
    assert said in message_of(make(tmp_path / "x.pt"))


def test_two_folders_and_a_large_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "x.pt", good())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y/data/1", b"")
    assert "no record data.pkl" in message_of(path)
    monkeypatch.setattr(torch_zip, "MAX_PICKLE_BYTES", 10)
    assert "expected data.pkl of at most 10 bytes" in message_of(zipped(tmp_path / "y.pt", good()))


def test_every_cut_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    for kept in range(0, len(data), 37):
        (tmp_path / "x.pt").write_bytes(data[:kept])
        message_of(tmp_path / "x.pt")


def test_the_loader_of_torch_agrees(tmp_path: Path) -> None:
    """What the outline says of a pickle is what torch makes of it."""
    made: dict[str, Tensor] = {f"t{place}": torch.randn(place, 3) for place in range(4)}
    torch.save(made, tmp_path / "x.pt")
    found, read = TorchFile(tmp_path / "x.pt").tensors, torch.load(tmp_path / "x.pt", weights_only=True)
    assert {name: (of.shape, of.dtype) for name, of in found.items()} == {
        name: (tuple(tensor.shape), tensor.dtype) for name, tensor in read.items()
    }
