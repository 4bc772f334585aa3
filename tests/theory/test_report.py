"""The table of claims is written to standard output."""

from __future__ import annotations

import runpy

import pytest


def test_written_to_standard_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["attnworks.theory"])
    runpy.run_module("attnworks.theory", run_name="__main__")
    assert capsys.readouterr().out.startswith("# Claims of the source")
