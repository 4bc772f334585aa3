"""Receipts as a terminal shows them: what was done and what it means, then the tables."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from attnworks.core.display import counted, duration
from attnworks.core.places import NO_HEADS
from attnworks.core.timing import CONFIDENCE, Interval, contains_one
from attnworks.reshape.contract import AUTO
from attnworks.reshape.losses import PER_TOKEN, Losses, perplexity
from attnworks.reshape.probed import ROLES, ProbedChange
from attnworks.reshape.receipt import History, Receipt, Replayed

SPEED = ("faster", "slower")
NO_GAIN = "no measurable gain"


def receipt_shown(receipt: Receipt, number: int | None = None) -> Group:
    """The summary; what was done, head by head; and what became of loss, parameters, FLOPs and time."""
    heads = Table(box=SIMPLE_HEAD, pad_edge=False)
    heads.add_column("head" if any(place.count(".") > 1 for place in receipt.done) else "layer", no_wrap=True)
    heads.add_column("becomes", overflow="fold")
    for head, form in sorted(receipt.done.items(), key=_in_model):
        _add_row(heads, head, form)
    losses = _columns("", "before", "predicted", "after", *(("healed",) if receipt.loss.healed is not None else ()))
    _add_losses(losses, f"loss ({receipt.objective})", receipt.loss, receipt.objective)
    long = receipt.loss_at_length
    if long is not None:
        _add_losses(losses, f"loss on texts of up to {long.tokens:,} tokens", long, receipt.objective)
    for name, score in receipt.scores.items():
        after = (score.after, *((score.healed,) if score.healed is not None else ()))
        _add_row(losses, name, f"{score.before:.4g}", "", *(f"{value:.4g}" for value in after))
    probed = [] if receipt.probes is None else [_probed(receipt, receipt.probes)]
    sizes = _columns("", "before", "after", "change")
    in_type = f"bytes in {receipt.numbers[0]}"
    changes = {"parameters": receipt.parameters, in_type: receipt.bytes, "attention FLOPs": receipt.flops}
    for name, change in ((name, change) for name, change in changes.items() if change is not None):
        share = f"{change.after - change.before:+,} ({-100 * change.saved or 0:+.3g} %)"
        _add_row(sizes, name, f"{change.before:,}", f"{change.after:,}", share)
    if receipt.time is not None:
        _add_row(sizes, "time of a forward pass", "1", f"{receipt.time:.3g}", _time_change(receipt.time_interval))
    summary = Text(f"{'' if number is None else f'{number}. '}{receipt.summary}", "bold")
    more: list[Table] = []
    if receipt.reshape == "prune":
        more = [_levels(receipt)] if receipt.asked.get("compare") else []
    elif receipt.facts:
        more = [_swapped(receipt) if receipt.reshape == "swap" else _facts(receipt)]
    missed = [Text(f"Warning: {concern}", "yellow") for concern in receipt.concerns]
    missed += [Text(f"Left out: {place}: {reason}.") for place, reason in receipt.left_out.items()]
    if receipt.nothing_changed:
        tables = more if receipt.asked.get("compare") else []
        return Group(Text(f"{'' if number is None else f'{number}. '}{_nothing(receipt)}", "bold"), *missed, *tables)
    said = heads if receipt.done else Text(_nothing(receipt))
    return Group(summary, *missed, said, Text(_measured(receipt), "dim"), losses, *probed, sizes, *more)


def _nothing(receipt: Receipt) -> str:
    """That a reshape changed nothing, and why, where that is known."""
    asked, why = receipt.asked, ""
    if receipt.reshape == "swap" and asked.get("layers") == AUTO:
        why = f"at length {receipt.length:,} no mechanism is measurably faster within the error. Try a larger --length "
        why += "or --max-error, or name the layers with --layers"
    elif NO_HEADS in (asked.get("heads"), asked.get("layers")):
        why = "no heads were named"
    elif receipt.reshape == "swap":
        why = "these layers have this mechanism already"
    elif receipt.reshape == "prune" and asked.get("keep") is not None:
        each = " of every layer" if asked.get("evenly") else ""
        why = f"a share of {asked['keep']:g} of the {receipt.facts.get('heads_before', 0):.0f} heads{each} rounds to "
        why += "all of them. Choose a smaller --keep"
    elif receipt.reshape == "prune" and asked.get("budget") is not None:
        why = f"the model is within the budget {asked['budget']} as it is. Choose a smaller --budget"
    return f"Nothing was changed{f': {why}' * bool(why)}."


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
            _add_row(table, f"{words} at length {receipt.length:,}", told)
    _add_row(table, "error of attention, root mean square", percent(facts.get("error", 0.0)))
    for name, value in facts.items():
        if name.startswith("error_"):
            _add_row(table, f"error of {name.removeprefix('error_')}", percent(value))
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
    """Further numbers: what was measured beside, and what other ways would have given."""
    table = _columns("", "")
    for name, value in receipt.facts.items():
        start = next((start for start in _FACTS if name.startswith(start)), None)
        words = name.replace("_", " ") if start is None else f"{_FACTS[start]}{name.removeprefix(start)}"
        _add_row(table, words, f"{value:.4g}")
    return table


_FACTS = {
    "difference_at_zero": "change of outputs with a step of zero",
    "loss_by_": "loss with columns by ",
    "trust_": "share of the slope that other sentences confirm, ",
    "residual_": "residual of the fit, ",
    "angle_": "angle per position of frequency pairs, ",
}
"""The beginnings of the names of facts, in words."""


def _levels(receipt: Receipt) -> Table:
    """The loss after cutting by every ranking at every level; the lowest of each level stands out."""
    found: dict[int, dict[str, float]] = {}
    for name, value in receipt.facts.items():
        ranking, between, level = name.removeprefix(_LOSS_BY).partition(_KEEPING)
        if name.startswith(_LOSS_BY) and between and level.isascii() and level.isdigit():
            found.setdefault(int(level[:3]), {})[ranking] = value
    rankings = sorted({ranking for losses in found.values() for ranking in losses})
    table = _columns("loss, keeping", *rankings)
    for level in sorted(found, reverse=True):
        lowest = min(found[level].values())
        losses = (found[level].get(ranking) for ranking in rankings)
        cells = ("-" if loss is None else Text(f"{loss:.4g}", "bold" if loss == lowest else "") for loss in losses)
        _add_row(table, f"{level} %", *cells)
    return table


_LOSS_BY, _KEEPING = "loss_by_", "_keeping_"
"""Of the names of facts of a comparison: loss_by_ablation_keeping_90."""


def _columns(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=any((first, *others)))
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _add_losses(table: Table, name: str, loss: Losses, objective: str) -> None:
    """A row of losses; then their intervals, and of a loss per token the perplexity."""
    steps = ("before", "predicted", "after", *(("healed",) if loss.healed is not None else ()))
    found = {step: getattr(loss, step) for step in steps}
    _add_row(table, name, *(f"{value:.4g}" for value in found.values()))
    if loss.intervals is not None:
        ends = (getattr(loss.intervals, step, None) for step in steps)
        cells = ("" if both is None else f"{both[0]:.4g} to {both[1]:.4g}" for both in ends)
        _add_row(table, f"{100 * CONFIDENCE:.0f} % interval", *cells)
    if objective in PER_TOKEN:
        _add_row(table, "perplexity", *(f"{perplexity(value):.4g}" for value in found.values()))


def _probed(receipt: Receipt, probes: ProbedChange) -> Table:
    """Losses on the texts of the probes, and how many heads have each role."""
    models = [probes.before, probes.after, *([] if probes.healed is None else [probes.healed])]
    table = _columns("on probes", "before", "after", *(("healed",) if probes.healed is not None else ()), "gone")
    for name, words in _PROBE_LOSSES.items():
        values = [getattr(model, name) for model in models]
        if all(value is not None for value in values):
            _add_row(table, words, *(f"{value:.4g}" for value in values), "")
    gone = {lost.role: lost for lost in receipt.lost_roles}
    for role, words in ROLES.items():
        counts = [len(model.heads.get(role, ())) for model in models]
        if any(counts):
            lost = gone.get(role)
            told = "" if lost is None else f"{lost.lost} ({len(lost.cut)} cut)"
            _add_row(table, f"{words} heads", *(f"{count:,}" for count in counts), told)
    return table


_PROBE_LOSSES = {
    "first_loss": "loss on random tokens",
    "copy_loss": "loss on the same tokens repeated",
    "needle_loss": "loss on a copied needle",
}


def _measured(receipt: Receipt) -> str:
    """What the losses are means over."""
    text = receipt.text
    sentences, written, joined, split = (text.get(key) for key in ("evaluation", "written", "passage_tokens", "split"))
    steps = f", healed by {counted(receipt.healing.steps, 'step')} of training" if receipt.healing.steps else ""
    own = f"; the model itself wrote {written} of the targets" if written else ""
    unit, length = "sentence", "" if receipt.asked.get("length") else f" of about {receipt.length} tokens"
    if joined:
        unit, length = "passage", f" of up to {joined} tokens ({text.get('evaluation_tokens')} in all)"
    evaluated = f"{sentences} held-out {unit}{'s' * (sentences != 1)}"
    longer = "".join(f" {str(note).capitalize()}." for note in split) if isinstance(split, list) else ""
    return f"Mean loss of {evaluated}{length}{steps}{own}; computed in {duration(receipt.seconds)}.{longer}"


def history_shown(history: History) -> Group:
    """All receipts, numbered."""
    shown = [receipt_shown(receipt, number) for number, receipt in enumerate(history, 1)]
    return Group(*(shown or [Text(f"{history.model} was never reshaped.")]))


def replayed_shown(replayed: Replayed) -> Group:
    """The receipts of now, and whether the weights are those of then."""
    parts: list[Group | Text] = []
    for number, (then, now) in enumerate(replayed, 1):
        same = then.fingerprint[1] == now.fingerprint[1]
        words = "The weights are those of the model that was replayed, bit for bit."
        if not same:
            words = "The weights differ from those of the model that was replayed."
        parts += [receipt_shown(now, number), Text(words)]
    return Group(*parts)


def _add_row(table: Table, *cells: str | Text) -> None:
    """Add a row. Text from a file is never read as markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
