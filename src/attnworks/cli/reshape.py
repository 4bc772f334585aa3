"""`attnworks reshape`: change attention, and prove what that did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import F, SuggestingGroup, compute_options, prepare

OUT = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder of the new model; must not exist yet."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def text_options(command: F) -> F:
    """What a change is judged by, and how the model heals from it."""
    for option in reversed(
        (
            click.option(
                "--heal", type=click.IntRange(0), default=0, show_default=True, help="Training steps afterwards."
            ),
            click.option(
                "--heal-by",
                type=click.Choice(["objective", "distil"]),
                default="objective",
                show_default=True,
                help="What training lowers; distil: the distance to the model before, after every block.",
            ),
            click.option(
                "--lr",
                "rate",
                type=click.FloatRange(0, min_open=True),
                help="Learning rate while healing.  [default: 3e-4; Hugging Face: 5e-5]",
            ),
            click.option(
                "--corpus", help="Read a corpus, as for attnworks train.  [default: that of the run, or grammar]"
            ),
            click.option(
                "--text",
                type=click.Path(path_type=Path),
                help="Read the lines of this file instead; every fourth is held out.",
            ),
            click.option(
                "--pairs",
                type=click.IntRange(4),
                metavar="N",
                default=10_000,
                show_default=True,
                help="Learn from at most N pairs.",
            ),
            click.option(
                "--sentences",
                type=click.IntRange(1),
                metavar="N",
                default=256,
                show_default=True,
                help="Measure on at most N other sentences.",
            ),
            click.option("--objective", help="Loss: lm, mlm, seq2seq or embedding.  [default: that of the model]"),
            click.option(
                "--batch-tokens",
                type=click.IntRange(1),
                default=2048,
                show_default=True,
                help="Padded tokens of a batch.",
            ),
        )
    ):
        command = option(command)
    return command


@click.group(cls=SuggestingGroup)
def reshape() -> None:
    """Change the attention of a model, with a receipt of what was predicted and what was measured.

    The model itself stays as it is. The new folder holds the new model, its receipt, and the model before, so that
    undo brings every bit of it back.

    \b
    Examples:
      attnworks reshape project runs/first --heads "enc.0.*" --heal 300 --out runs/projected
      attnworks reshape grow runs/first --add 16 --out runs/grown
      attnworks reshape prune runs/first --keep 0.5 --heal 300 --out runs/half
      attnworks reshape swap runs/first --to window:window=8 --max-error 0.02 --out runs/windows
      attnworks reshape history runs/projected
      attnworks reshape undo runs/projected --out runs/back
      attnworks reshape replay runs/projected --on runs/other --out runs/other-projected
    """


@reshape.command()
@click.argument("model")
@click.option("--heads", required=True, help="Heads to project, comma-separated, * for all: 3.2,4.* or enc.0.*")
@click.option("--form", default="auto", show_default=True, help="Form of the heads: auto, mix, band, previous, next, "
              "self, first, last, mean, or members such as -2..2/first.")  # fmt: skip
@click.option(
    "--window", type=click.IntRange(0, 64), default=2, show_default=True, help="Offsets of the band to each side."
)
@click.option(
    "--eps", type=click.FloatRange(0, 1), default=0.02, show_default=True, help="Largest error outside of the band."
)
@click.option(
    "--sparsity",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Offsets with an error, as a share of the mean length.",
)
@text_options
@OUT
@JSON
@compute_options()
def project(model: str, **options: Any) -> None:
    """Replace heads by structured forms: previous token, first token, a band with learned values.

    MODEL is a run of attnworks train, or a Hugging Face model. Each head gets the mix of fixed maps (offsets, first and
    last token, all tokens evenly) that is nearest to its attention over the text, and loses its queries and keys. What
    that does to the loss is predicted, measured on other text, and measured again after --heal steps of training.

    \b
    Examples:
      attnworks reshape project runs/first --heads "enc.0.*" --heal 300 --out runs/projected
      attnworks reshape project bert-folder --heads "3.2,4.*" --eps 0.02 --sparsity 0.05 --out bert-projected
      attnworks reshape project runs/first --heads enc.0.3 --form previous --out runs/previous --json
    """
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.reshape_run import project_and_show

    project_and_show(model, options)


@reshape.command()
@click.argument("model")
@click.option("--add", type=click.IntRange(0), default=0, help="Widths to add in all, spread where they pay most.")
@click.option("--where", default="auto", show_default=True, help="Where to grow: auto, or places and widths such as "
              "enc.0.3:keys=8,dec.0.*:values=2 or enc.1:heads=1.")  # fmt: skip
@click.option("--kinds", default="keys,values,heads", show_default=True, help="What --where auto may add.")
@click.option("--by", default="fisher", show_default=True, help="How new columns are filled: fisher, or a baseline: "
              "whitened, random, zero, gradmax, document.")  # fmt: skip
@click.option("--compare", is_flag=True, help="Measure all baselines at the same places too.")
@text_options
@OUT
@JSON
@compute_options()
def grow(model: str, **options: Any) -> None:
    """Add keys, values or heads where capacity is missing.

    MODEL is a run of attnworks train, or a Hugging Face model. One backward pass over the text finds, for every head,
    the columns that lower the loss most; other sentences check them, and others again say how far to go. Where growing
    would not pay, nothing is written and the reason is shown. Training of a grown run continues with its optimizer.

    \b
    Examples:
      attnworks reshape grow runs/first --add 16 --out runs/grown
      attnworks reshape grow runs/first --where enc.0.3:keys=8 --heal 100 --out runs/wider
      attnworks reshape grow runs/first --where "dec.0.*:values=2" --compare --out runs/compared --json
      attnworks reshape grow bert-folder --objective mlm --add 8 --kinds keys --out bert-grown
    """
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.reshape_run import grow_and_show

    grow_and_show(model, options)


@reshape.command()
@click.argument("model")
@click.option("--keep", type=click.FloatRange(0, 1), help="Share of all heads to keep, such as 0.5.")
@click.option("--heads", default="auto", show_default=True, help="Heads to cut: auto, or 3.2,4.* or enc.0.*,cross.1.3")
@click.option("--by", default="ablation", show_default=True, help="Ranking of the heads: ablation (greedy, "
              "measured), gradient, gates, redundancy, role, random.")  # fmt: skip
@click.option("--evenly", is_flag=True, help="Cut the same share of every layer.")
@click.option("--compare", is_flag=True, help="Measure every ranking at every tenth of the heads.")
@text_options
@OUT
@JSON
@compute_options()
def prune(model: str, **options: Any) -> None:
    """Cut the heads that are needed least; matrices become smaller, the forward pass faster.

    MODEL is a run of attnworks train, or a Hugging Face model. Heads are ranked on the text, and their rows and columns
    of all four maps removed. Layers may end with different numbers of heads, or none; heads that share keys and values
    go together. What that does to loss, translations, embeddings, size and time is measured on other text, and again
    after --heal steps of training.

    \b
    Examples:
      attnworks reshape prune runs/first --keep 0.5 --heal 300 --out runs/half
      attnworks reshape prune runs/first --keep 0.5 --compare --out runs/compared
      attnworks reshape prune runs/first --heads "enc.0.3,cross.*.1" --out runs/fewer
      attnworks reshape prune bert-folder --keep 0.5 --heal 300 --heal-by distil --out bert-half
    """
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.reshape_run import prune_and_show

    prune_and_show(model, options)


@reshape.command()
@click.argument("model")
@click.option("--to", multiple=True, help="A mechanism to try, such as window:window=64; may be given several "
              "times.  [default: all that could pay]")  # fmt: skip
@click.option("--layers", default="auto", show_default=True, help="auto; layers that get the one mechanism: "
              "enc.0,enc.1 or single heads enc.0.3; or pairs: \"enc.0=linear enc.1=window:window=8\"")  # fmt: skip
@click.option("--max-error", type=click.FloatRange(0, 1), default=0.02, show_default=True, help="With auto: largest "
              "root mean square over the layers of the error of attention; and largest rise of the loss.")  # fmt: skip
@click.option("--n", "length", type=click.IntRange(2, 2**15), help="Choose and measure for this length.  [default: "
              "that of the text]")  # fmt: skip
@text_options
@OUT
@JSON
@compute_options()
def swap(model: str, **options: Any) -> None:
    """Swap attention for cheaper mechanisms, where the error allows it.

    MODEL is a run of attnworks train, or a Hugging Face model. With --layers auto every layer tries every mechanism on
    the text; of all mixes within --max-error the fastest is made, by exact search. If its loss rises by more than that
    share, the fastest with at most half the error is next. See attnworks advise for the trade-off without changing
    anything.

    \b
    Examples:
      attnworks reshape swap runs/first --to window:window=8 --max-error 0.02 --out runs/windows
      attnworks reshape swap runs/first --to linear --layers "enc.*" --heal 300 --heal-by distil --out runs/linear
      attnworks reshape swap bert-folder --n 512 --max-error 0.05 --out bert-swapped
    """
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.reshape_run import swap_and_show

    swap_and_show(model, options)


@reshape.command()
@click.argument("model")
@JSON
def history(model: str, as_json: bool) -> None:
    """Show what was done to a model, first to last.

    \b
    Examples:
      attnworks reshape history runs/projected
    """
    from attnworks.cli.reshape_run import show_history

    show_history(model, as_json)


@reshape.command()
@click.argument("model")
@OUT
@JSON
def undo(model: str, out: Path, as_json: bool) -> None:
    """Bring back the model as it was before its last reshape, bit for bit, in a new folder.

    \b
    Examples:
      attnworks reshape undo runs/projected --out runs/back
    """
    from attnworks.cli.reshape_run import undo_and_show

    undo_and_show(model, out, as_json)


@reshape.command()
@click.argument("model")
@click.option("--on", required=True, help="The model to reshape: a run, or a Hugging Face model.")
@OUT
@JSON
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: torch's own choice]")
def replay(model: str, on: str, out: Path, as_json: bool, threads: int | None) -> None:
    """Do to another model all reshapes that were done to MODEL, with the same text and the same seeds.

    Mechanisms that a swap chose by itself are put into the same layers. Training between reshapes is not repeated.

    \b
    Examples:
      attnworks reshape replay runs/projected --on runs/first --out runs/again
    """
    prepare("cpu", threads, 0)
    from attnworks.cli.reshape_run import replay_and_show

    replay_and_show(model, on, out, as_json)
