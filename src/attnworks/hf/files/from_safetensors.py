"""Weights in a safetensors file. The library checks that offsets, shapes and the length of the file agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnworks.core.errors import short_message
from attnworks.core.folders import check_regular, load_error
from attnworks.hf.files.contract import StoredTensor, WeightFiles, own_copy

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""Name of a type in the header -> type of torch."""


class SafetensorsFile(WeightFiles):
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        self.path, self.tensors = path, {}
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 -- a method, not a dict
                    part = file.get_slice(name)
                    if part.get_dtype() not in DTYPES:
                        expected, got = f"numbers of a type among {', '.join(DTYPES)}", f"{part.get_dtype()} in {name}"
                        raise load_error(path, expected, got[:200], "convert the weights to one of these types")
                    self.tensors[name] = StoredTensor(tuple(part.get_shape()), DTYPES[part.get_dtype()])
        except SafetensorError as error:
            raise self._unreadable(error) from error

    def read(self, model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copies: the library maps the file, which may be replaced or cut while the model is in use."""
        try:
            with safe_open(self.path, framework="pt") as file:
                return {name: own_copy(file.get_tensor(name), dtype) for name in self.tensors}
        except SafetensorError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: SafetensorError) -> OSError:
        return load_error(self.path, "a whole safetensors file", f"one that cannot be read ({short_message(error)})")
