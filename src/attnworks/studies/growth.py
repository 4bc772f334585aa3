"""The study of growth: what wider keys are worth, by the way in which the new columns are filled.

Two parts. "once": a model whose keys are too narrow is trained until it is stuck, then grows and trains on. "along": a
narrow model grows by one width again and again while it learns. Both always carry the fair control: a model of the same
final size, trained from scratch for the same total steps.
Source: Burgund (S3.13-S3.30); the task is that of `studies.recall`.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch

from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import write_file
from attnworks.core.registry import unknown_name
from attnworks.models import Transformer
from attnworks.models.anatomy import attention_layers, heads_of
from attnworks.reshape.growth.apply import Place, grown
from attnworks.reshape.growth.grow import look_around, settle
from attnworks.reshape.growth.places import NoBottleneckError, Spot
from attnworks.reshape.growth.survey import Survey
from attnworks.reshape.progress import Watch, silently
from attnworks.reshape.surgery import anatomy_of
from attnworks.studies.growth_baselines import method_of
from attnworks.studies.recall import draw, judge, mean_loss, new_model, new_optimiser, train
from attnworks.studies.results import read_kept

RESULTS, FORMAT = "results.json", 2
NONE, SCRATCH = "none", "from-scratch"
WAYS = ("fisher", "whitened", "random", "zero", "split", "gradmax", "document", "document-descending")
"""Of filling new columns."""
ALL = (*WAYS, NONE, SCRATCH)
ALONG = ("fisher", "random", "zero", "gradmax", SCRATCH)
CONTROLS = {
    NONE: ("no growth", "no growth"),
    SCRATCH: (
        "same final size, trained from scratch for the same total steps",
        "from scratch, same size and steps",
    ),
}
"""Models that do not grow, to compare with: the long name of each, and a short one for pictures."""
PREDICTING = ("fisher", "whitened")
WITHOUT_TEXT = ("zero", "split")
"""Ways that need no survey, whose time they are not charged."""
NARROW, WIDEST = 1, 4
LEARNING, LAST, AFTER = 3e-3, 1e-4, 1e-3
"""Rates of training from the start, at its end, and after growth."""
SPOT = Spot(Place("enc.0", 0), "keys")
MARKS = (0, 50, 200, 600)
"""Steps after growth that the table shows."""

Key = tuple[str, int, int, str]
"""Part, seed, columns added in all, and way."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How models are trained and judged.

    train_steps    of the model that grows once, before it does; the rate falls in the last quarter of them
    steps          after it
    every          steps between growths along the way
    survey         sequences that growth looks at
    held_out       sequences of the test
    """

    train_steps: int = 2700
    steps: int = 600
    every: int = 300
    survey: int = 2048
    held_out: int = 4096

    def __post_init__(self) -> None:
        for name, least in (("train_steps", 1), ("steps", 1), ("every", 1), ("survey", 8), ("held_out", 1)):
            if getattr(self, name) < least:
                raise UsageError(
                    asked=f"{name}={getattr(self, name)}",
                    expected=f"at least {least}",
                    got=str(getattr(self, name)),
                    remedy=f"choose another {name}",
                )

    @property
    def marks(self) -> list[int]:
        return [*(mark for mark in MARKS if mark < self.steps), self.steps]


@dataclass(frozen=True)
class Point:
    """The held-out loss after some steps, and the seconds of all steps and growths so far."""

    step: int
    d_k: int
    parameters: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Growth:
    """One time that a model grew, or did not.

    before     the held-out loss
    fall       by how much it should fall
    refused    why it did not grow, in words
    """

    step: int
    before: float
    fall: float | None
    refused: str | None
    seconds: float


@dataclass(frozen=True)
class Run:
    """One way on one seed; `add` columns in all. At a step of growth there are two points, before and after it."""

    part: str
    seed: int
    add: int
    way: str
    growths: Sequence[Growth]
    points: Sequence[Point]

    @property
    def key(self) -> Key:
        return self.part, self.seed, self.add, self.way

    def loss(self, step: int) -> float:
        """The loss after `step` steps, and after growth there."""
        return next(point.loss for point in reversed(self.points) if point.step == step)


class _StoppedError(Exception):
    """The user asked to stop."""


def growth(
    folder: Path,
    settings: Settings,
    seeds: Sequence[int],
    adds: Sequence[int] = (1, 2),
    ways: Sequence[str] = ALL,
    *,
    watch: Watch = silently,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Run]:
    """Both parts for every seed; runs that `folder` has already are not made again, and each new one is kept at once.

    The same seed gives all ways the same narrow model, survey and batches. The model from scratch is always among the
    runs, also where `ways` does not name it.
    """
    check(adds, ways)
    known = {run.key: run for run in read_runs(folder, settings)}
    wanted = _wanted(seeds, adds, ways)

    def tell(stage: str, done: int, total: int) -> None:
        if should_stop():
            raise _StoppedError
        watch(stage, done, total)

    try:
        for seed in seeds:
            shared = _Shared(seed, settings, tell)
            for key in (key for key in wanted if key[1] == seed and key not in known):
                known[key] = shared.once(*key[2:]) if key[0] == "once" else shared.along(*key[2:])
                _write(folder, settings, known.values())
    except _StoppedError:
        pass
    return [known[key] for key in wanted if key in known]


def check(adds: Sequence[int], ways: Sequence[str]) -> None:
    for way in ways:
        if way not in ALL:
            raise unknown_name("way of growing", way, ALL)
    if not adds or not all(1 <= add <= 16 for add in adds):
        raise UsageError(
            asked=f"growing by {', '.join(map(str, adds)) or 'nothing'}",
            expected="numbers of columns from 1 to 16",
            got=", ".join(map(str, adds)) or "none",
            remedy="--add 1,2 for instance",
        )


def _wanted(seeds: Sequence[int], adds: Sequence[int], ways: Sequence[str]) -> list[Key]:
    growing = [way for way in ways if way in WAYS]
    along = [way for way in ALONG if way in growing]
    widths = range(NARROW + 1, WIDEST + 1) if along else ()

    def keys(seed: int) -> Iterator[Key]:
        yield from (("once", seed, add, way) for add in adds for way in (*growing, SCRATCH))
        yield from (("once", seed, 0, NONE) for way in ways if way == NONE)
        yield from (("along", seed, WIDEST - NARROW, way) for way in along)
        yield from (("along", seed, width - NARROW, SCRATCH) for width in widths)

    return [key for seed in seeds for key in keys(seed)]


class _Shared:
    """What all runs of a seed share, made when it is first needed."""

    def __init__(self, seed: int, settings: Settings, tell: Watch) -> None:
        self.seed, self.settings, self.tell = seed, settings, tell

    def once(self, add: int, way: str) -> Run:
        """From the narrow model that is stuck, or from one of the final size that was trained for as many steps."""
        start = self._trained(NARROW + add) if way == SCRATCH else self.narrow
        added = {0: add} if way in WAYS else {}
        run = Run("once", self.seed, add, way, (), ())
        return self._follow(run, start, added, _dense_marks(self.settings.steps), AFTER, lambda model: self._survey)

    def along(self, add: int, way: str) -> Run:
        """From a new model, which grows by one column at regular steps, or has its final width from the start."""
        every = self.settings.every
        run = Run("along", self.seed, add, way, (), ())
        start = new_model(NARROW + add if way == SCRATCH else NARROW, self.seed)
        added = {} if way == SCRATCH else dict.fromkeys(range(every, every * (add + 1), every), 1)
        end = every * (NARROW + add)
        marks = sorted({*range(0, end, max(1, every // 3)), *added, end})
        return self._follow(run, start, added, marks, LEARNING, self._look)

    def _follow(
        self,
        run: Run,
        start: Transformer,
        added: dict[int, int],
        marks: Sequence[int],
        rate: float,
        look: Callable[[Transformer], tuple[Survey, float]],
    ) -> Run:
        """Train on and measure at every mark, growing at some of them."""
        name = f"seed {run.seed}, {_title(run)}"
        model, batches = copy.deepcopy(start), self._random("after")
        optimiser, step, seconds = new_optimiser(model), 0, 0.0
        growths: list[Growth] = []
        points: list[Point] = []
        for mark in marks:
            seconds += train(
                model, optimiser, batches, [rate] * (mark - step),
                lambda done, base=step: self.tell(name, base + done, marks[-1]),
            )  # fmt: skip
            step = mark
            points.append(self._point(model, step, seconds))
            if step in added:
                model, found = self._grown(run, model, added[step], points[-1], look)
                seconds, optimiser = seconds + found.seconds, new_optimiser(model)
                growths.append(found)
                points.append(self._point(model, step, seconds))
        return replace(run, growths=growths, points=points)

    def _grown(
        self, run: Run, model: Transformer, add: int, now: Point, look: Callable[[Transformer], tuple[Survey, float]]
    ) -> tuple[Transformer, Growth]:
        survey, looking = look(model)
        began = time.perf_counter()
        fall: float | None = None
        refused: str | None = None
        try:
            settled = settle(survey, method_of(run.way), {SPOT: add}, run.seed)
            fall, model = settled.fall, grown(model, settled.steps)  # pyright: ignore[reportAssignmentType]
        except NoBottleneckError as error:
            refused = error.got
        seconds = time.perf_counter() - began + (0.0 if run.way in WITHOUT_TEXT else looking)
        return model, Growth(now.step, now.loss, fall, refused, seconds)

    def _point(self, model: Transformer, step: int, seconds: float) -> Point:
        (head,) = heads_of(attention_layers(anatomy_of(model))["enc.0"])
        size = sum(parameter.numel() for parameter in model.parameters())
        return Point(step, head.W_Q.shape[1], size, mean_loss(model, self._held_out), seconds)

    @cached_property
    def narrow(self) -> Transformer:
        return self._trained(NARROW)

    @cached_property
    def _held_out(self) -> torch.Tensor:
        return draw(self.settings.held_out, self._random("held out"))

    @cached_property
    def _survey(self) -> tuple[Survey, float]:
        return self._look(self.narrow)

    def _look(self, model: Transformer) -> tuple[Survey, float]:
        """A survey of the model, and the seconds it took."""
        sequences = draw(self.settings.survey, self._random("survey"))
        began = time.perf_counter()
        survey = look_around(judge(model, sequences), self.tell, ("keys",))
        survey.sample(SPOT.place.slot)
        return survey, time.perf_counter() - began

    def _trained(self, d_k: int) -> Transformer:
        """As long as it takes until a narrow one is stuck."""
        model, steps = new_model(d_k, self.seed), self.settings.train_steps
        name = f"seed {self.seed}, training with d_k = {d_k}"
        train(
            model, new_optimiser(model), self._random("before"), _falling(steps),
            lambda done: self.tell(name, done, steps),
        )  # fmt: skip
        return model

    def _random(self, use: Literal["before", "after", "survey", "held out"]) -> torch.Generator:
        uses = ("before", "after", "survey", "held out")
        return torch.Generator().manual_seed(len(uses) * self.seed + uses.index(use) + 1)


def _title(run: Run) -> str:
    if run.way == NONE:
        return "no growth"
    return f"{run.part} +{run.add}, {run.way}"


def _falling(steps: int) -> list[float]:
    """The rate of each step: constant for three quarters, then from a third of it in a straight line to the last."""
    falling = steps * 7 // 27
    return [LEARNING] * (steps - falling) + [AFTER + (LAST - AFTER) * step / falling for step in range(falling)]


def _dense_marks(steps: int) -> list[int]:
    """Every 25 steps at first, later every 100."""
    return sorted({mark for mark in (*range(0, 200, 25), *range(200, steps, 100)) if mark < steps} | {steps})


# --- the folder ---


def read_runs(folder: Path, settings: Settings) -> list[Run]:
    """Runs that an earlier study with the same settings left in the folder; a new or empty folder has none."""
    kept = read_kept(
        folder,
        RESULTS,
        "study",
        FORMAT,
        lambda table: (Settings(**table["settings"]), [_run(told) for told in table["runs"]]),
    )
    if kept is None:
        return []
    before, runs = kept
    if before != settings:
        raise FolderError(
            asked=f"the study in {folder}",
            expected="the settings it was begun with",
            got="others",
            remedy="give the same options, or choose another --out",
        )
    return runs


def _run(told: dict[str, Any]) -> Run:
    growths, points = [Growth(**found) for found in told["growths"]], [Point(**point) for point in told["points"]]
    return Run(**{**told, "growths": growths, "points": points})


def _write(folder: Path, settings: Settings, runs: Iterable[Run]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / RESULTS, (json.dumps(report(settings, runs), indent=2) + "\n").encode())


def report(settings: Settings, runs: Iterable[Run]) -> dict[str, Any]:
    """The study as JSON; `controls` has the ways of `runs` that do not grow, in words."""
    told = [asdict(run) for run in runs]
    controls = {way: name_of(way) for way in CONTROLS}
    return {"format": FORMAT, "settings": asdict(settings), "controls": controls, "runs": told}


# --- what follows ---


def name_of(way: str, *, short: bool = False) -> str:
    """What tables or, short, pictures call a way to grow, or a model that does not grow."""
    return CONTROLS[way][short] if way in CONTROLS else way


def runs_of(runs: Sequence[Run], part: str, add: int, way: str) -> list[Run]:
    """Of all seeds; that which never grows belongs to every `add`."""
    return [run for run in runs if (run.part, run.add, run.way) == (part, 0 if way == NONE else add, way)]


def order(runs: Sequence[Run], add: int, step: int) -> dict[str, int]:
    """Ways to grow once, the best first, each with the number of seeds in which it beats the first."""
    losses = {way: [run.loss(step) for run in runs_of(runs, "once", add, way)] for way in WAYS}
    known = sorted((way for way in WAYS if losses[way]), key=lambda way: fmean(losses[way]))
    return {way: sum(own < best for own, best in zip(losses[way], losses[known[0]], strict=False)) for way in known}


def meeting(runs: Sequence[Run], add: int, leader: str, other: str) -> int | None:
    """The step from which on `other` is ahead of `leader` in at least one seed at every mark; None if it never is."""
    pairs = list(zip(runs_of(runs, "once", add, leader), runs_of(runs, "once", add, other), strict=False))
    met: int | None = None
    for step in sorted({point.step for run, _ in pairs for point in run.points}):
        if not any(two.loss(step) < one.loss(step) for one, two in pairs):
            met = None
        elif met is None:
            met = step
    return met
