"""What users add to a page from files: translations that were traced, and advice. Files are read with suspicion."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import disk_errors, load_error, parse_json, read_json_bytes, unsealed
from attnworks.core.json_records import parse
from attnworks.core.places import Slot
from attnworks.core.timing import Interval
from attnworks.exam.examination import Examination, Pin
from attnworks.models.decoding.translate import TRACE_FORMAT
from attnworks.page.contents import PageAdvice
from attnworks.page.sentences import PageSentence
from attnworks.reshape.receipt import MAX_COUNT
from attnworks.reshape.swapping.advice import Advice
from attnworks.reshape.swapping.trials import SwapTrial

MAX_TRACE_BYTES = 2**30
RATIOS = ("time_ratio", "time_interval")
"""Ends of the names of time ratios and their intervals in advice."""


class FileKind(NamedTuple):
    """A kind of file: what it holds, the command that writes one, and keys that it has had in every version."""

    what: str
    command: str
    keys: frozenset[str]


TRACE = FileKind("a trace", "attnworks translate RUN TEXT --trace FILE", frozenset({"sentences"}))
ADVICE = FileKind("advice", "attnworks advise MODEL --json > FILE", frozenset({"present", "trials", "chosen"}))


class Trace(NamedTuple):
    """Sentences with their maps, translations and beam searches, and the run that translated them."""

    run: str
    sentences: list[PageSentence]

    def belongs_to(self, exam: Examination) -> bool:
        """Whether the examined model has the layers and heads of these sentences, as far as that is known."""
        return all(_belongs(sentence, exam) for sentence in self.sentences)

    def is_by(self, exam: Examination) -> bool:
        """Whether the examination is of the run that translated."""
        return os.path.realpath(str(exam.model.get("name"))) == os.path.realpath(self.run)


def read_trace(path: Path) -> Trace:
    """What `attnworks translate --trace` wrote."""
    return _read(path, TRACE, _trace, MAX_TRACE_BYTES)


def read_advice(path: Path) -> PageAdvice:
    """What `attnworks advise --json` printed."""
    return _read(path, ADVICE, _advised)


def _belongs(sentence: PageSentence, exam: Examination) -> bool:
    heads = exam.model.get("heads")
    found = {str(slot): len(P) for slot, P in sentence.pin.maps.items()}
    return not isinstance(heads, dict) or not heads or found == {slot: count for slot, count in heads.items() if count}


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
    """Refuse what older versions of attnworks wrote: format 1, or no SHA-256."""
    if isinstance(data, dict) and data.keys() >= kind.keys and (data.get("format") == 1 or "sha256" not in data):
        got = "a file of an older version of attnworks"
        raise load_error(path, f"{kind.what} of this version", got, f"write it again: {kind.command}")


def _trace(data: dict[str, Any]) -> Trace:
    if type(data.get("format")) is not int or data["format"] != TRACE_FORMAT:
        _odd(f"no format {TRACE_FORMAT}")
    if not isinstance(data["run"], str):
        _odd("a run that is no text")
    return Trace(data["run"], [_sentence(made) for made in _list(data["sentences"], dict)] or _odd("no sentence"))


def _sentence(made: dict[str, Any]) -> PageSentence:
    source, read, translation = (tuple(_list(made[key], str)) for key in ("source", "read", "translation"))
    maps: dict[Slot, torch.Tensor] = {}
    for layer in _list(made["attention"], dict):
        maps[Slot.parse(layer["slot"])] = torch.tensor(layer["weights"], dtype=torch.float64)
    pin = Pin.of(source, maps, read)
    for slot, P in pin.maps.items():
        queries, keys = pin.sides(slot.kind)
        if P.dim() != 3 or P.shape[1:] != (len(queries), len(keys)) or not P.isfinite().all():
            _odd(f"{slot} has maps of shape {list(P.shape)} for {len(queries)} and {len(keys)} tokens, or no numbers")
    return PageSentence(pin, translation, _beam(made["beam"]) or None)


def _beam(made: Any) -> list[dict[str, Any]]:
    """Every candidate extends one that was kept in the step before; the first ones extend the empty hypothesis."""
    steps, before = [], 1
    for step in _list(made, dict):
        found = {kind: [_candidate(one, before) for one in _list(step[kind], dict)] for kind in ("kept", "ended")}
        steps.append(found)
        before = len(found["kept"])
    return steps


def _candidate(made: dict[str, Any], parents: int) -> dict[str, Any]:
    parent, token, logprob = (made[key] for key in ("parent", "token", "logprob"))
    if type(parent) is not int or not 0 <= parent < parents or not isinstance(token, str):
        _odd(f"a candidate after {parent!r} of {parents}")
    if not isinstance(logprob, float | int) or not math.isfinite(logprob):
        _odd(f"log-probability {logprob!r}")
    return {"parent": parent, "token": token, "logprob": float(logprob)}


def _advised(data: dict[str, Any]) -> PageAdvice:
    asked = {key: data.pop(key) for key in ("model", "max_error", "command")}
    if not isinstance(asked["model"], str) or type(asked["max_error"]) not in (int, float):
        _odd("no model or no max_error")
    if not 0 <= asked["max_error"] < math.inf:
        _odd(f"max_error {asked['max_error']}")
    if not isinstance(asked["command"], str | None):
        _odd("a command that is no text")
    for name, value in _numbers(data):
        if not _possible(name, value):
            _odd(f"{name} {str(value)[:24]}")
    advice = parse(Advice, data, "advice")
    for low, high in filter(None, (advice.time_interval, advice.model_time_interval, *_intervals(advice.trials))):
        if low > high:
            _odd(f"an interval from {low} to {high}")
    return PageAdvice(asked["model"], float(asked["max_error"]), advice, asked["command"])


def _intervals(trials: Iterable[SwapTrial]) -> Iterator[Interval | None]:
    return (trial.time_interval for trial in trials)


def _possible(name: str, value: float) -> bool:
    """Whether advice can have this number under this name. The loss of a mix that was refused may be any, also NaN."""
    if name == "after":
        return True
    if name.endswith("rise"):
        return -math.inf < value < math.inf
    least = value > 0 if name.endswith(RATIOS) else value >= 0
    return least and (value <= MAX_COUNT if isinstance(value, int) else math.isfinite(value))


def _numbers(made: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers with their keys."""
    if isinstance(made, int | float) and not isinstance(made, bool):
        yield name, made
    items = made.items() if isinstance(made, dict) else enumerate(made) if isinstance(made, list) else ()
    for key, item in items:
        yield from _numbers(item, key if isinstance(key, str) else name)


def _list(made: Any, kind: type) -> list[Any]:
    if not isinstance(made, list) or not all(isinstance(item, kind) for item in made):
        _odd(f"no list of {kind.__name__}")
    return made


def _odd(what: str) -> NoReturn:
    raise ValueError(what)
