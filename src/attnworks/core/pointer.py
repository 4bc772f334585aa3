"""Small files that name one folder of several: which checkpoint is the last, which the best."""

from __future__ import annotations

import os
from pathlib import Path

from attnworks.core.folders import write_file
from attnworks.core.sealed import changed, read_sealed, seal

CHECKPOINTS, LAST, BEST, TRAINING = "checkpoints", "last.json", "best.json", "training.json"


def point(run: Path, pointer: str, checkpoint: Path) -> None:
    """Let `last.json` or `best.json` name this checkpoint from now on."""
    write_file(run / pointer, seal({"checkpoint": checkpoint.name}))


def pointed_at(run: Path, pointer: str) -> Path | None:
    """The checkpoint that `last.json` or `best.json` names, if there is one."""
    if not os.path.lexists(run / pointer):
        return None
    name = read_sealed(run / pointer).get("checkpoint")
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".."):
        raise changed(run / pointer, "the name of a checkpoint", repr(name)[:60])
    return run / CHECKPOINTS / name


def best_of(run: Path) -> Path | None:
    """The best checkpoint of a run, or the last if none was ever compared.

    Without best.json the last checkpoint says which one was best, so that no other model is opened in its place.
    """
    best, last = pointed_at(run, BEST), pointed_at(run, LAST)
    if best is not None or last is None or not os.path.lexists(last / TRAINING):
        return best or last
    progress = read_sealed(last / TRAINING).get("progress")
    step = progress.get("best_step") if isinstance(progress, dict) else None
    return last if type(step) is not int else run / CHECKPOINTS / f"step-{step:08d}"
