"""Models in files that others write, which have no hashes: GGUF, torch.save and split safetensors; how to damage them.

A header is damaged so that the rest of the file still fits it: a number is replaced, or a pickle is edited and zipped
anew.
"""

from __future__ import annotations

import json
import pickletools
import random
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from attnworks.hf.open import open_model
from tests.exam_helpers import save_tiny
from tests.faults.mutants import containers, edit
from tests.hf.files.made_files import as_shards, as_torch, tiny_llama, write_gguf

ODD_NUMBERS = (0, 1, 2, 3, 5, 7, 8, 9, 12, 13, 31, 33, 64, 255, 2**15, 2**16, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
               2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
ODD_NAMES = (
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"cbuiltins\ngetattr\n", b"ctorch\nload\n", b"cpickle\nloads\n",
    b"ctorch\nUntypedStorage\n", b"ctorch\nLongStorage\n", b"ctorch\nBoolStorage\n", b"ccollections\nCounter\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n", b"cnumpy\nones\n", b"ctorch\nempty\n",
)  # fmt: skip
WIDTHS = {0: "B", 1: "B", 2: "H", 3: "H", 4: "I", 5: "I", 6: "I", 7: "B", 10: "Q", 11: "Q", 12: "Q"}


def gguf_folder(home: Path) -> Path:
    folder = home / "gguf"
    folder.mkdir()
    write_gguf(tiny_llama(num_hidden_layers=1), folder / "model.gguf")
    return folder


def torch_folder(home: Path) -> Path:
    return as_torch(save_tiny("bert", home / "torch", tokenizer=False, num_hidden_layers=1), step=7, loss=[0.5, None])


def shards_folder(home: Path) -> Path:
    return as_shards(save_tiny("bert", home / "shards", tokenizer=False, num_hidden_layers=1), 2)


def read_model(place: Path) -> Any:
    """The model, and what the tokenizer makes of a text."""
    opened = open_model(str(place))
    pieces = None if opened.tokenizer is None else opened.tokenizer(" the cat sees it.")["input_ids"]
    return opened.model, pieces


# Headers --------------------------------------------------------------------------------------------------------------


def damage_header(path: Path, chance: random.Random) -> str:
    """Another header in a file of weights; in words, which."""
    change = {".gguf": damage_gguf, ".bin": damage_torch, ".safetensors": damage_safetensors}[path.suffix]
    data, how = change(path.read_bytes(), chance)
    path.write_bytes(data)
    return how


def damage_gguf(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    at, letter = chance.choice(_gguf_numbers(data))
    (before,) = struct.unpack_from(f"<{letter}", data, at)
    most = 256 ** struct.calcsize(letter)
    number = chance.choice([*ODD_NUMBERS, before + 1, before - 1, before * 2, chance.randrange(most)]) % most
    made = data[:at] + struct.pack(f"<{letter}", number) + data[at + struct.calcsize(letter) :]
    return made, f"{before} at {at}, now {number}"


def _gguf_numbers(data: bytes) -> list[tuple[int, str]]:
    """Where every number of a header is, with its letter in `struct`."""
    found: list[tuple[int, str]] = []

    def number(at: int, letter: str) -> tuple[int, int]:
        found.append((at, letter))
        return struct.unpack_from(f"<{letter}", data, at)[0], at + struct.calcsize(letter)

    def text(at: int) -> int:
        length, at = number(at, "Q")
        return at + length

    def value(at: int, kind: int) -> int:
        return text(at) if kind == 8 else number(at, WIDTHS[kind])[1]

    _, at = number(4, "I")
    tensors, at = number(at, "Q")
    values, at = number(at, "Q")
    for _ in range(values):
        kind, at = number(text(at), "I")
        if kind != 9:
            at = value(at, kind)
            continue
        kind, at = number(at, "I")
        count, at = number(at, "Q")
        for _ in range(count):
            at = value(at, kind)
        del found[-max(count - 4, 0) or len(found) :]  # a few words stand for all
    for _ in range(tensors):
        sizes, at = number(text(at), "I")
        for letter in ("Q" * sizes) + "IQ":
            _, at = number(at, letter)
    return found


def damage_torch(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Another pickle in a sound zip file, or other numbers in the headers of the zip file."""
    if chance.random() < 0.3:
        places = [at for at in range(len(data) - 4) if data[at : at + 2] == b"PK"]
        at, number = chance.choice(places) + chance.randrange(4, 60), chance.choice(ODD_NUMBERS) % 2**32
        return data[:at] + struct.pack("<I", number) + data[at + 4 :], f"zip: {number} at {at}"
    with zipfile.ZipFile(BytesIO(data)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in records if name.endswith("data.pkl"))
    records[name], how = _edit_pickle(records[name], chance)
    made = BytesIO()
    kind = zipfile.ZIP_DEFLATED if chance.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(made, "w", kind) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return made.getvalue(), how


def _edit_pickle(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    steps = [*pickletools.genops(data)]
    places = [at for _, _, at in steps if at is not None] + [len(data)]
    index = chance.randrange(len(steps) - 1)
    opcode, argument, _ = steps[index]
    start, end = places[index], places[index + 1]
    what = chance.choice(["drop", "double", "swap", "name", "run", "number", "number", "instruction"])
    if what == "name":
        index = chance.choice([place for place, step in enumerate(steps) if step[0].name == "GLOBAL"])
        new, start, end = chance.choice(ODD_NAMES), places[index], places[index + 1]
    elif what == "run":
        new = b"cos\nsystem\n(X" + _text("true") + b"tR0" + data[start:end]
    elif what == "number":
        numbers = [place for place, step in enumerate(steps) if step[0].name.startswith("BININT")]
        index = chance.choice(numbers)
        start, end = places[index], places[index + 1]
        new = _number(chance.choice([*ODD_NUMBERS, -1, -2]))
    elif what == "instruction":
        new = bytes([chance.randrange(256)]) + data[start + 1 : end]
    elif what == "swap":
        other = chance.randrange(len(steps) - 1)
        new = data[places[other] : places[other + 1]]
    else:
        new = b"" if what == "drop" else 2 * data[start:end]
    return data[:start] + new + data[end:], f"pickle: {what} {opcode.name} {argument!a:.40} at {start}"


def _text(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode()


def _number(number: int) -> bytes:
    if -(2**31) <= number < 2**31:
        return b"J" + struct.pack("<i", number)
    content = number.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def damage_safetensors(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    (length,) = struct.unpack_from("<Q", data)
    if chance.random() < 0.1:
        number = chance.choice([*ODD_NUMBERS, length + 1, length - 1])
        return struct.pack("<Q", number) + data[8:], f"length {number}"
    table = json.loads(data[8 : 8 + length])
    how = ""
    if chance.random() < 0.6:
        inside = chance.choice([found for found in containers(table) if isinstance(found, list)])
        inside[chance.randrange(len(inside))] = number = chance.choice(ODD_NUMBERS)
        how = f"now {number}"
    else:
        how = edit(table, chance)
    text = json.dumps(table).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + data[8 + length :], how
