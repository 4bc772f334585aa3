"""`attnworks experiment`: the documented studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnworks.cli.options import F, SuggestingGroup, compute_options, prepare
from attnworks.cli.theory import COMMANDS as THEORY

if TYPE_CHECKING:
    from attnworks.training.recipe import Recipe


OUT = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder of the results; run again to continue."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the results as JSON and nothing else.")


def recipe_options(command: F) -> F:
    """What decides how the models of a study are trained."""
    for option in reversed(
        (
            click.option("--corpus", default="grammar", show_default=True, help="Corpus, as for attnworks train."),
            click.option(
                "--pairs",
                type=click.IntRange(1),
                metavar="N",
                default=30_000,
                show_default=True,
                help="Train on at most N pairs.",
            ),
            click.option("--epochs", type=float, default=20.0, show_default=True, help="Passes over the corpus."),
            click.option("--minutes", type=float, metavar="N", help="Train each model for at most N minutes."),
            click.option("--batch-tokens", type=int, default=640, show_default=True, help="Padded tokens of a batch."),
            click.option(
                "--lr", "learning_rate", type=float, default=7e-4, show_default=True, help="Peak learning rate."
            ),
        )
    ):
        command = option(command)
    return command


def _recipe(preset: str, options: dict[str, Any], mechanism: str | None = None) -> Recipe:
    from attnworks.training.recipe import Recipe

    shared = (
        "corpus",
        "pairs",
        "epochs",
        "minutes",
        "batch_tokens",
        "learning_rate",
        "device",
        "dtype",
        "threads",
        "seed",
    )
    return Recipe(preset=preset, mechanism=mechanism, schedule="cosine", **{name: options[name] for name in shared})


@click.group(cls=SuggestingGroup)
def experiment() -> None:
    """Run a documented study from start to end.

    \b
    Examples:
      attnworks experiment conti --out runs/conti
      attnworks experiment conti --models all --pairs 5000 --epochs 5 --out runs/six
      attnworks experiment long-range --out runs/lra
      attnworks experiment structure --out runs/structure
      attnworks experiment growth --out runs/growth
      attnworks experiment collapse                       # pictures of the theory, in seconds
      attnworks experiment two-keys --out runs/two-keys   # with a figure
    """


for command in THEORY:
    experiment.add_command(command)


@experiment.command()
@recipe_options
@click.option(
    "--models",
    default="conti-1h,conti-8h",
    show_default=True,
    help="Presets to train, comma-separated; all trains six.",
)
@OUT
@JSON
@compute_options(dtypes=("float32", "bfloat16"))
def conti(models: str, out: Path, as_json: bool, **options: Any) -> None:
    """Train one-layer transformers with 1 and with 8 heads and compare them (Conti 2024, section 3.1).

    Leaves a run folder for each model, a table of scores, and the attention maps of a few held-out sentences as JSON
    and as pictures. Every part resumes: run the same command again.

    \b
    Examples:
      attnworks experiment conti --out runs/conti
      attnworks experiment conti --models all --pairs 5000 --epochs 5 --out runs/six
    """
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.conti_display import show_conti
    from attnworks.studies.conti import ALL_PRESETS

    names = ALL_PRESETS if models == "all" else tuple(name.strip() for name in models.split(","))
    show_conti(out, [_recipe(name, options) for name in names], as_json)


@experiment.command("long-range")
@click.option("--tasks", default="recall,listops,bytes", show_default=True, help="Tasks to learn.")
@click.option(
    "--mechanisms", help="Mechanisms to compare, such as dense,window:window=32,linear.  [default: six of them]"
)
@click.option("--length", type=click.IntRange(1), default=512, show_default=True, help="Tokens of a sequence.")
@click.option("--steps", type=click.IntRange(1), default=600, show_default=True, help="Training steps of a cell.")
@click.option("--minutes", type=float, metavar="N", help="Train each cell for at most N minutes.")
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True, help="Sequences of a training step.")
@click.option("--lr", "learning_rate", type=float, default=2e-3, show_default=True, help="Peak learning rate.")
@click.option("--held-out", type=click.IntRange(1), default=1024, show_default=True, help="Sequences to test on.")
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each cell, with one seed each."
)
@click.option("--seed", type=click.IntRange(0, 2**62), default=0, show_default=True, help="The first seed.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: torch's own choice]")
@OUT
@JSON
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
    again to continue, or with other tasks, mechanisms or seeds to add cells.

    \b
    Examples:
      attnworks experiment long-range --out runs/lra
      attnworks experiment long-range --tasks recall --length 256 --mechanisms dense,window:window=32 --out runs/two
      attnworks experiment long-range --length 1024 --seeds 3 --minutes 5 --json --out runs/long
    """
    prepare("cpu", threads, seed)
    from attnworks.attention.contract import parse_many
    from attnworks.cli.long_range_display import show_long_range
    from attnworks.studies.long_range_cell import LongRangeSettings

    settings = LongRangeSettings(
        steps=steps, minutes=minutes, length=length, batch=batch, learning_rate=learning_rate, held_out=held_out
    )
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",")))
    specs = None if mechanisms is None else [str(spec) for spec in parse_many(mechanisms)]
    show_long_range(out, settings, names, specs, range(seed, seed + seeds), as_json)


@experiment.command()
@recipe_options
@click.option(
    "--heal", type=click.IntRange(1), default=300, show_default=True, help="Training steps after each projection."
)
@click.option(
    "--heal-lr",
    "heal_learning_rate",
    type=click.FloatRange(0, min_open=True),
    default=3e-4,
    show_default=True,
    help="Learning rate while healing.",
)
@click.option(
    "--window", type=click.IntRange(0, 64), default=2, show_default=True, help="Offsets of the band to each side."
)
@click.option(
    "--eps", type=click.FloatRange(0, 1), default=0.02, show_default=True, help="Largest error outside of the band."
)
@click.option(
    "--sparsity", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="Share of offsets with an error."
)
@click.option("--sentences", type=click.IntRange(1), metavar="N", default=500, show_default=True, help="Translate at "
              "most N sentences of the test split.")  # fmt: skip
@OUT
@JSON
@compute_options(dtypes=("float32",))
def structure(out: Path, as_json: bool, **options: Any) -> None:
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
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.structure_display import show_structure
    from attnworks.studies.structure import EIGHT_HEADS, ONE_HEAD, STRUCTURED_HEADS, StructureSettings

    recipes = {
        ONE_HEAD: _recipe(ONE_HEAD, options),
        EIGHT_HEADS: _recipe(EIGHT_HEADS, options),
        STRUCTURED_HEADS: _recipe(EIGHT_HEADS, options, mechanism="structured"),
    }
    named = ("sentences", "heal", "heal_learning_rate", "window", "eps", "sparsity", "seed")
    show_structure(out, recipes, StructureSettings(**{name: options[name] for name in named}), as_json)


@experiment.command()
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Runs of the whole study.")
@click.option("--seed", type=click.IntRange(0, 2**60), default=0, show_default=True, help="The first seed.")
@click.option("--add", default="1,2", show_default=True, help="Columns of keys to grow by at once.")
@click.option(
    "--ways",
    help="Ways to fill them, such as fisher,zero,none. The model from scratch is always added.  [default: all]",
)
@click.option("--steps", type=click.IntRange(1), default=600, show_default=True, help="Training steps after growth.")
@click.option("--train-steps", type=click.IntRange(1), default=2700, show_default=True, help="Training steps before "
              "growth.")  # fmt: skip
@click.option(
    "--every", type=click.IntRange(1), default=300, show_default=True, help="Steps between growths in the second part."
)
@click.option("--survey", type=click.IntRange(8), default=2048, show_default=True, help="Sequences that growth reads.")
@click.option("--held-out", type=click.IntRange(1), default=4096, show_default=True, help="Sequences to test on.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: torch's own choice]")
@OUT
@JSON
def growth(
    seeds: int,
    seed: int,
    add: str,
    ways: str | None,
    threads: int | None,
    out: Path,
    as_json: bool,
    **options: int,
) -> None:
    """Grow keys that are too narrow, and compare ways to fill the new columns (after Burgund).

    The task is to recall the value of a key among 16 pairs; one head with d_k = 1 gets stuck on it. Then its keys grow,
    by the direction that lowers the loss most (fisher), and by others: whitened, random, zero, split, gradmax, document
    and document-descending; beside them a model that does not grow (none), and always the fair control: a model of the
    same final size, trained from scratch for the same total steps (from-scratch). A second part grows d_k from 1 to 4
    while the model learns, at equal parameters and steps. Leaves OUT/results.json and pictures. Every run is kept: run
    the same command again to continue, or with more seeds or ways to add runs.

    \b
    Examples:
      attnworks experiment growth --out runs/growth
      attnworks experiment growth --seeds 1 --add 1 --ways fisher,zero,none --out runs/quick-growth
      attnworks experiment growth --seeds 2 --train-steps 1000 --steps 200 --json --out runs/short-growth
    """
    prepare("cpu", threads, seed)
    from attnworks.cli.growth_display import show_growth
    from attnworks.studies.growth import ALL_WAYS, GrowthStudySettings

    names = ALL_WAYS if ways is None else tuple(dict.fromkeys(way.strip() for way in ways.split(",")))
    adds = sorted({_whole_number(part.strip()) for part in add.split(",")})
    show_growth(out, GrowthStudySettings(**options), range(seed, seed + seeds), adds, names, as_json)


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is no whole number; write for instance 1,2", param_hint="--add")
    return int(text)
