"""bench/attention.py: what was measured is kept when something after it fails, and the page says what was checked."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attnworks.attention.benchmark.memory import Peak

BENCH = Path(__file__).parents[3] / "bench"
DENSE = "dense / attnworks"


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The bench with one contestant, whose memory is known and whose races end at once."""
    monkeypatch.syspath_prepend(str(BENCH))
    bench = importlib.import_module("attention")
    dense = next(bench.contestants("dense"))
    monkeypatch.setattr(bench, "contestants", lambda only="": iter((dense,)))
    monkeypatch.setattr(bench, "check", lambda only: ({DENSE: "agrees to 1e-07"}, {}))
    monkeypatch.setattr(bench, "peaks_in_child", lambda command, cells: {name: Peak(1.5, 11_000_000) for name in cells})
    monkeypatch.setattr(sys, "argv", ["attention.py", "--n", "1024", "--threads", "1", "--out", str(tmp_path)])
    return bench


def crash(monkeypatch: pytest.MonkeyPatch, bench: ModuleType, after: int) -> None:
    """Let the race child fail once it was started `after` times."""
    started: list[object] = []

    def run(command: list[str], **_: object) -> None:
        if len(started) == after:
            raise subprocess.CalledProcessError(-9, "race")
        started.append(command)
        times = {f"{DENSE} / forward": [0.02], f"{DENSE} / forward+backward": [0.06], "matrix product": [0.01]}
        Path(json.loads(command[-1])["to"]).write_text(json.dumps({"1024": times}))

    monkeypatch.setattr(bench.subprocess, "run", run)


@pytest.mark.parametrize("after", [0, 1])
def test_a_race_that_crashes_leaves_what_was_measured_before(
    after: int, attention: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crash(monkeypatch, attention, after)
    with pytest.raises(subprocess.CalledProcessError):
        attention.main()
    kept: dict[str, Any] = json.loads((tmp_path / "bench_attention.json").read_text())
    assert kept["memory"] == {DENSE: {"forward@1024": [1.5, 11_000_000], "forward+backward@1024": [1.5, 11_000_000]}}
    assert list(kept["times"]) == ["default", "warm"][:after]
    monkeypatch.setattr(sys, "argv", ["attention.py", "report", "--out", str(tmp_path)])
    attention.main()
    page = (tmp_path / "bench_attention.md").read_text()
    assert "| dense | attnworks | 11 / 11 |" in page
    assert page.count("| dense | attnworks | 1,024 | 20 / 60 |") == after


def test_the_page_says_what_was_checked_of_whom(
    attention: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crash(monkeypatch, attention, 2)
    attention.main()
    checks = (tmp_path / "bench_attention.md").read_text().partition("## What was compared")[2]
    assert "- dense, attnworks: agrees to 1e-07" in checks
    assert "gradients where it has a backward pass" in checks and "another function" in checks
    assert "gradients of every contestant" not in checks
