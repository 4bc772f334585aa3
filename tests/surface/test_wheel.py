"""The sdist and the wheel: what is inside, and that a new environment runs the commands outside of the clone.

The dependencies are those of the environment of the tests. A file in the new environment shows the way to them.
"""

from __future__ import annotations

import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import attnworks
from tests.surface.wheel_helpers import ROOT, build_wheel, succeed

SOURCE = ROOT / "src"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a new environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    options = ("--no-deps", "--no-index", "-q")
    succeed(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, at=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # after pip, which must not see it
    return folder / "bin"


def test_everything_is_inside(wheel: Path) -> None:
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name and ".egg-info" not in name}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(about).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert inside == files
    page = {f"attnworks/page/{name}" for name in ("page.js", "page.css")}
    assert page | {"attnworks/py.typed", "attnworks/text/grammar/__init__.py"} <= inside
    assert f"Version: {attnworks.__version__}\n" in metadata and "Requires-Python: >=3.11\n" in metadata


def test_commands_run_outside_of_the_clone(environment: Path, tmp_path: Path) -> None:
    script = "import attnworks, torch; print(attnworks.__file__)"
    assert succeed(environment / "python", "-c", script, at=tmp_path).startswith(str(environment.parent))
    assert "examine" in succeed(environment / "attnworks", "--help", at=tmp_path)
    assert attnworks.__version__ in succeed(environment / "attnworks", "--version", at=tmp_path)
    assert "base" in succeed(environment / "attnworks", "count", "base", at=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_runs_outside_of_the_clone(environment: Path, tmp_path: Path) -> None:
    shown = succeed(environment / "attnworks", "demo", "--quick", at=tmp_path, seconds=900)
    assert list(tmp_path.rglob("*.html")) and ".html" in shown
