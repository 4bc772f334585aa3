"""`attnworks experiment`: the documented studies."""

from __future__ import annotations

from pathlib import Path

import click

from attnworks.cli.options import compute_options, prepare


@click.group()
def experiment() -> None:
    """Run a documented study from start to end.

    \b
    Examples:
      attnworks experiment conti --out runs/conti
      attnworks experiment conti --models all --pairs 5000 --epochs 5 --out runs/six
      attnworks experiment long-range --out runs/lra
      attnworks experiment structure --out runs/structure
    """


@experiment.command()
@click.option("--corpus", default="grammar", show_default=True, help="As for attnworks train.")
@click.option("--pairs", type=click.IntRange(1), default=30_000, show_default=True, help="Training pairs at most.")
@click.option("--epochs", type=float, default=20.0, show_default=True)
@click.option("--minutes", type=float, help="At most so many minutes of training for each model.")
@click.option("--models", default="conti-1h,conti-8h", show_default=True, help="Presets, or: all (six of them).")
@click.option("--batch-tokens", type=int, default=640, show_default=True)
@click.option("--lr", "learning_rate", type=float, default=7e-4, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder; run again to go on.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON and nothing else.")
@compute_options(dtypes=("float32", "bfloat16"))
def conti(
    corpus: str,
    pairs: int,
    epochs: float,
    minutes: float | None,
    models: str,
    batch_tokens: int,
    learning_rate: float,
    out: Path,
    as_json: bool,
    device: str,
    dtype: str,
    threads: int | None,
    seed: int,
) -> None:
    """Train one-layer transformers with 1 and with 8 heads and compare them (Conti 2024, section 3.1).

    Leaves a run folder for each model, a table of scores, and the attention maps of a few held-out sentences as JSON
    and as pictures. Every part resumes: run the same command again.

    \b
    Examples:
      attnworks experiment conti --out runs/conti
      attnworks experiment conti --models all --pairs 5000 --epochs 5 --out runs/six
    """
    prepare(device, threads, seed)
    from attnworks.cli.conti_display import run_conti
    from attnworks.experiments.conti import ALL
    from attnworks.training.recipe import Recipe

    names = ALL if models == "all" else tuple(name.strip() for name in models.split(","))
    recipes = [
        Recipe(
            preset=name,
            corpus=corpus,
            pairs=pairs,
            epochs=epochs,
            minutes=minutes,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            schedule="cosine",
            device=device,
            dtype="bfloat16" if dtype == "bfloat16" else "float32",
            threads=threads,
            seed=seed,
        )
        for name in names
    ]
    run_conti(out, recipes, as_json)


@experiment.command("long-range")
@click.option("--tasks", default="recall,listops,bytes", show_default=True)
@click.option("--mechanisms", help="As in dense,window:window=32,linear.  [default: six of them]")
@click.option("--length", type=click.IntRange(1), default=512, show_default=True, help="Tokens of a sequence.")
@click.option("--steps", type=click.IntRange(1), default=600, show_default=True, help="Of training, for each cell.")
@click.option("--minutes", type=float, help="At most so many minutes of training for each cell.")
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True, help="Sequences of a step.")
@click.option("--lr", "learning_rate", type=float, default=2e-3, show_default=True)
@click.option("--held-out", type=click.IntRange(1), default=1024, show_default=True, help="Sequences of the test.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each cell.")
@click.option("--seed", type=click.IntRange(0, 2**62), default=0, show_default=True, help="The first of them.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: torch's own choice]")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder; run again to go on.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON and nothing else.")
def long_range(
    tasks: str,
    mechanisms: str | None,
    length: int,
    steps: int,
    minutes: float | None,
    batch: int,
    learning_rate: float,
    held_out: int,
    seeds: int,
    seed: int,
    threads: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Compare attention mechanisms on long sequences: accuracy, time and memory.

    Small classifiers (2 layers, 4 heads, width 64) that differ in nothing but their attention learn three tasks in the
    shape of Long Range Arena, drawn by us. recall: the value of a key, among pairs in the first half. listops: nested
    MIN, MAX, MEDIAN and SUM of digits. bytes: whether the end of a text is in the language of its title. The default
    table takes about a quarter of an hour on two cores. Every cell is kept in OUT/results.json: run the same command
    again to go on, or with other tasks, mechanisms or seeds to add cells.

    \b
    Examples:
      attnworks experiment long-range --out runs/lra
      attnworks experiment long-range --tasks recall --length 256 --mechanisms dense,window:window=32 --out runs/two
      attnworks experiment long-range --length 1024 --seeds 3 --minutes 5 --json --out runs/long
    """
    prepare("cpu", threads, seed)
    from attnworks.cli.long_range_display import run_long_range
    from attnworks.experiments.classifying import Settings
    from attnworks.mechanisms.spec import parse_many

    settings = Settings(
        steps=steps, minutes=minutes, length=length, batch=batch, learning_rate=learning_rate, held_out=held_out
    )
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",")))
    specs = None if mechanisms is None else [str(spec) for spec in parse_many(mechanisms)]
    run_long_range(out, settings, names, specs, range(seed, seed + seeds), as_json)


@experiment.command()
@click.option("--corpus", default="grammar", show_default=True, help="As for attnworks train.")
@click.option("--pairs", type=click.IntRange(1), default=30_000, show_default=True, help="Training pairs at most.")
@click.option("--epochs", type=float, default=20.0, show_default=True)
@click.option("--minutes", type=float, help="At most so many minutes of training for each model.")
@click.option("--heal", type=click.IntRange(1), default=300, show_default=True, help="Steps after each projection.")
@click.option("--heal-lr", type=click.FloatRange(0, min_open=True), default=3e-4, show_default=True)
@click.option("--window", type=click.IntRange(0, 64), default=2, show_default=True, help="Offsets to each side.")
@click.option(
    "--eps", type=click.FloatRange(0, 1), default=0.02, show_default=True, help="Largest error outside of it."
)
@click.option("--sparsity", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="Share of such offsets.")
@click.option("--sentences", type=click.IntRange(1), default=500, show_default=True, help="Of the test split.")
@click.option("--batch-tokens", type=int, default=640, show_default=True)
@click.option("--lr", "learning_rate", type=float, default=7e-4, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder; run again to go on.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON and nothing else.")
@compute_options(dtypes=("float32",))
def structure(
    corpus: str,
    pairs: int,
    epochs: float,
    minutes: float | None,
    heal: int,
    heal_lr: float,
    window: int,
    eps: float,
    sparsity: float,
    sentences: int,
    batch_tokens: int,
    learning_rate: float,
    out: Path,
    as_json: bool,
    device: str,
    dtype: str,
    threads: int | None,
    seed: int,
) -> None:
    """Find the structure of attention heads, and put structured heads in their place (Conti 2024, section 3).

    Trains one-layer transformers with 1 and with 8 heads, and one whose self-attention is structured from the start.
    Names the role and the nearest structured form of every encoder head, then projects the 8 heads one after the other,
    those first that cost least, and translates with 0 to 8 of them: at once, and after some steps of healing. Leaves
    tables as JSON, and pictures. Every part resumes: run the same command again.

    \b
    Examples:
      attnworks experiment structure --out runs/structure
      attnworks experiment structure --minutes 5 --heal 100 --sentences 200 --out runs/quick-structure
    """
    del dtype
    prepare(device, threads, seed)
    from attnworks.cli.structure_display import run_structure
    from attnworks.experiments.structure import EIGHT, MODELS, ONE, STRUCTURED, Settings
    from attnworks.training.recipe import Recipe

    recipes = {
        name: Recipe(
            preset=ONE if name == ONE else EIGHT,
            mechanism="structured" if name == STRUCTURED else None,
            corpus=corpus,
            pairs=pairs,
            epochs=epochs,
            minutes=minutes,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            schedule="cosine",
            device=device,
            threads=threads,
            seed=seed,
        )
        for name in MODELS
    }
    settings = Settings(
        sentences=sentences, heal=heal, rate=heal_lr, window=window, eps=eps, sparsity=sparsity, seed=seed
    )
    run_structure(out, recipes, settings, as_json)
