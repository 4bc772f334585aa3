"""What training looks like in a terminal, and how it stops when asked."""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from attnworks.cli.console import echo, print_json, progress_bar, progress_console
from attnworks.core.errors import UsageError
from attnworks.core.team import join_team
from attnworks.models.config import ModelConfig, TransformerConfig
from attnworks.models.counting import count_parameters
from attnworks.training.events import Event, Grown, Remark, Saved, StepDone, Validated
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run

FIXED = {"pairs", "corpus", "mechanism", "vocabulary", "vocabulary_size", "batch_tokens", "accumulate", "seed"}
"""What a run cannot change halfway: it decides which steps were made before."""


def train_and_show(
    preset: str | None, out: Path | None, resume: Path | None, given: dict[str, Any], as_json: bool
) -> None:
    with join_team(given.get("device", "cpu")) as team:
        if resume is not None:
            _refuse_changes(given, resume)
            run = Run.resume(resume, team, **given)
            if run.recipe.threads is not None:
                torch.set_num_threads(run.recipe.threads)
        else:
            assert preset is not None and out is not None
            limits = {} if given.keys() & {"epochs", "steps", "minutes"} else {"epochs": 20.0}
            run = Run.create(Recipe(preset=preset, **limits, **given), out, team)
        screen = progress_console()
        if run.done() and team.leads and not as_json:
            screen.print(
                f"Nothing to do: the run is at step {run.progress.step:,}, past where it is to stop. "
                "Give --steps, --epochs or --minutes beyond that."
            )
        with stop_on_signal() as stopped, TrainDisplay(run, screen, quiet=as_json or not team.leads) as display:
            run.train([display], should_stop=lambda: bool(stopped), grow=_growth(run))
        if team.leads:
            _conclude(run, screen, stopped=bool(stopped), as_json=as_json)


@contextlib.contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM let the step at hand finish; a second one ends at once."""
    received: list[int] = []

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
    """A progress bar with speed, loss and time left on a terminal; a plain line now and then elsewhere."""

    FIRST_AFTER_SECONDS, PLAIN_EVERY_SECONDS = 5.0, 30.0

    def __init__(self, run: Run, screen: Console, *, quiet: bool) -> None:
        self.run, self.screen, self.quiet = run, screen, quiet
        self.recent: deque[StepDone] = deque(maxlen=50)
        self.last_line = time.monotonic() - self.PLAIN_EVERY_SECONDS + self.FIRST_AFTER_SECONDS
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> TrainDisplay:
        if self.quiet:
            return self
        run, recipe = self.run, self.run.recipe
        parameters = sum(count_parameters(run.model.config).values())
        at = f"from step {run.progress.step:,}" if run.progress.step else "from the start"
        self.screen.print(
            f"[bold]{recipe.preset}[/]{_attention(run.model.config)}, {parameters:,} parameters, {at}; "
            f"corpus {escape(recipe.corpus)}: "
            f"{len(run.corpus.train):,} pairs, {len(run.source):,} and {len(run.target):,} token kinds"
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
            left = self._left() if self.run.last_step is None else ""  # the bar itself knows steps, not minutes
            self.bar.update(self.task, completed=event.step, description=self._summary() + left)
        elif time.monotonic() - self.last_line > self.PLAIN_EVERY_SECONDS:
            self.last_line = time.monotonic()
            self.screen.print(f"step {event.step:,}{self._left()}: {self._summary()}")

    def _left(self) -> str:
        """How far it is to the last step, and how long."""
        last, limit = self.run.last_step, self.run.recipe.minutes
        seconds = math.inf if limit is None else 60 * limit - self.run.progress.seconds
        if last is not None:
            pace = sum(event.seconds for event in self.recent) / len(self.recent)
            seconds = min(seconds, (last - self.recent[-1].step) * pace)
        return f"{'' if last is None else f' of {last:,}'}, about {max(0.0, seconds) / 60:.1f} min left"

    def _summary(self) -> str:
        seconds = sum(event.seconds for event in self.recent)
        speed = sum(event.tokens for event in self.recent) / seconds
        loss = sum(event.loss for event in self.recent) / len(self.recent)
        now = self.recent[-1]
        return f"epoch {now.epoch:.1f}  loss {loss:.3f}  lr {now.learning_rate:.1e}  {speed:,.0f} tokens/s"


def _growth(run: Run) -> Callable[[Run], Grown | None] | None:
    if run.recipe.grow_until is None:
        return None
    from attnworks.reshape import grow_in_training

    return grow_in_training


def _grown(event: Grown) -> str:
    if event.reason is not None:
        return f"step {event.step:,}: did not grow, {event.reason}"
    what = "; ".join(f"{place} {widths}" for place, widths in event.done.items())
    missed = "".join(f"; left out {place}: {reason}" for place, reason in event.left_out.items())
    return (
        f"step {event.step:,}: grew to {event.parameters:,} parameters, loss -{event.fall:.3g} expected: {what}{missed}"
    )


def _refuse_changes(given: dict[str, Any], resume: Path) -> None:
    if fixed := sorted(FIXED & given.keys()):
        raise UsageError(
            f"resume {resume} with another {fixed[0]}",
            "the steps made so far to stay what they were",
            f"--{fixed[0].replace('_', '-')}",
            "leave it out, or start a new run with --out",
        )


def _conclude(run: Run, screen: Console, *, stopped: bool, as_json: bool) -> None:
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
    else:
        sentence = (run.corpus.valid or run.corpus.train)[0].source.text
        command = shlex.join(["attnworks", "translate", str(run.folder), sentence])
        screen.print(f"Done. Try: {command}", markup=False)
        echo(str(run.folder))
    sys.stdout.flush()
    if stopped:
        sys.exit(130)


def _attention(config: ModelConfig) -> str:
    """Which layers attend how, unless all do as usual."""
    if not isinstance(config, TransformerConfig):
        return ""
    used: dict[str, list[str]] = {}
    for slot in config.slot_names():
        mechanism = config.slot(slot).mechanism
        name = mechanism if isinstance(mechanism, str) else " + ".join(dict.fromkeys(mechanism))
        used.setdefault(name, []).append(str(slot))
    told = "; ".join(f"{escape(name)} in {', '.join(slots)}" for name, slots in used.items())
    return "" if list(used) == ["dense"] else f" ({told})"
