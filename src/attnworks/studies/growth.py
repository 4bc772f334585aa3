"""The study of growth: what wider keys are worth, by the way in which the new columns are filled.

It has two parts. "once": a model whose keys are too narrow is trained until its loss stops falling, then grows and is
trained further. "along": a narrow model grows by one width at regular steps of its training. Both are compared with a
control: a model of the same final size, trained from scratch for the same total steps.
Source: Burgund (S3.13-S3.30); the task is that of `studies.recall`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch

from attnworks.core.checks import choice, integer
from attnworks.core.display import Progress, silent
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.places import Slot
from attnworks.models import Transformer
from attnworks.models.anatomy import heads_of
from attnworks.reshape.growth.apply import GrowthPlace, grown
from attnworks.reshape.growth.grow import plan_step, survey_growth
from attnworks.reshape.growth.places import NoBottleneckError, Spot
from attnworks.reshape.growth.survey import GrowthSurvey
from attnworks.reshape.surgery import layers_of
from attnworks.studies.growth_baselines import growth_method
from attnworks.studies.recall import (
    draw_recall,
    new_optimizer,
    new_recall_model,
    recall_loss,
    recall_text_loss,
    train_recall,
)
from attnworks.studies.results import StudyResults, read_results, write_results

RESULTS_FORMAT = 2
NO_GROWTH, FROM_SCRATCH = "none", "from-scratch"
WAYS = ("fisher", "whitened", "random", "zero", "split", "gradmax", "document", "document-descending")
"""Ways of filling new columns."""
ALL_WAYS = (*WAYS, NO_GROWTH, FROM_SCRATCH)
WAYS_ALONG = ("fisher", "random", "zero", "gradmax", FROM_SCRATCH)
CONTROLS = {NO_GROWTH: "no growth", FROM_SCRATCH: "same final size, trained from scratch for the same total steps"}
"""Models that do not grow, for comparison, with their names in tables."""
PREDICTING_WAYS = ("fisher", "whitened")
WAYS_WITHOUT_SURVEY = ("zero", "split")
"""Ways that need no survey; its time does not count as theirs."""
START_WIDTH, FINAL_WIDTH = 1, 4
START_LEARNING_RATE, FINAL_LEARNING_RATE, AFTER_GROWTH_LEARNING_RATE = 3e-3, 1e-4, 1e-3
"""Learning rates at the start of training, at its end, and after growth."""
GROWN_SPOT = Spot(GrowthPlace(Slot("encoder", 0), 0), "keys")
SHOWN_STEPS = (0, 50, 200, 600)
"""Steps after growth that the table shows."""

_RunKey = tuple[str, int, int, str]
"""The part of the study, the seed, the number of columns added in all, and the way."""


@dataclass(frozen=True, kw_only=True)
class GrowthStudySettings:
    """How models are trained and tested.

    train_steps    training steps before the growth of part "once"; the learning rate falls in their last quarter
    steps          training steps after that growth
    every          training steps between the growths of part "along"
    survey         sequences that growth reads
    held_out       sequences of the test
    """

    train_steps: int = 2700
    steps: int = 600
    every: int = 300
    survey: int = 2048
    held_out: int = 4096

    def __post_init__(self) -> None:
        for name, least in (("train_steps", 1), ("steps", 1), ("every", 1), ("survey", 8), ("held_out", 1)):
            integer(name, getattr(self, name), least)

    @property
    def marks(self) -> list[int]:
        return [*(step for step in SHOWN_STEPS if step < self.steps), self.steps]


@dataclass(frozen=True)
class LossPoint:
    """The held-out loss after `step` steps, and the seconds of all steps and growths until then."""

    step: int
    d_k: int
    parameters: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class GrowthEvent:
    """One attempt to grow.

    before     the held-out loss before it
    fall       the predicted decrease of that loss
    refused    why the model did not grow; None if it did
    """

    step: int
    before: float
    fall: float | None
    refused: str | None
    seconds: float


@dataclass(frozen=True)
class GrowthRun:
    """One way with one seed, which adds `add` columns in all. A step with growth has two points, before and after."""

    part: str
    seed: int
    add: int
    way: str
    growths: list[GrowthEvent]
    points: list[LossPoint]

    @property
    def key(self) -> _RunKey:
        return self.part, self.seed, self.add, self.way

    def loss(self, step: int) -> float:
        """The loss after `step` steps, and after the growth at that step."""
        return next(point.loss for point in reversed(self.points) if point.step == step)


class GrowthResults(list[GrowthRun], StudyResults):
    """Runs, and the settings of all of them."""

    def __init__(self, runs: Iterable[GrowthRun], settings: GrowthStudySettings) -> None:
        super().__init__(runs)
        self.settings = settings

    def to_json(self) -> dict[str, Any]:
        """The study as JSON; `controls` describes the models that do not grow."""
        runs = [asdict(run) for run in self]
        return {"format": RESULTS_FORMAT, "settings": asdict(self.settings), "controls": CONTROLS, "runs": runs}

    def draw(self, folder: Path) -> None:
        from attnworks.studies.growth_pictures import draw_growth, draw_parameters, draw_time

        if any(run.part == "once" and run.add for run in self):
            draw_growth(self, folder / "growth.svg")
        if any(run.part == "along" for run in self):
            draw_parameters(self, self.settings, folder / "parameters.svg")
            draw_time(self, folder / "time.svg")


class _StoppedError(Exception):
    """The user asked to stop."""


def run_growth_study(
    folder: Path,
    settings: GrowthStudySettings,
    seeds: Sequence[int],
    adds: Sequence[int] = (1, 2),
    ways: Sequence[str] = ALL_WAYS,
    *,
    progress: Progress = silent,
    should_stop: Callable[[], bool] = lambda: False,
) -> GrowthResults:
    """Run both parts for every seed. Runs that are in `folder` are not repeated, and each new one is saved at once.

    The same seed gives all ways the same narrow model, survey and batches. The model from scratch is always among the
    runs, also where `ways` does not name it.
    """
    for way in ways:
        choice("way of growing", way, ALL_WAYS)
    if not adds or not all(1 <= add <= 16 for add in adds):
        got = ", ".join(map(str, adds)) or "none"
        raise UsageError(f"--add {got}", "numbers of columns from 1 to 16", got, "for instance --add 1,2")
    known = {run.key: run for run in read_runs(folder, settings)}
    wanted = _run_keys(seeds, adds, ways)

    def tell_or_stop(stage: str, done: int, total: int) -> None:
        if should_stop():
            raise _StoppedError
        progress(stage, done, total)

    try:
        for seed in seeds:
            study = _SeedStudy(seed, settings, tell_or_stop)
            for key in (key for key in wanted if key[1] == seed and key not in known):
                known[key] = study.once(*key[2:]) if key[0] == "once" else study.along(*key[2:])
                write_results(folder, GrowthResults(known.values(), settings).to_json())
    except _StoppedError:
        pass
    return GrowthResults((known[key] for key in wanted if key in known), settings)


def _run_keys(seeds: Sequence[int], adds: Sequence[int], ways: Sequence[str]) -> list[_RunKey]:
    growing = [way for way in ways if way in WAYS]
    along = [way for way in WAYS_ALONG if way in growing]
    widths = range(START_WIDTH + 1, FINAL_WIDTH + 1) if along else ()

    def keys(seed: int) -> Iterator[_RunKey]:
        yield from (("once", seed, add, way) for add in adds for way in (*growing, FROM_SCRATCH))
        yield from (("once", seed, 0, NO_GROWTH) for way in ways if way == NO_GROWTH)
        yield from (("along", seed, FINAL_WIDTH - START_WIDTH, way) for way in along)
        yield from (("along", seed, width - START_WIDTH, FROM_SCRATCH) for width in widths)

    return [key for seed in seeds for key in keys(seed)]


class _SeedStudy:
    """The runs of one seed. Models and data that they share are computed when they are first needed."""

    def __init__(self, seed: int, settings: GrowthStudySettings, tell: Progress) -> None:
        self.seed, self.settings, self.tell = seed, settings, tell

    def once(self, add: int, way: str) -> GrowthRun:
        """Part "once": from the trained narrow model, or from one of the final size trained for the same steps."""
        start = self._trained(START_WIDTH + add) if way == FROM_SCRATCH else self._narrow
        run = GrowthRun("once", self.seed, add, way, [], [])
        marks = _dense_marks(self.settings.steps)
        return self._train(run, start, {0: add} if way in WAYS else {}, marks, AFTER_GROWTH_LEARNING_RATE)

    def along(self, add: int, way: str) -> GrowthRun:
        """Part "along": from a new model, which grows by one column at regular steps or has its final width at once."""
        every = self.settings.every
        start = new_recall_model(START_WIDTH + add if way == FROM_SCRATCH else START_WIDTH, self.seed)
        added = {} if way == FROM_SCRATCH else dict.fromkeys(range(every, every * (add + 1), every), 1)
        end = every * (START_WIDTH + add)
        marks = sorted({*range(0, end, max(1, every // 3)), *added, end})
        return self._train(GrowthRun("along", self.seed, add, way, [], []), start, added, marks, START_LEARNING_RATE)

    def _train(
        self, run: GrowthRun, start: Transformer, added: dict[int, int], marks: Sequence[int], learning_rate: float
    ) -> GrowthRun:
        """Train a copy of `start` and fill in the run: the loss at every step of `marks`, the growths of `added`."""
        name = f"seed {run.seed}, " + ("no growth" if run.way == NO_GROWTH else f"{run.part} +{run.add}, {run.way}")
        model, batches = copy.deepcopy(start), self._random("after")
        optimizer, step, seconds = new_optimizer(model), 0, 0.0
        for mark in marks:
            seconds += train_recall(
                model, optimizer, batches, [learning_rate] * (mark - step),
                lambda done, base=step: self.tell(name, base + done, marks[-1]),
            )  # fmt: skip
            step = mark
            run.points.append(self._point(model, step, seconds))
            if step in added:
                model, event = self._grow(run, model, added[step])
                seconds, optimizer = seconds + event.seconds, new_optimizer(model)
                run.growths.append(event)
                run.points.append(self._point(model, step, seconds))
        return run

    def _grow(self, run: GrowthRun, model: Transformer, add: int) -> tuple[Transformer, GrowthEvent]:
        """The model with `add` more columns, or the same model if the way finds no bottleneck."""
        survey, survey_seconds = self._narrow_survey if run.part == "once" else self._survey(model)
        began = time.perf_counter()
        fall: float | None = None
        refused: str | None = None
        try:
            planned = plan_step(survey, growth_method(run.way), {GROWN_SPOT: add}, run.seed)
            fall, model = planned.fall, grown(model, planned.steps)  # pyright: ignore[reportAssignmentType]
        except NoBottleneckError as error:
            refused = error.got
        seconds = time.perf_counter() - began + (0.0 if run.way in WAYS_WITHOUT_SURVEY else survey_seconds)
        return model, GrowthEvent(run.points[-1].step, run.points[-1].loss, fall, refused, seconds)

    def _point(self, model: Transformer, step: int, seconds: float) -> LossPoint:
        (head,) = heads_of(layers_of(model)[GROWN_SPOT.place.slot])
        size = sum(parameter.numel() for parameter in model.parameters())
        return LossPoint(step, head.W_Q.shape[1], size, recall_loss(model, self._held_out), seconds)

    @cached_property
    def _narrow(self) -> Transformer:
        return self._trained(START_WIDTH)

    @cached_property
    def _held_out(self) -> torch.Tensor:
        return draw_recall(self.settings.held_out, self._random("held out"))

    @cached_property
    def _narrow_survey(self) -> tuple[GrowthSurvey, float]:
        return self._survey(self._narrow)

    def _survey(self, model: Transformer) -> tuple[GrowthSurvey, float]:
        """A survey of the model, and the seconds it took."""
        sequences = draw_recall(self.settings.survey, self._random("survey"))
        began = time.perf_counter()
        survey = survey_growth(recall_text_loss(model, sequences), self.tell, ("keys",))
        survey.sample(GROWN_SPOT.place.slot)
        return survey, time.perf_counter() - began

    def _trained(self, d_k: int) -> Transformer:
        """A model trained for `train_steps` steps, after which the loss of a narrow one no longer falls."""
        model, steps = new_recall_model(d_k, self.seed), self.settings.train_steps
        name = f"seed {self.seed}, training with d_k = {d_k}"
        train_recall(
            model, new_optimizer(model), self._random("before"), _falling_rates(steps),
            lambda done: self.tell(name, done, steps),
        )  # fmt: skip
        return model

    def _random(self, use: Literal["before", "after", "survey", "held out"]) -> torch.Generator:
        uses = ("before", "after", "survey", "held out")
        return torch.Generator().manual_seed(len(uses) * self.seed + uses.index(use) + 1)


def _falling_rates(steps: int) -> list[float]:
    """The learning rate of each step: constant for three quarters, then falling linearly from a third of that."""
    falling = steps * 7 // 27
    return [START_LEARNING_RATE] * (steps - falling) + [
        AFTER_GROWTH_LEARNING_RATE + (FINAL_LEARNING_RATE - AFTER_GROWTH_LEARNING_RATE) * step / falling
        for step in range(falling)
    ]


def _dense_marks(steps: int) -> list[int]:
    """Every 25 steps at first, later every 100."""
    return sorted({mark for mark in (*range(0, 200, 25), *range(200, steps, 100)) if mark < steps} | {steps})


# --- the folder ---


def read_runs(folder: Path, settings: GrowthStudySettings) -> list[GrowthRun]:
    """The runs of an earlier study with the same settings in this folder; a new or empty folder has none."""
    saved = read_results(
        folder, "study", RESULTS_FORMAT,
        lambda table: (GrowthStudySettings(**table["settings"]), [_run(row) for row in table["runs"]]),
    )  # fmt: skip
    before, runs = saved or (settings, [])
    if before != settings:
        raise FolderError(f"the study in {folder}", "the same settings", "others", "choose another --out")
    return runs


def _run(row: dict[str, Any]) -> GrowthRun:
    growths = [GrowthEvent(**event) for event in row["growths"]]
    points = [LossPoint(**point) for point in row["points"]]
    return GrowthRun(**{**row, "growths": growths, "points": points})


# --- tables and pictures ---


def way_name(way: str) -> str:
    """The name of a way, or of a model that does not grow, in tables."""
    return CONTROLS.get(way, way)


def runs_of_way(runs: Sequence[GrowthRun], part: str, add: int, way: str) -> list[GrowthRun]:
    """The runs of one way over all seeds. The model that never grows is compared with every `add`."""
    return [run for run in runs if (run.part, run.add, run.way) == (part, 0 if way == NO_GROWTH else add, way)]


def rank_ways(runs: Sequence[GrowthRun], add: int, step: int) -> dict[str, int]:
    """Ways of part "once" by mean loss at a step, the best first, and in how many seeds each beats the best."""
    losses = {way: [run.loss(step) for run in runs_of_way(runs, "once", add, way)] for way in WAYS}
    known = sorted((way for way in WAYS if losses[way]), key=lambda way: fmean(losses[way]))
    return {way: sum(own < best for own, best in zip(losses[way], losses[known[0]], strict=False)) for way in known}


def overtaking_step(runs: Sequence[GrowthRun], add: int, leader: str, other: str) -> int | None:
    """The first step from which `other` has a lower loss than `leader` in some seed at every later point, or None."""
    pairs = list(zip(runs_of_way(runs, "once", add, leader), runs_of_way(runs, "once", add, other), strict=False))
    overtaken: int | None = None
    for step in sorted({point.step for run, _ in pairs for point in run.points}):
        if not any(two.loss(step) < one.loss(step) for one, two in pairs):
            overtaken = None
        elif overtaken is None:
            overtaken = step
    return overtaken
