"""attnworks experiment collapse, paths, two-keys, projection, gradient and context, on a small scale."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from attnworks.cli import main
from attnworks.cli.experiment import experiment as group
from attnworks.theory.experiments.results import THEORY_EXPERIMENTS
from tests.covering import thorough

SMALL = {
    "collapse": "--num-layers 3 --num-heads 2 --width 6 --tokens 5 --seeds 2",
    "paths": "--num-layers 3 --num-heads 2 --width 6 --tokens 5 --seeds 2",
    "two-keys": "--betas 1,7,31 --keys 5 --values 3 --draws 50",
    "projection": "--tokens 7 --values 3 --draws 5",
    "gradient": "--widths 3,17 --tokens 7 --seeds 2",
    "context": "--sharpness 5",
}
WORDS = {
    "collapse": ("Relative residual after each layer", "skip, MLP, norm", "c ρ² is below"),
    "paths": ("L = 3, H = 2", "Most paths have length 2 (12 of 27)", "All together are the output"),
    "two-keys": ("5 keys, 50 draws", "At β = 31 one head gives a", "of its variance"),
    "projection": ("diffuse softmax", "around one", "The printed k = 5 ln n / (ε² - ε³) = 78"),
    "gradient": ("1/sqrt(k): norm", "With 1/sqrt(k) the median norm changes"),
    "context": ("Where “bank” lands", "river money bank", "How far apart two sentences take the same word"),
}


def experiment(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["experiment", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def small(name: str) -> list[str]:
    return [name, *SMALL[name].split(), "--threads", "1"]


def test_all_studies_are_here() -> None:
    assert [*THEORY_EXPERIMENTS] == [*SMALL] == [*WORDS]


@pytest.mark.parametrize("name", SMALL)
def test_it_tells_draws_and_keeps_its_results(name: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / name
    code, stdout, stderr = experiment(*small(name), "--out", out)
    assert code == 0, stderr
    for words in (*WORDS[name], "Results and pictures are in"):
        assert words in stdout
    assert sorted(path.name for path in out.iterdir()) == ["figure.png", "figure.svg", "results.json"]
    report = json.loads((out / "results.json").read_text())
    assert report["experiment"] == name and report["rows"]
    assert all((out / f"figure.{kind}").stat().st_size > 5000 for kind in ("png", "svg"))
    code, stdout, stderr = experiment(*small(name), "--json")
    assert code == 0 and json.loads(stdout) == report and not stderr
    assert {*report["options"]} <= {parameter.name for parameter in group.commands[name].params}


def test_the_same_command_again_leaves_the_same_files(tmp_path: Path) -> None:
    files: list[dict[str, bytes]] = []
    for _ in range(2):
        code, _, stderr = experiment(*small("context"), "--out", tmp_path / "out", "--json")
        assert code == 0 and not stderr
        files.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert files[0] == files[1] and len(files[0]) == 3


def test_without_a_folder_only_the_table_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = experiment(*small("context"))
    assert code == 0 and "Where “bank” lands" in stdout and "Results" not in stdout and not [*tmp_path.iterdir()]


def test_seeds_draw_other_numbers() -> None:
    one, same, other = (experiment(*small("paths"), "--json", "--seed", seed)[1] for seed in (3, 3, 5))
    assert json.loads(one) == json.loads(same) and json.loads(one)["rows"] != json.loads(other)["rows"]


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn as SVG only, unless all tests are asked for."""
    if thorough:
        return
    savefig = Figure.savefig

    def save(figure: Figure, path: Path, **options: Any) -> None:
        if path.suffix == ".svg":
            savefig(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.mark.usefixtures("one_file")
def test_very_few_and_very_many_can_be_drawn(tmp_path: Path) -> None:
    for name, options in (
        ("collapse", "--num-layers 1 --num-heads 1 --width 1 --tokens 2 --seeds 1"),
        ("paths", "--num-layers 31 --num-heads 16 --weights 0.5 --seeds 1"),
        ("two-keys", "--betas 3 --keys 3 --draws 2"),
        ("projection", "--tokens 2 --values 1 --draws 2"),
        ("gradient", "--widths 5 --tokens 2 --seeds 1"),
    ):
        code, _, stderr = experiment(name, *options.split(), "--out", tmp_path / name)
        assert code == 0, stderr
        assert (tmp_path / name / "figure.svg").stat().st_size > 5000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("collapse --num-heads 3", "a width that 3 divides"),
        ("collapse --weights nan", "weights=nan"),
        ("collapse --num-layers 64 --weights 900 --seeds 1", "take smaller weights"),
        ("two-keys --betas 1,x", "is no list of numbers"),
        ("two-keys --noise -1", "noise=-1.0"),
        ("gradient --widths 2.5", "is no list of numbers"),
        ("gradient --widths 0", "width=0"),
        ("projection --epsilon 0", "epsilon=0.0"),
        ("context --sharpness -1", "sharpness=-1.0"),
        ("paths --seed -1", "--seed"),
    ],
)
def test_wrong_options_are_told_in_a_line(options: str, words: str, tmp_path: Path) -> None:
    code, stdout, stderr = experiment(*options.split(), "--out", tmp_path / "out")
    assert code == 2 and not stdout and words in stderr and "Traceback" not in stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("one_file")
def test_folders_of_something_else_are_refused_and_left_alone(tmp_path: Path) -> None:
    code, _, _ = experiment(*small("context"), "--out", tmp_path / "context")
    assert code == 0
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.json").write_text("[")
    (tmp_path / "file").write_text("mine")
    for place in ("context", "run", "broken", "file"):
        code, _, stderr = experiment(*small("paths"), "--out", tmp_path / place)
        assert code == 2 and "a new folder, or one with results of paths" in stderr
    assert (tmp_path / "run" / "run.json").read_text() == "{}" and (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert experiment(*small("paths"), "--out", tmp_path / "empty")[0] == 0


def test_without_matplotlib_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "matplotlib" else find(name))
    code, stdout, _ = experiment(*small("gradient"), "--out", tmp_path / "out")
    assert code == 0 and "pip install 'attnworks[plot]'" in stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: object, rows: object, folder: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(THEORY_EXPERIMENTS["context"], "draw", failing)
    code, _, stderr = experiment(*small("context"), "--out", tmp_path / "out")
    assert code == 2 and "No space left on device" in stderr and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("width", [80, 50])
def test_narrow_terminals_cut_nothing(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = experiment(*small(name))[1]
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = experiment(*small(name))[1]
    assert "…" not in narrow and max(map(len, narrow.splitlines())) <= width
    numbers = re.compile(r"\d\.\d+")
    assert {*numbers.findall(wide)} == {*numbers.findall(narrow)}
