"""attnworks bench."""

import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attnworks.attention import MECHANISMS
from attnworks.attention.benchmark import versus_dense
from attnworks.attention.benchmark.memory import Peak, peaks_in_child
from attnworks.attention.benchmark.versus_dense import BOTH, FORWARD, BenchmarkResult, BenchmarkRow, BenchmarkTask
from attnworks.cli import main
from attnworks.cli.bench import read_specs


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "attention", *arguments], catch_exceptions=False)


def one_line(result: Result, *, code: int = 2) -> str:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("attnworks: ") and result.stderr.count("\n") == 1
    return result.stderr


ROWS = (
    BenchmarkRow("dense", 1024, {FORWARD: 0.018, BOTH: 0.067}, {FORWARD: 1.0, BOTH: 1.0}, {FORWARD: 1.0, BOTH: 1.0},
        {FORWARD: 0.79, BOTH: 0.7}, {FORWARD: 2_100_000, BOTH: 12_000_000}),
    BenchmarkRow("window:window=64", 1024, {FORWARD: 0.013, BOTH: 0.047}, {FORWARD: 1.38, BOTH: 1.41},
        {FORWARD: 1.3, BOTH: 0.9}, {FORWARD: 0.59, BOTH: 0.53}, {FORWARD: 4_000_000, BOTH: None}),
    BenchmarkRow("dense", 65536, skipped={FORWARD: "would take about 64 s a run, over the limit of 20 s"}),
    BenchmarkRow("window:window=64", 65536, {FORWARD: 0.8}, share={FORWARD: 0.6}, memory={FORWARD: 250_000_000}),
)  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `compare` was asked for; it answers with ROWS."""
    asked: dict[str, Any] = {}

    def compare(specs: Any, lengths: Any, task: BenchmarkTask, **options: Any) -> BenchmarkResult:
        asked.update(options, specs=[str(spec) for spec in specs], lengths=lengths, task=task)
        options["advance"]("memory of dense")
        return BenchmarkResult(task, 2, {1024: 160e9, 65536: 150e9}, ROWS)

    monkeypatch.setattr(versus_dense, "benchmark", compare)
    return asked


def test_the_table_holds_every_figure_and_ends_in_a_plain_sentence(measured: dict[str, Any]) -> None:
    result = bench("--length", "65_536,1024", "--mechanisms", "window:window=64")
    assert result.exit_code == 0, result.output
    for figure in ("18.00", "67.00", "13.00", "1.38 / 1.41", "59% / 53%", "4 MB / -", "250 MB / -", "160 Gflop/s"):
        assert figure in result.stdout, figure
    assert "dense at n = 65,536, forward: skipped, would take about 64 s a run" in result.stdout
    flat = " ".join(result.stdout.split())
    assert flat.endswith(
        "No faster than dense in at least a quarter of the rounds: at n = 1,024 window:window=64 (forward+backward). "
        "Not compared with dense: window:window=64 at n = 65,536."
    )
    assert "memory of dense" in result.stderr
    assert measured["lengths"] == [1024, 65536] and measured["specs"] == ["window:window=64"]
    assert measured["task"] == BenchmarkTask(0, 8, 64, "float32", False)
    assert measured["passes"] == (FORWARD, BOTH) and measured["rounds"] == 5 and measured["limit"] == 20.0


def test_at_80_columns_no_pairs_are_shown(measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a / b: forward / forward and backward" in bench("--mechanisms", "window:window=64").stdout
    monkeypatch.setenv("COLUMNS", "80")
    text = bench("--mechanisms", "window:window=64").stdout
    assert "both: forward and backward" in text and " / " not in text and "Pairs" not in text and "…" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 60, 45])
def test_narrow_terminals_cut_no_number(measured: dict[str, Any], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = bench("--mechanisms", "window:window=64").stdout
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for figure in ("65,536", "18.00", "1.38", "79%", "12 MB", "250 MB"):
        assert figure in text, figure
    if width >= 60:
        assert "window:window=64" in text


def test_options_reach_the_bench(measured: dict[str, Any]) -> None:
    options = "--num-heads 3 --width 7 --dtype float64 --causal --no-backward --rounds 2 --limit 1.5 --seed 11"
    assert bench("--mechanisms", "dense", *options.split()).exit_code == 0
    assert measured["task"] == BenchmarkTask(0, 3, 7, "float64", True)
    assert measured["passes"] == (FORWARD,) and measured["rounds"] == 2
    assert measured["limit"] == 1.5 and measured["seed"] == 11


def test_json_is_alone_on_standard_output(measured: dict[str, Any]) -> None:
    result = bench("--json", "--mechanisms", "dense")
    report = json.loads(result.stdout)
    assert result.stderr == ""
    assert report["num_heads"] == 8 and report["threads"] == 2 and "length" not in report
    assert [row["length"] for row in report["rows"]] == [1024, 1024, 65536, 65536]
    assert report["rows"][1]["faster"] == {FORWARD: 1.38, BOTH: 1.41}
    assert report["rows"][1]["memory"][BOTH] is None
    assert report["verdict"].startswith("No faster than dense")


def test_the_picture_has_a_line_for_each_mechanism(measured: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "times.svg"
    assert bench("--plot", str(picture), "--mechanisms", "dense").exit_code == 0
    first = picture.read_text()
    assert first.lstrip().startswith("<?xml") and "window:window=64" in first and "positions n" in first
    bench("--plot", str(picture), "--mechanisms", "dense")
    assert picture.read_text() == first, "the same figures, another file"


def test_no_picture_of_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    skipped = BenchmarkRow("dense", 11, skipped={FORWARD: "too slow"})
    monkeypatch.setattr(
        versus_dense, "benchmark", lambda *_, **__: BenchmarkResult(BenchmarkTask(0), 2, {11: 1e9}, (skipped,))
    )
    result = bench("--plot", str(tmp_path / "times.svg"), "--mechanisms", "dense")
    assert result.exit_code == 0 and "No picture: everything was skipped." in result.stdout
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_nothing_is_measured(
    measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "matplotlib" else find(name))
    text = one_line(bench("--plot", str(tmp_path / "a.svg"), "--mechanisms", "dense"), code=2)
    assert "pip install 'attnworks[plot]'" in text and not measured


@pytest.mark.parametrize("place", ["nowhere/times.svg", "times.png"])
def test_a_picture_that_cannot_be_written_is_refused_first(
    measured: dict[str, Any], tmp_path: Path, place: str
) -> None:
    text = one_line(bench("--plot", str(tmp_path / place), "--mechanisms", "dense"), code=2)
    assert "a file ending in .svg" in text and not measured


@pytest.mark.parametrize("locked", ["", "times.svg"])
def test_a_picture_without_permission_is_refused_first(
    measured: dict[str, Any], tmp_path: Path, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if locked:
        (tmp_path / locked).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK or Path(path) != tmp_path / locked)
    text = one_line(bench("--plot", str(tmp_path / "times.svg"), "--mechanisms", "dense"), code=2)
    assert "no permission to write" in text and not measured


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_disk_that_fills_up_is_one_line(measured: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "times.svg").symlink_to("/dev/full")
    result = bench("--plot", str(tmp_path / "times.svg"), "--mechanisms", "dense")
    assert result.exit_code == 2 and measured
    assert result.stderr.splitlines()[-1].startswith("attnworks: draw ") and "No space left" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanisms", "windwo"], "did you mean 'window'?"),
        (["--mechanisms", "dense:width=3"], "option of mechanism 'dense' 'width'"),
        (["--mechanisms", "linformer", "--causal"], "linformer with --causal"),
        (["--length", "1024,many"], "--length 1024,many"),
        (["--length", "0"], "whole numbers from 1"),
        (["--length", ""], "whole numbers from 1"),
        (["--limit", "inf"], "--limit inf"),
        (["--limit", "nan"], "--limit nan"),
        (["--limit", "0"], "a number above 0 and at most 86400"),
        (["--limit", "1e300"], "a number above 0 and at most 86400"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(measured: dict[str, Any], arguments: list[str], words: str) -> None:
    assert words in one_line(bench(*arguments)) and not measured


def test_options_of_a_mechanism_may_follow_a_comma() -> None:
    specs = read_specs("bigbird:block=16,window=32, linear ,window:window=7", BenchmarkTask(0))
    assert [str(spec) for spec in specs] == ["bigbird:block=16,window=32", "linear", "window:window=7"]
    assert [str(spec) for spec in read_specs("window,window=7", BenchmarkTask(0))] == ["window:window=7"]


def test_all_are_those_that_can_run() -> None:
    names = {spec.name for spec in read_specs("all", BenchmarkTask(0))}
    assert names == set(MECHANISMS) - {"graph"}
    causal = {spec.name for spec in read_specs("all", BenchmarkTask(0, causal=True))}
    assert "linformer" not in causal and "dense" in causal


def test_a_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process measures the memory of the other mechanism; that of dense attention is given."""
    asked: list[Sequence[str]] = []

    def ask(command: Callable[[Sequence[str]], Sequence[str]], cells: Sequence[str]) -> dict[str, Peak | str]:
        asked.append(cells)
        return peaks_in_child(command, cells) if len(asked) > 1 else {cell: Peak(0.5, 1000) for cell in cells}

    monkeypatch.setattr("attnworks.attention.benchmark.versus_dense.peaks_in_child", ask)
    result = bench(
        "--length", "37", "--mechanisms", "luong-dot", "--num-heads", "2", "--width", "11", "--rounds", "1", "--json"
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["mechanism"] for row in rows] == ["dense", "luong-dot"]
    for row in rows:
        assert row["seconds"][FORWARD] > 0 and row["seconds"][BOTH] > 0 and not row["skipped"]
        assert row["memory"].keys() == {FORWARD, BOTH}
