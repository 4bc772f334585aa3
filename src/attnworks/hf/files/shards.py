"""Weights that are split over several files of one format, with an index that says which tensor is in which file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnworks.core.errors import UnsafeFileError
from attnworks.core.folders import load_error, parse_json, read_json_bytes
from attnworks.hf.files.contract import WeightFiles


def shard_paths(index: Path, suffix: str) -> list[Path]:
    """The files that an index names, all of them beside it."""
    names = sorted(set(_weight_map(index).values()))
    for name in names:
        if not name.endswith(suffix) or Path(name).name != name:
            expected = f"files of this folder that end with {suffix} in {index.name}"
            got, remedy = repr(name)[:80], "convert the weights to safetensors"
            raise UnsafeFileError(f"open {index.parent}", expected, got, remedy)
    return [index.with_name(name) for name in names]


def _weight_map(index: Path) -> dict[str, str]:
    table = parse_json(index, read_json_bytes(index))
    where = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(where, dict) or not where:
        raise load_error(index, "a weight_map", "none")
    for name, file in where.items():
        if not isinstance(file, str):
            raise load_error(index, f"the name of a file for {name[:80]}", repr(file)[:80])
    return where


class Shards(WeightFiles):
    """Weights of several files. A tensor that the index names is read from the file that the index says."""

    def __init__(self, index: Path, suffix: str, open_one: Callable[[Path], WeightFiles]) -> None:
        where = _weight_map(index)
        self.path = index
        self.shards = {path.name: open_one(path) for path in shard_paths(index, suffix)}
        for name, file in where.items():
            if name not in self.shards[file].tensors:
                raise load_error(self.shards[file].path, f"the tensor {name[:80]}, as {index.name} says", "none")
        self._home = {
            name: file for file, shard in self.shards.items() for name in shard.tensors if where.get(name, file) == file
        }
        self.tensors = {name: self.shards[file].tensors[name] for name, file in self._home.items()}

    def read(self, model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        read: dict[str, Tensor] = {}
        for file, shard in self.shards.items():
            read |= {name: tensor for name, tensor in shard.read(model, dtype).items() if self._home[name] == file}
        return read
