"""Results of `attnworks.count`, shown to people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, singledispatch
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from attnworks.api.tables import MechanismCount, MechanismTable, ParameterCount, PublishedCount
from attnworks.attention.complexity import MAX_COUNTED_LENGTH
from attnworks.core.display import byte_size, counted
from attnworks.models.counting import PUBLISHED

BAR_WIDTH = 30


class FirstThatFits:
    """The first of several forms of a table that the console is wide enough for, or else the last."""

    def __init__(self, *forms: RenderableType) -> None:
        self.forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        *wide, last = self.forms
        free = options.update_width(1000)
        yield next((form for form in wide if Measurement.get(console, free, form).maximum <= options.max_width), last)


def in_parts(make: Callable[..., Table], headings: Sequence[str], *most: int) -> FirstThatFits:
    """A table with these headings, or as many tables as a narrow console needs, each with at most `most` headings."""
    parts = ([make(*part) for part in _cut(headings, number)] for number in (len(headings), *most))
    return FirstThatFits(*(Group(*[part for table in tables for part in ("", table)][1:]) for tables in parts))


def _cut(headings: Sequence[str], number: int) -> Iterator[Sequence[str]]:
    return (headings[start : start + number] for start in range(0, len(headings), number))


@singledispatch
def count_shown(result: Any) -> Any:
    """A table of counts."""
    raise TypeError(f"no table of {type(result).__name__}")


@count_shown.register
def _(result: ParameterCount) -> Group:
    rest = f": {result.total:,} parameters ({byte_size(4 * result.total)} in float32)"
    tables = (_parts(result, width) for width in (BAR_WIDTH, BAR_WIDTH // 3, 0))
    return Group(Text.assemble((result.model, "bold"), rest), FirstThatFits(*tables))


def _parts(result: ParameterCount, bar_width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=bar_width > 0)
    table.add_column("part", overflow="fold")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    if bar_width:
        table.add_column("", no_wrap=True)
    for part, number in result.parts.items():
        share = number / result.total if result.total else 0.0
        bar = [Text("█" * round(bar_width * share), "cyan")] if bar_width else []
        table.add_row(Text(part), f"{number:,}", f"{share:.1%}", *bar)
    return table


@count_shown.register
def _(result: PublishedCount) -> Group:
    title = Text.assemble(("Published models", "bold"), ", stated and counted (Conti 2024, table 1)")
    headings, table = ("date", "stated", "counted", "difference"), partial(_published, result)
    return Group(title, FirstThatFits(table("model", *headings), in_parts(table, headings, 2, 1)))


def _published(result: PublishedCount, *headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", *headings):
        left = heading in ("name", "model", "date")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for key, model in PUBLISHED.items():
        cells = {
            "model": model.title,
            "date": model.date,
            "stated": f"{model.stated:,}",
            "counted": f"{result.counted[key]:,}",
            "difference": f"{result.counted[key] / model.stated - 1:+.2%}",
        }
        table.add_row(key, *(cells[heading] for heading in headings))
    return table


@count_shown.register
def _(result: MechanismCount) -> Group:
    table = _table([""], [result.mechanism, "dense", "of dense"])
    cost, dense, ratio = result.cost, result.dense, result.ratio
    table.add_row("edges", f"{cost.edges:,}", f"{dense.edges:,}", _share(ratio["edges"]))
    table.add_row("FLOPs", f"{cost.flops:,}", f"{dense.flops:,}", _share(ratio["flops"]))
    table.add_row("bytes", byte_size(cost.bytes), byte_size(dense.bytes), _share(ratio["bytes"]))
    kind = "causal self-attention" if result.causal else "self-attention"
    return Group(_title(result.mechanism, result, kind), table, _verdict(result))


@count_shown.register
def _(result: MechanismTable) -> Group:
    notes = (Text(note, "dim") for note in _notes(result))
    table = in_parts(partial(_growth, result), COUNTED, 4, 2, 1)
    return Group(_title("One layer", result, "self-attention"), table, *notes)


COUNTED = ("time", "memory", "steps", "longest path", "edges", "FLOPs", "bytes", "of dense")


def _growth(result: MechanismTable, *headings: str) -> Table:
    words = [heading for heading in headings if heading in COUNTED[:3]]
    table = _table(["mechanism", *words], [heading for heading in headings if heading not in words])
    for row in result.rows:
        if row is result.rows[-1]:
            table.add_row()
        cells: dict[str, str | Text] = {
            "time": str(row.time),
            "memory": str(row.memory),
            "steps": row.steps,
            "longest path": row.path.law if row.path.layers is None else f"{row.path.law} {row.path.layers:,}",
            "edges": _short(row.cost.edges) if row.cost.edges else "-",
            "FLOPs": _short(row.cost.flops),
            "bytes": byte_size(row.cost.bytes),
            "of dense": _share(row.cost.flops / result.dense.flops),
        }
        name = Text(row.name, "bold" if row.name == "dense" else "")
        table.add_row(name, *(cells[heading] for heading in headings))
    return table


def _notes(result: MechanismTable) -> list[str]:
    d = result.num_heads * result.width
    costly = [f"{row.name} ({', '.join(row.options)})" for row in result.rows if row.options]
    constants = [f"Options are constants in O(); the time grows with those of {', '.join(costly)}."] if costly else []
    return [
        f"\nn is the sequence length; all heads together are d = {d:,} wide. Steps are operations that must wait for "
        "each other. The longest path between positions is in layers, in the recurrent layer in steps. Projections to "
        "Q, K and V are left out.",
        *constants,
        "Bytes are held besides Q, K and V; attention weights, if they are requested, add O(n²) per head.",
        f"In a whole layer of this width, with {4 * d:,} in the feed-forward part, the n² part of dense attention "
        f"takes n / (n + 6d) = {100 * result.quadratic_share:.1f} % of the FLOPs, and half of them at n = {6 * d:,}.",
    ]


def _verdict(result: MechanismCount) -> Text:
    here, ratio, first = f"at n = {result.length:,}", result.ratio["flops"], result.pays_from
    pays = f"never fewer up to n = {MAX_COUNTED_LENGTH:,}" if first is None else f"fewer from n = {first:,} on"
    if ratio < 1:
        return Text(f"{1 / ratio:.3g} times fewer FLOPs than dense {here}; {pays}.", "green")
    if ratio == 1:
        return Text(f"As many FLOPs as dense {here}; {pays}.")
    return Text(f"More expensive than dense {here}: {ratio:.3g} times the FLOPs; {pays}.", "yellow")


def _title(what: str, result: MechanismCount | MechanismTable, kind: str) -> Text:
    layer = f"{counted(result.num_heads, 'head')} of width {result.width}"
    return Text.assemble((what, "bold"), f": {kind} over n = {result.length:,} positions, {layer}\n")


def _table(words: list[str], numbers: list[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in words:
        table.add_column(Text(heading), no_wrap=True)
    for heading in numbers:
        table.add_column(Text(heading, overflow="fold"), justify="right", no_wrap=True)
    return table


def _share(ratio: float) -> Text:
    """A percentage, or how many times as much; green below dense, yellow above."""
    words = f"{ratio:,.0f} ×" if ratio >= 100 else f"{ratio:.3g} ×" if ratio >= 10 else f"{100 * ratio:.3g} %"
    return Text(words, "green" if ratio < 1 else "yellow" if ratio > 1 else "")


def _short(number: float) -> str:
    """Three digits and a letter."""
    for letter in ("", "k", "M", "G", "T", "P"):
        if number < 999.5:
            return f"{number:.3g} {letter}".rstrip()
        number /= 1000
    return f"{number:.3g} E"
