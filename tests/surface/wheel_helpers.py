"""Building the wheel, and running commands as a user outside of the clone does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def succeed(*command: str | Path, at: Path, seconds: int = 600, given: dict[str, str] | None = None) -> str:
    """What a command prints. It must succeed, and sees nothing of the clone through PYTHONPATH."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (given or {})
    done = subprocess.run(
        [*map(str, command)], cwd=at, env=settings, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """A wheel that is built from the sdist, so that the sdist is complete."""
    builder = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    succeed(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, at=ROOT, given=builder)
    (sdist,) = folder.glob("*.tar.gz")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q")
    succeed(sys.executable, "-m", "pip", "wheel", *options, "-w", folder, sdist, at=folder, given=builder)
    (built,) = folder.glob("*.whl")
    return built
