"""`attnworks bench`: how fast things are on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnworks.cli.options import SuggestingGroup, json_option, prepare, seed_option, threads_option

if TYPE_CHECKING:
    from rich.table import Table

    from attnworks.attention import MechanismSpec
    from attnworks.attention.benchmark.versus_dense import BenchmarkResult, BenchmarkRow, BenchmarkTask

ALL = "all"
LEFT_OUT = {"graph"}
"""Mechanisms that `all` leaves out: graphs are passed in Python, and without one `graph` is dense."""
LONGEST = 2**20
FIGURES = ("ms", "x dense", "of peak", "memory")
DAY = 86_400


@click.group(cls=SuggestingGroup)
def bench() -> None:
    """Measure time and memory of attention on this machine.

    \b
    Examples:
      attnworks bench attention --length 1024,4096 --mechanisms window,linear
      attnworks bench attention --mechanisms all --causal --no-backward --plot times.svg
    """


@bench.command()
@click.option(
    "--length",
    default="1024,4096",
    show_default=True,
    metavar="N,...",
    help="Sequence lengths to measure, comma-separated.",
)
@click.option(
    "--mechanisms",
    default=ALL,
    show_default=True,
    metavar="SPEC,...",
    help="Mechanisms to measure, comma-separated, with options if needed; dense is always included.",
)
@click.option("--num-heads", type=click.IntRange(1), metavar="N", default=8, show_default=True, help="Number of heads.")
@click.option(
    "--width",
    type=click.IntRange(1),
    metavar="N",
    default=64,
    show_default=True,
    help="Width of queries, keys and values per head.",
)
@click.option("--causal", is_flag=True, help="Hide later positions (causal attention).")
@click.option("--backward/--no-backward", default=True, show_default=True, help="Measure the backward pass as well.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    metavar="N",
    default=5,
    show_default=True,
    help="Rounds of timing; every mechanism runs once per round.",
)
@click.option(
    "--limit",
    type=float,
    metavar="N",
    default=20.0,
    show_default=True,
    help="Skip measurements that would take longer than N seconds.",
)
@click.option(
    "--dtype",
    type=click.Choice(("float32", "float64", "bfloat16")),
    default="float32",
    show_default=True,
    help="Number type of the inputs.",
)
@threads_option()
@seed_option
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Write a picture of time against length to this file.",
)
@json_option
def attention(
    length: str,
    mechanisms: str,
    num_heads: int,
    width: int,
    causal: bool,
    backward: bool,
    rounds: int,
    limit: float,
    dtype: str,
    plot: Path | None,
    **options: Any,
) -> None:
    """Compare attention mechanisms with dense attention.

    All mechanisms take turns on the same inputs, on the processor. The table gives the time of a forward pass, and of
    forward and backward together; how many times faster than dense (median of the ratios inside the rounds); the share
    of what this machine reaches in a large matrix product; and the peak memory above the inputs, measured in a process
    of its own. The last sentence names the mechanisms that were not faster than dense.

    \b
    Examples:
      attnworks bench attention
      attnworks bench attention --length 1024,4096,16384 --mechanisms window:window=256,linear,bigbird
      attnworks bench attention --causal --no-backward --threads 1 --plot times.svg
    """
    as_json = prepare(options)
    from attnworks.attention.benchmark import versus_dense
    from attnworks.attention.benchmark.versus_dense import BOTH, FORWARD, BenchmarkTask
    from attnworks.cli.console import console, print_json
    from attnworks.core.checks import number
    from attnworks.core.plotting import check_picture, draw_times

    task = BenchmarkTask(0, num_heads, width, dtype, causal)
    lengths, specs = _lengths(length), read_specs(mechanisms, task)
    versus_dense.check_causal([str(spec) for spec in specs], task)
    number("--limit", limit, 0, DAY, above=True, remedy="--limit is in seconds, up to a day")
    if plot is not None:
        check_picture(plot)
    with _progress(versus_dense.benchmark_steps(specs, lengths), quiet=as_json) as advance:
        comparison = versus_dense.benchmark(
            specs,
            lengths,
            task,
            passes=(FORWARD, BOTH) if backward else (FORWARD,),
            rounds=rounds,
            limit=limit,
            seed=options["seed"],
            advance=advance,
        )
    if as_json:
        print_json(_as_data(comparison))
    else:
        _show(comparison)
    panels = _panels(comparison)
    if plot is not None and panels:
        draw_times(panels, plot)
    if plot is not None and not as_json:
        console().print(f"Picture {plot}" if panels else "No picture: everything was skipped.", markup=False)


def _lengths(text: str) -> list[int]:
    from attnworks.core.errors import UsageError

    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= LONGEST for part in parts):
        expected, remedy = f"whole numbers from 1 to {LONGEST:,}", "for instance --length 1024,4096"
        raise UsageError(f"--length {text}", expected, repr(text), remedy)
    return sorted({int(part) for part in parts})


def read_specs(text: str, task: BenchmarkTask) -> list[MechanismSpec]:
    """A list of mechanisms; `all` are those that run on Q, K and V alone under the task's mask."""
    from attnworks.attention import MECHANISMS, MechanismSpec
    from attnworks.attention.benchmark.versus_dense import FILLED_FIELDS
    from attnworks.attention.contract import parse_many

    if text.strip() != ALL:
        return parse_many(text)
    kinds = {name: MECHANISMS[name] for name in MECHANISMS}
    return [
        MechanismSpec(name)
        for name, kind in kinds.items()
        if name not in LEFT_OUT
        and kind.needs <= FILLED_FIELDS
        and (not task.causal or "causal" in kind.supported_masks)
    ]


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A bar that is drawn only between measurements; in a pipe, a line each."""
    from attnworks.cli.console import progress_bar, progress_console

    screen = progress_console()
    if quiet or not screen.is_terminal:
        yield (lambda text: None) if quiet else (lambda text: screen.print(text, style="dim", markup=False))
        return
    with progress_bar("measurement", screen, auto_refresh=False) as bar:
        task = bar.add_task("first runs", total=total)
        bar.refresh()

        def advance(text: str) -> None:
            bar.update(task, advance=1, description=f"done: {text}")
            bar.refresh()

        yield advance


def _show(comparison: BenchmarkResult) -> None:
    from attnworks.api.render import FirstThatFits, in_parts
    from attnworks.attention.benchmark.versus_dense import BOTH, FORWARD, benchmark_verdict
    from attnworks.cli.console import console
    from attnworks.core.display import counted

    task, screen = comparison.task, console()
    peak = max(comparison.roof.values()) / 1e9
    heads, threads = counted(task.heads, "head"), counted(comparison.threads, "thread")
    screen.print(
        f"[bold]{heads} of width {task.width}[/], {task.dtype}{', causal' * task.causal}, {threads}; "
        f"a large matrix product reaches {peak:.0f} Gflop/s"
    )
    passes = [name for name in (FORWARD, BOTH) if any(name in (row.seconds | row.skipped) for row in comparison.rows)]
    by_pass = in_parts(partial(_table, comparison, passes, True), FIGURES, 2, 1)
    screen.print(FirstThatFits(_table(comparison, passes, False, *FIGURES), by_pass))
    for row in comparison.rows:
        for name, why in row.skipped.items():
            screen.print(f"{row.mechanism} at n = {row.n:,}, {name}: skipped, {why}.", markup=False)
    screen.print(benchmark_verdict(comparison), markup=False)


def _table(comparison: BenchmarkResult, passes: list[str], by_pass: bool, *figures: str) -> Table:
    """One row for each mechanism and length, with pairs of numbers for two passes; or, narrower, one for each pass."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    said = "both: forward and backward" if by_pass else "a / b: forward / forward and backward"
    caption = said if len(passes) > 1 else None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=caption, caption_style="dim", caption_justify="left")
    table.add_column("mechanism", overflow="fold", min_width=6)
    times = {} if by_pass else {"ms": [f"{name} ms" for name in passes]}
    numbers = [name for figure in figures for name in times.get(figure, [figure])]
    for heading in ("length", *["pass"] * by_pass, *numbers):
        table.add_column(heading, justify="right", no_wrap=True)
    for n in dict.fromkeys(row.n for row in comparison.rows):
        table.add_section()
        for row in (row for row in comparison.rows if row.n == n):
            for names in [[name] for name in passes] if by_pass else [passes]:
                label = ["both" if "+" in name else name for name in names] if by_pass else []
                found = _cells(row, names)
                cells = [cell for figure in figures for cell in found[figure]]
                table.add_row(Text(row.mechanism), f"{n:,}", *label, *cells)
    return table


def _cells(row: BenchmarkRow, passes: list[str]) -> dict[str, list[str]]:
    from attnworks.core.display import byte_size

    def each(figures: Mapping[str, Any], write: Callable[[Any], str]) -> str:
        known = (figures.get(name) for name in passes)
        return " / ".join("-" if figure is None else write(figure) for figure in known)

    return {
        "ms": [f"{1e3 * row.seconds[name]:,.2f}" if name in row.seconds else "-" for name in passes],
        "x dense": [each(row.faster, lambda times: f"{times:.2f}")],
        "of peak": [each(row.share, lambda share: f"{share:.0%}")],
        "memory": [each(row.memory, byte_size)],
    }


def _as_data(comparison: BenchmarkResult) -> dict[str, Any]:
    import torch

    from attnworks.attention.benchmark.versus_dense import benchmark_verdict

    task = comparison.task
    return {
        "num_heads": task.heads,
        "width": task.width,
        "dtype": task.dtype,
        "causal": task.causal,
        "threads": comparison.threads,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "matrix_product_flops": comparison.roof,
        "rows": [
            {"length" if name == "n" else name: value for name, value in asdict(row).items()} for row in comparison.rows
        ],
        "verdict": benchmark_verdict(comparison),
    }


def _panels(comparison: BenchmarkResult) -> dict[str, dict[str, dict[int, float]]]:
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for row in comparison.rows:
        for name, seconds in row.seconds.items():
            panels.setdefault(name, {}).setdefault(row.mechanism, {})[row.n] = seconds
    return panels
