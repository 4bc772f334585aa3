"""The records of a zip file that torch.save wrote, checked so that reading them takes no more memory than the file.

Records must be stored plainly, without compression, one after the other, under the names that torch.save gives.
"""

from __future__ import annotations

import re
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from attnworks.core.errors import FolderError, UnsafeFileError, short_message
from attnworks.core.folders import COPY_FILE, load_error

ZIP_START = b"PK\x03\x04"
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, then lengths of the name and of the extra field."""
END_BYTES, END_START = 22, b"PK\x05\x06"
KNOWN = re.compile(r"data\.pkl|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d+")
"""Names of records, below the folder that all of them share. TorchScript has others, such as constants.pkl."""
MAX_PICKLE_BYTES = 64 * 2**20


class Record(NamedTuple):
    """The bytes of a record in the file."""

    start: int
    size: int


def zip_records(path: Path) -> dict[str, Record]:
    """Name without the shared folder -> where the record is in the file."""
    with path.open("rb") as file:
        if file.read(len(ZIP_START)) != ZIP_START:
            got = "a pickle without a zip file around it, which can run code, or something else"
            remedy = "save it again with torch.save of torch 1.6 or later, or as safetensors, if you trust it"
            raise UnsafeFileError(f"open {path}", "a zip file with tensors, as torch.save writes it", got, remedy)
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                comment, table = archive.comment, archive.start_dir
        except Exception as error:
            raise _damaged(path, short_message(error)) from error
        file.seek(-END_BYTES, 2)
        if comment or file.read(len(END_START)) != END_START:
            raise _damaged(path, "bytes after its end")
        _check_names(path, [entry.filename for entry in entries])
        records = {entry.filename: _record(path, file, entry, table) for entry in entries}
    _check_places(path, entries, records)
    named = {name.partition("/")[2]: record for name, record in records.items()}
    if named["data.pkl"].size > MAX_PICKLE_BYTES:
        size = f"{named['data.pkl'].size:,}"
        raise load_error(path, f"data.pkl of at most {MAX_PICKLE_BYTES:,} bytes", size, "save its state_dict alone")
    return named


def _check_names(path: Path, names: list[str]) -> None:
    """The names that torch.save gives, below one folder."""
    inner = [name.partition("/")[2] for name in names]
    if odd := next((name for name in inner if not KNOWN.fullmatch(name)), None):
        got, remedy = f"also {odd[:80]!r}", "save its state_dict alone"
        raise UnsafeFileError(f"open {path}", "the records of torch.save alone", got, remedy)
    if len({name.partition("/")[0] for name in names}) != 1 or "data.pkl" not in inner:
        raise _damaged(path, "no record data.pkl")
    if len({*inner}) != len(inner):
        raise _damaged(path, "two records of one name")


def _record(path: Path, file: BinaryIO, entry: zipfile.ZipInfo, table: int) -> Record:
    """Where the bytes of an entry are. The table at the end and the header before the bytes must agree."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
        expected, got = "records that are stored as they are", f"the compressed or encrypted {entry.filename[:80]!r}"
        raise UnsafeFileError(f"open {path}", expected, got, "save it again with torch.save")
    file.seek(entry.header_offset)
    header = file.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size:
        raise _damaged(path, f"no record {entry.filename[:80]!r}")
    signature, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    name = file.read(name_bytes)
    if signature != ZIP_START or name != entry.orig_filename.encode():
        raise _damaged(path, f"another record in the place of {entry.filename[:80]!r}")
    start = entry.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
    if start + entry.file_size > table:
        raise _damaged(path, f"a record {entry.filename[:80]!r} that ends after the file")
    return Record(start, entry.file_size)


def _check_places(path: Path, entries: list[zipfile.ZipInfo], records: dict[str, Record]) -> None:
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise _damaged(path, f"a record {entry.filename[:80]!r} inside another one")
        end = sum(records[entry.filename])
    if entries and min(entry.header_offset for entry in entries) > 0:
        raise _damaged(path, "bytes before its first record")


def read_record(path: Path, record: Record) -> bytes:
    with path.open("rb") as file:
        file.seek(record.start)
        return file.read(record.size)


def _damaged(path: Path, got: str) -> FolderError:
    return load_error(path, "a whole zip file, as torch.save writes it", got, COPY_FILE)
