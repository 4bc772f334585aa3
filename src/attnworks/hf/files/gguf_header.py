"""The header of a GGUF file, with every count, length, size and offset checked against the length of the file.

Nothing is read that the file does not have, and arrays of the tokenizer are passed over. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attnworks.core.errors import FolderError
from attnworks.core.folders import check_regular, load_error

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Number of a type of values -> its letter in `struct`."""
STRING, ARRAY = 8, 9
MAX_KEY_BYTES, MAX_DIMENSIONS, MAX_ALIGNMENT = 65_535, 4, 2**20
SHORT_ARRAY = 4096
"""Arrays of at most this number of values are kept: sizes of layers. Longer ones are those of tokenizers."""
MAX_TOKEN_BYTES = 2048
TOKENIZER = "tokenizer."


class BlockType(NamedTuple):
    """How numbers of one type are stored: in blocks, which may hold a single number.

    readable    whether they can be made numbers again
    """

    name: str
    numbers: int
    bytes: int
    readable: bool


class GGUFTensor(NamedTuple):
    """Where a tensor is in the file. The shape is in the order of torch."""

    shape: tuple[int, ...]
    type: BlockType
    start: int
    bytes: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GGUFHeader:
    """What a GGUF file says of itself.

    values    key -> number, text or short list
    counts    key of an array -> how many values it has
    entries   key -> its bytes in the file, from key to value
    tensors   name -> description
    """

    values: Mapping[str, Any]
    counts: Mapping[str, int]
    entries: Mapping[str, slice]
    tensors: Mapping[str, GGUFTensor]


class _Reader:
    """Reads forward, and never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def skip(self, count: int) -> int:
        """The place before `count` bytes that are passed over."""
        if count > len(self.data) - self.at:
            raise damaged(self.path, f"a header that ends after the {len(self.data):,} bytes of the file")
        self.at += count
        return self.at - count

    def numbers(self, letters: str) -> tuple[Any, ...]:
        return struct.unpack_from(f"<{letters}", self.data, self.skip(struct.calcsize(f"<{letters}")))

    def text(self, longest: int) -> str:
        (length,) = self.numbers("Q")
        if length > longest:
            raise damaged(self.path, f"a text of {length:,} bytes where at most {longest:,} can be")
        start = self.skip(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, "text that is not in UTF-8") from error

    def count(self, least_bytes: int) -> int:
        """A number of things that take at least this number of bytes each."""
        (count,) = self.numbers("Q")
        self.fits(count, least_bytes)
        return count

    def fits(self, count: int, least_bytes: int) -> None:
        if count * least_bytes > len(self.data) - self.at:
            raise damaged(self.path, f"{count:,} entries, for which the file is too short")


def damaged(path: Path, got: str) -> FolderError:
    return load_error(path, "a whole GGUF file", got, "copy it again from where it was whole")


def read_header(path: Path, types: Mapping[int, BlockType]) -> GGUFHeader:
    """The header of a file, with tensors of readable types. `types` are all that are known, by number."""
    check_regular(path)
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise load_error(path, "a GGUF file", "something else", "check the path")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(path, data), types)


def _read(reader: _Reader, types: Mapping[int, BlockType]) -> GGUFHeader:
    reader.skip(len(MAGIC))
    (version,) = reader.numbers("I")
    if version not in VERSIONS:
        expected, got = "GGUF of version 2 or 3, little-endian", f"version {version}"
        raise load_error(reader.path, expected, got, "convert it again with a later llama.cpp")
    tensor_count, value_count = reader.count(24), reader.count(13)
    values: dict[str, Any] = {}
    counts: dict[str, int] = {}
    entries: dict[str, slice] = {}
    for _ in range(value_count):
        start, key = reader.at, reader.text(MAX_KEY_BYTES)
        if key in entries:
            raise damaged(reader.path, f"two entries {key[:80]}")
        value, count = _value(reader, key)
        entries[key] = slice(start, reader.at)
        if value is not None:
            values[key] = value
        if count is not None:
            counts[key] = count
    described = [_tensor(reader, types) for _ in range(tensor_count)]
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise damaged(reader.path, f"general.alignment {str(alignment)[:24]}")
    first = (reader.at + alignment - 1) // alignment * alignment
    tensors = {name: tensor._replace(start=first + tensor.start) for name, tensor in described}
    if len(tensors) != len(described):
        raise damaged(reader.path, "two tensors of one name")
    _check_places(reader, tensors, alignment, first)
    return GGUFHeader(values, counts, entries, tensors)


def _value(reader: _Reader, key: str) -> tuple[Any, int | None]:
    """The value, None where it is not kept; and the length of an array."""
    (kind,) = reader.numbers("I")
    if kind in SCALARS:
        return reader.numbers(SCALARS[kind])[0], None
    if kind == STRING:
        return reader.text(len(reader.data)), None
    if kind != ARRAY:
        raise damaged(reader.path, f"a value of the unknown type {kind} in {key[:80]}")
    (kind,) = reader.numbers("I")
    if kind == STRING:
        count = reader.count(8)
        texts = [reader.text(MAX_TOKEN_BYTES) for _ in range(count)]
        return texts if count <= SHORT_ARRAY and not key.startswith(TOKENIZER) else None, count
    if kind not in SCALARS:
        raise damaged(reader.path, f"an array of the unknown type {kind} in {key[:80]}")
    count = reader.count(struct.calcsize(SCALARS[kind]))
    if count > SHORT_ARRAY or key.startswith(TOKENIZER):
        reader.skip(count * struct.calcsize(SCALARS[kind]))
        return None, count
    return [*reader.numbers(SCALARS[kind] * count)], count


def _tensor(reader: _Reader, types: Mapping[int, BlockType]) -> tuple[str, GGUFTensor]:
    """A tensor, whose place counts from the first."""
    name = reader.text(MAX_KEY_BYTES)
    (dimensions,) = reader.numbers("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise damaged(reader.path, f"{dimensions} dimensions of {name[:80]}")
    shape = tuple(reversed(reader.numbers("Q" * dimensions)))
    number, start = reader.numbers("IQ")
    kind = types.get(number)
    if kind is None or not kind.readable:
        got = f"{f'type {number}' if kind is None else kind.name} of {name[:80]}"
        expected = "numbers or quantised blocks that the package gguf can read"
        raise load_error(reader.path, expected, got, "choose a file of another quantisation")
    if 0 in shape or shape[-1] % kind.numbers:
        raise damaged(reader.path, f"{name[:80]} of shape {list(shape)} in blocks of {kind.numbers} numbers")
    return name, GGUFTensor(shape, kind, start, math.prod(shape) // kind.numbers * kind.bytes)


def _check_places(reader: _Reader, tensors: Mapping[str, GGUFTensor], alignment: int, first: int) -> None:
    """Tensors lie one after the other inside the file, at multiples of the alignment."""
    end = first
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if (tensor.start - first) % alignment or tensor.start < end:
            raise damaged(reader.path, f"{name[:80]} in the place of another tensor")
        end = tensor.start + tensor.bytes
        if end > len(reader.data):
            raise damaged(reader.path, f"{name[:80]}, which ends after the {len(reader.data):,} bytes of the file")
