"""The results of the studies, shown to people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from statistics import fmean, stdev

from rich.console import Group, RenderableType
from rich.text import Text

from attnworks.studies.conti import NUM_BEAMS, ContiResults
from attnworks.studies.growth import (
    ALL_WAYS,
    FINAL_WIDTH,
    FROM_SCRATCH,
    PREDICTING_WAYS,
    START_WIDTH,
    WAYS,
    WAYS_ALONG,
    GrowthResults,
    GrowthRun,
    GrowthStudySettings,
    overtaking_step,
    rank_ways,
    runs_of_way,
    way_name,
)
from attnworks.studies.long_range import LongRangeResults
from attnworks.studies.long_range_cell import Cell
from attnworks.studies.results import StudyResults
from attnworks.studies.structure import StructureResults, count_forms
from attnworks.theory.experiments.contract import ResultTable
from attnworks.theory.experiments.render import FittingTable

_MEGABYTE = 2**20


@singledispatch
def study_shown(results: StudyResults) -> RenderableType:
    """Tables of the results of a study, and sentences on them."""
    return repr(results)


def _score(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


# --- conti ---


@study_shown.register
def _(results: ContiResults) -> FittingTable:
    title = f"Test split, best checkpoint, beam {NUM_BEAMS}"
    table = ResultTable(title, "model", "parameters", "steps", "minutes", "held-out loss", "BLEU", "chrF")
    for row in results:
        scores = _score(row.loss, 3), _score(row.bleu), _score(row.chrf)
        table.add_row(row.model, f"{row.parameters:,}", f"{row.steps:,}", f"{row.minutes:.1f}", *scores)
    if results.dictionary_bleu is not None:
        table.add_row("word-for-word dictionary", "", "", "", "", _score(results.dictionary_bleu), "")
    return FittingTable(table)


# --- structure ---


@study_shown.register
def _(results: StructureResults) -> Group:
    heads = ResultTable("Encoder heads", "model", "head", "role", "closest form", "its error", left=4)
    for model, found in results["models"].items():
        for head in found["heads"]:
            heads.add_row(model, head["head"], head["role"], head["form"], _score(head["distance"], 2))
    title = "Heads of conti-8h in structured forms"
    costs = ResultTable(title, "heads", "one more", "its form", "loss", "BLEU", "healed loss", "healed BLEU", left=3)
    for count, row in enumerate(results["projected"]):
        last = row["heads"][-1] if count else ""
        losses = _score(row["loss"], 3), _score(row["bleu"]), _score(row["healed_loss"], 3), _score(row["healed_bleu"])
        costs.add_row(str(count), last, results["alone"][last]["form"] if last else "", *losses)
    sentences: list[Text] = []
    for model, found in results["models"].items():
        forms = ", ".join(f"{number} {form}" for form, number in count_forms(results, model).items())
        sentences.append(Text(f"{model}: BLEU {_score(found['bleu'])}; closest forms of its encoder heads: {forms}"))
    return Group(FittingTable(heads), FittingTable(costs), *sentences)


# --- long range ---


@study_shown.register
def _(results: LongRangeResults) -> RenderableType:
    if not results:
        return "No cells."
    tasks, mechanisms = (list(dict.fromkeys(getattr(cell, name) for cell in results)) for name in ("task", "mechanism"))
    basis = "dense" if "dense" in mechanisms else mechanisms[0]
    table = ResultTable("", "mechanism", *(heading for task in tasks for heading in (task, "time", "memory")))

    def cells(task: str, mechanism: str) -> list[Cell]:
        return [cell for cell in results if (cell.task, cell.mechanism) == (task, mechanism)]

    for mechanism in mechanisms:
        row = [text for task in tasks for text in _cell_texts(cells(task, mechanism), cells(task, basis))]
        table.add_row(mechanism, *row)
    chances = [next(cell.chance for cell in results if cell.task == task) for task in tasks]
    table.add_row("chance", *(text for chance in chances for text in (f"{100 * chance:.1f}", "", "")))
    seeds = len({cell.seed for cell in results})
    spread = "95 % interval over held-out sequences" if seeds == 1 else f"mean, and range over {seeds} seeds"
    about = (
        f"{results.settings.length} tokens; accuracy in % ({spread}), time of a training step relative to {basis}, "
        "its peak memory in MB"
    )
    return Group(Text(about), FittingTable(table))


def _cell_texts(cells: Sequence[Cell], base: Sequence[Cell]) -> tuple[str, str, str]:
    """Accuracy with its interval or range, time relative to that of other cells, and memory."""
    if not cells:
        return "-", "-", "-"
    accuracies = [cell.accuracy for cell in cells]
    low, high = (cells[0].low, cells[0].high) if len(cells) == 1 else (min(accuracies), max(accuracies))
    seconds, base_seconds = (_seconds_per_step(of) for of in (cells, base))
    return (
        f"{100 * fmean(accuracies):.1f} ({100 * low:.0f}-{100 * high:.0f})",
        "-" if seconds is None or base_seconds is None else f"{seconds / base_seconds:.2f}",
        f"{max(cell.step_bytes for cell in cells) / _MEGABYTE:.0f}",
    )


def _seconds_per_step(cells: Sequence[Cell]) -> float | None:
    known = [cell.seconds_per_step for cell in cells if cell.seconds_per_step is not None]
    return fmean(known) if known else None


# --- growth ---


@study_shown.register
def _(results: GrowthResults) -> Group:
    settings, parts = results.settings, list[RenderableType]()
    for add in sorted({run.add for run in results if run.part == "once" and run.add}):
        parts += [_once_table(results, settings, add), *map(Text, once_sentences(results, settings, add))]
    if any(run.part == "along" for run in results):
        parts += ["", _along_table(results, settings), *map(Text, _along_sentences(results, settings))]
    return Group(*parts)


def _once_table(runs: Sequence[GrowthRun], settings: GrowthStudySettings, add: int) -> FittingTable:
    """Held-out losses at once and later, and what was predicted."""
    seeds = len({run.seed for run in runs})
    over = f"; mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    title = f"d_k {START_WIDTH} -> {START_WIDTH + add}, once the narrow model is stuck: held-out loss{over}"
    marks = [f"+{mark} steps" if mark else "at once" for mark in settings.marks]
    table = ResultTable(title, "way", *marks, "predicted", "fall / real", "grow s")
    for way in ALL_WAYS:
        found = runs_of_way(runs, "once", add, way)
        if found:
            losses = [_spread(run.loss(mark) for run in found) for mark in settings.marks]
            growing = [_mean(grown.seconds for run in found for grown in run.growths)] if way in WAYS else [""]
            table.add_row(_name(way, found), *losses, *_predicted(way, found), *growing)
    return FittingTable(table)


def _predicted(way: str, runs: Sequence[GrowthRun]) -> list[str]:
    """The loss at once by the prediction, and the falls compared, where there was one."""
    events = [(run.loss(0), grown.before, grown.fall) for run in runs for grown in run.growths]
    falls = [(after, before, fall) for after, before, fall in events if fall is not None]
    if way not in PREDICTING_WAYS or not falls:
        return ["", ""]
    losses = _spread(before - fall for _, before, fall in falls)
    ratios = [fall / (before - after) for after, before, fall in falls if before != after]
    return [losses, _spread(ratios, 2)]


def once_sentences(runs: Sequence[GrowthRun], settings: GrowthStudySettings, add: int) -> list[str]:
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
    sentences = [f"Ahead: {ahead}."]
    if level:
        sentences.append(f"No longer behind {leader} in every seed: {', '.join(level)}.")
    if behind:
        sentences.append(f"Behind {leader} in every seed to the end: {', '.join(behind)}.")
    return sentences


def _ahead(runs: Sequence[GrowthRun], add: int, mark: int) -> str:
    ranked = rank_ways(runs, add, mark)
    first, second = list(ranked)[:2]
    better = [f"{way} beats it in {seeds}" for way, seeds in ranked.items() if seeds]
    seeds = len(runs_of_way(runs, "once", add, first))
    when = f"after {mark}" if mark else "at once"
    if better:
        return f"{when} {first}, but of {seeds} seeds {', '.join(better)}"
    return f"{when} {first}, before {second}" + (f", in all {seeds} seeds" if seeds > 1 else "")


def _along_table(runs: Sequence[GrowthRun], settings: GrowthStudySettings) -> FittingTable:
    """Held-out losses at the end of every width, at equal parameters and steps."""
    title = f"d_k {START_WIDTH} -> {FINAL_WIDTH} along the way, {settings.every} steps for each width"
    widths = [f"d_k = {width}" for width in range(START_WIDTH + 1, FINAL_WIDTH + 1)]
    headings = ("parameters", "steps", "seconds", "of them growing")
    table = ResultTable(f"{title}: held-out loss at its end", "way", *widths, *headings)
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
    return FittingTable(table)


def _at_width(runs: Sequence[GrowthRun], settings: GrowthStudySettings, way: str, width: int) -> list[float]:
    """At the end of a width, before growing further; models from scratch had it from the start."""
    add = (width if way == FROM_SCRATCH else FINAL_WIDTH) - START_WIDTH
    end = settings.every * width
    return [
        next(point.loss for point in run.points if point.step == end) for run in runs_of_way(runs, "along", add, way)
    ]


def _along_sentences(runs: Sequence[GrowthRun], settings: GrowthStudySettings) -> list[str]:
    """Which way is ahead at each width, and how often growth was refused."""
    sentences: list[str] = []
    for width in range(START_WIDTH + 1, FINAL_WIDTH + 1):
        losses = {way: found for way in WAYS_ALONG if (found := _at_width(runs, settings, way, width))}
        first = min(losses, key=lambda way: fmean(losses[way]))
        seeds = list(zip(*losses.values(), strict=False))
        lowest = sum(min(found) == own for found, own in zip(seeds, losses[first], strict=False))
        sentences.append(f"at d_k = {width} {way_name(first)}, lowest in {lowest} of {len(seeds)} seeds")
    refusals = [
        f"{way}, seed {run.seed}, step {grown.step}: not grown, {grown.refused}."
        for way in WAYS_ALONG
        for run in runs_of_way(runs, "along", FINAL_WIDTH - START_WIDTH, way)
        for grown in run.growths
        if grown.refused is not None
    ]
    return [f"Lowest mean: {'; '.join(sentences)}.", *refusals]


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
