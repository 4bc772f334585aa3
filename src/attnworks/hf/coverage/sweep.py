"""Runs every verb on every model type, each type in a process of its own with time limits."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from attnworks.core import timing
from attnworks.core.errors import AttnworksError
from attnworks.core.folders import write_file
from attnworks.hf import quiet
from attnworks.hf.coverage.reference import NotCheckedError, WrongNumbersError
from attnworks.hf.coverage.verbs import VERBS, Case, NotMeasuredError
from attnworks.hf.tiny import tiny_model

VERB_SECONDS, TYPE_SECONDS = 40, 600
"""Limits: of computing for a verb, and of the clock for a type."""
FRAMES = 5
"""Last frames of a traceback that are kept."""

NOT_CHECKED = "not checked"
"""How `checked` begins where a verb works and its numbers could not be compared with those of the model."""

Row = dict[str, Any]
"""What was found about one type: class, dtype, seconds, and for each verb outcome and reason; or why there is none."""


class OutOfTimeError(BaseException):
    """A verb took longer than its limit. It is no Exception, so that no verb catches it."""


def study(model_type: str, verbs: Iterable[str] = tuple(VERBS), seed: int = 0, sizes: str = "first") -> Row:
    """Every verb on a tiny model of this type."""
    began = time.process_time()
    tiny = tiny_model(model_type, seed, sizes)
    if tiny.model is None:
        return {"type": model_type, "reason": tiny.reason}
    case, found = Case(tiny.model), {}
    with quiet(), warnings.catch_warnings(), patch.object(timing, "MAX_ROUNDS", timing.MIN_ROUNDS):
        warnings.simplefilter("ignore")
        for verb in verbs:
            found[verb] = outcome(VERBS[verb], case)
    return {
        "type": model_type,
        "class": type(tiny.model).__name__,
        "dtype": str(next(tiny.model.parameters()).dtype).removeprefix("torch."),
        "seconds": round(time.process_time() - began, 1),
        "verbs": found,
    }


def outcome(verb: Callable[[Case], str], case: Case) -> Row:
    """How a verb ended: works, refuses, crashes, wrong or slow; with the reason, or with what was checked."""
    began = time.process_time()
    try:
        with time_limit(VERB_SECONDS):
            found: Row = {"outcome": "works", "checked": verb(case)}
    except NotCheckedError as error:
        found = {"outcome": "works", "checked": f"{NOT_CHECKED}: {error}"}
    except WrongNumbersError as error:
        found = {"outcome": "wrong", "why": str(error)}
    except NotMeasuredError as error:
        found = {"outcome": "refuses", "why": str(error)}
    except AttnworksError as error:
        found = {"outcome": "refuses", "why": str(error), "got": error.got}
    except OutOfTimeError:
        found = {"outcome": "slow", "why": f"more than {VERB_SECONDS} s"}
    except Exception as error:
        frames = [
            f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)
        ]
        message = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        found = {"outcome": "crashes", "why": message, "frames": frames[: -FRAMES - 1 : -1]}
    return found | {"seconds": round(time.process_time() - began, 2)}


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise OutOfTimeError after this time of computing. It needs the main thread of a process."""

    def stop(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def sweep(
    types: Iterable[str],
    *,
    verbs: Iterable[str] = tuple(VERBS),
    jobs: int = 1,
    done: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """The rows of all types, in the order in which they end; `done` is called with each."""
    context, rows = multiprocessing.get_context("fork"), []
    torch.set_num_threads(1)
    todo, running = list(types)[::-1], {}
    while todo or running:
        while todo and len(running) < jobs:
            name, (receiver, sender) = todo.pop(), context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(name, verbs, sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = (name, process, time.monotonic() + TYPE_SECONDS)
        ready = wait(list(running), timeout=1)
        for receiver, (name, process, deadline) in list(running.items()):
            if receiver not in ready and time.monotonic() < deadline:
                continue
            late = _ended(name, "slow", f"more than {TYPE_SECONDS} s")
            row = _received(name, receiver) if receiver in ready else late
            process.kill()
            process.join()
            del running[receiver]
            rows.append(row)
            done(row)
    return rows


def _work(model_type: str, verbs: Iterable[str], sender: Connection) -> None:
    try:
        row = study(model_type, verbs)
    except Exception as error:
        row = _ended(model_type, "crashes", f"{type(error).__name__}: {error}")
    sender.send(row)


def _received(name: str, receiver: Any) -> Row:
    try:
        return receiver.recv()
    except EOFError:
        return _ended(name, "crashes", "its process ended")


def _ended(name: str, outcome: str, why: str) -> Row:
    """The row of a type that ended as a whole."""
    return {"type": name, "verbs": {verb: {"outcome": outcome, "why": why[:300]} for verb in VERBS}}


def read_rows(file: Path) -> dict[str, Row]:
    """The rows of a sweep by type; none if there is no file."""
    return {row["type"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}


def write_rows(file: Path, rows: dict[str, Row]) -> None:
    """The rows in the order of their types, and the versions of what was tried."""
    import transformers

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    content = {**versions, "rows": [rows[name] for name in sorted(rows)]}
    write_file(file, json.dumps(content, indent=1).encode())
