"""Exam folders: exam.json, readings.safetensors, pins.safetensors and a manifest with the SHA-256 of everything.

A folder is written whole or not at all. On reading, exam.json, the manifest and the tensor files must agree, byte for
byte. The schema is in docs/exam.md.
"""

from __future__ import annotations

import os
import shlex
import unicodedata
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import (
    disk_errors,
    is_tensor_table,
    load_error,
    new_folder,
    read_json_bytes,
    read_sealed,
    read_tensors,
    seal,
    sha256,
    write_tensors,
)
from attnworks.core.places import Kind, Slot
from attnworks.exam.attended import attended_from_json, attended_to_json
from attnworks.exam.examination import EXAM_FORMAT, ExamFinding, Examination, Pin
from attnworks.exam.lineage import read_lineage
from attnworks.exam.measure import ReadingSpec
from attnworks.exam.reading import Reading, Readings
from attnworks.models.folder import CONFIG_FILE
from attnworks.traces.subject import is_run

EXAM_FILE, EXAM_MANIFEST_FILE = "exam.json", "manifest.json"
READINGS_FILE, PINS_FILE = "readings.safetensors", "pins.safetensors"
EXAM_FILES = (EXAM_FILE, READINGS_FILE, PINS_FILE, EXAM_MANIFEST_FILE)
EXTRA_SUFFIXES = {".html", ".svg", ".png"}
"""Files that may be in the folder, too; they are deleted when it is replaced."""


def write_exam(exam: Examination, folder: str | os.PathLike[str]) -> Path:
    """Write to `folder`, whole or not at all. An existing exam folder is replaced; any other folder is refused."""
    folder = Path(folder)
    check_exam_place(folder)
    with new_folder(folder) as scratch:
        maps = {f"{index}/{slot}": P for index, pin in enumerate(exam.pins) for slot, P in pin.maps.items()}
        sizes = {f"{index}/{slot}/sizes": v for index, pin in enumerate(exam.pins) for slot, v in pin.sizes.items()}
        text = seal(_outline(exam))
        (scratch / EXAM_FILE).write_bytes(text)
        manifest = {
            "format": EXAM_FORMAT,
            "exam_sha256": sha256(text),
            "readings": write_tensors(scratch / READINGS_FILE, _reading_tensors(exam.readings)),
            "pins": write_tensors(scratch / PINS_FILE, maps | sizes),
        }
        (scratch / EXAM_MANIFEST_FILE).write_bytes(seal(manifest))
    return folder


def is_exam_folder(path: str | os.PathLike[str]) -> bool:
    """Whether this is the folder of an examination; an error for a path that cannot be looked up."""
    with disk_errors(f"open {path}", remedy="check the path"):
        return (Path(path) / EXAM_FILE).is_file()


def read_exam(folder: str | os.PathLike[str]) -> Examination:
    """The examination in `folder`, without control characters; an error if a file is missing, changed or malformed."""
    folder = Path(folder)
    with disk_errors(f"load {folder}", remedy="check that you may read it"):
        _check_files(folder)
        manifest = _read_manifest(folder)
        if sha256(read_json_bytes(folder / EXAM_FILE)) != manifest["exam_sha256"]:
            raise load_error(folder / EXAM_FILE, "the file that the manifest names", "another one")
        outline = read_sealed(folder / EXAM_FILE)
        readings = read_tensors(folder / READINGS_FILE, manifest["readings"])
        pins = read_tensors(folder / PINS_FILE, manifest["pins"])
    try:
        return _fill(without_control_characters(outline), readings, pins)
    except AttnworksError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        got = f"another one ({type(error).__name__}: {error})"
        raise load_error(folder / EXAM_FILE, "the outline of an examination", got[:200]) from error


# Writing -------------------------------------------------------------------------------------------------------------


def _outline(exam: Examination) -> dict[str, Any]:
    """All but the numbers."""
    return {
        "format": EXAM_FORMAT,
        "model": dict(exam.model),
        "corpus": dict(exam.corpus),
        "readings": [_reading_outline(exam.readings[name]) for name in exam.readings],
        "findings": [finding.to_json() for finding in exam.findings],
        "notes": list(exam.notes),
        "pins": [
            {
                "tokens": list(pin.tokens),
                "target": None if pin.target is None else list(pin.target),
                "slots": [str(slot) for slot in pin.maps],
                **({"sizes": [str(slot) for slot in pin.sizes]} if pin.sizes else {}),
                **({"sinks": {str(slot): list(keys) for slot, keys in pin.sinks.items()}} if pin.sinks else {}),
            }
            for pin in exam.pins
        ],
        **({} if exam.attended is None else {"attended": attended_to_json(exam.attended)}),
    }


def _reading_outline(reading: Reading) -> dict[str, Any]:
    return {
        "name": reading.name,
        "kind": reading.kind,
        "axes": list(reading.axes),
        "description": reading.description,
        "source": reading.source,
        "ticks": {axis: list(labels) for axis, labels in reading.ticks.items()},
        "rows": [None if isinstance(row, Tensor) else list(row) for row in reading.value],
        "parts": [part for part in reading.parts() if part != "value"],
    }


def _reading_tensors(readings: Readings) -> dict[str, Tensor]:
    """saturation.entropy@encoder/3/value -> its tensor, and so on."""
    return {
        _tensor_name(reading.name, reading.kind, index, part): row
        for reading in readings.values()
        for part, rows in reading.parts().items()
        for index, row in enumerate(rows)
        if isinstance(row, Tensor)
    }


def _tensor_name(name: str, kind: str, row: int, part: str) -> str:
    return f"{name}@{kind}/{row}/{part}"


# Reading -------------------------------------------------------------------------------------------------------------


def _fill(outline: dict[str, Any], numbers: dict[str, Tensor], maps: dict[str, Tensor]) -> Examination:
    """Every tensor is removed from its dictionary when it is used; one that remains is an error."""
    _only(outline, {"format", "model", "corpus", "readings", "findings", "notes", "pins"}, optional={"attended"})
    readings = Readings([_reading(made, numbers) for made in _list(outline["readings"], dict)])
    if len(readings) != len(outline["readings"]):
        raise ValueError("a reading twice")
    pins = tuple(_pin(index, made, maps) for index, made in enumerate(_list(outline["pins"], dict)))
    if left := sorted([*numbers, *maps]):
        raise ValueError(f"extra tensor {left[0]!r}")
    if not (isinstance(outline["model"], dict) and isinstance(outline["corpus"], dict)):
        raise TypeError("model and corpus")
    try:
        read_lineage(outline["model"])
    except AttnworksError as error:
        raise ValueError(str(error)) from error
    findings = tuple(_finding(made) for made in _list(outline["findings"], dict))
    return Examination(
        outline["model"], outline["corpus"], readings, findings, tuple(_list(outline["notes"], str)), pins,
        attended_from_json(outline["attended"]) if "attended" in outline else None,
    )  # fmt: skip


def _reading(made: dict[str, Any], numbers: dict[str, Tensor]) -> Reading:
    _only(made, {"name", "kind", "axes", "description", "source", "ticks", "rows", "parts"})
    name, kind, description, source = _list([made[key] for key in ("name", "kind", "description", "source")], str)
    if kind not in get_args(Kind):
        raise ValueError(f"kind {kind!r}")
    parts, rows = _list(made["parts"], str), _list(made["rows"], list | None)

    def row(index: int, part: str) -> Tensor:
        return numbers.pop(_tensor_name(name, kind, index, part))

    value = tuple(row(at, "value") if labels is None else tuple(_list(labels, str)) for at, labels in enumerate(rows))
    held = {part: tuple(row(at, part) for at in range(len(rows))) for part in parts}
    if not held.keys() <= {"spread", "low", "high", "count"} or ("low" in held) != ("high" in held):
        raise ValueError(f"parts {parts}")
    for part, tensors in held.items():
        for entry, tensor in zip(value, tensors, strict=True):
            shape = list(entry.shape) if isinstance(entry, Tensor) else [len(entry)]
            if list(tensor.shape) != shape:
                raise ValueError(f"{part} of shape {list(tensor.shape)} for a value of shape {shape} in {name!r}")
    axes = tuple(_list(made["axes"], str))
    ticks = {axis: tuple(_list(labels, int | float)) for axis, labels in made["ticks"].items()}
    return ReadingSpec(name, axes, description, source, ticks=ticks).reading(kind, value, **held)


def _pin(index: int, made: dict[str, Any], maps: dict[str, Tensor]) -> Pin:
    """Sizes and sinks are missing in folders of earlier versions."""
    _only(made, {"tokens", "target", "slots"}, optional={"sizes", "sinks"})
    target = None if made["target"] is None else tuple(_list(made["target"], str))
    slots = {Slot.parse(name): maps.pop(f"{index}/{name}") for name in _list(made["slots"], str)}
    sizes = {Slot.parse(name): maps.pop(f"{index}/{name}/sizes") for name in _list(made.get("sizes", []), str)}
    sinks = {Slot.parse(name): tuple(_list(keys, int)) for name, keys in made.get("sinks", {}).items()}
    pin = Pin(tuple(_list(made["tokens"], str)), slots, target, sizes, sinks)
    for slot, P in slots.items():
        queries, keys = pin.sides(slot.kind)
        if P.dim() != 3 or P.shape[1:] != (len(queries), len(keys)):
            raise ValueError(f"a map of shape {list(P.shape)} for {len(queries)} and {len(keys)} tokens")
    for slot, v in sizes.items():
        if slot not in slots or v.shape != slots[slot][:, 0].shape:
            raise ValueError(f"sizes of shape {list(v.shape)} for the keys of {slot}")
    for slot, places in sinks.items():
        if slot not in slots or not all(0 <= place < slots[slot].shape[-1] for place in places):
            raise ValueError(f"sinks {list(places)[:5]} for the keys of {slot}")
    return pin


def _finding(made: dict[str, Any]) -> ExamFinding:
    _only(made, {"text", "weight", "readings", "heads", "group", "command"})
    text, group, command = _list([made[key] for key in ("text", "group", "command")], str)
    (weight,) = _list([made["weight"]], int | float)
    readings, heads = (tuple(_list(made[key], str)) for key in ("readings", "heads"))
    return ExamFinding(text, weight, readings, heads, group, command)


def without_control_characters(made: Any) -> Any:
    """Drop control characters, which could steer a terminal. Line breaks and tabs, which tokens have, are kept."""
    if isinstance(made, str):
        return "".join(letter for letter in made if letter in "\n\t" or unicodedata.category(letter) != "Cc")
    if isinstance(made, list):
        return [without_control_characters(item) for item in made]
    if isinstance(made, dict):
        return {without_control_characters(key): without_control_characters(item) for key, item in made.items()}
    return made


def _only(made: dict[str, Any], keys: set[str], optional: frozenset[str] | set[str] = frozenset()) -> None:
    if odd := sorted((made.keys() - optional) ^ keys):
        raise ValueError(f"{'missing' if odd[0] in keys else 'extra'} {odd[0]!r}")


def _list(made: Any, kind: Any) -> list[Any]:
    if not isinstance(made, list) or not all(isinstance(item, kind) for item in made):
        raise TypeError(f"not a list of {getattr(kind, '__name__', kind)}")
    return made


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = read_sealed(folder / EXAM_MANIFEST_FILE)
    if manifest.get("format") != EXAM_FORMAT:
        got, remedy = repr(manifest.get("format"))[:20], "examine the model again: attnworks examine MODEL --out FOLDER"
        raise FolderError(f"load {folder}", f"exam format {EXAM_FORMAT}", got, remedy)
    if not isinstance(manifest.get("exam_sha256"), str) or not all(
        is_tensor_table(manifest.get(part)) for part in ("readings", "pins")
    ):
        raise load_error(folder / EXAM_MANIFEST_FILE, "exam_sha256, and tables of readings and pins", "something else")
    return manifest


def _check_files(folder: Path) -> None:
    missing = [name for name in EXAM_FILES if not (folder / name).is_file()]
    if EXAM_FILE in missing and (is_run(folder) or (folder / CONFIG_FILE).is_file()):
        remedy = f"first: attnworks examine {shlex.quote(str(folder))} --out EXAM; then use EXAM"
        raise FolderError(f"load {folder}", "the folder of an examination", "a model", remedy)
    if missing:
        got = f"no {missing[0]}" if folder.is_dir() else "a file" if folder.is_file() else "nothing there"
        raise FolderError(f"load {folder}", "the folder of an examination", got, "check the path")


def check_exam_place(folder: Path) -> None:
    """An error if `write_exam` would refuse this place; called before the work starts."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    is_exam = folder.is_dir() and all((folder / name).is_file() for name in EXAM_FILES)
    names = [path.name for path in folder.iterdir() if path.suffix not in EXTRA_SUFFIXES] if is_exam else []
    others = [name for name in names if name not in EXAM_FILES]
    if not is_exam or others:
        expected = "a new place, or the folder of an examination to replace"
        got = f"a folder that also holds {min(others)}" if others else "something else"
        raise FolderError(f"write an examination to {folder}", expected, got, "choose another place")
