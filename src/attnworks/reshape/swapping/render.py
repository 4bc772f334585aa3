"""Advice as a terminal shows it: the trials of every layer, then the mix to take, and the command that makes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from attnworks.core.timing import CONFIDENCE, Interval, contains_one
from attnworks.reshape.render import SPEED, percent, speed, times
from attnworks.reshape.swapping.advice import Advice
from attnworks.reshape.swapping.trials import Present, SwapTrial

INTERVAL = f"{100 * CONFIDENCE:.0f} % intervals"
NO_GAIN_IN_MODEL = (
    "Nothing makes the whole model measurably faster. Keep the model as it is, try a larger --length, or measure again "
    "on an idle machine."
)
KINDS = {"enc": "Encoder", "dec": "Decoder", "cross": "Cross-attention"}


def advice_shown(advice: Advice) -> Group:
    """One table for each kind of layer, what cannot be used where, and what to do."""
    now = {layer.slot: layer for layer in advice.present}
    lengths = f"up to {advice.tried_at:,} tokens; times and FLOPs at length {advice.length:,}"
    first = f"Errors on texts of {lengths}; * chosen. In brackets {INTERVAL} of times."
    parts: list[RenderableType] = [Text(first, "dim")]
    for kind, title in KINDS.items():
        usable = [trial for trial in advice.trials if trial.slot.startswith(f"{kind}.") and trial.reason is None]
        if usable:
            parts += [Text(f"\n{title}", "bold"), _table(usable, now, advice.chosen)]
    parts += [Text(line) for line in (*_not_usable(advice.trials), *advice.notes)]
    parts.append(Text(f"\n{in_a_sentence(advice)}"))
    if advice.command is not None:
        lead = "Command:" if _pays(advice) else "Command, if you want it anyway:"
        parts += [Text(lead), CommandLine(advice.command)]
    return Group(*parts)


class CommandLine:
    """A command that can be copied at any width: lines end in a backslash between two arguments."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for word in _arguments(self.command):
            if line and len(line) + len(word) + len(" \\") >= options.max_width:
                yield Text(f"{line} \\", overflow="fold")
                line = "   "
            line = f"{line} {word}" if line else word
        yield Text(line, overflow="fold")


def _arguments(command: str) -> list[str]:
    """The words of a command as a shell reads them, each as it is typed, an option together with its value."""
    try:
        words = [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:  # of a file that was written by hand
        return [command]
    places = [place for place, word in enumerate(words) if not place or not words[place - 1].startswith("--")]
    return [" ".join(words[place:end]) for place, end in zip(places, [*places[1:], len(words)], strict=True)]


def _table(trials: Sequence[SwapTrial], now: Mapping[str, Present], chosen: Mapping[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    table.add_column("mechanism", overflow="fold")
    for heading in ("error", "time", "FLOPs"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("", no_wrap=True)
    for slot in dict.fromkeys(trial.slot for trial in trials):
        table.add_section()
        for number, trial in enumerate(trial for trial in trials if trial.slot == slot):
            picked = chosen.get(slot) == trial.spec
            assert trial.error is not None and trial.seconds is not None and trial.flops is not None
            table.add_row(
                slot if number == 0 else "",
                Text(trial.spec),
                percent(trial.error),
                _speed_cell(trial.seconds / now[slot].seconds, trial.time_interval),
                times(now[slot].flops / max(1, trial.flops), "fewer", "more"),
                "*" if picked else "",
                style="bold" if picked else None,
            )
    return table


def _speed_cell(time_ratio: float, interval: Interval | None) -> str:
    """4.1x faster (4-4.2), or no gain."""
    if interval is None:
        return times(1 / time_ratio, *SPEED)
    if contains_one(interval):
        return f"no gain ({1 / interval[1]:.3g}-{1 / interval[0]:.3g})"
    return speed(time_ratio, interval, "-")


def _not_usable(trials: Iterable[SwapTrial]) -> list[str]:
    """One line for each reason and the layers that it holds in."""
    slots: dict[tuple[str, str], list[str]] = {}
    for trial in trials:
        if trial.reason is not None:
            slots.setdefault((trial.spec, trial.reason), []).append(trial.slot)
    specs: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (spec, reason), where in slots.items():
        specs.setdefault((reason, tuple(where)), []).append(spec)
    return [f"Not in {', '.join(where)}: {', '.join(names)} (it {reason})." for (reason, where), names in specs.items()]


def in_a_sentence(advice: Advice) -> str:
    """The mix, its error, and what it saves."""
    max_error = advice.max_error
    if not advice.trials:
        return f"At length {advice.length:,} no mechanism takes fewer FLOPs: try a larger --length."
    refused = advice.refused
    if not advice.chosen and refused is not None:
        return (
            f"Keep the model as it is: the fastest mix within an error of {percent(max_error)} would raise the loss "
            f"on texts of up to {refused.tokens:,} tokens from {refused.before:.4g} to {refused.after:.4g}, by more "
            "than that share."
        )
    if not advice.chosen:
        return f"Nothing is measurably faster within an error of {percent(max_error)}: keep the model as it is."
    by_spec: dict[str, list[str]] = {}
    for slot, spec in advice.chosen.items():
        by_spec.setdefault(spec, []).append(slot)
    mix = "; ".join(f"{spec} in {', '.join(slots)}" for spec, slots in by_spec.items())
    attention = speed(advice.time_ratio, advice.time_interval)
    lead = f"Take {mix}" if _pays(advice) else f"{NO_GAIN_IN_MODEL} The fastest mix is {mix}"
    return (
        f"{lead}. Attention: {attention}{_model_speed(advice)}; in brackets {INTERVAL}. The error of attention is "
        f"{percent(advice.error)} (root mean square over {len(advice.present)} layers). {_loss(advice)}"
    )


def _pays(advice: Advice) -> bool:
    """Whether the whole model gets measurably faster, as far as it was timed."""
    return advice.model_time_interval is None or advice.model_time_interval[1] < 1


def _model_speed(advice: Advice) -> str:
    """What the whole model gains; the interval alone if the measured ratio is more than attention accounts for."""
    ratio, interval, least = advice.model_time_ratio, advice.model_time_interval, advice.model_time_least
    if ratio is None or interval is None:
        return ""
    if contains_one(interval) or least is None or ratio >= least:
        return f"; whole model: {speed(ratio, interval)}"
    return f"; whole model: between {1 / interval[1]:.3g} and {1 / interval[0]:.3g} times as fast"


def _loss(advice: Advice) -> str:
    """From before to after, at the length asked for and on sentences as they are."""
    found = f"On texts of up to {advice.tried_at:,} tokens the loss changes {_from_to(advice.loss, advice.rise)}"
    if advice.sentence_loss is None or advice.sentence_rise is None:
        return f"{found}."
    return f"{found}; on single sentences {_from_to(advice.sentence_loss, advice.sentence_rise)}."


def _from_to(loss: float, rise: float) -> str:
    return f"from {loss:.4g} to {loss + rise:.4g} ({rise:+.2g})"
