"""The tables, sentences and pictures of `attnworks experiment growth`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from rich.box import SIMPLE_HEAD
from rich.table import Table

from attnworks.cli.console import console, print_json, progress_console
from attnworks.cli.conti_display import NO_PICTURES
from attnworks.cli.reshape_run import watching
from attnworks.cli.train_display import stop_on_signal
from attnworks.studies.growth import (
    ALL_WAYS,
    FINAL_WIDTH,
    FROM_SCRATCH,
    PREDICTING_WAYS,
    START_WIDTH,
    WAYS,
    WAYS_ALONG,
    GrowthRun,
    GrowthStudySettings,
    growth_report,
    overtaking_step,
    rank_ways,
    run_growth_study,
    runs_of_way,
    way_name,
)
from attnworks.studies.growth_pictures import draw_growth, draw_parameters, draw_time


def show_growth(
    folder: Path,
    settings: GrowthStudySettings,
    seeds: Sequence[int],
    adds: Sequence[int],
    ways: Sequence[str],
    as_json: bool,
) -> None:
    with stop_on_signal() as stopped, watching("study", quiet=as_json) as tell:
        runs = run_growth_study(folder, settings, seeds, adds, ways, tell=tell, should_stop=lambda: bool(stopped))
    if stopped:
        progress_console().print("Stopped; run the same command again to continue.")
        sys.exit(130)
    pictures = _draw(folder, settings, runs)
    if as_json:
        print_json(growth_report(settings, runs))
        return
    for add in adds:
        console().print(once_table(runs, settings, add), *once_told(runs, settings, add), sep="\n")
    if any(run.part == "along" for run in runs):
        console().print("", along_table(runs, settings), *along_told(runs, settings), sep="\n")
    console().print(f"\n{len(pictures)} pictures in {folder}" if pictures else NO_PICTURES, markup=False)


def _draw(folder: Path, settings: GrowthStudySettings, runs: Sequence[GrowthRun]) -> list[Path]:
    if importlib.util.find_spec("matplotlib") is None:
        return []
    drawn: list[Path] = []
    if any(run.part == "once" and run.add for run in runs):
        drawn.append(folder / "growth.svg")
        draw_growth(runs, drawn[-1])
    if any(run.part == "along" for run in runs):
        drawn += [folder / "parameters.svg", folder / "time.svg"]
        draw_parameters(runs, settings, drawn[-2])
        draw_time(runs, drawn[-1])
    return drawn


# --- growing once ---


def once_table(runs: Sequence[GrowthRun], settings: GrowthStudySettings, add: int) -> Table:
    """Held-out losses at once and later, and what was predicted."""
    seeds = len({run.seed for run in runs})
    over = f"; mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    title = f"d_k {START_WIDTH} -> {START_WIDTH + add}, once the narrow model is stuck: held-out loss{over}"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("way")
    for mark in settings.marks:
        table.add_column(f"+{mark} steps" if mark else "at once", justify="right")
    for heading in ("predicted", "fall / real", "grow s"):
        table.add_column(heading, justify="right")
    for way in ALL_WAYS:
        found = runs_of_way(runs, "once", add, way)
        if found:
            losses = [_spread(run.loss(mark) for run in found) for mark in settings.marks]
            growing = [_mean(grown.seconds for run in found for grown in run.growths)] if way in WAYS else [""]
            table.add_row(_name(way, found), *losses, *_predicted(way, found), *growing)
    return table


def _predicted(way: str, runs: Sequence[GrowthRun]) -> list[str]:
    """The loss at once by the prediction, and the falls compared, where there was one."""
    told = [(run.loss(0), grown) for run in runs for grown in run.growths if grown.fall is not None]
    if way not in PREDICTING_WAYS or not told:
        return ["", ""]
    losses = _spread(grown.before - grown.fall for _, grown in told if grown.fall is not None)
    ratios = [
        grown.fall / (grown.before - after) for after, grown in told if grown.fall is not None and grown.before != after
    ]
    return [losses, _spread(ratios, 2)]


def once_told(runs: Sequence[GrowthRun], settings: GrowthStudySettings, add: int) -> list[str]:
    """What is true of the table, in sentences."""
    if len([way for way in WAYS if runs_of_way(runs, "once", add, way)]) < 2:
        return []
    ahead = "; ".join(_ahead(runs, add, mark) for mark in settings.marks)
    if len({run.seed for run in runs}) == 1:
        return [f"Ahead: {ahead}. One seed does not say what is chance."]
    leader = next(iter(rank_ways(runs, add, 0)))
    meets = {
        way: overtaking_step(runs, add, leader, way) for way in rank_ways(runs, add, settings.steps) if way != leader
    }
    level = [f"{way} from step {step}" for way, step in meets.items() if step is not None]
    behind = [way for way, step in meets.items() if step is None]
    told = [f"Ahead: {ahead}."]
    if level:
        told.append(f"No longer behind {leader} in every seed: {', '.join(level)}.")
    if behind:
        told.append(f"Behind {leader} in every seed to the end: {', '.join(behind)}.")
    return told


def _ahead(runs: Sequence[GrowthRun], add: int, mark: int) -> str:
    ranked = rank_ways(runs, add, mark)
    first, second = list(ranked)[:2]
    better = [f"{way} beats it in {seeds}" for way, seeds in ranked.items() if seeds]
    seeds = len(runs_of_way(runs, "once", add, first))
    when = f"after {mark}" if mark else "at once"
    if better:
        return f"{when} {first}, but of {seeds} seeds {', '.join(better)}"
    return f"{when} {first}, before {second}" + (f", in all {seeds} seeds" if seeds > 1 else "")


# --- growing along the way ---


def along_table(runs: Sequence[GrowthRun], settings: GrowthStudySettings) -> Table:
    """Held-out losses at the end of every width, at equal parameters and steps."""
    title = f"d_k {START_WIDTH} -> {FINAL_WIDTH} along the way, {settings.every} steps for each width"
    title += ": held-out loss at its end"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("way")
    for width in range(START_WIDTH + 1, FINAL_WIDTH + 1):
        table.add_column(f"d_k = {width}", justify="right")
    for heading in ("parameters", "steps", "seconds", "of them growing"):
        table.add_column(heading, justify="right")
    for way in WAYS_ALONG:
        found = runs_of_way(runs, "along", FINAL_WIDTH - START_WIDTH, way)
        if found:
            widths = [_at_width(runs, settings, way, width) for width in range(START_WIDTH + 1, FINAL_WIDTH + 1)]
            last = [run.points[-1] for run in found]
            growing = _mean(sum(grown.seconds for grown in run.growths) for run in found) if way != FROM_SCRATCH else ""
            table.add_row(
                _name(way, found), *map(_spread, widths), f"{fmean(point.parameters for point in last):,.0f}",
                f"{last[0].step:,}", _mean(point.seconds for point in last), growing,
            )  # fmt: skip
    return table


def _at_width(runs: Sequence[GrowthRun], settings: GrowthStudySettings, way: str, width: int) -> list[float]:
    """At the end of a width, before growing further; models from scratch had it from the start."""
    add = (width if way == FROM_SCRATCH else FINAL_WIDTH) - START_WIDTH
    end = settings.every * width
    return [
        next(point.loss for point in run.points if point.step == end) for run in runs_of_way(runs, "along", add, way)
    ]


def along_told(runs: Sequence[GrowthRun], settings: GrowthStudySettings) -> list[str]:
    """Which way is ahead at each width, and how often growth was refused."""
    told: list[str] = []
    for width in range(START_WIDTH + 1, FINAL_WIDTH + 1):
        losses = {way: found for way in WAYS_ALONG if (found := _at_width(runs, settings, way, width))}
        first = min(losses, key=lambda way: fmean(losses[way]))
        seeds = list(zip(*losses.values(), strict=False))
        lowest = sum(min(found) == own for found, own in zip(seeds, losses[first], strict=False))
        told.append(f"at d_k = {width} {way_name(first)}, lowest in {lowest} of {len(seeds)} seeds")
    refusals = [
        f"{way}, seed {run.seed}, step {grown.step}: not grown, {grown.refused}."
        for way in WAYS_ALONG
        for run in runs_of_way(runs, "along", FINAL_WIDTH - START_WIDTH, way)
        for grown in run.growths
        if grown.refused is not None
    ]
    return [f"Lowest mean: {'; '.join(told)}.", *refusals]


def _name(way: str, runs: Sequence[GrowthRun]) -> str:
    refused = sum(grown.refused is not None for run in runs for grown in run.growths)
    times = sum(len(run.growths) for run in runs)
    return way_name(way) + (f" (refused {refused} of {times} times)" if refused else "")


def _spread(numbers: Iterable[float], digits: int = 3) -> str:
    values = list(numbers)
    if not values:
        return "-"
    mean, apart = fmean(values), stdev(values) if len(values) > 1 else None
    small = abs(mean) < 0.01
    shown = f"{mean:.1e}" if small else f"{mean:.{digits}f}"
    if apart is not None:
        shown += f" ±{apart:.0e}" if small else f" ±{apart:.{digits}f}"
    return shown.replace("e-0", "e-")


def _mean(numbers: Iterable[float]) -> str:
    return f"{fmean(numbers):.1f}"
