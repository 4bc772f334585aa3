"""`attnworks train`: train a preset on a corpus, or continue a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import compute_options, prepare


@click.command()
@click.argument("preset", required=False)
@click.option(
    "--corpus",
    help="Train on grammar, tsv:FILE, text:SRC,TGT, gettext:DIR or opus_books.  [default: grammar]",
)
@click.option("--pairs", type=click.IntRange(1), metavar="N", help="Train on at most N pairs.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run; must not exist yet.")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run instead of starting one.")
@click.option("--epochs", type=float, metavar="N", help="Stop after N passes over the corpus.  [default: 20]")
@click.option("--steps", type=int, metavar="N", help="Stop after N optimizer steps.")
@click.option("--minutes", type=float, metavar="N", help="Stop after N minutes of training.")
@click.option("--mechanism", help="Attention of every layer where it is defined, such as window:window=16.")
@click.option("--vocabulary", type=click.Choice(["word", "bpe"]), help="Whole words or byte pairs.  [default: word]")
@click.option(
    "--vocabulary-size", type=int, metavar="N", help="Keep at most N kinds of tokens a side.  [default: 32000]"
)
@click.option("--batch-tokens", type=int, help="Padded tokens of a batch, on its larger side.  [default: 640]")
@click.option("--accumulate", type=int, help="Batches per optimizer step.  [default: 1]")
@click.option("--lr", "learning_rate", type=float, help="Peak learning rate.  [default: 0.0007]")
@click.option(
    "--schedule",
    type=click.Choice(["warmup", "cosine", "constant"]),
    help="Schedule of the learning rate.  [default: warmup]",
)
@click.option("--warmup", type=int, help="Steps until the peak learning rate.  [default: 300]")
@click.option("--smoothing", type=float, help="Label smoothing.  [default: 0.1]")
@click.option("--dropout", type=float, help="Dropout rate.  [default: 0.1]")
@click.option("--clip", type=float, help="Clip gradients to this norm.  [default: 1]")
@click.option("--validate-every", type=int, help="Steps between validations and checkpoints.  [default: 500]")
@click.option("--keep-every", type=int, metavar="N", help="Keep the checkpoint of every N steps for good.")
@click.option("--patience", type=int, metavar="N", help="Stop after N validations without a better loss.")
@click.option("--grow-until", help="Grow to these widths where that pays: d_k=64, d_v=32, heads=8, comma-separated.")
@click.option("--grow-every", type=int, help="Steps from one growth to the next.  [default: 500]")
@click.option(
    "--grow-by", type=int, help="Widths to add in each growth, in all.  [default: an eighth of what is missing]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else.")
@compute_options(dtypes=("float32", "bfloat16"))
def train(preset: str | None, out: Path | None, resume: Path | None, as_json: bool, **options: Any) -> None:
    """Train a model, or continue training one.

    PRESET is tiny, conti-1h, conti-8h, base, lstm-plain, lstm-dot, lstm-multiplicative or lstm-additive; attnworks
    count PRESET shows its size. Without --epochs, --steps or --minutes it trains 20 epochs: on 2 cores a few minutes
    for tiny, most of an hour for conti-8h. Ctrl-C leaves a checkpoint; --resume makes the very steps that would have
    come next. Several processes: torchrun --nproc-per-node 2 -m attnworks train ...

    \b
    Examples:
      attnworks train tiny --steps 200 --out runs/quick
      attnworks train conti-8h --corpus grammar --out runs/first
      attnworks train base --corpus tsv:pairs.tsv --vocabulary bpe --epochs 20 --out runs/mine
      attnworks train --resume runs/mine --epochs 40
      attnworks train tiny --grow-until d_k=48 --grow-every 500 --steps 5000 --out runs/growing
    """
    from attnworks.core.errors import UsageError

    if (preset is None) == (resume is None) or (preset is None) != (out is None):
        raise UsageError(
            "attnworks train",
            "PRESET with --out FOLDER, or --resume FOLDER",
            " ".join(filter(None, (preset, out and f"--out {out}", resume and f"--resume {resume}"))) or "neither",
            "for instance: attnworks train tiny --steps 200 --out runs/quick",
        )
    context = click.get_current_context()
    given = {name: value for name, value in options.items() if _was_given(context, name)}
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.train_display import train_and_show

    train_and_show(preset, out, resume, given, as_json)


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) not in (None, click.core.ParameterSource.DEFAULT)
