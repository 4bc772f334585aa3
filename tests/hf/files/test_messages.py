"""Whole messages: what was asked, what was expected, what was found, what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnworks.core.errors import FolderError
from attnworks.hf.open import open_model
from tests.hf.files.made_files import as_shards, as_torch, bert_copy, gguf_bytes, gguf_text


def block_type(home: Path) -> Path:
    (home / "x.gguf").write_bytes(gguf_bytes({}, {"blk.0.attn_q.weight": ((32, 2), 9, 0)}, bytes(256)))
    return home / "x.gguf"


def short_file(home: Path) -> Path:
    (home / "x.gguf").write_bytes(gguf_bytes({"a": (8, gguf_text("b"))}, {"w": ((64,), 0, 0)}, bytes(128)))
    return home / "x.gguf"


def no_weights(home: Path) -> Path:
    folder = bert_copy(home / "bert")
    (folder / "model.safetensors").unlink()
    return folder


def other_object(home: Path) -> Path:
    return as_torch(bert_copy(home / "bert"), "x.pt", more={1, 2}) / "x.pt"


def old_pickle(home: Path) -> Path:
    folder = no_weights(home)
    torch.save({"a": torch.ones(3)}, folder / "x.pt", _use_new_zipfile_serialization=False)
    return folder / "x.pt"


def way_out(home: Path) -> Path:
    folder = as_shards(bert_copy(home / "bert"), 2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    return folder


CASES: dict[Callable[[Path], Path], tuple[str, str, str, str]] = {
    block_type: (
        "load {path}",
        "numbers or quantised blocks that the package gguf can read",
        "Q8_1 of blk.0.attn_q.weight",
        "choose a file of another quantisation",
    ),
    short_file: (
        "load {path}",
        "a whole GGUF file",
        "w, which ends after the 224 bytes of the file",
        "copy it again from where it was whole",
    ),
    no_weights: (
        "load {path}",
        "model.safetensors, model.safetensors.index.json, pytorch_model.bin, or a GGUF file",
        "none of them",
        "copy the weights into the folder",
    ),
    other_object: (
        "open {path}",
        "tensors, numbers, text, lists and dicts alone",
        "__builtin__.set",
        "save its state_dict alone, if you trust it",
    ),
    old_pickle: (
        "open {path}",
        "a zip file with tensors, as torch.save writes it",
        "a pickle without a zip file around it, which can run code, or something else",
        "save it again with torch.save of torch 1.6 or later, or as safetensors, if you trust it",
    ),
    way_out: (
        "open {path}",
        "files of this folder that end with .safetensors in model.safetensors.index.json",
        "'../x.safetensors'",
        "convert the weights to safetensors",
    ),
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_the_four_parts_of_a_message(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(FolderError) as told:
        open_model(str(path))
    asked, *others = CASES[make]
    error = told.value
    assert [error.asked, error.expected, error.got, error.remedy] == [asked.format(path=path), *others]
