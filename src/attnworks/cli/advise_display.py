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
from attnworks.cli.receipt_display import percent, times
from attnworks.cli.reshape_run import texts_of, watching
from attnworks.reports.advice import draw_advice
from attnworks.reports.times import check_picture
from attnworks.reshape.advising import Advice, advise
from attnworks.reshape.carrying_out import Care, bench_for
from attnworks.reshape.history import Place
from attnworks.reshape.swap_trials import Present, Trial
from attnworks.reshape.swapping import Swap, pairs_of
from attnworks.reshape.texts import HELD_OUT, LEARN
from attnworks.traces.examinee import open_examinee

KINDS = {"enc": "Encoder", "dec": "Decoder", "cross": "Cross-attention"}


def advise_and_show(model: str, options: dict[str, Any]) -> None:
    """Check everything that was asked for, measure, show."""
    plot, max_error = options["plot"], options["max_error"]
    asked = Swap(to=options["to"], max_error=max_error, length=options["length"])
    if plot is not None:
        check_picture(plot)
    texts = texts_of(Place.of(model), options, pairs=LEARN, held_out=HELD_OUT)
    care = Care(options["objective"], tokens=options["batch_tokens"], seed=options["seed"])
    with watching("advise", quiet=options["as_json"]) as watch:
        examinee = open_examinee(model, device=options["device"], dtype=options["dtype"])
        texts = replace(texts, learn=texts.learn[: options["sentences"]])
        bench = bench_for(asked, examinee, texts, care, watch)
        advice = advise(bench, asked.to, max_error=max_error, length=options["length"])
    command = _command(model, advice, options) if advice.chosen else None
    if options["as_json"]:
        print_json({"model": model, "max_error": max_error, **asdict(advice), "command": command})
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
    screen.print(f"Errors on texts of {lengths}; * chosen.", style="dim")
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
        screen.print(f"Do it  {command}", markup=False, soft_wrap=True)


def _table(trials: Sequence[Trial], now: Mapping[str, Present], chosen: Mapping[str, str]) -> Table:
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
                times(now[slot].seconds / trial.seconds, "faster", "slower"),
                times(now[slot].flops / max(1, trial.flops), "fewer", "more"),
                "*" if picked else "",
                style="bold" if picked else None,
            )
    return table


def _not_usable(trials: Iterable[Trial]) -> list[str]:
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
    if not advice.chosen and advice.forbidden is not None:
        return (
            f"Keep what is there: the fastest mix within an error of {percent(max_error)} would raise the loss from "
            f"{advice.loss:.4g} to {advice.forbidden:.4g}, by more than that share."
        )
    if not advice.chosen:
        return f"Nothing saves time within an error of {percent(max_error)}: keep what is there."
    by_spec: dict[str, list[str]] = {}
    for slot, spec in advice.chosen.items():
        by_spec.setdefault(spec, []).append(slot)
    mix = "; ".join(f"{spec} in {', '.join(slots)}" for spec, slots in by_spec.items())
    whole = advice.model_time_ratio
    model = "" if whole is None else f", the whole model {times(1 / whole, 'faster', 'slower')}"
    return (
        f"Take {mix}: attention gets {times(1 / advice.time_ratio, 'faster', 'slower')}{model}, its error is "
        f"{percent(advice.error)} (root mean square over {len(advice.present)} layers), and the loss goes from "
        f"{advice.loss:.4g} to {advice.loss + advice.rise:.4g}."
    )
