"""Damaged model folders, and saves that are killed: an error in one line or the model as it was, never less."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.covering import thorough
from tests.training.processes import killed, moments_in, needs_fork

from attnworks.errors import AttnworksError, FolderError
from attnworks.models import AttentionConfig, Model, PureConfig, build, load, save
from attnworks.models.folder import CONFIG, MANIFEST, WEIGHTS
from attnworks.storage import disk

NAMES = (CONFIG, MANIFEST, WEIGHTS)
ROUNDS = 300 if thorough else 90


def original() -> Model:
    attention = AttentionConfig(heads=2, d_k=3, d_v=1, mechanism=("dense", "luong-multiplicative"))
    return build(PureConfig(d_e=5, layers=1, attention=attention, skip=True), seed=7)


def bits(model: Model) -> tuple[object, ...]:
    return model.config, *(
        (name, tensor.dtype, tensor.detach().contiguous().numpy().tobytes())
        for name, tensor in model.named_parameters()
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(original(), tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def outcome(place: Path) -> Model | AttnworksError:
    """A model or an error of ours; anything else is a failure of the test, and so is a mere warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return load(place)
        except AttnworksError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            return error


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


@pytest.mark.parametrize("name", NAMES)
def test_changed_bytes(name: str, place: Path) -> None:
    chance, expected, refused = random.Random(f"bytes of {name}"), bits(original()), 0
    intact = (place / name).read_bytes()
    for turn in range(ROUNDS):
        data = bytearray(intact)
        mutation = MUTATIONS[turn % len(MUTATIONS)]
        mutation(data, chance)
        (place / name).write_bytes(data)
        result = outcome(place)
        if isinstance(result, AttnworksError):
            refused += 1
        else:
            assert bits(result) == expected, f"turn {turn}: {mutation.__name__} went unnoticed"
    assert refused > 0.85 * ROUNDS
    (place / name).write_bytes(intact)
    assert bits(load(place)) == expected


def test_two_files_changed_together(place: Path) -> None:
    chance, expected = random.Random("pairs"), bits(original())
    intact = {name: (place / name).read_bytes() for name in NAMES}
    for turn in range(ROUNDS // 3):
        for name in NAMES:
            data = bytearray(intact[name])
            if chance.random() < 0.67:
                chance.choice(MUTATIONS)(data, chance)
            (place / name).write_bytes(data)
        result = outcome(place)
        assert isinstance(result, AttnworksError) or bits(result) == expected, f"turn {turn}"


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


def edit(data: Any, chance: random.Random) -> None:
    """One change somewhere inside a JSON document."""
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


def canonical(data: object) -> bytes:
    text = json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "surrogatepass")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", [CONFIG, MANIFEST])
def test_edited_json(name: str, place: Path) -> None:
    chance, expected = random.Random(f"JSON of {name}"), bits(original())
    intact = (place / name).read_bytes()
    for turn in range(ROUNDS):
        data = json.loads(intact)
        edit(data, chance)
        (place / name).write_bytes(canonical(data))
        result = outcome(place)
        same = canonical(data) == intact
        assert isinstance(result, AttnworksError) != same, f"turn {turn}: {data}"
        assert isinstance(result, AttnworksError) or bits(result) == expected


@pytest.mark.parametrize("name", [CONFIG, MANIFEST])
def test_edited_json_with_its_hashes_made_right(name: str, place: Path) -> None:
    """A forger may describe another model, but only as a folder that fits together; else an error of ours."""
    chance, expected = random.Random(f"forged {name}"), bits(original())
    intact = {part: (place / part).read_bytes() for part in (CONFIG, MANIFEST)}
    loaded = 0
    for _ in range(ROUNDS):
        parts = {part: json.loads(text) for part, text in intact.items()}
        edit(parts[name], chance)
        config, manifest = canonical(parts[CONFIG]), parts[MANIFEST]
        if isinstance(manifest, dict):
            if name == CONFIG:
                manifest["config_sha256"] = sha256(config)
            manifest.pop("sha256", None)
            manifest["sha256"] = sha256(canonical(manifest))
        (place / CONFIG).write_bytes(config)
        (place / MANIFEST).write_bytes(canonical(manifest))
        result = outcome(place)
        if not isinstance(result, AttnworksError):
            loaded += 1
            assert bits(result)[1:] == expected[1:]
    assert loaded < ROUNDS // 2


# The header of safetensors -------------------------------------------------------------------------------------------


def test_edited_weight_headers(place: Path) -> None:
    """Names, shapes, types and offsets changed in a header whose length is right."""
    chance, expected, refused = random.Random("headers"), bits(original()), 0
    intact = (place / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(intact[:8], "little")
    types = ["F32", "F64", "F16", "BF16", "I32", "U32", "I64", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "x"]
    for turn in range(ROUNDS):
        header = json.loads(intact[8:end])
        if turn % 3:
            edit(header, chance)
        else:
            header[chance.choice([name for name in header if name != "__metadata__"])]["dtype"] = chance.choice(types)
        text = json.dumps(header).encode()
        (place / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + intact[end:])
        result = outcome(place)
        if isinstance(result, AttnworksError):
            refused += 1
        else:
            assert bits(result) == expected, f"turn {turn}: {header}"
    assert refused > 0.7 * ROUNDS


@pytest.mark.parametrize("length", [0, 1, 7, 8, 2**31, 2**62, 2**64 - 1])
def test_header_lengths_that_lie(length: int, place: Path) -> None:
    data = (place / WEIGHTS).read_bytes()
    (place / WEIGHTS).write_bytes(length.to_bytes(8, "little") + data[8:])
    assert isinstance(outcome(place), AttnworksError)


# Killed while saving -------------------------------------------------------------------------------------------------


class Saves:
    """A folder to which models are saved whose entries are all the same number."""

    def __init__(self, place: Path, exchange: bool) -> None:
        self.place, self.exchange, self.log = place, exchange, place.with_name("log.txt")

    def save(self, number: int) -> None:
        model = build(PureConfig(d_e=5, layers=1, attention=AttentionConfig(heads=2, d_k=3, d_v=1)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(number)
        save(model, self.place, overwrite=True)

    def save_on(self, first: int) -> None:
        for number in range(first, first + 10_000):
            self.save(number)

    def loaded(self) -> float:
        model = load(self.place)
        (number,) = {float(entry) for parameter in model.parameters() for entry in parameter.detach().flatten()}
        return number

    def found(self) -> float:
        """The folder is whole, or, between two renames, a whole copy is beside it and the error names it."""
        try:
            return self.loaded()
        except FolderError as error:
            copies = sorted(self.place.parent.glob(".model.*.old"), key=lambda path: path.stat().st_mtime_ns)
            assert not self.place.exists() and not self.exchange, error
            assert copies and str(copies[-1]) in str(error), error
            copies[-1].rename(self.place)
            return self.loaded()


@pytest.fixture(params=["exchange", pytest.param("two renames", marks=pytest.mark.slow)])
def saves(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saves:
    """With the system's exchange of two names, and without."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what is written survives the process
    if request.param == "two renames":
        monkeypatch.setattr(disk, "_exchange", lambda one, other: False)
    made = Saves(tmp_path / "model", request.param == "exchange")
    made.save(1)
    return made


@needs_fork
def test_killed_saves_leave_a_whole_folder(saves: Saves) -> None:
    """Killed at random moments of a saving loop. The moments of one save are counted, so that no clock is read."""
    chance, seen, last = random.Random(5), set(), 1
    (per_save,) = moments_in(lambda: saves.save(1), "")
    assert per_save > 300
    for _ in range(20):
        moment = chance.randrange(1, 10 * per_save)
        assert killed(lambda first=last: saves.save_on(first), moment, saves.log)
        now = saves.found()
        assert last <= now < last + 11, (last, now)
        seen.add(now)
        last = int(now)
    assert len(seen) > 10


@needs_fork
def test_killed_before_each_file_operation_of_a_save(saves: Saves) -> None:
    ends, operations = set(), 0
    while (1.0, False) not in ends and (2.0, False) not in ends:
        operations += 1
        saves.save(1)
        was_killed = killed(lambda: saves.save(2), operations, saves.log, file_operations=True)
        ends.add((saves.found(), was_killed))
    assert ends == {(1.0, True), (2.0, True), (2.0, False)}
    assert operations > 15
