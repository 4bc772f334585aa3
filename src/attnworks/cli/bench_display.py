"""What `attnworks bench attention` reads and shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from attnworks.attention import MECHANISMS, MechanismSpec
from attnworks.attention.benchmark.versus_dense import (
    BOTH,
    FILLED_FIELDS,
    FORWARD,
    BenchmarkResult,
    BenchmarkRow,
    BenchmarkTask,
    benchmark,
    benchmark_steps,
    benchmark_verdict,
    check_causal,
)
from attnworks.attention.contract import parse_many
from attnworks.cli.console import console, print_json, progress_console
from attnworks.cli.count import readable
from attnworks.core.checks import number
from attnworks.core.display import counted
from attnworks.core.errors import UsageError
from attnworks.core.plotting import check_picture, draw_times

ALL = "all"
LEFT_OUT = {"graph"}
"""Not in `all`: graphs are given from Python, and without one this is dense."""
LONGEST = 2**20
DAY = 86_400


def bench_attention(
    lengths: str,
    mechanisms: str,
    task: BenchmarkTask,
    *,
    limit: float,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Check everything that was asked for, measure, show."""
    places = read_lengths(lengths)
    specs = read_specs(mechanisms, task)
    check_causal([str(spec) for spec in specs], task)
    check_limit(limit)
    if plot is not None:
        check_picture(plot)
    with _progress(benchmark_steps(specs, places), quiet=as_json) as advance:
        comparison = benchmark(specs, places, task, limit=limit, advance=advance, **options)
    if as_json:
        print_json(_as_data(comparison))
    else:
        _show(comparison)
    panels = _panels(comparison)
    if plot is not None and panels:
        draw_times(panels, plot)
    if plot is not None and not as_json:
        console().print(f"Picture {plot}" if panels else "No picture: everything was skipped.", markup=False)


def read_lengths(text: str) -> list[int]:
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= LONGEST for part in parts):
        raise UsageError(
            f"--n {text}", f"whole numbers from 1 to {LONGEST:,}", repr(text), "for instance --n 1024,4096"
        )
    return sorted({int(part) for part in parts})


def check_limit(seconds: float) -> None:
    number("--limit", seconds, 0, DAY, above=True, remedy="--limit is in seconds, up to a day")


def read_specs(text: str, task: BenchmarkTask) -> list[MechanismSpec]:
    """A list of mechanisms; `all` are those that run on Q, K and V alone under the task's mask."""
    if text.strip() == ALL:
        kinds = {name: MECHANISMS[name] for name in MECHANISMS}
        return [
            MechanismSpec(name)
            for name, kind in kinds.items()
            if name not in LEFT_OUT
            and kind.needs <= FILLED_FIELDS
            and (not task.causal or "causal" in kind.supported_masks)
        ]
    return parse_many(text)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A bar drawn only between measurements, so that drawing takes no time from them; in a pipe, a line each."""
    screen = progress_console()
    if quiet or not screen.is_terminal:
        yield (lambda text: None) if quiet else (lambda text: screen.print(text, style="dim", markup=False))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=screen, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("first runs", total=total)
        bar.refresh()

        def advance(text: str) -> None:
            bar.update(task, advance=1, description=f"done: {text}")
            bar.refresh()

        yield advance


def _show(comparison: BenchmarkResult) -> None:
    task, screen = comparison.task, console()
    peak = max(comparison.roof.values()) / 1e9
    heads, threads = counted(task.heads, "head"), counted(comparison.threads, "thread")
    screen.print(
        f"[bold]{heads} of width {task.width}[/], {task.dtype}{', causal' * task.causal}, {threads}; "
        f"a large matrix product reaches {peak:.0f} Gflop/s"
    )
    passes = [name for name in (FORWARD, BOTH) if any(name in (row.seconds | row.skipped) for row in comparison.rows)]
    table = Table(box=SIMPLE_HEAD)
    table.add_column("mechanism", overflow="fold")
    for heading in ("n", *(f"{name} ms" for name in passes), "x dense", "of peak", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for n in dict.fromkeys(row.n for row in comparison.rows):
        table.add_section()
        for row in (row for row in comparison.rows if row.n == n):
            table.add_row(Text(row.mechanism), f"{n:,}", *_cells(row, passes))
    screen.print(table)
    if len(passes) > 1:
        screen.print("[dim]Pairs are forward / forward and backward.")
    for row in comparison.rows:
        for name, why in row.skipped.items():
            screen.print(f"{row.mechanism} at n = {row.n:,}, {name}: skipped, {why}.", markup=False)
    screen.print(benchmark_verdict(comparison), markup=False)


def _cells(row: BenchmarkRow, passes: list[str]) -> list[str]:
    def each(figures: Mapping[str, Any], write: Callable[[Any], str]) -> str:
        known = (figures.get(name) for name in passes)
        return " / ".join("-" if figure is None else write(figure) for figure in known)

    return [
        *(f"{1e3 * row.seconds[name]:,.2f}" if name in row.seconds else "-" for name in passes),
        each(row.faster, lambda times: f"{times:.2f}"),
        each(row.share, lambda share: f"{share:.0%}"),
        each(row.memory, readable),
    ]


def _as_data(comparison: BenchmarkResult) -> dict[str, Any]:
    return {
        **{name: value for name, value in comparison.task._asdict().items() if name != "n"},
        "threads": comparison.threads,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "matrix_product_flops": comparison.roof,
        "rows": [asdict(row) for row in comparison.rows],
        "verdict": benchmark_verdict(comparison),
    }


def _panels(comparison: BenchmarkResult) -> dict[str, dict[str, dict[int, float]]]:
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for row in comparison.rows:
        for name, seconds in row.seconds.items():
            panels.setdefault(name, {}).setdefault(row.mechanism, {})[row.n] = seconds
    return panels
