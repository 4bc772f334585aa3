"""Small presets and a corpus for every test of this folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnworks.models.build import PRESETS
from tests.training.training_helpers import SMALL, write_pairs


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, config in SMALL.items():
        monkeypatch.setitem(PRESETS, name, config)


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written survives the process; tests/storage looks at what is synced."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pairs(tmp_path / "pairs.tsv")
