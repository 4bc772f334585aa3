"""Mechanisms against dense attention."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from attnworks.attention import MechanismSpec
from attnworks.attention.benchmark import versus_dense
from attnworks.attention.benchmark.__main__ import measure_job
from attnworks.attention.benchmark.memory import Peak
from attnworks.attention.benchmark.versus_dense import (
    BOTH,
    FORWARD,
    BenchmarkResult,
    BenchmarkRow,
    BenchmarkTask,
    benchmark,
    benchmark_steps,
    benchmark_verdict,
    build_mechanism,
    predicted_seconds,
)
from attnworks.core.errors import UsageError
from attnworks.core.timing import Race

TASK = BenchmarkTask(n=0, heads=2, width=7)


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every cell that a child would have been asked for; each is said to have taken 7 bytes."""
    asked: list[str] = []

    def ask(command: object, cells: Sequence[str]) -> dict[str, Peak | str]:
        asked.extend(cells)
        return {cell: Peak(0.1, 7) for cell in cells}

    monkeypatch.setattr(versus_dense, "peaks_in_child", ask)
    return asked


def test_dense_is_always_there_once_and_first(no_children: list[str]) -> None:
    told: list[str] = []
    specs = [MechanismSpec.parse(text) for text in ("luong-dot", "dense", "luong-dot")]
    found = benchmark(specs, [11, 13], TASK, rounds=3, limit=600.0, advance=told.append)
    assert [(row.mechanism, row.n) for row in found.rows] == [
        ("dense", 11),
        ("luong-dot", 11),
        ("dense", 13),
        ("luong-dot", 13),
    ]
    assert len(told) == benchmark_steps(specs, [11, 13]) == 6
    assert len(no_children) == 8
    for row in found.rows:
        assert row.seconds.keys() == row.faster.keys() == row.share.keys() == row.memory.keys() == {FORWARD, BOTH}
        assert row.memory == {FORWARD: 7, BOTH: 7} and not row.skipped
    assert found.rows[0].faster == {FORWARD: 1.0, BOTH: 1.0}
    assert found.roof.keys() == {11, 13} and found.threads == torch.get_num_threads()


def test_figures_are_ratios_inside_the_rounds(no_children: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {
        versus_dense.ROOF: (1.0, 2.0, 3.0),
        "dense forward": (8.0, 16.0, 24.0),
        "luong-dot forward": (4.0, 16.0, 6.0),
    }
    monkeypatch.setattr(versus_dense, "interleave", lambda candidates, **_: Race(seconds))
    found = benchmark([MechanismSpec("luong-dot")], [11], TASK, passes=(FORWARD,))
    dense, luong = found.rows
    assert luong.seconds == {FORWARD: 6.0} and luong.faster == {FORWARD: 2.0} and luong.surely == {FORWARD: 1.0}
    flops = 2 * 2 * 11 * 11 * (7 + 7)
    roof = 2 * 1024**3
    assert dense.share[FORWARD] == pytest.approx(flops / roof / 8)
    assert luong.share[FORWARD] == pytest.approx(flops / roof / 4)
    assert found.roof == {11: roof / 2}


def test_the_backward_pass_counts_as_two_more(no_children: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {versus_dense.ROOF: (1.0,), "dense forward": (5.0,), "dense forward+backward": (5.0,)}
    monkeypatch.setattr(versus_dense, "interleave", lambda candidates, **_: Race(seconds))
    (dense,) = benchmark([], [11], TASK).rows
    assert dense.share[BOTH] == pytest.approx(3 * dense.share[FORWARD])


def test_what_would_take_too_long_is_never_started(no_children: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versus_dense, "predicted_seconds", lambda text, task, name: 64.0 if text == "dense" else 1.0)
    found = benchmark([MechanismSpec("luong-dot")], [11], TASK, rounds=1, limit=20.0)
    dense, luong = found.rows
    assert dense.skipped[FORWARD] == "would take about 64 s a run, over the limit of 20 s"
    assert not dense.seconds and not luong.faster and luong.seconds.keys() == {FORWARD, BOTH}
    assert len(no_children) == 2
    assert benchmark_verdict(found) == "Nothing was compared with dense."


def test_time_is_foretold_by_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 9.0, 10.0, 12.0])
    monkeypatch.setattr(versus_dense.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(versus_dense, "TRIAL_POSITIONS", 17)
    assert predicted_seconds("dense", TASK._replace(n=4 * 17), FORWARD) == pytest.approx(2.0 * 16)


def test_a_mechanism_made_for_one_length_gets_the_length_at_hand() -> None:
    assert build_mechanism("linformer", TASK._replace(n=1031)).length == 1031  # pyright: ignore[reportAttributeAccessIssue]
    assert build_mechanism("linformer:length=2053", TASK._replace(n=1031)).length == 2053  # pyright: ignore


def test_a_mechanism_without_a_causal_form_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"^linformer with --causal: expected .*dense.*, got no causal form"):
        benchmark([MechanismSpec("linformer")], [11], TASK._replace(causal=True))


def row(name: str, n: int, forward: float | None, both: float | None) -> BenchmarkRow:
    surely = {key: value for key, value in ((FORWARD, forward), (BOTH, both)) if value is not None}
    return BenchmarkRow(name, n, seconds={FORWARD: 1.0}, faster=surely, surely=surely)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([row("window", 1024, 1.5, 1.1)], "Every mechanism was faster than dense wherever both ran."),
        (
            [row("window", 1024, 0.9, 0.8), row("linear", 1024, 2.0, 1.0), row("window", 4096, 3, 3)],
            "No faster than dense in at least a quarter of the rounds: at n = 1,024 window, linear (forward+backward).",
        ),
        (
            [row("window", 1024, 1.5, 1.5), row("window", 65536, None, None)],
            "Every mechanism was faster than dense wherever both ran. Not compared with dense: window at n = 65,536.",
        ),
        ([row("window", 65536, None, None)], "Nothing was compared with dense."),
        ([], "Nothing was compared with dense."),
    ],
)
def test_the_verdict_says_where_a_mechanism_was_not_faster(rows: list[BenchmarkRow], sentence: str) -> None:
    comparison = BenchmarkResult(TASK, 1, {}, (row("dense", 1024, 1.0, 1.0), *rows))
    assert benchmark_verdict(comparison) == sentence
    assert benchmark_verdict(replace(comparison, rows=tuple(rows))) == sentence


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    """Dense attention of n = 2,053 holds its output and no n x n table."""
    (dense,) = benchmark([], [2053], TASK._replace(width=64), passes=(FORWARD,), rounds=1, limit=600.0).rows
    table, output = 4 * 2 * 2053**2, 4 * 2 * 2053 * 64
    held = dense.memory[FORWARD]
    assert held is not None and output / 2 < held < table / 2


def test_the_child_without_a_job_shows_its_usage() -> None:
    with pytest.raises(SystemExit, match=r"^usage: python -m attnworks\.attention\.benchmark JOB"):
        measure_job([])
