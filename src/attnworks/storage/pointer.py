"""Small files that name one folder of several: which checkpoint is the last, which the best."""

from __future__ import annotations

import os
from pathlib import Path

from attnworks.storage.disk import write_file
from attnworks.storage.sealed import changed, read_sealed, seal

CHECKPOINTS, LAST, BEST = "checkpoints", "last.json", "best.json"


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
    """The best checkpoint of a run, or the last if none was ever compared."""
    return pointed_at(run, BEST) or pointed_at(run, LAST)
