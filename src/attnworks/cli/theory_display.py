"""Tables, sentences, results and figures of the experiments in theory."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from attnworks.cli.console import console, print_json
from attnworks.cli.conti_display import NO_PICTURES
from attnworks.core.errors import FolderError
from attnworks.core.folders import entries, new_folder, read_file
from attnworks.studies.conti import RESULTS
from attnworks.theory.experiments import (
    collapse,
    path_lengths,
    projection_error,
    softmax_gradient,
    two_keys,
    word_in_context,
)
from attnworks.theory.experiments.collapse import ALONE, SKIP, WIRINGS, draw_collapse
from attnworks.theory.experiments.figures import FIGURES
from attnworks.theory.experiments.path_lengths import draw_paths
from attnworks.theory.experiments.projection_error import draw_projection
from attnworks.theory.experiments.softmax_gradient import draw_gradient
from attnworks.theory.experiments.two_keys import draw_two_keys
from attnworks.theory.experiments.word_in_context import draw_context


class Study(NamedTuple):
    """An experiment: its options, what it computes, and how that is drawn, put into tables and told in sentences."""

    options: Callable[..., Any]
    run: Callable[[Any], Sequence[Any]]
    draw: Callable[[Any, Any, Path], None]
    tables: Callable[[Any, Any], list[Table]]
    told: Callable[[Any, Any], list[str]]


def run_theory(name: str, given: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Compute, write to `out` in one step if there is one, and print."""
    study = STUDIES[name]
    options = study.options(**given)
    if out is not None:
        _check_place(name, out)
    rows = study.run(options)
    report = {"experiment": name, "options": asdict(options), "rows": [asdict(row) for row in rows]}
    drawn = importlib.util.find_spec("matplotlib") is not None
    if out is not None:
        with new_folder(out) as scratch:
            (scratch / RESULTS).write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
            if drawn:
                study.draw(rows, options, scratch)
    if as_json:
        print_json(report)
        return
    console().print(*study.tables(rows, options), *study.told(rows, options), sep="\n")
    if out is not None:
        written = f"\nresults and figure in {out}" if drawn else f"\nresults in {out}\n{NO_PICTURES}"
        console().print(written, markup=False)


def _check_place(name: str, folder: Path) -> None:
    """New, empty, or with the results of the same experiment, which are made again."""
    if not folder.exists() or (folder.is_dir() and not entries(folder)):
        return
    ours = folder.is_dir() and all(path.name in (RESULTS, *FIGURES) for path in entries(folder))
    if not ours or _experiment_in(folder / RESULTS) != name:
        raise FolderError(
            asked=f"results of {name} in {folder}",
            expected=f"a new folder, or one with results of {name}",
            got="something else",
            remedy="choose another --out",
        )


def _experiment_in(path: Path) -> str | None:
    """Which experiment wrote a results file; None where there is no file."""
    try:
        return str(json.loads(read_file(path))["experiment"]) if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def _table(title: str, *headings: str, left: int = 1) -> Table:
    """The first columns are words, the others numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right")
    return table


def _number(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return "-"
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.0e}"


# --- collapse ---------------------------------------------------------------------------------------------------------


def collapse_tables(rows: Sequence[collapse.Row], options: collapse.Options) -> list[Table]:
    layers = sorted({row.layer for row in rows})
    shown = layers if len(layers) <= 10 else sorted({*layers[:5], *layers[5 :: len(layers) // 5], layers[-1]})
    seeds = f", median of {options.seeds} seeds" if options.seeds > 1 else ""
    spread = _table(f"Relative residual after each layer{seeds}", "wiring", *map(str, shown))
    for wiring in WIRINGS:
        spread.add_row(wiring, *(_small(row.relative_residual) for row in _of(rows, wiring) if row.layer in shown))
    bounds = _table(
        "What the theorems say", "after layer", "distance", "bound", "from input", "residual", "printed", "from input",
        "skip: at least", "distance", "at most", left=0,
    )  # fmt: skip
    for alone, skip in zip(_of(rows, ALONE), _of(rows, SKIP), strict=True):
        if alone.layer in shown:
            bounds.add_row(
                str(alone.layer), _small(alone.diameter, alone.rounding), _number(alone.diameter_bound),
                _number(alone.diameter_bound_from_input), _small(alone.residual, alone.rounding),
                _number(alone.printed_bound), _number(alone.printed_bound_from_input),
                *map(_number, (skip.skip_low, skip.diameter, skip.skip_high)),
            )  # fmt: skip
    return [spread, bounds]


def _of(rows: Sequence[collapse.Row], wiring: str) -> list[collapse.Row]:
    return [row for row in rows if row.wiring == wiring]


def _small(value: float, rounding: float = 2e-14) -> str:
    return "≈ 0" if value < rounding else _number(value)


def collapse_told(rows: Sequence[collapse.Row], options: collapse.Options) -> list[str]:
    """Which wirings collapse and when, and whether the bounds foretell it."""
    gone: list[str] = []
    kept: list[str] = []
    for wiring in WIRINGS:
        found = _of(rows, wiring)
        first = next((row.layer for row in found if row.relative_residual < 1e-6), None)
        last = f"{wiring} {_number(found[-1].relative_residual)}"
        kept.append(last) if first is None else gone.append(f"{wiring} after layer {first}")
    told = [f"All tokens the same within a millionth: {'; '.join(gone)}." if gone else "No wiring collapses."]
    if kept:
        told.append(f"Relative residual at the end of the others: {'; '.join(kept)}.")
    alone = _of(rows, ALONE)
    chained = [row.diameter_bound_from_input for row in alone if row.diameter_bound_from_input is not None]
    falls = not chained or chained[-1] < alone[0].diameter
    does = "falls" if falls else "does not fall"
    told.append(
        f"From the input alone, the bound on the distance {does} with depth; the printed one falls where c ρ² is below"
        f" 1, and here it is {_number(alone[1].printed_size)}."
    )
    return told


# --- paths ------------------------------------------------------------------------------------------------------------


def paths_tables(rows: Sequence[path_lengths.Row], options: path_lengths.Options) -> list[Table]:
    seeds = f", mean of {options.seeds} seeds" if options.seeds > 1 else ""
    table = _table(
        f"Paths by length; L = {options.layers}, H = {options.heads}, with skip{seeds}; sizes over the output's",
        "length", "paths", "size of their sum", "size for each", "relative residual", "missing without longer ones",
        left=0,
    )  # fmt: skip
    for row in rows:
        numbers = (row.size, row.size_per_path, row.relative_residual, row.missing)
        table.add_row(str(row.length), _count(row.count), *map(_number, numbers))
    return [table]


def _count(number: int) -> str:
    return f"{number:,}" if number < 1e9 else f"{number:.1e}"


def paths_told(rows: Sequence[path_lengths.Row], options: path_lengths.Options) -> list[str]:
    most, largest = max(rows, key=lambda row: row.count), max(rows, key=lambda row: row.size)
    first, last, total = rows[0], rows[-1], sum(row.count for row in rows)
    return [
        f"Most paths have length {most.length} ({_count(most.count)} of {_count(total)}); the largest sum is that of"
        f" length {largest.length}.",
        f"Relative residual from length 0 to {last.length}: {_number(first.relative_residual)} to "
        f"{_number(last.relative_residual)}. All together are the output, within {last.missing:.0e} of its size.",
    ]


# --- two keys ---------------------------------------------------------------------------------------------------------


def two_keys_tables(rows: Sequence[two_keys.Row], options: two_keys.Options) -> list[Table]:
    table = _table(
        f"{options.keys} keys, {options.draws:,} draws: mean weights, variance over |v_a - v_b|²; closed forms in ()",
        "β", "one head: a", "b", "variance", "two heads: a", "b", "variance", "a below ½", left=0,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row.beta:g}", *(_pair(weight.mean, weight.expected) for weight in (row.one_a, row.one_b)),
            _pair(row.one_variance, row.one_variance_expected),
            *(_pair(weight.mean, weight.expected) for weight in (row.two_a, row.two_b)),
            _pair(row.two_variance, row.two_variance_expected), _pair(row.failure, row.failure_expected),
        )  # fmt: skip
    return [table]


def _pair(measured: float, expected: float) -> str:
    return f"{measured:.3f} ({expected:.3f})"


def two_keys_told(rows: Sequence[two_keys.Row], options: two_keys.Options) -> list[str]:
    last = rows[-1]
    a = last.one_a
    return [
        f"At β = {last.beta:g} one head gives a {a.mean:.2f} on average ({a.steady:.2f} if no key varied), and in eight"
        f" of ten draws something from {a.low:.2f} to {a.high:.2f}.",
        f"Two heads have {last.two_variance / last.one_variance:.1%} of its variance; the head that asks for a gives it"
        f" less than one half in {last.failure:.1%} of the draws.",
    ]


# --- projection -------------------------------------------------------------------------------------------------------


def projection_tables(rows: Sequence[projection_error.Row], options: projection_error.Options) -> list[Table]:
    shown = [k for k in options.dimensions if k in (8, 32, options.published_k, 4 * options.tokens, 8 * options.tokens)]
    shown = shown or options.dimensions
    table = _table(
        f"Relative error of P V for {options.tokens} tokens over {options.draws} draws (expected), and how often it is"
        f" at most {options.epsilon:g} at the printed k",
        "values", "attention", *(f"k = {k}" for k in shown), f"k = {options.published_k}", left=2,
    )  # fmt: skip
    for values in projection_error.MEANS:
        for attention in dict.fromkeys(row.attention for row in rows):
            found = {row.k: row for row in rows if (row.values, row.attention) == (values, attention)}
            cells = [f"{found[k].error:.2f} ({found[k].expected:.2f})" for k in shown]
            table.add_row(values, attention, *cells, f"{found[options.published_k].reached:.0%}")
    return [table]


def projection_told(rows: Sequence[projection_error.Row], options: projection_error.Options) -> list[str]:
    at = [row for row in rows if row.k == options.published_k]
    kept = _named(row for row in at if row.reached >= 0.9)
    lost = _named(row for row in at if row.reached <= 0.1)
    told = [f"The printed k = 5 ln n / (ε² - ε³) = {options.published_k} promises an error of {options.epsilon:g}."]
    if lost:
        told.append(f"It is missed in nine draws of ten or more with {lost}.")
    if kept:
        told.append(f"It is kept in nine draws of ten or more with {kept}.")
    return told


def _named(rows: Iterable[projection_error.Row]) -> str:
    by_values: dict[str, list[str]] = {}
    for row in rows:
        by_values.setdefault(row.values, []).append(row.attention)
    return "; ".join(f"values {values}: {', '.join(found)}" for values, found in by_values.items())


# --- gradient ---------------------------------------------------------------------------------------------------------


def gradient_tables(rows: Sequence[softmax_gradient.Row], options: softmax_gradient.Options) -> list[Table]:
    scales = list(softmax_gradient.SCALES)
    table = _table(
        f"Jacobian of softmax over {options.tokens} keys: median norm, and share of rows below "
        f"{softmax_gradient.NEARLY_NONE:g}",
        "k", *(f"{scale}: {what}" for scale in scales for what in ("norm", "lost")), left=0,
    )  # fmt: skip
    for width in sorted({row.width for row in rows}):
        found = {row.scale: row for row in rows if row.width == width}
        cells = [cell for scale in scales for cell in (_number(found[scale].median), f"{found[scale].share_lost:.1%}")]
        table.add_row(str(width), *cells)
    return [table]


def gradient_told(rows: Sequence[softmax_gradient.Row], options: softmax_gradient.Options) -> list[str]:
    by = {scale: [row for row in rows if row.scale == scale] for scale in softmax_gradient.SCALES}
    bare, root = by["unscaled"], by["1/sqrt(k)"]
    less = [plain.width for plain, scaled in zip(bare, root, strict=True) if plain.median < scaled.median]
    spread = max(row.median for row in root) / min(row.median for row in root)
    return [
        f"Unscaled softmax lets less through than 1/sqrt(k) at k = {', '.join(map(str, less))}."
        if less
        else "Unscaled softmax lets no less through than 1/sqrt(k) at these widths.",
        f"With 1/sqrt(k) the median norm changes by a factor of {spread:.2f} over all widths; with 1/k attention at "
        f"k = {bare[-1].width} has {by['1/k'][-1].entropy:.3%} of the entropy of uniform attention.",
    ]


# --- context ----------------------------------------------------------------------------------------------------------


def context_tables(rows: Sequence[word_in_context.Row], options: word_in_context.Options) -> list[Table]:
    table = _table(
        f"Where “{word_in_context.WORD}” lands", "maps", "sentence", "weights", "from", "to", "distance", left=3
    )
    for row in rows:
        weights = ", ".join(f"{word} {weight:.2f}" for word, weight in row.weights.items())
        start = row.values[word_in_context.WORD]
        table.add_row(row.space, row.sentence, weights, _point(start), _point(row.lands), f"{row.moved:.2f}")
    return [table]


def _point(point: tuple[float, float]) -> str:
    return f"({point[0]:.2f}, {point[1]:.2f})"


def context_told(rows: Sequence[word_in_context.Row], options: word_in_context.Options) -> list[str]:
    told: list[str] = []
    for space in dict.fromkeys(row.space for row in rows):
        one, other = [row for row in rows if row.space == space][:2]
        apart = ((one.lands[0] - other.lands[0]) ** 2 + (one.lands[1] - other.lands[1]) ** 2) ** 0.5
        told.append(f"{space}: {apart:.2f}")
    return [f"How far apart two sentences take the same word, with {'; with '.join(told)}."]


STUDIES = {
    "collapse": Study(collapse.Options, collapse.run, draw_collapse, collapse_tables, collapse_told),
    "paths": Study(path_lengths.Options, path_lengths.run, draw_paths, paths_tables, paths_told),
    "two-keys": Study(two_keys.Options, two_keys.run, draw_two_keys, two_keys_tables, two_keys_told),
    "projection": Study(
        projection_error.Options, projection_error.run, draw_projection, projection_tables, projection_told
    ),
    "gradient": Study(softmax_gradient.Options, softmax_gradient.run, draw_gradient, gradient_tables, gradient_told),
    "context": Study(word_in_context.Options, word_in_context.run, draw_context, context_tables, context_told),
}
