"""Comparisons of examinations in a terminal, which adapt to its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from attnworks.core.display import format_number
from attnworks.exam.compare import Comparison, DepthCurve, NewRole, NumberChange
from attnworks.exam.render import NAMED, _bullet, _width


class ComparisonSummary:
    """What changed beyond chance, which heads were compared, cut or new, new roles, depth curves, and notes.

    What a folder says is shown as it is, never read as markup.
    """

    def __init__(self, found: Comparison) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        found, top, width = self.found, self.found.top, options.max_width
        before, after = found.names
        yield Text.assemble((before, "bold"), " → ", (after, "bold"))
        if found.verdict and not found.nothing_changed:
            yield Text(in_one_sentence(found.verdict), "bold")
        yield Text(_count(found), "dim" if found.nothing_changed else "")
        yield from map(Text, heads_in_words(found))
        unknown = [change for change in found.changes if change.certain is None]
        for title, changes in (
            ("Changes beyond chance", found.certain),
            ("Changes of unknown certainty", unknown),
        ):
            if changes:
                yield Text.assemble("\n", (title, "bold"), _shown(changes, top))
                yield from _changes(changes[:top], width)
        if found.roles:
            yield Text.assemble("\n", ("New roles", "bold"), _shown(found.roles, top))
            yield _roles(found.roles[:top])
        if moved := [curve for curve in found.curves if curve.before != curve.after]:
            yield Text.assemble("\n", ("By depth", "bold"), ", before and after")
            yield _curves(moved, width)
        if found.notes:
            yield Text("\nNotes", "bold")
            yield from (_bullet("-", note, "dim") for note in found.notes)


def _count(found: Comparison) -> str:
    if found.nothing_changed:
        return f"nothing changed: all {found.compared:,} numbers are the same"
    judged = sum(change.certain is not None for change in found.changes)
    if not found.changes:
        return f"none of the {found.compared:,} numbers that are compared one by one differs by more than rounding"
    differ = f"{len(found.changes):,} of {found.compared:,} numbers differ"
    return f"{differ}, {len(found.certain):,} beyond chance" if judged else differ


def in_one_sentence(clauses: Sequence[str]) -> str:
    """12 of 24 heads are gone; 15 % fewer parameters."""
    return f"{'; '.join(clauses)}."


def heads_in_words(found: Comparison) -> Iterator[str]:
    """How many heads were compared, cut and new, with their names, and which were not compared, with the reason."""
    compared, cut, new = (found.heads_that_are(state) for state in ("compared", "cut", "new"))
    if not found.heads:
        return
    left = [match for match in found.heads if match.state == "not compared"]
    counts = [f"{len(cut):,} cut", f"{len(new):,} new"] + [f"{len(left):,} not compared"] * bool(left)
    yield f"heads: {len(compared):,} compared, {', '.join(counts)}"
    for words, heads in (
        ("cut from the second model", [match.before for match in cut if match.after is None]),
        ("cut from the first model", [match.after for match in cut if match.before is None]),
        ("new in the second model", [match.after for match in new if match.before is None]),
        ("new in the first model", [match.before for match in new if match.after is None]),
    ):
        if heads:
            yield f"  {words}: {_listed(heads)}"
    for why in dict.fromkeys(match.why for match in left):
        heads = (match.before or match.after or "" for match in left if match.why == why)
        yield f"  not compared: heads of {_listed([*dict.fromkeys(head.rpartition('.')[0] for head in heads)])}: {why}"
    if found.roles_compared:
        yield f"roles: {len(found.roles):,} of {found.roles_compared:,} compared heads have another role"


def _listed(places: Sequence[str | None]) -> str:
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return f"{', '.join(map(str, places[:NAMED]))}{more}"


def _renamed(name: str, after: str) -> Text:
    """enc.0.5, or enc.0.5 → enc.0.2 where the second model has it under another number."""
    return Text(name if name == after else f"{name} → {after}")


def _shown(items: Sequence[object], top: int) -> str:
    return f", {top} of {len(items):,}" if len(items) > top else ""


def _changes(changes: Sequence[NumberChange], width: int) -> Iterator[RenderableType]:
    """One row for each change; in a narrow terminal two lines, so that names are whole."""
    table = _table(["where", "reading"], ["before", "after", "difference", "± 95 %"])
    stacked = []
    for change in changes:
        where, reading = _renamed(change.where, change.where_after), Text(change.reading)
        signed = f"{'+' if change.difference > 0 else ''}{format_number(change.difference)}"
        difference = Text(signed, "green" if change.difference > 0 else "red")
        before, after = format_number(change.before), format_number(change.after)
        margin = "" if change.margin is None else format_number(change.margin)
        table.add_row(where, reading, before, after, difference, margin)
        numbers = Text.assemble(f"  {before} → {after}  ", difference, f" ± {margin}" if margin else "")
        stacked += [Text("  ").join([where, reading]), numbers]
    if _width(table) <= width:
        yield table
    else:
        yield from stacked


def _roles(roles: Sequence[NewRole]) -> Table:
    table = _table(["head", "before", "after"], [])
    for role in roles:
        table.add_row(_renamed(role.head, role.head_after), Text(role.before), Text(role.after))
    return table


def _curves(curves: Sequence[DepthCurve], width: int) -> Table:
    """Depths down, readings across, as many as the width holds."""
    size = max(15, *(len(curve.reading) for curve in curves)) + 3
    shown = curves[: max(1, (width - 7) // size)]
    table = _table([], ["depth", *(curve.reading for curve in shown)])
    for depth in range(max(len(side) for curve in shown for side in (curve.before, curve.after))):
        cells = (f"{_at(curve.before, depth)} → {_at(curve.after, depth)}" for curve in shown)
        table.add_row(str(depth), *cells)
    if len(curves) > len(shown):
        table.caption = Text(f"Not shown: {', '.join(curve.reading for curve in curves[len(shown) :])}")
    return table


def _at(side: Sequence[float | None], depth: int) -> str:
    value = side[depth] if depth < len(side) else None
    return "-" if value is None else format_number(value)


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", caption_style="dim", caption_justify="left")
    for heading in words:
        table.add_column(Text(heading), no_wrap=True, overflow="fold")
    for heading in numbers:
        table.add_column(Text(heading), justify="right", no_wrap=True, overflow="fold")
    return table
