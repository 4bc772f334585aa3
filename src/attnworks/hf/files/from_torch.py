"""Weights that torch.save wrote (.bin, .pt, .pth, .ckpt), read by torch's weights-only loader from a mapped file.

Before torch reads it, the file is checked: its zip records (`torch_zip.py`), and what its pickle would make
(`pickle_outline.py`). Both take no more memory than the file has bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnworks.core.errors import FolderError, UnsafeFileError, short_message
from attnworks.core.folders import check_regular, load_error
from attnworks.hf.files.contract import StoredTensor, WeightFiles, own_copy
from attnworks.hf.files.pickle_outline import OutlineError, TensorOutline, outline
from attnworks.hf.files.torch_zip import Record, read_record, zip_records

MOST_VIEWS = 4
"""All tensors together have at most this number of times the bytes of the file; views may share numbers."""
PLAIN = (str, int, float, type(None))


class TorchFile(WeightFiles):
    """One file of torch.save, with a state dict on its own or as one entry of a dict."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        self.path = path
        records = zip_records(path)
        order = read_record(path, records["byteorder"]) if "byteorder" in records else b"little"
        if order != b"little":
            raise load_error(path, "numbers in little-endian order", repr(order)[:20], "save it again on this machine")
        try:
            found = outline(read_record(path, records["data.pkl"]))
        except OutlineError as error:
            raise self._not_plain(str(error)) from error
        self._check_kinds(found)
        self._entry = self._find_state(found)
        self._outlines: dict[str, TensorOutline] = {
            name: value for name, value in self._state(found).items() if isinstance(value, TensorOutline)
        }
        self._check_sizes(records)
        self.tensors = {name: StoredTensor(of.shape, of.storage.dtype) for name, of in self._outlines.items()}

    def read(self, model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copies, of which tied tensors share one: the file is mapped and may be replaced while the model is in use."""
        try:
            found = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
            state, copies, read = self._state(found), {}, {}
            for name, of in self._outlines.items():
                if of not in copies:
                    copies[of] = own_copy(state[name], dtype)
                read[name] = copies[of]
                if (state[name].shape, state[name].dtype) != (of.shape, of.storage.dtype):
                    raise ValueError(f"another tensor in the place of {name}")
        except FolderError:
            raise
        except Exception as error:
            got = f"one that cannot be read ({short_message(error)})"
            raise load_error(self.path, "a whole file of torch.save", got) from error
        return read

    def _check_kinds(self, found: Any) -> None:
        waiting, seen = [found], set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen or isinstance(value, TensorOutline):
                continue
            seen.add(id(value))
            if isinstance(value, dict):
                waiting += value.values()
            elif isinstance(value, list | tuple) and type(value) in (list, tuple):
                waiting += value
            elif not isinstance(value, PLAIN):
                raise self._not_plain(f"a {type(value).__name__.lower()}")

    def _not_plain(self, got: str) -> UnsafeFileError:
        expected, remedy = "tensors, numbers, text, lists and dicts alone", "save its state_dict alone, if you trust it"
        return UnsafeFileError(f"open {self.path}", expected, got, remedy)

    def _find_state(self, found: Any) -> str | int | float | None:
        """The entry that is the state dict; None if the whole is one."""
        if _has_tensors(found):
            return None
        entries = [key for key, value in found.items() if _has_tensors(value)] if isinstance(found, dict) else []
        if len(entries) != 1:
            got = f"{len(entries)} dicts with tensors" if entries else "none"
            raise load_error(self.path, "a dict of tensors, or one such dict in it", got, "save its state_dict alone")
        return entries[0]

    def _state(self, found: Any) -> dict[Any, Any]:
        return found if self._entry is None else found[self._entry]

    def _check_sizes(self, records: dict[str, Record]) -> None:
        for name, of in self._outlines.items():
            if not isinstance(name, str):
                raise load_error(self.path, "tensors with names", f"one with the name {str(name)[:40]}")
            record = records.get(f"data/{of.storage.key}")
            expected = f"{of.storage.numel * of.storage.dtype.itemsize:,} bytes for {name[:80]}"
            if record is None or record.size != of.storage.numel * of.storage.dtype.itemsize:
                got = "none" if record is None else f"{record.size:,}"
                raise load_error(self.path, expected, got)
        whole = sum(of.numel * of.storage.dtype.itemsize for of in {*self._outlines.values()})
        if whole > (most := MOST_VIEWS * self.path.stat().st_size):
            raise load_error(self.path, f"tensors of at most {most:,} bytes together", f"{whole:,}", "save it again")


def _has_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(entry, TensorOutline) for entry in value.values())
