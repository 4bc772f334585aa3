"""Damaged files: changes of bytes, and edits of JSON with and without its hashes made right again."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

# Bytes ---------------------------------------------------------------------------------------------------------------


def flip_bit(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def delete(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    del data[start : start + chance.choice([1, 1, 2, 8, 64])]


def insert(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = chance.randbytes(chance.choice([1, 1, 2, 8, 64]))


def overwrite(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] = chance.randrange(256)


def truncate(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def swap_ranges(data: bytearray, chance: random.Random) -> None:
    a, b, c, d = sorted(chance.sample(range(len(data) + 1), 4))
    data[a:d] = data[c:d] + data[b:c] + data[a:b]


def duplicate(data: bytearray, chance: random.Random) -> None:
    start, end = sorted(chance.sample(range(len(data) + 1), 2))
    data[end:end] = data[start:end]


def zero(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice([1, 4, 32, 256]))
    data[start:end] = bytes(end - start)


def blank(data: bytearray, chance: random.Random) -> None:
    """Another kind of white space: in a safetensors header it means nothing."""
    spaces = [index for index, byte in enumerate(data) if byte in b" \n"]
    if spaces:
        data[chance.choice(spaces)] = chance.choice(b" \n\t\r")


MUTATIONS = (flip_bit, delete, insert, overwrite, truncate, swap_ranges, duplicate, zero, blank)


# JSON ----------------------------------------------------------------------------------------------------------------

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 10**40, 10**400, 0.5, -0.5, float("nan"), float("inf"), 1e308, "",
    "x", "dense", "luong-dot", "bahdanau-additive:d_a=0", "bahdanau-additive:d_a=-1", "window:", ":", "pure",
    "transformer", [], [1], [[]], {}, {"a": 1}, "\ud800", "../x", "float32", "int64", [2, 5, 3], [2**40, 2**40],
    "0" * 64,
)  # fmt: skip


def containers(data: Any) -> list[Any]:
    found = [data] if isinstance(data, dict | list) and data else []
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        found += containers(item)
    return found


def edit(data: Any, chance: random.Random) -> str:
    """One change somewhere inside a JSON document; what it was, in words."""
    inside = chance.choice(containers(data))
    key: Any = chance.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    what = chance.choice(["drop", "odd", "number", "rename", "add", "swap"])
    if what == "drop":
        del inside[key]
    elif what == "number" and isinstance(inside[key], int | float):
        inside[key] += chance.choice([-1, 1, 2, 0.5, 1e6])
    elif what == "rename" and isinstance(inside, dict):
        inside[chance.choice([f"{key}x", key[:-1], key.upper(), ""])] = inside.pop(key)
    elif what == "add" and isinstance(inside, dict):
        inside[chance.choice(["extra", "__metadata__", "encoder.0.W_Q"])] = chance.choice(ODD_VALUES)
    elif what == "swap":
        other = chance.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        inside[key], inside[other] = inside[other], inside[key]
    else:
        inside[key] = chance.choice(ODD_VALUES)
    now = ascii(inside.get(key) if isinstance(inside, dict) else None)
    return f"{what} {key!a}, now {now[:40]}"


def canonical(data: object) -> bytes:
    text = json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "surrogatepass")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
