"""The long-range experiment on a very small scale: cells, resuming, the table, errors before work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from attnworks.cli import main
from attnworks.core.errors import FolderError, UnknownNameError, UsageError
from attnworks.studies import long_range_cell
from attnworks.studies.long_range import default_mechanisms, read_cells, run_long_range
from attnworks.studies.long_range_cell import (
    Cell,
    CellProgress,
    Classifier,
    LongRangeSettings,
    last_real,
    mean_real,
    new_classifier,
    peak_bytes,
    running_peak,
    train_cell,
    training_lengths,
    wilson,
)
from attnworks.studies.results import RESULTS_FILE
from attnworks.studies.tasks import TASKS, Readout, Recall, TaskBatch
from attnworks.training.fit import Fit, FitStep
from tests.helpers import assert_close

TINY = LongRangeSettings(steps=3, length=37, batch_size=2, held_out=5)


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["experiment", "long-range", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_cells_are_kept_at_once_and_not_computed_again(tmp_path: Path) -> None:
    def stop_in_third_cell() -> bool:
        return len(finished) == 2

    finished: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        if not total:
            finished.append(stage)
            assert len(json.loads((tmp_path / RESULTS_FILE).read_text())["cells"]) >= len(finished)

    tasks, mechanisms = ("recall", "bytes"), ("dense", "luong-dot")
    some = run_long_range(tmp_path, TINY, tasks, mechanisms, progress=progress, should_stop=stop_in_third_cell)
    assert [message.partition(" seed")[0] for message in finished] == [
        "1 of 4: recall, dense,",
        "2 of 4: recall, luong-dot,",
    ]
    assert [(cell.task, cell.mechanism) for cell in some] == [
        ("recall", "dense"),
        ("recall", "luong-dot"),
    ]
    steps: list[tuple[str, int, int]] = []
    every = run_long_range(tmp_path, TINY, tasks, mechanisms, progress=lambda *step: steps.append(step))
    assert every[:2] == some and len(every) == 4
    trained = [(stage.partition(",")[0], done) for stage, done, total in steps if total]
    assert {task for task, _ in trained} == {"bytes"}
    shares = [done for _, done in trained]
    assert shares == sorted(shares) and 50 < shares[0] < shares[-1] == 100
    assert run_long_range(tmp_path, TINY, ("bytes",), ("dense",)) == [every[2]]


def test_a_cell_is_the_same_twice_but_for_its_times() -> None:
    one, other = (train_cell("listops", "dense", 3, TINY) for _ in range(2))
    assert one is not None and other is not None
    assert replace(one, seconds=0.0, seconds_per_step=None) == replace(other, seconds=0.0, seconds_per_step=None)
    assert one.chance == 0.1 and one.steps == 3 and one.low <= one.accuracy <= one.high and one.step_bytes > 0


def test_all_mechanisms_start_from_the_same_weights_and_see_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, additive = (new_classifier(TASKS["recall"], name, 5).state_dict() for name in ("dense", "bahdanau-additive"))
    assert dense.keys() < additive.keys()
    assert all(torch.equal(tensor, additive[name]) for name, tensor in dense.items())
    seen: list[list[torch.Tensor]] = []
    loss = long_range_cell._loss
    for name in ("dense", "bahdanau-additive"):
        seen.append([])
        monkeypatch.setattr(
            long_range_cell, "_loss", lambda model, batch: seen[-1].append(batch.tokens) or loss(model, batch)
        )
        train_cell("recall", name, 0, TINY)
    assert len(seen[0]) == len(seen[1]) == 1 + TINY.steps  # the first one to measure memory
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_recall_is_learned_from_short_sequences_on() -> None:
    """A smaller one, so that a second is enough."""
    name = "recall-of-four"
    TASKS._entries[name] = Recall(keys=4, values=4, pairs=2, noise=4)
    try:
        cell = train_cell(name, "dense", 0, LongRangeSettings(steps=100, length=24, batch_size=16, held_out=100))
    finally:
        del TASKS._entries[name]
    assert cell is not None and cell.low > 0.6 > cell.chance


def test_lengths_double_up_to_the_full_one() -> None:
    assert training_lengths(TASKS["recall"], LongRangeSettings(length=100)) == [16, 32, 64, 100]
    assert training_lengths(TASKS["bytes"], LongRangeSettings(length=64)) == [32, 64]
    assert training_lengths(TASKS["recall"], LongRangeSettings(length=12)) == [12]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Learning rates of the steps, on a clock of our own: drawing a batch takes three seconds, a step one."""
    clock, seen = SimpleNamespace(now=0.0), list[float]()
    step, draw = Fit.step, long_range_cell._batch

    def slow_step(fit: Fit, number: int, losses: Any, *, name: str) -> FitStep:
        clock.now += 1
        done = step(fit, number, losses, name=name)
        seen.append(done.learning_rate)
        return done

    def slow_draw(*arguments: Any) -> TaskBatch:
        clock.now += 3
        return draw(*arguments)

    monkeypatch.setattr(long_range_cell, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(Fit, "step", slow_step)
    monkeypatch.setattr(long_range_cell, "_batch", slow_draw)
    return seen


@pytest.mark.usefixtures("rates")
def test_minutes_end_a_cell_and_still_bring_it_to_full_length() -> None:
    events: list[CellProgress] = []
    cell = train_cell("recall", "dense", 0, replace(TINY, steps=1000, minutes=36 / 60), events.append)
    assert cell is not None and cell.steps == 9
    assert events[0].length == 16 and events[-1].length == 37 and events[-1].done == 1


@pytest.mark.usefixtures("rates")
def test_drawing_a_batch_is_no_part_of_a_step() -> None:
    cell = train_cell("recall", "dense", 0, replace(TINY, minutes=1.0))
    assert cell is not None and cell.seconds_per_step == 1 and cell.seconds == 4 * cell.steps


@pytest.mark.parametrize(("steps", "minutes"), [(1000, 36 / 60), (9, None)])
def test_the_learning_rate_falls_with_time_as_with_steps(steps: int, minutes: float | None, rates: list[float]) -> None:
    settings = replace(TINY, steps=steps, minutes=minutes)
    assert train_cell("recall", "dense", 0, settings) is not None
    rate = long_range_cell.schedule("cosine", settings.learning_rate, steps // 12, steps)
    assert rates == [rate(round(number * steps / 9)) for number in range(9)]
    assert rates[-1] < 0.2 * settings.learning_rate


def test_a_loss_that_is_no_number_ends_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        long_range_cell, "_loss", lambda model, batch: model(batch.tokens, batch.real).sum() * float("nan")
    )
    with pytest.raises(ArithmeticError, match="step 1 of dense on recall: expected a finite loss"):
        train_cell("recall", "dense", 0, TINY)


def test_peak_memory_is_what_tensors_hold_at_the_worst_moment() -> None:
    def run() -> None:
        a = torch.zeros(2**20)
        b = a + 1
        del a
        c = b + 1
        del b, c

    assert peak_bytes(run) == pytest.approx(2 * 4 * 2**20, abs=100)
    assert peak_bytes(lambda: None) == 0


def test_at_one_moment_what_is_taken_first_counts_first() -> None:
    changes = [(3.0, 70), (3.0, -70), (2.0, 5), (2.0, 11), (2.0, -5)]
    assert running_peak(changes) == 11 + 70
    assert running_peak([(1.0, -7)]) == running_peak([]) == 0


def test_wilson_intervals() -> None:
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10)[1] == 1.0


def test_readouts_look_at_real_tokens_alone() -> None:
    X = torch.randn(3, 7, 5, dtype=torch.float64)
    real = torch.arange(7) < torch.tensor([[7], [4], [1]])
    assert_close(mean_real(X, real), torch.stack([X[0].mean(0), X[1, :4].mean(0), X[2, 0]]))
    assert_close(last_real(X, real), torch.stack([X[0, 6], X[1, 3], X[2, 0]]))
    full = real[:1].expand(3, -1)
    assert_close(mean_real(X, None), mean_real(X, full))
    assert_close(last_real(X, None), last_real(X, full))


@pytest.mark.parametrize("readout", ["mean", "last"])
def test_padding_changes_no_scores(readout: Readout) -> None:
    model = Classifier(long_range_cell._config(TASKS["listops"], "dense"), 3, readout).double()
    tokens = torch.randint(0, 15, (2, 11))
    longer = torch.cat([tokens, torch.randint(0, 15, (2, 6))], 1)
    real = (torch.arange(17) < 11).expand(2, -1)
    assert_close(model(longer, real), model(tokens))
    assert model(tokens).shape == (2, 3)


def test_the_default_mechanisms_are_there() -> None:
    for mechanism in default_mechanisms(64):
        new_classifier(TASKS["recall"], mechanism, 0)


def test_what_cannot_run_is_refused_before_anything_does(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="mechanism 'dens'"):
        run_long_range(tmp_path, TINY, ("recall",), ("dense", "dens"))
    with pytest.raises(UnknownNameError, match="task 'recal'"):
        run_long_range(tmp_path, TINY, ("bytes", "recal"), ("dense",))
    with pytest.raises(UsageError, match="32 tokens or more"):
        run_long_range(tmp_path, replace(TINY, length=8), ("recall", "bytes"), ("dense",))
    with pytest.raises(UsageError, match="minutes=-1"):
        replace(TINY, minutes=-1)
    assert not any(tmp_path.iterdir())


def test_a_folder_of_other_settings_or_of_something_else_is_refused(tmp_path: Path) -> None:
    run_long_range(tmp_path / "a", TINY, ("recall",), ("dense",))
    with pytest.raises(UsageError, match="expected steps=3, as in the saved cells"):
        run_long_range(tmp_path / "a", replace(TINY, steps=4), ("recall",), ("dense",))
    with pytest.raises(UsageError, match="expected steps=3"):  # before the mechanisms are tried, which takes long
        run_long_range(tmp_path / "a", replace(TINY, steps=4), ("recall",), ("dens",))
    for content in ("", "[]", '{"format": 1}', '{"format": 2, "settings": {}, "cells": []}'):
        (tmp_path / "a" / RESULTS_FILE).write_text(content)
        with pytest.raises(FolderError, match="choose another --out"):
            run_long_range(tmp_path / "a", TINY, ("recall",), ("dense",))


def test_two_runs_into_one_folder_keep_the_cells_of_both(tmp_path: Path) -> None:
    theirs: list[Cell] = []
    trained: set[str] = set()

    def progress(stage: str, done: int, total: int) -> None:
        if not theirs:
            theirs.extend(run_long_range(tmp_path, TINY, ("recall",), ("luong-dot",)))
        if total:
            trained.add(stage.split(", ")[1])

    dense, dot = run_long_range(tmp_path, TINY, ("recall",), ("dense", "luong-dot"), progress=progress)
    assert [dot] == theirs and trained == {"dense"}
    assert read_cells(tmp_path, TINY) == [dot, dense]


def test_a_run_with_other_settings_does_not_overwrite(tmp_path: Path) -> None:
    others = replace(TINY, steps=2)

    def progress(stage: str, done: int, total: int) -> None:
        run_long_range(tmp_path, others, ("bytes",), ("dense",))

    with pytest.raises(UsageError, match="expected steps=2, as in the saved cells"):
        run_long_range(tmp_path, TINY, ("recall",), ("dense",), progress=progress)
    assert [cell.task for cell in read_cells(tmp_path, others)] == ["bytes"]


OPTIONS = (
    "--steps",
    2,
    "--length",
    37,
    "--batch-size",
    2,
    "--held-out",
    5,
    "--threads",
    1,
    "--tasks",
    "recall,listops",
)


def test_the_command_prints_a_table_and_then_the_same_as_json(tmp_path: Path) -> None:
    options = (*OPTIONS, "--mechanisms", "dense,luong-dot", "--seeds", 2, "--out", tmp_path / "out")
    code, stdout, stderr = command(*options)
    assert code == 0, stderr
    assert "relative to dense" in stdout and "range over 2 seeds" in stdout
    assert all(word in stdout for word in ("recall", "listops", "luong-dot", "chance", "6.2", "10.0"))
    assert stderr.count(" right in ") == 8
    code, stdout, stderr = command(*options, "--json")
    report = json.loads(stdout)
    assert code == 0 and not stderr and report == json.loads((tmp_path / "out" / RESULTS_FILE).read_text())
    assert report["settings"] == {
        "steps": 2, "minutes": None, "length": 37, "batch_size": 2, "learning_rate": 0.002, "held_out": 5, "first": 16,
    }  # fmt: skip
    assert [(cell["task"], cell["mechanism"], cell["seed"]) for cell in report["cells"]] == [
        (task, mechanism, seed)
        for task in ("recall", "listops")
        for mechanism in ("dense", "luong-dot")
        for seed in (0, 1)
    ]
    assert set(report["cells"][0]) == set(Cell.__dataclass_fields__)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--mechanisms", "dense,windov", "mechanism 'windov'"),
        ("--mechanisms", "dense:widow=3", "option of mechanism 'dense' 'widow'"),
        ("--tasks", "recall,sums", "task 'sums'"),
        ("--minutes", "0", "minutes=0.0"),
        ("--length", "7", "8 tokens or more"),
    ],
)
def test_mistakes_are_one_line(option: str, value: str, said: str, tmp_path: Path) -> None:
    code, stdout, stderr = command(*OPTIONS, "--mechanisms", "dense", option, value, "--out", tmp_path / "out")
    assert code == 2 and said in stderr and stderr.count("\n") == 1 and not stdout
    assert not (tmp_path / "out").exists()
