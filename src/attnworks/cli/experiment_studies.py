"""`attnworks experiment conti, long-range, structure, growth`: studies that train models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import F, Option, add_options, comma_separated, compute_options, json_option, prepare
from attnworks.cli.options import threads_option as threads

POSITIVE = click.IntRange(1)
SHARE = click.FloatRange(0, 1)
RECIPE = (
    "corpus", "pairs", "epochs", "minutes", "batch_tokens", "learning_rate", "device", "dtype", "threads", "seed",
)  # fmt: skip
"""Options of a study that are settings of training."""

out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for results; run the same command again to continue.",
)
models_minutes = click.option("--minutes", type=float, metavar="N", help="Train each model for at most N minutes.")


def number_option(name: str, default: float, text: str, kind: Any = None) -> Option:
    """An option that is a number, of the type of its default unless another is given."""
    return click.option(name, type=kind, metavar="N", default=default, show_default=True, help=text)


def numbers_option(name: str, kind: type[int] | type[float], text: str, default: str | None = None) -> Option:
    """An option that is a list of numbers, comma-separated; the command gets a tuple."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
        try:
            return None if value is None else tuple(kind(part) for part in value.split(","))
        except ValueError:
            raise click.BadParameter(f"{value!r} is no list of numbers such as 2,10,50", context, parameter) from None

    return click.option(name, callback=read, default=default, show_default=default is not None, help=text)


def recipe_options(command: F) -> F:
    """The training of the models of a study."""
    return add_options(
        command,
        click.option(
            "--corpus", default="grammar", show_default=True, help="Corpus to train on, as for attnworks train."
        ),
        number_option("--pairs", 30_000, "Train on at most N sentence pairs.", POSITIVE),
        number_option("--epochs", 20.0, "Passes over the corpus."),
        models_minutes,
        number_option("--batch-tokens", 640, "Tokens on the larger padded side of a batch."),
        click.option("--learning-rate", type=float, help="Peak learning rate.  [default: the preset's]"),
    )


def given_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of training among the options of a study; those that are not given are the preset's."""
    return {name: options[name] for name in RECIPE if options[name] is not None}


def show_experiment(results: Any, out: Path | None, as_json: bool, pictures: bool = True) -> None:
    """Print results, and where they are."""
    from attnworks.cli.console import console, print_json
    from attnworks.core.plotting import can_draw

    if as_json:
        print_json(results.to_json())
        return
    console().print(results)
    if out is not None and pictures and can_draw():
        console().print(f"\nResults and pictures are in {out}", markup=False, soft_wrap=True)
    elif out is not None:
        install = " Pictures need matplotlib: pip install 'attnworks[plot]' and run again." if pictures else ""
        console().print(f"\nResults are in {out}.{install}", markup=False, soft_wrap=True)


def _run(study: Callable[..., Any], out: Path, as_json: bool) -> None:
    """Run a study, which Ctrl-C stops after the current step; draw and print its results."""
    from attnworks.cli.console import progress_console, progress_display
    from attnworks.cli.train import stop_on_signal
    from attnworks.core.plotting import can_draw

    with stop_on_signal() as stopped, progress_display("study", quiet=as_json) as progress:
        results = study(progress=progress, should_stop=lambda: bool(stopped))
    if stopped:
        progress_console().print("Stopped; run the same command again to continue.")
        sys.exit(130)
    if results.has_pictures and can_draw():
        results.draw(out)
    show_experiment(results, out, as_json, results.has_pictures)


@click.command()
@recipe_options
@click.option(
    "--models",
    default="conti-1h,conti-8h",
    show_default=True,
    callback=comma_separated,
    help="Presets to train, comma-separated, or all for these two and four recurrent models.",
)
@out_option
@json_option
@compute_options(dtypes=("float32", "bfloat16"))
def conti(models: tuple[str, ...], out: Path, **options: Any) -> None:
    """Compare one-layer transformers with 1 and with 8 heads.

    The experiment of Conti 2024, section 3.1: whole words, 20 epochs, one layer. Writes a run folder for each model, a
    table of scores, and the attention maps of a few held-out sentences as JSON and as pictures. The corpus opus_books
    needs the extra data, and a network once; a file of pairs does as well. Every part resumes: run the same command
    again.

    \b
    Examples:
      attnworks experiment conti --out runs/conti
      attnworks experiment conti --corpus opus_books --out runs/books
      attnworks experiment conti --corpus tsv:pairs.tsv --out runs/real
      attnworks experiment conti --models all --pairs 5000 --epochs 5 --out runs/six
    """
    settings = given_settings(options)
    as_json = prepare(options)
    from attnworks.studies.conti import ALL_PRESETS, run_conti
    from attnworks.training.recipe import Recipe

    presets = ALL_PRESETS if models == ("all",) else models
    recipes = [Recipe.for_preset(preset, schedule="cosine", **settings) for preset in presets]
    _run(partial(run_conti, out, recipes), out, as_json)


@click.command("long-range")
@click.option(
    "--tasks",
    default="recall,listops,bytes",
    show_default=True,
    callback=comma_separated,
    help="Tasks, comma-separated: recall, listops, bytes.",
)
@click.option("--mechanisms", help="Mechanisms to compare, for example dense,window:window=32,linear.  [default: six]")
@number_option("--length", 512, "Sequence length in tokens.", POSITIVE)
@number_option("--steps", 600, "Training steps per cell.", POSITIVE)
@click.option("--minutes", type=float, metavar="N", help="Train each cell for at most N minutes.")
@number_option("--batch-size", 16, "Sequences per training step.", POSITIVE)
@number_option("--learning-rate", 2e-3, "Peak learning rate.")
@number_option("--held-out", 1024, "Test sequences per cell.", POSITIVE)
@number_option("--seeds", 1, "Repetitions, each with its own seed.", POSITIVE)
@number_option("--seed", 0, "First random seed.", click.IntRange(0, 2**62))
@threads()
@out_option
@json_option
def long_range(
    tasks: tuple[str, ...], mechanisms: str | None, seeds: int, seed: int, out: Path, **options: Any
) -> None:
    """Compare attention mechanisms on long sequences.

    Measures accuracy, time and memory. Small classifiers (2 layers, 4 heads, width 64) that differ in nothing but their
    attention learn three tasks in the shape of Long Range Arena, which are generated. recall: the value of a key, among
    pairs in the first half. listops: nested MIN, MAX, MEDIAN and SUM of digits. bytes: whether the end of a text is in
    the language of its title. The default table takes about a quarter of an hour on two cores. Every cell is saved in
    OUT/results.json: run the same command again to continue, or with other tasks, mechanisms or seeds to add cells.

    \b
    Examples:
      attnworks experiment long-range --out runs/lra
      attnworks experiment long-range --tasks recall --length 256 --mechanisms dense,window:window=32 --out runs/two
      attnworks experiment long-range --length 1024 --seeds 3 --minutes 5 --json --out runs/long
    """
    as_json = prepare(options)
    from attnworks.attention.contract import parse_many
    from attnworks.studies.long_range import default_mechanisms, run_long_range
    from attnworks.studies.long_range_cell import LongRangeSettings

    settings = LongRangeSettings(**options)
    specs = default_mechanisms(settings.length) if mechanisms is None else [*map(str, parse_many(mechanisms))]
    study = partial(run_long_range, out, settings, [*dict.fromkeys(tasks)], specs, range(seed, seed + seeds))
    _run(study, out, as_json)


@click.command()
@recipe_options
@number_option("--heal", 300, "Training steps after each projection.", POSITIVE)
@number_option("--heal-learning-rate", 3e-4, "Learning rate while healing.", click.FloatRange(0, min_open=True))
@number_option("--window", 2, "Largest offset to each side that a form may use.", click.IntRange(0, 64))
@number_option("--eps", 0.02, "Largest weight a head may keep at an offset outside its form.", SHARE)
@number_option("--sparsity", 0.05, "Number of offsets outside the form, as a share of the mean sentence length.", SHARE)
@number_option("--sentences", 500, "Translate N sentences of the test split.", POSITIVE)
@out_option
@json_option
@compute_options(dtypes=("float32",))
def structure(out: Path, **options: Any) -> None:
    """Replace attention heads by structured ones.

    After Conti 2024, section 3. Trains one-layer transformers with 1 and with 8 heads, and one whose self-attention is
    structured from the start. Finds the role and the nearest structured form of every encoder head. Then it projects
    the 8 heads one after the other, those first that cost least, and translates with 0 to 8 of them: at once, and after
    some steps of healing. Writes tables as JSON, and pictures. Every part resumes: run the same command again.

    \b
    Examples:
      attnworks experiment structure --out runs/structure
      attnworks experiment structure --minutes 5 --heal 100 --sentences 200 --out runs/quick-structure
    """
    recipe = given_settings(options)
    as_json = prepare(options)
    from attnworks.studies.structure import StructureSettings, run_structure, structure_recipes

    names = ("sentences", "heal", "heal_learning_rate", "window", "eps", "sparsity", "seed")
    settings = StructureSettings(**{name: options[name] for name in names})
    _run(partial(run_structure, out, structure_recipes(**recipe), settings), out, as_json)


@click.command()
@number_option("--seeds", 5, "Repetitions, each with its own seed.", POSITIVE)
@number_option("--seed", 0, "First random seed.", click.IntRange(0, 2**60))
@numbers_option("--add", int, "Numbers of key columns to add at once, comma-separated.", "1,2")
@click.option(
    "--ways",
    callback=comma_separated,
    help="Ways to fill new columns, comma-separated: fisher, zero, none, ... The model from scratch is always added.  "
    "[default: all]",
)
@number_option("--steps", 600, "Training steps after growing.", POSITIVE)
@number_option("--train-steps", 2700, "Training steps before growing.", POSITIVE)
@number_option("--every", 300, "Steps between growths in the second part.", POSITIVE)
@number_option("--survey", 2048, "Sequences to find directions on.", click.IntRange(8))
@number_option("--held-out", 4096, "Test sequences.", POSITIVE)
@threads()
@out_option
@json_option
def growth(
    seeds: int, seed: int, add: tuple[int, ...], ways: tuple[str, ...] | None, out: Path, **options: Any
) -> None:
    """Compare ways to grow keys that are too narrow.

    After Burgund. The task is to recall the value of a key among 16 pairs; one head with d_k = 1 gets stuck on it. Then
    its keys grow, by the direction that lowers the loss most (fisher), and by others: whitened, random, zero, split,
    gradmax, document and document-descending. They are compared with a model that does not grow (none), and always with
    the fair control: a model of the same final size, trained from scratch for the same total steps (from-scratch). A
    second part grows d_k from 1 to 4 while the model learns, at equal parameters and steps. Writes OUT/results.json and
    pictures. Every run is saved: run the same command again to continue, or with more seeds or ways to add runs.

    \b
    Examples:
      attnworks experiment growth --out runs/growth
      attnworks experiment growth --seeds 1 --add 1 --ways fisher,zero,none --out runs/quick-growth
      attnworks experiment growth --seeds 2 --train-steps 1000 --steps 200 --json --out runs/short-growth
    """
    as_json = prepare(options)
    from attnworks.studies.growth import ALL_WAYS, GrowthStudySettings, run_growth_study

    names = ALL_WAYS if ways is None else [*dict.fromkeys(ways)]
    settings = GrowthStudySettings(**options)
    _run(partial(run_growth_study, out, settings, range(seed, seed + seeds), sorted({*add}), names), out, as_json)
