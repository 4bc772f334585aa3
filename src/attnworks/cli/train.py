"""`attnworks train`: train a preset on a corpus, or continue a run."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from attnworks.cli.options import SEED, prepare, threads_option

if TYPE_CHECKING:
    from rich.console import Console

    from attnworks.cli.train_display import TrainDisplay
    from attnworks.training.run import Run


@click.command()
@click.argument("preset", required=False)
@click.option(
    "--corpus",
    help="Corpus to train on: grammar, tsv:FILE, text:SRC,TGT, gettext:DIR or opus_books.  [default: grammar]",
)
@click.option("--pairs", type=click.IntRange(1), metavar="N", help="Train on at most N sentence pairs.")
@click.option("--valid", metavar="CORPUS", help="Validate on all pairs of this file: tsv:FILE or text:SRC,TGT.")
@click.option("--test", metavar="CORPUS", help="Score the best weights on all pairs of this file at the end.")
@click.option("--max-length", type=int, metavar="N", help="Leave out training pairs with over N tokens on a side.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the new run; must not exist yet.")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run instead of starting a new one.")
@click.option("--epochs", type=float, metavar="N", help="Stop after N passes over the corpus in total.  [default: 20]")
@click.option("--steps", type=int, metavar="N", help="Stop after N optimizer steps in total.")
@click.option(
    "--minutes", type=float, metavar="N", help="Stop after N minutes of training in total, with those before --resume."
)
@click.option(
    "--d-model", type=int, metavar="N", help="Width of embeddings and residual stream.  [default: the preset's]"
)
@click.option(
    "--num-layers", type=int, metavar="N", help="Layers of encoder and decoder each.  [default: the preset's]"
)
@click.option(
    "--num-heads",
    type=int,
    metavar="N",
    help="Heads of every attention layer; they share --d-model.  [default: the preset's]",
)
@click.option(
    "--d-ff",
    type=int,
    metavar="N",
    help="Hidden width of the feed-forward layers.  [default: the preset's, or 4 times --d-model]",
)
@click.option(
    "--norm",
    type=click.Choice(["pre", "post"]),
    help="Layer norm before each part or after each residual sum.  [default: the preset's]",
)
@click.option(
    "--positions",
    type=click.Choice(["sinusoid", "learned", "index", "normalised-index", "none"]),
    help="Encoding of the positions of tokens.  [default: sinusoid]",
)
@click.option(
    "--mechanism",
    metavar="SPEC",
    help="Attention mechanism of every layer that supports it, for example window:window=16.",
)
@click.option(
    "--vocabulary",
    type=click.Choice(["word", "bpe"]),
    help="Split text into whole words or byte pairs.  [default: the preset's]",
)
@click.option("--vocabulary-size", type=int, metavar="N", help="Largest vocabulary per side.  [default: the preset's]")
@click.option(
    "--joint-vocabulary/--separate-vocabularies",
    default=None,
    help="One vocabulary and embedding for both sides, or one for each.  [default: the preset's]",
)
@click.option(
    "--batch-tokens",
    type=int,
    metavar="N",
    help="Tokens on the larger padded side of a batch.  [default: the preset's]",
)
@click.option("--accumulate", type=int, metavar="N", help="Batches per optimizer step.  [default: 1]")
@click.option("--learning-rate", type=float, help="Peak learning rate.  [default: the preset's]")
@click.option(
    "--schedule",
    type=click.Choice(["warmup", "cosine", "constant"]),
    help="Schedule of the learning rate.  [default: warmup]",
)
@click.option(
    "--warmup", type=int, metavar="N", help="Warm-up steps until the peak learning rate.  [default: the preset's]"
)
@click.option("--smoothing", type=float, help="Label smoothing.  [default: 0.1]")
@click.option("--dropout", type=float, help="Dropout probability.  [default: 0.1]")
@click.option("--clip", type=float, help="Clip gradients to this norm.  [default: 1]")
@click.option(
    "--validate-every", type=int, metavar="N", help="Validate and save a checkpoint every N steps.  [default: 500]"
)
@click.option(
    "--score-sentences",
    type=int,
    metavar="N",
    help="Translate N held-out sentences at each validation, for BLEU and chrF.  [default: 200]",
)
@click.option("--keep-every", type=int, metavar="N", help="Keep the checkpoint of every N-th step for good.")
@click.option("--patience", type=int, metavar="N", help="Stop after N validations without a better loss.")
@click.option(
    "--average",
    metavar="WHICH",
    help="Average the weights of the last or best N validated checkpoints at the end: last:5 or best:5.",
)
@click.option(
    "--grow-until",
    metavar="SIZES",
    help="Grow heads up to these sizes where it lowers the loss: d_k=64,d_v=32,heads=8.",
)
@click.option("--grow-every", type=int, metavar="N", help="Try to grow every N steps.  [default: 500]")
@click.option(
    "--grow-by",
    type=int,
    metavar="N",
    help="Add N columns each time, in total.  [default: an eighth of what is missing]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON object at the end and nothing else.")
@click.option("--device", help="Device to compute on: cpu, cuda, cuda:1 or mps.  [default: cpu]")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Number type of the activations.  [default: float32]",
)
@threads_option()
@click.option("--seed", type=SEED, metavar="N", help="Random seed.  [default: 0]")
def train(preset: str | None, out: Path | None, resume: Path | None, threads: int | None, **options: Any) -> None:
    """Train a model, or continue training one.

    PRESET is tiny, small, base, conti-1h, conti-8h, lstm-plain, lstm-dot, lstm-multiplicative or lstm-additive;
    attnworks count PRESET shows its size, and docs/training.md its settings and the measurements behind them. small
    suits real text on a laptop. Without --epochs, --steps or --minutes it trains 20 epochs: on 2 cores a few minutes
    for tiny and the grammar, days for base. Ctrl-C saves a checkpoint and stops with exit code 130; --resume continues
    from there, with the same steps as a run without the break. To use several processes, run torchrun
    --nproc-per-node 2 -m attnworks train ...

    \b
    Examples:
      attnworks train tiny --steps 200 --out runs/quick
      attnworks train conti-8h --corpus grammar --out runs/first
      attnworks train small --corpus tsv:pairs.tsv --out runs/mine
      attnworks train small --d-model 384 --num-heads 6 --minutes 60 --corpus tsv:pairs.tsv --out runs/wider
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
    as_json = prepare(options)
    from attnworks.cli.console import progress_console
    from attnworks.core.team import join_team

    screen = progress_console()
    with join_team(options["device"] or "cpu") as team:
        quiet = as_json or not team.leads
        display, stopped = train_and_show(
            screen, preset=preset, out=out, resume=resume, threads=threads, **options, team=team, quiet=quiet
        )
        if team.leads:
            _conclude(display, stopped=stopped, as_json=as_json)


def train_and_show(screen: Console, *, quiet: bool, **arguments: Any) -> tuple[TrainDisplay, bool]:
    """Call `attnworks.train` with a display that Ctrl-C stops; the display, and whether it was stopped."""
    import attnworks
    from attnworks.cli.train_display import TrainDisplay

    stopped: list[int] = []
    displays: list[TrainDisplay] = []
    with ExitStack() as during:

        def start(run: Run) -> None:
            displays.append(during.enter_context(TrainDisplay(run, screen, quiet=quiet)))
            during.enter_context(stop_on_signal(stopped))

        attnworks.train(
            **arguments,
            watchers=[lambda event: displays[0](event)],
            should_stop=lambda: bool(stopped),
            on_start=start,
        )
    return displays[0], bool(stopped)


def _conclude(display: TrainDisplay, *, stopped: bool, as_json: bool) -> None:
    from attnworks.cli.console import echo, print_json

    run, screen = display.run, display.screen
    progress = run.progress
    if as_json:
        print_json(
            {
                "run": str(run.folder),
                "step": progress.step,
                "seconds": progress.seconds,
                "best_loss": progress.best_loss,
                "best_step": progress.best_step,
                "stopped": stopped,
            }
        )
    elif stopped:
        command = shlex.join(["attnworks", "train", "--resume", str(run.folder)])
        screen.print(f"Stopped at step {progress.step:,}; continue with: {command}", markup=False)
    elif display.nothing_to_do:
        echo(str(run.folder))
    else:
        sentence = (run.corpus.valid or run.corpus.train)[0].source.written
        command = shlex.join(["attnworks", "translate", str(run.folder), sentence])
        screen.print(f"Done. Try: {command}", markup=False)
        echo(str(run.folder))
    sys.stdout.flush()
    if stopped:
        sys.exit(130)


@contextmanager
def stop_on_signal(received: list[int] | None = None) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are noted in a list, so that the current step can finish; a second one ends the program."""
    received = [] if received is None else received

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
