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
