"""From the options of `attnworks advise` to advice, shown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attnworks.cli.console import console, print_json
from attnworks.cli.receipt_display import SPEED, percent, speed, times
from attnworks.cli.reshape_run import texts_of, watching
from attnworks.core.folders import with_sha256
from attnworks.core.plotting import check_picture
from attnworks.core.timing import CONFIDENCE, Interval, contains_one
from attnworks.reshape.history import ModelFolder
from attnworks.reshape.run import ReshapeSettings, reshape_context
from attnworks.reshape.swapping.advice import Advice, find_advice
from attnworks.reshape.swapping.picture import draw_advice
from attnworks.reshape.swapping.swap import Swap, pairs_of
from attnworks.reshape.swapping.trials import Present, SwapTrial
from attnworks.reshape.texts import CALIBRATION_PAIRS, HELD_OUT_SENTENCES
from attnworks.traces.subject import open_subject

INTERVAL = f"{100 * CONFIDENCE:.0f} % intervals"
KEEP = (
    "Nothing makes the whole model measurably faster: keep what is there, try a larger --n, or measure again on an "
    "idle machine."
)
KINDS = {"enc": "Encoder", "dec": "Decoder", "cross": "Cross-attention"}


def advise_and_show(model: str, options: dict[str, Any]) -> None:
    """Check everything that was asked for, measure, show."""
    plot, max_error = options["plot"], options["max_error"]
    asked = Swap(to=options["to"], max_error=max_error, length=options["length"])
    if plot is not None:
        check_picture(plot)
    subject = open_subject(model, device=options["device"], dtype=options["dtype"])
    asked.check(subject.model)
    texts = texts_of(ModelFolder.of(model), options, pairs=CALIBRATION_PAIRS, held_out=HELD_OUT_SENTENCES)
    settings = ReshapeSettings(options["objective"], batch_tokens=options["batch_tokens"], seed=options["seed"])
    with watching("advise", quiet=options["as_json"]) as tell:
        texts = replace(texts, learn=texts.learn[: options["sentences"]])
        context = reshape_context(asked, subject, texts, settings, tell)
        advice = find_advice(context, asked.to, max_error=max_error, length=options["length"])
    command = _command(model, advice, options) if advice.chosen else None
    if options["as_json"]:
        print_json(with_sha256({"model": model, "max_error": max_error, **asdict(advice), "command": command}))
    else:
        _show(advice, max_error, command)
    if plot is not None:
        draw_advice(advice, plot, max_error=max_error)
        if not options["as_json"]:
            console().print(f"Picture {plot}", markup=False)


def _command(model: str, advice: Advice, options: Mapping[str, Any]) -> str:
    """What makes a model of the advice."""
    words = ["attnworks", "reshape", "swap", model, "--layers", pairs_of(advice.chosen), "--n", str(advice.length)]
    for name in ("corpus", "text", "objective"):
        words += [f"--{name}", str(options[name])] if options[name] is not None else []
    return f"{shlex.join(words)} --out FOLDER"


def _show(advice: Advice, max_error: float, command: str | None) -> None:
    screen = console()
    now = {layer.slot: layer for layer in advice.present}
    lengths = f"up to {advice.tried_at:,} tokens; times and FLOPs at {advice.length:,} positions"
    screen.print(f"Errors on texts of {lengths}; * chosen. In brackets {INTERVAL} of times.", style="dim")
    for kind, title in KINDS.items():
        usable = [trial for trial in advice.trials if trial.slot.startswith(f"{kind}.") and trial.reason is None]
        if usable:
            screen.print(Text(f"\n{title}", "bold"))
            screen.print(_table(usable, now, advice.chosen))
    for line in _not_usable(advice.trials):
        screen.print(line, markup=False)
    for note in advice.notes:
        screen.print(note, markup=False)
    screen.print(f"\n{in_a_sentence(advice, max_error)}", markup=False)
    if command is not None:
        lead = "Command:" if _pays(advice) else "Command, if you want it anyway:"
        screen.print(f"{lead} {command}", markup=False, soft_wrap=True)


def _table(trials: Sequence[SwapTrial], now: Mapping[str, Present], chosen: Mapping[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("layer", "mechanism"):
        table.add_column(heading, overflow="fold")
    for heading in ("error", "time", "FLOPs", ""):
        table.add_column(heading, justify="right", no_wrap=True)
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


def in_a_sentence(advice: Advice, max_error: float) -> str:
    """The mix, its error, and what it saves."""
    if not advice.trials:
        return f"Nothing takes fewer FLOPs than what is there at {advice.length:,} positions: try a larger --n."
    refused = advice.refused
    if not advice.chosen and refused is not None:
        return (
            f"Keep what is there: the fastest mix within an error of {percent(max_error)} would raise the loss on "
            f"texts of up to {refused.tokens:,} tokens from {refused.before:.4g} to {refused.after:.4g}, by more than "
            "that share."
        )
    if not advice.chosen:
        return f"Nothing is measurably faster within an error of {percent(max_error)}: keep what is there."
    by_spec: dict[str, list[str]] = {}
    for slot, spec in advice.chosen.items():
        by_spec.setdefault(spec, []).append(slot)
    mix = "; ".join(f"{spec} in {', '.join(slots)}" for spec, slots in by_spec.items())
    attention = speed(advice.time_ratio, advice.time_interval)
    told = f"Take {mix}" if _pays(advice) else f"{KEEP} The fastest mix is {mix}"
    return (
        f"{told}. Attention: {attention}{_model_speed(advice)}; in brackets {INTERVAL}. The error of attention is "
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
    told = f"On texts of up to {advice.tried_at:,} tokens the loss goes {_from_to(advice.loss, advice.rise)}"
    if advice.sentence_loss is None or advice.sentence_rise is None:
        return f"{told}."
    return f"{told}; on single sentences {_from_to(advice.sentence_loss, advice.sentence_rise)}."


def _from_to(loss: float, rise: float) -> str:
    return f"from {loss:.4g} to {loss + rise:.4g} ({rise:+.2g})"
