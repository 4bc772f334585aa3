"""`attnworks train`: train a preset on a corpus, or continue a run."""

from __future__ import annotations

import math
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from attnworks.cli.options import SEED, prepare, threads_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from attnworks.models.config import ModelConfig
    from attnworks.training.events import Event, Grown, StepDone
    from attnworks.training.run import Run


@click.command()
@click.argument("preset", required=False)
@click.option(
    "--corpus",
    help="Corpus to train on: grammar, tsv:FILE, text:SRC,TGT, gettext:DIR or opus_books.  [default: grammar]",
)
@click.option("--pairs", type=click.IntRange(1), metavar="N", help="Train on at most N sentence pairs.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the new run; must not exist yet.")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run instead of starting a new one.")
@click.option("--epochs", type=float, metavar="N", help="Stop after N passes over the corpus in total.  [default: 20]")
@click.option("--steps", type=int, metavar="N", help="Stop after N optimizer steps in total.")
@click.option(
    "--minutes", type=float, metavar="N", help="Stop after N minutes of training in total, with those before --resume."
)
@click.option(
    "--mechanism",
    metavar="SPEC",
    help="Attention mechanism of every layer that supports it, for example window:window=16.",
)
@click.option(
    "--vocabulary",
    type=click.Choice(["word", "bpe"]),
    help="Split text into whole words or byte pairs.  [default: word]",
)
@click.option("--vocabulary-size", type=int, metavar="N", help="Largest vocabulary per side.  [default: 32000]")
@click.option(
    "--batch-tokens",
    type=int,
    metavar="N",
    help="Tokens on the larger padded side of a batch.  [default: 640]",
)
@click.option("--accumulate", type=int, metavar="N", help="Batches per optimizer step.  [default: 1]")
@click.option("--learning-rate", type=float, help="Peak learning rate.  [default: 0.0007]")
@click.option(
    "--schedule",
    type=click.Choice(["warmup", "cosine", "constant"]),
    help="Schedule of the learning rate.  [default: warmup]",
)
@click.option("--warmup", type=int, metavar="N", help="Warm-up steps until the peak learning rate.  [default: 300]")
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

    PRESET is tiny, conti-1h, conti-8h, base, lstm-plain, lstm-dot, lstm-multiplicative or lstm-additive; attnworks
    count PRESET shows its size. Without --epochs, --steps or --minutes it trains 20 epochs: on 2 cores a few minutes
    for tiny, most of an hour for conti-8h. Ctrl-C saves a checkpoint and stops with exit code 130; --resume continues
    from there, with the same steps as a run without the break. To use several processes, run torchrun
    --nproc-per-node 2 -m attnworks train ...

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
        sentence = (run.corpus.valid or run.corpus.train)[0].source.text
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


class TrainDisplay:
    """A watcher of a run: a progress bar with speed, loss and time left on a terminal, and plain lines elsewhere."""

    FIRST_AFTER_SECONDS, PLAIN_EVERY_SECONDS = 5.0, 30.0

    def __init__(self, run: Run, screen: Console, *, quiet: bool) -> None:
        self.run, self.screen, self.quiet = run, screen, quiet
        self.recent: deque[StepDone] = deque(maxlen=50)
        self.last_line = time.monotonic() - self.PLAIN_EVERY_SECONDS + self.FIRST_AFTER_SECONDS
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.nothing_to_do = False

    def __enter__(self) -> TrainDisplay:
        self.nothing_to_do = self.run.done()  # every process of a team asks
        if self.quiet:
            return self
        from rich.markup import escape

        from attnworks.cli.console import progress_bar
        from attnworks.models.counting import count_parameters

        run, recipe = self.run, self.run.recipe
        if self.nothing_to_do:
            self.screen.print(
                f"Nothing to do: the run is at step {run.progress.step:,}, past its limit. "
                "Set a later one with --steps, --epochs or --minutes, which count from the start of the run."
            )
            return self
        parameters = sum(count_parameters(run.model.config).values())
        at = f"from step {run.progress.step:,}" if run.progress.step else "from the start"
        self.screen.print(
            f"[bold]{recipe.preset}[/]{_attention(run.model.config)}, {parameters:,} parameters, {at}; "
            f"corpus {escape(recipe.corpus)}: {len(run.corpus.train):,} pairs, "
            f"vocabularies of {len(run.source):,} and {len(run.target):,} tokens"
        )
        if run.corpus.report.bad:
            self.screen.print(f"[yellow]{escape(run.corpus.report.summary())}")
        if self.screen.is_terminal:
            self.bar = progress_bar("step", self.screen)
            self.bar.start()
            self.task = self.bar.add_task("", total=run.last_step, completed=run.progress.step)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, event: Event) -> None:
        from attnworks.core.display import duration
        from attnworks.training.events import Grown, Remark, Saved, Validated

        if self.quiet or isinstance(event, Saved):
            return
        if isinstance(event, Remark):
            self.screen.print(event.text, style="yellow", markup=False)
            return
        if isinstance(event, Validated):
            scores = "" if event.bleu is None else f", BLEU {event.bleu:.1f}, chrF {event.chrf:.1f}"
            star = "  [green]best so far[/]" if event.best else ""
            self.screen.print(
                f"step {event.step:,}: held-out loss {event.loss:.3f}, perplexity {event.perplexity:.2f}{scores}{star}"
            )
            return
        if isinstance(event, Grown):
            self.screen.print(_grown(event), markup=False)
            return
        self.recent.append(event)
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=event.step, description=self._summary(), left=self._seconds_left())
        elif time.monotonic() - self.last_line > self.PLAIN_EVERY_SECONDS:
            self.last_line = time.monotonic()
            last = "" if self.run.last_step is None else f" of {self.run.last_step:,}"
            left = f"about {duration(self._seconds_left())} left"
            self.screen.print(f"step {event.step:,}{last}, {left}: {self._summary()}")

    def _seconds_left(self) -> float:
        """Until the last step or the end of the time, whichever comes first."""
        last, limit = self.run.last_step, self.run.recipe.minutes
        seconds = math.inf if limit is None else 60 * limit - self.run.progress.seconds
        if last is not None:
            pace = sum(event.seconds for event in self.recent) / len(self.recent)
            seconds = min(seconds, (last - self.recent[-1].step) * pace)
        return max(0.0, seconds)

    def _summary(self) -> str:
        seconds = sum(event.seconds for event in self.recent)
        speed = sum(event.tokens for event in self.recent) / seconds
        loss = sum(event.loss for event in self.recent) / len(self.recent)
        now = self.recent[-1]
        return f"loss {loss:.3f}  epoch {now.epoch:.1f}  {speed:,.0f} tokens/s  learning rate {now.learning_rate:.1e}"


def _grown(event: Grown) -> str:
    if event.reason is not None:
        return f"step {event.step:,}: did not grow, {event.reason}"
    what = "; ".join(f"{place} {widths}" for place, widths in event.done.items())
    missed = "".join(f"; left out {place}: {reason}" for place, reason in event.left_out.items())
    return (
        f"step {event.step:,}: grew to {event.parameters:,} parameters, loss -{event.fall:.3g} expected: {what}{missed}"
    )


def _attention(config: ModelConfig) -> str:
    """The mechanism of every layer, unless all are dense."""
    from rich.markup import escape

    from attnworks.models.config import TransformerConfig

    if not isinstance(config, TransformerConfig):
        return ""
    used: dict[str, list[str]] = {}
    for slot in config.slot_names():
        mechanism = config.slot(slot).mechanism
        name = mechanism if isinstance(mechanism, str) else " + ".join(dict.fromkeys(mechanism))
        used.setdefault(name, []).append(str(slot))
    shown = "; ".join(f"{escape(name)} in {', '.join(slots)}" for name, slots in used.items())
    return "" if list(used) == ["dense"] else f" ({shown})"
