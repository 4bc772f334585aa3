"""Files that users add to a page: traced translations, and advice. Every value is checked before it is used."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import disk_errors, load_error, parse_json, read_json_bytes, unsealed
from attnworks.core.json_records import parse
from attnworks.core.places import Slot
from attnworks.exam.examination import Examination, Pin
from attnworks.models.decoding.translate import TRACE_FORMAT
from attnworks.page.sentences import PageSentence
from attnworks.reshape.receipt import MAX_COUNT
from attnworks.reshape.swapping.advice import Advice

MAX_TRACE_BYTES = 2**30
TIME_RATIO_ENDINGS = ("time_ratio", "time_interval")
"""Endings of the keys of time ratios and their intervals in advice."""


class FileKind(NamedTuple):
    """A kind of file: its content, the command that writes one, and keys that it has in every version."""

    what: str
    command: str
    keys: frozenset[str]


TRACE = FileKind("a trace", "attnworks translate MODEL TEXT --trace FILE", frozenset({"sentences"}))
ADVICE = FileKind("advice", "attnworks advise MODEL --json > FILE", frozenset({"present", "trials", "chosen"}))


class Trace(NamedTuple):
    """Sentences with their maps, translations and beam searches, and the run that translated them."""

    run: str
    sentences: list[PageSentence]

    def belongs_to(self, exam: Examination) -> bool:
        """Whether the examined model has the layers and heads of these sentences; True if they are unknown."""
        heads = exam.model.get("heads")
        if not isinstance(heads, dict) or not heads:
            return True
        known = {slot: count for slot, count in heads.items() if count}
        maps_of_sentences = (sentence.pin.maps for sentence in self.sentences)
        return all({str(slot): len(P) for slot, P in maps.items()} == known for maps in maps_of_sentences)

    def is_by(self, exam: Examination) -> bool:
        """Whether the examination is of the run that translated."""
        return os.path.realpath(str(exam.model.get("name"))) == os.path.realpath(self.run)


def read_trace(path: Path) -> Trace:
    """A file that `attnworks translate --trace` wrote."""
    return _read(path, TRACE, _trace, MAX_TRACE_BYTES)


def read_advice(path: Path) -> Advice:
    """A file with the output of `attnworks advise --json`."""
    return _read(path, ADVICE, _advised)


def _read(path: Path, kind: FileKind, make: Callable[[Any], Any], largest: int | None = None) -> Any:
    what, remedy = kind.what, f"{kind.command} writes one"
    with disk_errors(f"read {path}", remedy="check the path"):
        if not path.is_file():
            got = "a folder" if path.is_dir() else "nothing there"
            raise load_error(path, f"a file with {what}", got, remedy)
        text = read_json_bytes(path, largest, "take fewer sentences")
    try:
        data = unsealed(path, text, remedy)
    except FolderError:
        _check_version(path, kind, parse_json(path, text, remedy))
        raise
    _check_version(path, kind, data | {"sha256": None})
    try:
        return make(data)
    except (AttnworksError, AttributeError, KeyError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        got = f"something else ({' '.join(str(error).split())[:120]})"
        raise load_error(path, what, got, remedy) from error


def _check_version(path: Path, kind: FileKind, data: object) -> None:
    """Refuse files of older versions of attnworks: format 1, or no SHA-256."""
    if isinstance(data, dict) and data.keys() >= kind.keys and (data.get("format") == 1 or "sha256" not in data):
        got = "a file of an older version of attnworks"
        raise load_error(path, f"{kind.what} of this version", got, f"write it again: {kind.command}")


def _trace(data: dict[str, Any]) -> Trace:
    if type(data.get("format")) is not int or data["format"] != TRACE_FORMAT:
        _refuse(f"no format {TRACE_FORMAT}")
    if not isinstance(data["run"], str):
        _refuse("a run that is no text")
    sentences = [_sentence(record) for record in _list(data["sentences"], dict)]
    return Trace(data["run"], sentences or _refuse("no sentence"))


def _sentence(record: dict[str, Any]) -> PageSentence:
    source, read, translation = (tuple(_list(record[key], str)) for key in ("source", "read", "translation"))
    layers = _list(record["attention"], dict)
    maps = {Slot.parse(layer["slot"]): torch.tensor(layer["weights"], dtype=torch.float64) for layer in layers}
    pin = Pin.of(source, maps, read)
    for slot, P in pin.maps.items():
        queries, keys = pin.sides(slot.kind)
        if P.dim() != 3 or P.shape[1:] != (len(queries), len(keys)) or not P.isfinite().all():
            shape = f"shape {list(P.shape)} for {len(queries)} and {len(keys)} tokens"
            _refuse(f"{slot} has maps of {shape}, or entries that are not finite")
    return PageSentence(pin, translation, _beam(record["beam"]) or None)


def _beam(records: Any) -> list[dict[str, Any]]:
    """Every candidate extends one that was kept in the step before; the first ones extend the empty hypothesis."""
    steps, parents = [], 1
    for step in _list(records, dict):
        kept, ended = ([_candidate(one, parents) for one in _list(step[kind], dict)] for kind in ("kept", "ended"))
        steps.append({"kept": kept, "ended": ended})
        parents = len(kept)
    return steps


def _candidate(record: dict[str, Any], parents: int) -> dict[str, Any]:
    parent, token, logprob = (record[key] for key in ("parent", "token", "logprob"))
    if type(parent) is not int or not 0 <= parent < parents or not isinstance(token, str):
        _refuse(f"a candidate after {parent!r} of {parents}")
    if not isinstance(logprob, float | int) or not math.isfinite(logprob):
        _refuse(f"log-probability {logprob!r}")
    return {"parent": parent, "token": token, "logprob": float(logprob)}


def _advised(data: dict[str, Any]) -> Advice:
    if absent := {"model", "max_error", "command"} - data.keys():
        _refuse(f"no {min(absent)}")
    for name, value in _numbers(data):
        if not _possible(name, value):
            _refuse(f"{name} {str(value)[:24]}")
    advice = parse(Advice, data, "advice")
    intervals = (advice.time_interval, advice.model_time_interval, *(trial.time_interval for trial in advice.trials))
    for low, high in filter(None, intervals):
        if low > high:
            _refuse(f"an interval from {low} to {high}")
    return advice


def _possible(name: str, value: float) -> bool:
    """Whether advice can have this number under this name. The loss of a mix that was refused may be any, also NaN."""
    if name == "after":
        return True
    if name.endswith("rise"):
        return -math.inf < value < math.inf
    large_enough = value > 0 if name.endswith(TIME_RATIO_ENDINGS) else value >= 0
    return large_enough and (value <= MAX_COUNT if isinstance(value, int) else math.isfinite(value))


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in nested lists and objects, each with the innermost key above it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _numbers(item, key if isinstance(key, str) else name)


def _list(value: Any, kind: type) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        _refuse(f"no list of {kind.__name__}")
    return value


def _refuse(got: str) -> NoReturn:
    raise ValueError(got)
