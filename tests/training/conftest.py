"""Small presets and a corpus for every test of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.training_helpers import SMALL, write_pairs

from attnworks.models.presets import PRESETS


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, config in SMALL.items():
        monkeypatch.setitem(PRESETS, name, config)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pairs(tmp_path / "pairs.tsv")
