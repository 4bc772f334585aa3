"""Damaged model folders, and saves that are killed: an error in one line or the model as it was, never less."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from pathlib import Path

import pytest

from attnworks.core import folders
from attnworks.core.errors import AttnworksError
from attnworks.models import AttentionConfig, Model, PureConfig, build, load_model, save_model
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE
from tests.covering import thorough
from tests.faults.kills import Saves, kill_saves
from tests.faults.mutants import MUTATIONS, canonical, edit, sha256
from tests.training.processes import killed, needs_fork

NAMES = (CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE)
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
    return save_model(original(), tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def outcome(place: Path) -> Model | AttnworksError:
    """A model or an error of ours; anything else is a failure of the test, and so is a mere warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return load_model(place)
        except AttnworksError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            return error


# Bytes ---------------------------------------------------------------------------------------------------------------


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
    assert bits(load_model(place)) == expected


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


@pytest.mark.parametrize("name", [CONFIG_FILE, MANIFEST_FILE])
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


@pytest.mark.parametrize("name", [CONFIG_FILE, MANIFEST_FILE])
def test_edited_json_with_its_hashes_made_right(name: str, place: Path) -> None:
    """A forger may describe another model, but only as a folder that fits together; else an error of ours."""
    chance, expected = random.Random(f"forged {name}"), bits(original())
    intact = {part: (place / part).read_bytes() for part in (CONFIG_FILE, MANIFEST_FILE)}
    loaded = 0
    for _ in range(ROUNDS):
        parts = {part: json.loads(text) for part, text in intact.items()}
        edit(parts[name], chance)
        config, manifest = canonical(parts[CONFIG_FILE]), parts[MANIFEST_FILE]
        if isinstance(manifest, dict):
            if name == CONFIG_FILE:
                manifest["config_sha256"] = sha256(config)
            manifest.pop("sha256", None)
            manifest["sha256"] = sha256(canonical(manifest))
        (place / CONFIG_FILE).write_bytes(config)
        (place / MANIFEST_FILE).write_bytes(canonical(manifest))
        result = outcome(place)
        if not isinstance(result, AttnworksError):
            loaded += 1
            assert bits(result)[1:] == expected[1:]
    assert loaded < ROUNDS // 2


# The header of safetensors -------------------------------------------------------------------------------------------


def test_edited_weight_headers(place: Path) -> None:
    """Names, shapes, types and offsets changed in a header whose length is right."""
    chance, expected, refused = random.Random("headers"), bits(original()), 0
    intact = (place / WEIGHTS_FILE).read_bytes()
    end = 8 + int.from_bytes(intact[:8], "little")
    types = ["F32", "F64", "F16", "BF16", "I32", "U32", "I64", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "x"]
    for turn in range(ROUNDS):
        header = json.loads(intact[8:end])
        if turn % 3:
            edit(header, chance)
        else:
            header[chance.choice([name for name in header if name != "__metadata__"])]["dtype"] = chance.choice(types)
        text = json.dumps(header).encode()
        (place / WEIGHTS_FILE).write_bytes(len(text).to_bytes(8, "little") + text + intact[end:])
        result = outcome(place)
        if isinstance(result, AttnworksError):
            refused += 1
        else:
            assert bits(result) == expected, f"turn {turn}: {header}"
    assert refused > 0.7 * ROUNDS


@pytest.mark.parametrize("length", [0, 1, 7, 8, 2**31, 2**62, 2**64 - 1])
def test_header_lengths_that_lie(length: int, place: Path) -> None:
    data = (place / WEIGHTS_FILE).read_bytes()
    (place / WEIGHTS_FILE).write_bytes(length.to_bytes(8, "little") + data[8:])
    assert isinstance(outcome(place), AttnworksError)


# Killed while saving -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["exchange", pytest.param("two renames", marks=pytest.mark.slow)])
def saves(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saves:
    """With the system's exchange of two names, and without."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what is written survives the process
    if request.param == "two renames":
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    made = Saves(tmp_path / "model", request.param == "exchange")
    made.save(1)
    return made


@needs_fork
def test_killed_saves_leave_a_whole_folder(saves: Saves) -> None:
    assert kill_saves(saves) == 20


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
