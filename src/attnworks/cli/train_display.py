"""What `attnworks train` shows while a model is trained."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING

from attnworks.core.display import counted, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from attnworks.models.config import ModelConfig
    from attnworks.training.events import Event, Grown, StepDone
    from attnworks.training.run import Run

FIRST_STEPS, LONG_RUN_SECONDS = 10, 12 * 3600
LAPTOP_PRESETS = ("tiny", "small")


class TrainDisplay:
    """A watcher of a run: a progress bar with speed, loss and time left on a terminal, and plain lines elsewhere."""

    FIRST_AFTER_SECONDS, PLAIN_EVERY_SECONDS = 5.0, 30.0

    def __init__(self, run: Run, screen: Console, *, quiet: bool) -> None:
        self.run, self.screen, self.quiet = run, screen, quiet
        self.recent: deque[StepDone] = deque(maxlen=50)
        self.last_line = time.monotonic() - self.PLAIN_EVERY_SECONDS + self.FIRST_AFTER_SECONDS
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.nothing_to_do, self.steps = False, 0

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
            f"corpus {escape(recipe.corpus)}: {len(run.corpus.train):,} pairs, {_vocabularies(run)}"
        )
        if run.corpus.report.bad:
            self.screen.print(f"[yellow]{escape(run.corpus.report.summary())}")
        for split, count in run.corpus.overlap.items():
            number = len(run.corpus.valid if split == "valid" else run.corpus.test)
            self.screen.print(
                f"{counted(number, f'{split} pair')}, {count:,} of them with a source that is also in training",
                style="yellow" if count else None,
            )
        if run.too_long:
            self.screen.print(f"{counted(run.too_long, 'training pair')} over {recipe.max_length} tokens left out")
        if self.screen.is_terminal:
            self.bar = progress_bar("step", self.screen)
            self.bar.start()
            self.task = self.bar.add_task("", total=run.last_step, completed=run.progress.step)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, event: Event) -> None:
        from attnworks.training.events import Averaged, Grown, Remark, Saved, Tested, Validated

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
        if isinstance(event, Averaged):
            better = "  [green]best so far[/]" if event.best else ", no better than the best checkpoint"
            self.screen.print(
                f"mean of the weights of {len(event.steps)} checkpoints: held-out loss {event.loss:.3f}{better}"
            )
            return
        if isinstance(event, Tested):
            scores = "" if event.bleu is None else f", BLEU {event.bleu:.1f}, chrF {event.chrf:.1f} ({event.signature})"
            self.screen.print(f"test: loss {event.loss:.3f}{scores}", markup=False)
            return
        if isinstance(event, Grown):
            self.screen.print(_grown(event), markup=False)
            return
        self.recent.append(event)
        self._tell_long_run()
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=event.step, description=self._summary(), left=self._seconds_left())
        elif time.monotonic() - self.last_line > self.PLAIN_EVERY_SECONDS:
            self.last_line = time.monotonic()
            last = "" if self.run.last_step is None else f" of {self.run.last_step:,}"
            left = f"about {duration(self._seconds_left())} left"
            self.screen.print(f"step {event.step:,}{last}, {left}: {self._summary()}")

    def _tell_long_run(self) -> None:
        """Say once, after the first steps, that a run on a CPU takes long, and what takes less time."""
        self.steps += 1
        seconds, recipe = self._seconds_left(), self.run.recipe
        if self.steps != FIRST_STEPS or seconds < LONG_RUN_SECONDS or not recipe.device.startswith("cpu"):
            return
        remedy = "" if recipe.preset in LAPTOP_PRESETS else "; the preset small is made for a computer without a GPU"
        self.screen.print(f"At this speed the run takes about {duration(seconds)}{remedy}.", style="yellow")

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


def _vocabularies(run: Run) -> str:
    """The sizes of the vocabularies; one that both sides share is counted once."""
    if run.has_joint_vocabulary:
        return f"one vocabulary of {len(run.source):,} tokens for both sides"
    return f"vocabularies of {len(run.source):,} and {len(run.target):,} tokens"


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
