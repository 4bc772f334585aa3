"""Split weights: the index says which tensor is in which file of the folder, and is not trusted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnworks.core.errors import AttnworksError, FolderError, UnsafeFileError
from attnworks.hf.open import open_model
from attnworks.reshape.history import ModelFolder
from tests.hf.files.made_files import as_shards, bert_copy

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return as_shards(bert_copy(tmp_path / "bert"), 3)


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads((folder / INDEX).read_text())
    change(table["weight_map"])
    (folder / INDEX).write_text(json.dumps(table))


def refused(path: Path, kind: type[AttnworksError] = FolderError) -> str:
    with pytest.raises(kind) as told:
        open_model(str(path))
    assert type(told.value) is kind and "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize(
    "file", ["../bert/model-00001-of-00003.safetensors", "/etc/x.safetensors", "a/b.safetensors", "x.bin", "", ".."]
)
def test_files_elsewhere_are_refused(folder: Path, file: str) -> None:
    edit_index(folder, lambda where: where.__setitem__("cls.predictions.bias", file))
    assert f"got {file!r}" in refused(folder, UnsafeFileError)


@pytest.mark.parametrize("file", [None, 3, ["model.safetensors"], {}])
def test_what_is_no_name(folder: Path, file: Any) -> None:
    edit_index(folder, lambda where: where.__setitem__("cls.predictions.bias", file))
    assert "expected the name of a file for cls.predictions.bias" in refused(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: expected a file or folder that exists" in refused(folder)


def test_a_tensor_that_is_not_where_the_index_says(folder: Path) -> None:
    where = json.loads((folder / INDEX).read_text())["weight_map"]
    name = next(iter(where))
    other = next(file for file in where.values() if file != where[name])
    edit_index(folder, lambda where: where.__setitem__(name, other))
    assert f"{other}: expected the tensor {name}, as {INDEX} says, got none" in refused(folder)


def test_the_index_decides_between_two_tensors_of_one_name(folder: Path) -> None:
    expected = open_model(str(folder)).model.state_dict()
    where = json.loads((folder / INDEX).read_text())["weight_map"]
    name = "bert.encoder.layer.1.output.dense.bias"
    for other in {*where.values()} - {where[name]}:
        save_file({**load_file(folder / other), name: torch.ones(2)}, folder / other)
    assert torch.equal(open_model(str(folder)).model.state_dict()[name], expected[name])


def test_a_damaged_shard_is_named(folder: Path) -> None:
    path = folder / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model-00003-of-00003.safetensors: expected a whole safetensors file" in refused(folder)
    path.unlink()
    shutil.copyfile("/dev/null", path)
    assert "model-00003-of-00003.safetensors: expected a whole safetensors file" in refused(folder)


def test_an_unknown_type_is_named(folder: Path) -> None:
    path = folder / "model-00003-of-00003.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "more": torch.ones(3).to(torch.float8_e4m3fn)}, path)
    assert "got F8_E4M3 in more" in refused(folder)


def test_one_of_the_files_can_be_opened_alone_if_it_is_whole(tmp_path: Path) -> None:
    folder = bert_copy(tmp_path / "bert")
    assert open_model(str(folder / "model.safetensors")).name == "model.safetensors"
    as_shards(folder, 2)
    assert "got no bert." in refused(folder / "model-00001-of-00002.safetensors")


def test_all_files_are_hashed(folder: Path) -> None:
    names = {path.name for path in ModelFolder.of(str(folder)).files()}
    assert names >= {INDEX, *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))}


def test_a_config_of_many_layers_or_words(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    for changes, said in (
        ({"num_hidden_layers": 10**9}, "num_hidden_layers of at most"),
        ({"vocab_size": 10**9}, "expected a model of at most"),
        ({"num_labels": 10**9}, "num_labels of at most"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        assert said in refused(folder)
