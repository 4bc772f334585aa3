"""Exam folders: there and back without the change of a bit; damaged ones are refused in one line."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import canonical_json, describe_tensor, seal, sha256
from attnworks.exam.examination import ExamFinding, Examination, Pin
from attnworks.exam.folder import (
    EXAM_FILE,
    EXAM_FILES,
    EXAM_MANIFEST_FILE,
    PINS_FILE,
    READINGS_FILE,
    read_exam,
    write_exam,
)
from attnworks.exam.reading import Reading, Readings
from tests.covering import thorough
from tests.exam.test_examination import examined
from tests.faults.mutants import MUTATIONS, edit

ROUNDS = 54 if thorough else 27


def bits(exam: Examination) -> Any:
    """All that an examination holds, to be compared."""

    def rows(parts: Any) -> Any:
        if isinstance(parts, Tensor):
            return str(parts.dtype), tuple(parts.shape), parts.contiguous().numpy().tobytes()
        return tuple(map(rows, parts)) if isinstance(parts, tuple) else parts

    readings = [
        (
            r.name,
            r.kind,
            r.axes,
            r.description,
            r.source,
            dict(r.ticks),
            *map(rows, (r.value, r.spread, r.interval, r.count)),
        )
        for r in (exam[name] for name in exam.readings)
    ]
    pins = [(pin.tokens, pin.target, [(slot, rows(P)) for slot, P in pin.maps.items()]) for pin in exam.pins]
    return exam.model, exam.corpus, readings, exam.findings, exam.notes, pins


def tensors(exam: Examination) -> list[bytes]:
    """The numbers of all values, without labels."""
    values = [row for name in exam.readings for row in exam[name].value]
    return [row.contiguous().numpy().tobytes() for row in values if isinstance(row, Tensor)]


@pytest.fixture(scope="module")
def exam() -> Examination:
    torch.manual_seed(3)
    whole = examined("encoder", "cross")
    kept = ("rank.residual", "sinks.first", "roles.offset", "roles.label", "paths.embedding")
    return replace(whole, readings=Readings([reading for name in kept for reading in whole.readings.of(name)]))


@pytest.fixture(scope="module")
def whole(exam: Examination, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_exam(exam, tmp_path_factory.mktemp("whole") / "exam")


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "exam"))


def outcome(place: Path) -> Examination | AttnworksError:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return read_exam(place)
        except AttnworksError as error:
            assert isinstance(error, FolderError) and "\n" not in str(error) and len(str(error)) < 1000
            return error


def refused(place: Path) -> str:
    error = outcome(place)
    assert isinstance(error, AttnworksError)
    return str(error)


# --- there and back ---------------------------------------------------------------------------------------------------


def test_round_trip(exam: Examination, whole: Path) -> None:
    assert sorted(path.name for path in whole.iterdir()) == sorted(EXAM_FILES)
    assert bits(read_exam(whole)) == bits(exam)
    assert read_exam(whole).to_json() == exam.to_json()


def test_odd_numbers_and_shapes_survive(tmp_path: Path) -> None:
    rows = (
        torch.tensor([float("nan"), -0.0, float("inf"), 5e-324], dtype=torch.float64),
        torch.zeros(0),
        torch.ones(2, 3).mT,
        torch.arange(5),
        torch.tensor([1.5], dtype=torch.bfloat16).float(),
    )
    reading = Reading("x.y", "cross", ("layer", "odd"), (*rows, ("a", "è\n")), "", "", ticks={"odd": (-1, 0.1)})
    exam = Examination({}, {}, Readings([reading]))
    assert bits(read_exam(write_exam(exam, tmp_path / "exam"))) == bits(exam)


def test_nothing_at_all_survives(tmp_path: Path) -> None:
    exam = Examination({"name": "m"}, {}, Readings([]))
    assert bits(read_exam(write_exam(exam, tmp_path / "exam"))) == bits(exam)


def test_tensors_have_readable_names(whole: Path) -> None:
    names = load_file(whole / READINGS_FILE)
    assert {"sinks.first@encoder/2/value", "rank.residual@cross/3/high"} <= names.keys()
    assert "0/cross.1" in load_file(whole / PINS_FILE)
    assert len((whole / EXAM_FILE).read_bytes()) < 40_000


# --- where it may be written ------------------------------------------------------------------------------------------


def test_an_exam_folder_is_replaced(exam: Examination, place: Path) -> None:
    (place / "report.html").write_text("made of it")
    write_exam(examined(seed=11), place)
    assert bits(read_exam(place)) != bits(exam) and not (place / "report.html").exists()


def test_an_empty_folder_is_filled(exam: Examination, tmp_path: Path) -> None:
    assert bits(read_exam(write_exam(exam, tmp_path))) == bits(exam)


@pytest.mark.parametrize("what", ["file", "folder", "mixed"])
def test_other_things_stay(what: str, exam: Examination, place: Path) -> None:
    keep = place / "notes.txt"
    if what == "file":
        shutil.rmtree(place)
        keep = place
    if what == "folder":
        (place / EXAM_MANIFEST_FILE).unlink()
    keep.write_text("mine")
    with pytest.raises(FolderError, match="choose another place"):
        write_exam(exam, place)
    assert keep.read_text() == "mine" and [path.name for path in place.parent.iterdir()] == ["exam"]


def test_nothing_is_left_of_a_failed_write(exam: Examination, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_exam(Examination({"name": object()}, {}, exam.readings), tmp_path / "exam")
    assert not list(tmp_path.iterdir())


# --- damage -----------------------------------------------------------------------------------------------------------


def test_missing_things_are_named(place: Path, tmp_path: Path) -> None:
    assert "nothing there" in refused(tmp_path / "nowhere") and "a file" in refused(place / EXAM_FILE)
    for name in EXAM_FILES:
        moved = (place / name).rename(tmp_path / name)
        assert f"no {name}" in refused(place)
        moved.rename(place / name)
    assert isinstance(outcome(place), Examination)


@pytest.mark.parametrize("name", EXAM_FILES)
def test_changed_bytes(name: str, exam: Examination, place: Path) -> None:
    chance, expected, noticed = random.Random(name), bits(exam), 0
    intact = (place / name).read_bytes()
    for turn in range(ROUNDS):
        data = bytearray(intact)
        MUTATIONS[turn % len(MUTATIONS)](data, chance)
        (place / name).write_bytes(data)
        result = outcome(place)
        noticed += isinstance(result, AttnworksError)
        assert isinstance(result, AttnworksError) or bits(result) == expected, f"turn {turn}"
    assert noticed > 0.8 * ROUNDS


def forge(place: Path, outline: Any = None, **manifest: Any) -> None:
    """Put something else in the folder, with every hash made right."""
    if outline is not None:
        (place / EXAM_FILE).write_bytes(seal(outline) if isinstance(outline, dict) else canonical_json(outline))
    known = json.loads((place / EXAM_MANIFEST_FILE).read_bytes()) | manifest
    known["exam_sha256"] = manifest.get("exam_sha256", sha256((place / EXAM_FILE).read_bytes()))
    known.pop("sha256")
    (place / EXAM_MANIFEST_FILE).write_bytes(seal(known))


def test_forged_outlines_fit_or_are_refused(place: Path, exam: Examination) -> None:
    chance, numbers, refusals = random.Random("forged"), sorted(tensors(exam)), 0
    outline = json.loads((place / EXAM_FILE).read_bytes())
    del outline["sha256"]
    text = json.dumps(outline)
    for turn in range(2 * ROUNDS):
        data = json.loads(text)
        edit(data, chance)
        try:
            forge(place, data)
        except (UnicodeEncodeError, ValueError):
            continue
        result = outcome(place)
        refusals += isinstance(result, AttnworksError)
        if isinstance(result, Examination):
            assert sorted(tensors(result)) == numbers, f"turn {turn}"
            json.dumps(result.to_json())
    assert refusals > 0.5 * ROUNDS


@pytest.mark.parametrize("part", ["spread", "low", "high", "count"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 1)])
def test_parts_of_another_shape_are_refused(part: str, shape: tuple[int, ...], place: Path) -> None:
    name, numbers = f"sinks.first@encoder/1/{part}", load_file(place / READINGS_FILE)
    assert numbers[name].shape == (5,)
    numbers[name] = torch.ones(shape)
    save_file(numbers, place / READINGS_FILE)
    forge(
        place,
        readings=json.loads((place / EXAM_MANIFEST_FILE).read_bytes())["readings"]
        | {name: describe_tensor(numbers[name])},
    )
    assert f"{part} of shape {list(shape)} for a value of shape [5]" in refused(place)


def test_parts_of_labels_have_their_shape(tmp_path: Path) -> None:
    reading = Reading("x.y", "encoder", ("layer", "head"), (("a", "b"),), "", "", count=(torch.ones(2),))
    exam = Examination({}, {}, Readings([reading]))
    assert bits(read_exam(write_exam(exam, tmp_path / "exam"))) == bits(exam)
    odd = Examination({}, {}, Readings([replace(reading, count=(torch.ones(3),))]))
    assert "count of shape [3] for a value of shape [2]" in refused(write_exam(odd, tmp_path / "odd"))


def test_control_characters_are_dropped(tmp_path: Path) -> None:
    """Nothing in a folder speaks to the terminal; lines and tabs, which tokens have, stay."""
    odd, plain = "a\x1b[31m\x07\x08\r\x00\x7f\x9bè\t\n", "a[31mè\t\n"

    def exam(text: str) -> Examination:
        reading = Reading("x.y", "encoder", ("layer", "head"), ((text,),), text, text)
        finding, pin = ExamFinding(text, 0.5, (text,), (text,), text), Pin((text,), {}, (text, text))
        model = {"name": text, text: [{"deep": text}]}
        return Examination(model, {"spec": text}, Readings([reading]), (finding,), (text,), (pin,))

    assert bits(read_exam(write_exam(exam(odd), tmp_path / "exam"))) == bits(exam(plain))
    forge(tmp_path / "exam", format="\x1b[31m")
    assert "\x1b" not in refused(tmp_path / "exam")


@pytest.mark.parametrize("number", [1, 2, "2", None, [2]])
def test_another_format_is_refused(number: Any, place: Path) -> None:
    forge(place, format=number)
    assert "exam format 4" in refused(place) and "examine the model again" in refused(place)


def test_another_exam_json_is_refused(place: Path) -> None:
    forge(place, exam_sha256="0" * 64)
    assert "exam.json" in refused(place)


@pytest.mark.parametrize("name", [READINGS_FILE, PINS_FILE])
def test_extra_and_missing_tensors(name: str, place: Path) -> None:
    tensors = load_file(place / name)
    save_file(tensors | {"extra": torch.zeros(2)}, place / name)
    assert "extra tensor 'extra'" in refused(place)
    first = min(tensors)
    save_file({key: tensor for key, tensor in tensors.items() if key != first}, place / name)
    assert f"missing tensor '{first}'" in refused(place)


@pytest.mark.parametrize("part", ["readings", "pins"])
def test_tensors_that_nothing_calls_for(part: str, place: Path) -> None:
    """The manifest and the tensor file agree, but exam.json knows nothing of it."""
    name = {"readings": READINGS_FILE, "pins": PINS_FILE}[part]
    save_file(load_file(place / name) | {"extra": torch.zeros(2)}, place / name)
    table = json.loads((place / EXAM_MANIFEST_FILE).read_bytes())[part]
    row = {"shape": [2], "dtype": "float32", "sha256": sha256(bytes(8))}
    forge(place, **{part: table | {"extra": row}})
    assert "extra tensor 'extra'" in refused(place)
