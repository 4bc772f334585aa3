"""A receipt, shown to people."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from attnworks.core.timing import CONFIDENCE, Interval, contains_one
from attnworks.reshape.contract import AUTO
from attnworks.reshape.growth.methods import METHODS
from attnworks.reshape.pruning.prune import COMPARED_KEEP_SHARES
from attnworks.reshape.pruning.ranking import RANKINGS
from attnworks.reshape.receipt import Receipt

SPEED = ("faster", "slower")
NO_GAIN = "no measurable gain"


def receipt_shown(receipt: Receipt, number: int | None = None) -> Group:
    """What was done, head by head, and what became of loss, parameters and FLOPs."""
    heads = Table(box=SIMPLE_HEAD, pad_edge=False)
    heads.add_column("head" if any(place.count(".") > 1 for place in receipt.done) else "layer")
    heads.add_column("becomes")
    for head, form in sorted(receipt.done.items(), key=_in_model):
        heads.add_row(head, form)
    loss = receipt.loss
    losses = _columns("", "before", "predicted", "after", *(("healed",) if loss.healed is not None else ()))
    found = (loss.before, loss.predicted, loss.after, *((loss.healed,) if loss.healed is not None else ()))
    losses.add_row(f"loss ({receipt.objective})", *(f"{value:.4g}" for value in found))
    long = receipt.loss_at_length
    if long is not None:
        found = (long.before, long.predicted, long.after, *((long.healed,) if long.healed is not None else ()))
        losses.add_row(f"loss on texts of up to {long.tokens:,} tokens", *(f"{value:.4g}" for value in found))
    for name, score in receipt.scores.items():
        after = (score.after, *((score.healed,) if score.healed is not None else ()))
        losses.add_row(name, f"{score.before:.4g}", "", *(f"{value:.4g}" for value in after))
    sizes = _columns("", "before", "after", "change")
    in_type = f"bytes in {receipt.numbers[0]}"
    changes = {"parameters": receipt.parameters, in_type: receipt.bytes, "attention FLOPs": receipt.flops}
    for name, change in ((name, change) for name, change in changes.items() if change is not None):
        share = f"{change.after - change.before:+,} ({-100 * change.saved or 0:+.3g} %)"
        sizes.add_row(name, f"{change.before:,}", f"{change.after:,}", share)
    if receipt.time is not None:
        sizes.add_row("time of a forward pass", "1", f"{receipt.time:.3g}", _time_change(receipt.time_interval))
    title = Text(f"{'' if number is None else f'{number}. '}{receipt.title}", "bold")
    more: list[Table] = []
    if receipt.reshape == "prune":
        more = [_levels(receipt)] if receipt.asked.get("compare") else []
    elif receipt.facts:
        more = [_swapped(receipt) if receipt.reshape == "swap" else _facts(receipt)]
    said = heads if receipt.done else Text(_nothing(receipt))
    missed = [Text(f"Left out: {place}: {reason}.") for place, reason in receipt.left_out.items()]
    return Group(title, said, *missed, Text(_judged(receipt), "dim"), losses, sizes, *more)


def _nothing(receipt: Receipt) -> str:
    """Why a reshape changed nothing, where that is known."""
    if receipt.reshape != "swap" or receipt.asked.get("layers") != AUTO:
        return "Nothing was changed."
    return (
        f"Nothing was changed: at {receipt.length:,} positions no mechanism is measurably faster within the error. Try "
        "a larger --n, or name the layers with --layers."
    )


def _in_model(placed: tuple[str, str]) -> tuple[bool, list[int], bool, list[int], str]:
    """The encoder first, then the decoder layer by layer, each before its cross-attention."""
    kind, *rest = placed[0].split(".")
    numbers = [int(part[:9]) if part.isascii() and part.isdigit() else -1 for part in rest]
    return kind != "enc", numbers[:1], kind != "dec", [*numbers[1:]], placed[0]


def _swapped(receipt: Receipt) -> Table:
    """The error of attention, in all and by layer, and what became of its time."""
    table, facts = _columns("", ""), receipt.facts
    for name, words in (("attention_time_ratio", "attention cores"), ("model_time_ratio", "whole model")):
        if name in facts:
            ends = [facts[end] for end in (f"{name}_low", f"{name}_high") if end in facts]
            told = speed(facts[name], (ends[0], ends[1])) if len(ends) > 1 else times(1 / facts[name], *SPEED)
            table.add_row(f"{words} at {receipt.length:,} positions", told)
    table.add_row("error of attention, root mean square", percent(facts.get("error", 0.0)))
    for name, value in facts.items():
        if name.startswith("error_"):
            table.add_row(f"error of {name.removeprefix('error_')}", percent(value))
    return table


def percent(share: float) -> str:
    return "> 1000 %" if share >= 10 else f"{100 * share:.3g} %" if share >= 1e-6 else "0 %"


def times(ratio: float, more: str, less: str) -> str:
    """4.1x faster."""
    return f"{ratio:.3g}x {more}" if ratio >= 1 else f"{1 / ratio:.3g}x {less}"


def speed(time_ratio: float, interval: Interval, separator: str = " to ") -> str:
    """4.1x faster (4 to 4.2), or that there is no measurable gain."""
    slow, fast = 1 / interval[1], 1 / interval[0]
    if contains_one(interval):
        return f"{NO_GAIN} ({slow:.3g}{separator}{fast:.3g} times as fast)"
    low, high = (slow, fast) if time_ratio <= 1 else interval
    return f"{times(1 / time_ratio, *SPEED)} ({low:.3g}{separator}{high:.3g})"


def _time_change(interval: Interval | None) -> str:
    if interval is None:
        return ""
    told = f"{100 * CONFIDENCE:.0f} % interval {interval[0]:.3g} to {interval[1]:.3g}"
    return f"no measurable change ({told})" if contains_one(interval) else told


def _facts(receipt: Receipt) -> Table:
    """Further numbers: what other ways would have given, and what else was measured."""
    table = _columns("", "")
    for name, value in receipt.facts.items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    for name in METHODS if receipt.asked.get("compare") else ():
        if name != receipt.asked.get("by") and f"loss_by_{name}" not in receipt.facts:
            table.add_row(f"loss by {name}", "not there")
    return table


def _levels(receipt: Receipt) -> Table:
    """The loss after cutting by every ranking at every level; the lowest of each level stands out."""
    table = _columns("loss, keeping", *RANKINGS)
    for level in COMPARED_KEEP_SHARES:
        name = f"{100 * level:.0f}"
        found = [receipt.facts.get(f"loss_by_{ranking}_keeping_{name}") for ranking in RANKINGS]
        lowest = min((value for value in found if value is not None), default=None)
        styles = ("bold" if value == lowest else "" for value in found)
        shown = ("-" if value is None else f"{value:.4g}" for value in found)
        cells = [Text(text, style) for text, style in zip(shown, styles, strict=True)]
        table.add_row(f"{name} %", *cells)
    return table


def _columns(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _judged(receipt: Receipt) -> str:
    sentences, written = receipt.text.get("evaluation"), receipt.text.get("written")
    steps = f", healed by {receipt.healing.steps} steps" if receipt.healing.steps else ""
    own = f"; the model itself wrote {written} of their targets" if written else ""
    length = "" if receipt.asked.get("length") else f" of about {receipt.length} tokens"
    judged = f"Mean loss of {sentences} held-out sentences{length}{steps}{own}"
    return f"{judged}; {receipt.seconds:.0f} s."
