"""Every command on hostile names, under a pseudo-terminal: nothing that could steer a terminal reaches it.

Rich writes escape sequences of its own there; the hostile ones differ from all of them.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
import traceback
from pathlib import Path

import pytest

from attnworks.cli import main
from attnworks.core.folders import seal
from tests.exam_helpers import LINES, tiny_folder, tiny_run, write_lines
from tests.training.processes import needs_fork

EVIL = "\x1b]0;owned\x07\x1b[66;6H\x9b31m\u202edlo\u2028\x7f"
RAW = ("\x1b]0", "\x07", "\x1b[66", "\x9b", "\u202e", "\u2028", "\x7f")


def under_terminal(*words: object) -> tuple[str, int]:
    """What a command prints when its three streams are a terminal, and its exit code; run in a copy of this process."""
    child, terminal = pty.fork()
    if child == 0:
        code = 1
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        try:
            main([str(word) for word in words], prog_name="attnworks")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    data = bytearray()
    try:
        while part := os.read(terminal, 2**16):
            data += part
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    shown = data.decode(errors="replace")
    assert os.WIFEXITED(status) and "Traceback" not in shown, shown
    return shown, os.WEXITSTATUS(status)


def check(shown: str) -> None:
    found = [repr(raw) for raw in RAW if raw in shown]
    assert not found, f"{', '.join(found)} in {shown!r}"
    assert "owned" in shown, f"the hostile name is not shown at all: {shown!r}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / EVIL
    place.mkdir()
    return place


@pytest.fixture
def run(home: Path) -> Path:
    return Path(shutil.copytree(tiny_run(), home / "run"))


@needs_fork
@pytest.mark.parametrize(
    "line",
    [
        "EVIL",
        "--EVIL",
        "advise EVIL",
        "bench EVIL",
        "bench attention --mechanisms EVIL",
        "claims EVIL",
        "claims --on EVIL",
        "compare EVIL EVIL",
        "completion EVIL",
        "count EVIL",
        "examine EVIL",
        "examine EVIL --EVIL",
        "examine RUN --measures EVIL",
        "examine RUN --text EVIL",
        "examine RUN --corpus EVIL",
        "examine RUN --device EVIL",
        "view EVIL",
        "view RUN --out EVIL/x",
        "view pypi:EVIL",
        "experiment EVIL",
        "export EVIL OUT --to safetensors",
        "export RUN OUT --to EVIL",
        "experiment collapse --out HOME --seeds EVIL",
        "report EVIL --out OUT",
        "prune RUN --heads EVIL --out OUT",
        "swap RUN --to EVIL --out OUT",
        "swap RUN --to window:window=EVIL --out OUT",
        "EVIL",
        "undo RUN --out OUT",
        "history EVIL",
        "serve EVIL",
        "serve RUN --host EVIL",
        "train EVIL --out OUT",
        "train tiny --corpus EVIL --out OUT",
        "train tiny --mechanism EVIL --out OUT",
        "train --resume EVIL",
        "translate EVIL word",
        "translate RUN EVIL",
    ],
)
def test_typed(line: str, home: Path, run: Path) -> None:
    places = {"HOME": home, "RUN": run, "OUT": home / "out"}
    words = [str(places.get(word, word)).replace("EVIL", EVIL) for word in line.split()]
    check(under_terminal(*words)[0])


@needs_fork
def test_folders_that_work(home: Path, run: Path) -> None:
    """Commands that succeed name the folders they read and wrote."""
    lines = write_lines(home / "lines.txt", LINES)
    bert = shutil.copytree(tiny_folder("bert"), home / "bert")
    for words in (
        ["examine", bert, "--text", lines, "--measures", "rank", "--out", home / "exam"],
        ["compare", home / "exam", home / "exam"],
        ["report", home / "exam", "--out", home / "report.html"],
        ["prune", bert, "--heads", "0.1", "--text", lines, "--out", home / "pruned", "--sentences", "2"],
        ["history", home / "pruned"],
        ["train", "--resume", run, "--steps", "4"],
    ):
        shown, code = under_terminal(*words)
        assert code == 0 and not [raw for raw in RAW if raw in shown], shown


@needs_fork
@pytest.mark.parametrize("where", ["hash", "tensor", "label", "metrics", "vocabulary"])
def test_inside_files(where: str, home: Path, run: Path) -> None:
    checkpoint = next((run / "checkpoints").iterdir())
    words: list[object] = ["translate", run, "Luca"]
    if where == "hash":
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        del manifest["sha256"]
        next(iter(manifest["tensors"].values()))["sha256"] = EVIL
        (checkpoint / "manifest.json").write_bytes(seal(manifest))
    elif where == "tensor":
        data = (checkpoint / "model.safetensors").read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header[EVIL] = header.pop(next(name for name in header if name != "__metadata__"))
        text = json.dumps(header).encode()
        (checkpoint / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    elif where == "label":
        write_lines(home / "labels.txt", [EVIL.replace("\u2028", "")])
        words = [
            "examine",
            tiny_folder("bert"),
            "--objective",
            f"labels:{home / 'labels.txt'}",
            "--measures",
            "importance",
        ]
    elif where == "metrics":
        (run / "metrics.jsonl").write_bytes(f"{EVIL}\n".encode())
        words = ["train", "--resume", run, "--steps", "4"]
    else:
        (run / "source.json").write_text(EVIL)
    shown, code = under_terminal(*words)
    assert (code == 0) == (where == "metrics") and not [raw for raw in RAW if raw in shown], shown
