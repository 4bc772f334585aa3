"""attnworks experiment structure, on a very small scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attnworks.cli import main
from attnworks.models.build import PRESETS
from attnworks.studies.structure import count_forms
from tests.cli.test_experiment import SMALL


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(PRESETS, "conti-1h", SMALL)
    monkeypatch.setitem(PRESETS, "conti-8h", SMALL)
    lines = [f"the {a} sees the {b} again\tla {a}a vede la {b}a" for a in "bcdfgk" for b in "hlmnpq"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    given = (
        f"--corpus tsv:{tmp_path / 'pairs.tsv'} --epochs 2 --heal 2 --sentences 3 --threads 1 --out {tmp_path / 'out'}"
    )
    return given.split()


def experiment(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["experiment", "structure", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_it_names_projects_draws_goes_on_and_refuses_other_settings(options: list[str], tmp_path: Path) -> None:
    code, stdout, stderr = experiment(*options)
    assert code == 0, stderr
    for words in ("conti-8h-structured", "closest form", "healed BLEU", "pictures are in"):
        assert words in stdout
    report: dict[str, Any] = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [*report["models"]] == ["conti-1h", "conti-8h", "conti-8h-structured"]
    assert [row["heads"] for row in report["projected"]][::2] == [[], report["projected"][2]["heads"]]
    assert sorted(report["projected"][2]["heads"]) == sorted(report["alone"]) == ["enc.0.0", "enc.0.1"]
    rises = [report["alone"][head]["rise"] for head in report["projected"][2]["heads"]]
    assert rises == sorted(rises)
    assert sum(count_forms(report, "conti-8h").values()) == 2
    assert all(
        (tmp_path / "out" / "maps" / f"{name}.png").stat().st_size > 1000 for name in ("forms", "cost", "families")
    )
    none, one = report["projected"][:2]
    assert none["bleu"] == report["models"]["conti-8h"]["bleu"] and none["healed_loss"] != none["loss"] != one["loss"]
    again, stdout, _ = experiment(*options, "--json")
    assert again == 0 and json.loads(stdout) == report
    code, _, stderr = experiment(*options, "--eps", "0.3")
    assert code == 2 and "the same settings" in stderr and "Traceback" not in stderr


@pytest.mark.smoke
def test_a_folder_of_something_else_is_refused(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("{}")
    code, _, stderr = experiment(*options)
    assert code == 2 and "a new folder, or one with the experiment" in stderr
