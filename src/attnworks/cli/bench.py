"""`attnworks bench`: how fast things are on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from attnworks.cli.options import SuggestingGroup


@click.group(cls=SuggestingGroup)
def bench() -> None:
    """Measure on this machine.

    \b
    Examples:
      attnworks bench attention --n 1024,4096 --mechanisms window,linear
      attnworks bench attention --mechanisms all --causal --no-backward --plot times.svg
    """


@bench.command()
@click.option(
    "--n", "lengths", default="1024,4096", show_default=True, help="Lengths of the sequence, comma-separated."
)
@click.option(
    "--mechanisms",
    default="all",
    show_default=True,
    help="Mechanisms to time, with options if needed; dense is always timed.",
)
@click.option("--heads", type=click.IntRange(1), default=8, show_default=True, help="Number of heads.")
@click.option("--width", type=click.IntRange(1), default=64, show_default=True, help="Width of queries, keys, values.")
@click.option("--causal", is_flag=True, help="Hide later positions from each position.")
@click.option("--backward/--no-backward", default=True, show_default=True, help="Time the backward pass as well.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Times that each one is measured.")
@click.option("--limit", type=float, default=20.0, show_default=True, help="Skip what would take longer, in seconds.")
@click.option(
    "--dtype",
    type=click.Choice(("float32", "float64", "bfloat16")),
    default="float32",
    show_default=True,
    help="Number type.",
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: torch's own choice]")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Random seed.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw time against length.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def attention(
    lengths: str,
    mechanisms: str,
    heads: int,
    width: int,
    causal: bool,
    backward: bool,
    rounds: int,
    limit: float,
    dtype: str,
    threads: int | None,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compare attention mechanisms with dense attention on this machine's processor.

    All take turns on the same inputs. The table gives the time of a forward pass and of forward and backward together,
    how many times faster than dense (median of the ratios inside the rounds), the share of what this machine reaches in
    a large matrix product, and the peak memory above the inputs, measured in a process of its own. The last sentence
    says where a mechanism was not faster than dense.

    \b
    Examples:
      attnworks bench attention
      attnworks bench attention --n 1024,4096,16384 --mechanisms window:window=256,linear,bigbird
      attnworks bench attention --causal --no-backward --threads 1 --plot times.svg
    """
    from attnworks.attention.benchmark.versus_dense import BOTH, FORWARD, BenchmarkTask
    from attnworks.cli.bench_display import bench_attention
    from attnworks.cli.options import prepare

    prepare("cpu", threads, seed)
    bench_attention(
        lengths,
        mechanisms,
        BenchmarkTask(0, heads, width, dtype, causal),
        passes=(FORWARD, BOTH) if backward else (FORWARD,),
        rounds=rounds,
        limit=limit,
        seed=seed,
        plot=plot,
        as_json=as_json,
    )
