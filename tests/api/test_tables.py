"""attnworks.count from Python."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from torch import nn

import attnworks
from attnworks.api.tables import MechanismCount, MechanismTable, ParameterCount, PublishedCount
from attnworks.core.errors import UsageError


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
