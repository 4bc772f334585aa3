"""The study of growth on a very small scale: its task, runs and resuming, tables and sentences, pictures, refusals."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from attnworks.cli import main
from attnworks.core.display import silent
from attnworks.core.errors import FolderError, UnknownNameError, UsageError
from attnworks.reshape.growth import score as score_module
from attnworks.studies import growth as study
from attnworks.studies.growth import (
    ALL_WAYS,
    WAYS,
    WAYS_ALONG,
    GrowthRun,
    GrowthStudySettings,
    LossPoint,
    overtaking_step,
    rank_ways,
    run_growth_study,
)
from attnworks.studies.recall import (
    PAIRS,
    QUERIES,
    RECALL_KEYS,
    RECALL_VALUES,
    draw_recall,
    new_optimizer,
    new_recall_model,
    recall_answers,
    recall_loss,
    recall_losses,
    recall_text_loss,
    train_recall,
)
from attnworks.studies.render import once_sentences
from attnworks.studies.results import RESULTS_FILE
from attnworks.training.objectives.contract import Outputs
from tests.helpers import assert_close

pytestmark = pytest.mark.slow

TINY = GrowthStudySettings(train_steps=3, steps=2, every=2, survey=32, held_out=23)
TOLD = "--seeds 1 --add 1 --train-steps 3 --steps 2 --every 2 --survey 32 --held-out 23 --threads 1"
OPTIONS = shlex.split(TOLD)


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["experiment", "growth", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


# --- the task ---


def test_every_query_asks_for_a_key_that_is_there_once_and_its_value_is_the_answer() -> None:
    ids = draw_recall(101, torch.Generator().manual_seed(3))
    assert ids.shape == (101, PAIRS + QUERIES)
    for row, told in zip(ids.tolist(), recall_answers(ids).tolist(), strict=True):
        values = {pair // RECALL_VALUES: pair % RECALL_VALUES for pair in row[:PAIRS]}
        assert len(values) == PAIRS and max(values) < RECALL_KEYS
        assert told == [values[query - RECALL_KEYS * RECALL_VALUES] for query in row[PAIRS:]]


def test_the_loss_is_that_of_queries_alone() -> None:
    model, ids = new_recall_model(2, 5), draw_recall(7, torch.Generator().manual_seed(5))
    (batch, _) = recall_text_loss(model, ids).text.batch(0)
    scores = model(ids).detach().requires_grad_()
    found = recall_losses(Outputs(scores, scores), batch)
    by_hand = -F.log_softmax(scores[:, PAIRS:], -1).gather(2, recall_answers(ids).unsqueeze(2)).mean((1, 2))
    assert_close(found, by_hand)
    found.sum().backward()
    assert scores.grad is not None
    assert not scores.grad[:, :PAIRS].any() and bool((scores.grad[:, PAIRS:].abs().sum((0, 2)) > 0).all())


def test_growth_judges_models_by_the_same_loss_as_the_study() -> None:
    model, ids = new_recall_model(1, 2), draw_recall(131, torch.Generator().manual_seed(2))
    assert recall_text_loss(model, ids).mean() == pytest.approx(recall_loss(model, ids), rel=1e-5)


def test_wide_keys_learn_what_narrow_ones_do_not() -> None:
    found: list[float] = []
    for d_k in (1, 4):
        model, batches = new_recall_model(d_k, 0), torch.Generator().manual_seed(1)
        train_recall(model, new_optimizer(model), batches, [5e-3] * 120)
        found.append(recall_loss(model, draw_recall(128, batches)))
    narrow, wide = found
    assert wide < 0.7 * narrow


# --- runs ---


def test_all_ways_start_from_the_same_narrow_model_and_each_run_is_kept_at_once(tmp_path: Path) -> None:
    kept: list[int] = []

    def tell(stage: str, done: int, total: int) -> None:
        path = tmp_path / RESULTS_FILE
        kept.append(len(json.loads(path.read_text())["runs"]) if path.exists() else 0)

    runs = run_growth_study(tmp_path, TINY, [0], (1,), ALL_WAYS, progress=tell)
    once = {run.way: run for run in runs if run.part == "once"}
    assert [*once] == [*WAYS, "from-scratch", "none"] and max(kept) == len(runs) - 1
    assert len({run.points[0].loss for way, run in once.items() if way != "from-scratch"}) == 1
    assert [point.step for point in once["none"].points] == [0, 2]
    for way in ("zero", "split", "gradmax"):  # which change nothing at once
        assert once[way].loss(0) == pytest.approx(once["none"].loss(0), abs=1e-4)
    grown, scratch = once["zero"].points[-1], once["from-scratch"].points[-1]
    assert (grown.d_k, grown.parameters) == (scratch.d_k, scratch.parameters) and grown.d_k == 2
    along = [run for run in runs if run.part == "along"]
    assert [(run.way, run.add) for run in along] == [
        *((way, 3) for way in WAYS_ALONG if way != "from-scratch"),
        *(("from-scratch", add) for add in (1, 2, 3)),
    ]
    zero = next(run for run in along if run.way == "zero")
    assert [(point.step, point.d_k) for point in zero.points if point.step % 2 == 0] == [
        (0, 1), (2, 1), (2, 2), (4, 2), (4, 3), (6, 3), (6, 4), (8, 4),
    ]  # fmt: skip
    for run in along:
        if run.way == "from-scratch":
            assert {point.d_k for point in run.points} == {1 + run.add} and run.points[-1].step == 2 * (1 + run.add)
    assert all(left.seconds <= right.seconds for left, right in zip(zero.points, zero.points[1:], strict=False))


def test_the_model_from_scratch_is_always_there_with_the_same_size(tmp_path: Path) -> None:
    runs = run_growth_study(tmp_path, TINY, [0], (1,), ("zero",))
    found = {(run.part, run.add, run.way): run for run in runs}
    assert [*found] == [
        ("once", 1, "zero"), ("once", 1, "from-scratch"),
        ("along", 3, "zero"), *(("along", add, "from-scratch") for add in (1, 2, 3)),
    ]  # fmt: skip
    for part, add in (("once", 1), ("along", 3)):
        grown, scratch = (found[part, add, way].points[-1] for way in ("zero", "from-scratch"))
        assert (grown.step, grown.d_k, grown.parameters) == (scratch.step, scratch.d_k, scratch.parameters)
    label = "same final size, trained from scratch for the same total steps"
    assert json.loads((tmp_path / RESULTS_FILE).read_text())["controls"]["from-scratch"] == label


def test_the_model_from_scratch_is_trained_for_the_same_total_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: dict[str, int] = {}
    train = study.train_recall
    for way in ("zero", "from-scratch"):
        rates: list[float] = []

        def counted(*given: Any, rates: list[float] = rates) -> float:
            rates += given[3]
            return train(*given)

        monkeypatch.setattr(study, "train_recall", counted)
        run = study._SeedStudy(0, TINY, silent).once(1, way)
        assert run.points[-1].d_k == 2
        steps[way] = len(rates)
    assert steps == dict.fromkeys(("zero", "from-scratch"), TINY.train_steps + TINY.steps)


def test_it_goes_on_where_it_was_stopped_and_adds_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    ways = ("zero", "none")
    whole = run_growth_study(tmp_path / "whole", TINY, [0], (1,), ways)
    some = run_growth_study(
        tmp_path / "some", TINY, [0], (1,), ways,
        progress=lambda stage, done, total: told.append(stage), should_stop=lambda: "no growth" in "".join(told),
    )  # fmt: skip
    assert [run.key for run in some] == [run.key for run in whole[:2]]
    every = run_growth_study(tmp_path / "some", TINY, [0], (1,), ways)
    assert [_timeless(run) for run in every] == [_timeless(run) for run in whole]
    assert every[0] == some[0]
    monkeypatch.setattr(study, "train_recall", lambda *_: pytest.fail("trained again"))
    assert run_growth_study(tmp_path / "some", TINY, [0], (1,), ways) == every


def _timeless(run: GrowthRun) -> GrowthRun:
    return replace(
        run,
        growths=[replace(growth, seconds=0.0) for growth in run.growths],
        points=[replace(point, seconds=0.0) for point in run.points],
    )


def test_a_direction_without_hope_is_refused_recorded_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_module, "MIN_TRUST", 2.0)  # no slope is confirmed by twice its own
    code, stdout, stderr = command(*OPTIONS, "--ways", "fisher,none", "--out", tmp_path / "out")
    assert code == 0, stderr
    once, scratch, none, along, *others = study.read_runs(tmp_path / "out", TINY)
    assert {run.way for run in (scratch, *others)} == {"from-scratch"}
    assert once.growths[0].refused is not None and "other sentences confirm" in once.growths[0].refused
    assert once.growths[0].fall is None and {point.d_k for point in once.points} == {1}
    assert once.loss(2) == none.loss(2)
    assert [found.step for found in along.growths] == [2, 4, 6] and all(found.refused for found in along.growths)
    assert along.points[-1].d_k == 1 and along.points[-1].step == 8
    assert "fisher (refused 1 of 1 times)" in stdout and "fisher (refused 3 of 3 times)" in stdout
    assert "fisher, seed 0, step 4: not grown, at enc.0.0:keys, other sentences confirm" in stdout


# --- what is shown ---


def test_the_command_prints_tables_or_json_and_draws(tmp_path: Path) -> None:
    options = (*OPTIONS, "--ways", "zero,gradmax,none", "--out", tmp_path / "out")
    code, stdout, stderr = command(*options)
    assert code == 0, stderr
    for words in ("d_k 1 -> 2", "at once", "+2 steps", "no growth", "same final size", "d_k = 4", "Ahead: at once"):
        assert words in stdout
    for name in ("growth", "parameters", "time"):
        picture = (tmp_path / "out" / f"{name}.svg").read_text()
        assert "<svg" in picture
    code, stdout, stderr = command(*options, "--json")
    assert code == 0 and json.loads(stdout) == json.loads((tmp_path / "out" / RESULTS_FILE).read_text())
    code, _, stderr = command(*options, "--steps", 3)
    assert code == 2 and "the same settings" in stderr and "Traceback" not in stderr


def _made_up(way: str, losses: list[list[float]]) -> list[GrowthRun]:
    """For every seed the losses at steps 0, 1, 2."""
    return [
        GrowthRun("once", seed, 1, way, [], [LossPoint(step, 2, 1, loss, 0.0) for step, loss in enumerate(found)])
        for seed, found in enumerate(losses)
    ]


def test_the_sentences_say_who_is_ahead_and_where_ways_meet() -> None:
    runs = [
        *_made_up("fisher", [[1.0, 0.5, 0.2], [1.0, 0.5, 0.2]]),
        *_made_up("zero", [[2.0, 1.0, 0.3], [2.0, 0.4, 0.1]]),
        *_made_up("random", [[0.9, 1.0, 0.9], [3.0, 1.0, 0.9]]),
    ]
    assert rank_ways(runs, 1, 0) == {"fisher": 0, "random": 1, "zero": 0}
    assert rank_ways(runs, 1, 1) == {"fisher": 0, "zero": 1, "random": 0}
    assert overtaking_step(runs, 1, "fisher", "zero") == 1
    assert overtaking_step(runs, 1, "fisher", "random") is None
    ahead, level, behind = once_sentences(runs, replace(TINY, steps=1), 1)
    at_once = "at once fisher, but of 2 seeds random beats it in 1"
    assert ahead == f"Ahead: {at_once}; after 1 fisher, but of 2 seeds zero beats it in 1."
    assert level == "No longer behind fisher in every seed: zero from step 1."
    assert behind == "Behind fisher in every seed to the end: random."


# --- refusals ---


def test_what_cannot_be_used_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="fisher"):
        run_growth_study(tmp_path / "out", TINY, [0], (1,), ("fischer",))
    for adds in ((), (0,), (17,)):
        with pytest.raises(UsageError, match="from 1 to 16"):
            run_growth_study(tmp_path / "out", TINY, [0], adds)
    with pytest.raises(UsageError, match="a whole number from 8"):
        GrowthStudySettings(survey=7)
    code, _, stderr = command(*OPTIONS, "--add", "1,b", "--out", tmp_path / "out")
    assert code == 2 and "'1,b' is no list of numbers" in stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILE).write_text('{"format": 1, "cells": []}')
    with pytest.raises(FolderError, match=r"one with its results\.json"):
        run_growth_study(tmp_path, TINY, [0])
