"""What a comparison of two examinations looks like in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnworks.core.display import format_number
from attnworks.exam.compare import Comparison, DepthCurve, NewRole, NumberChange

NAMED = 12
"""Heads, or layers, named in a line."""


def show_comparison(found: Comparison, before: str, after: str, console: Console, top: int = 10) -> None:
    """What changed beyond chance, which heads were compared, cut or new, new roles, and depth curves.

    What a folder says is shown as it is, never read as markup.
    """
    console.print(Text.assemble((before, "bold"), " → ", (after, "bold")))
    console.print(_verdict(found), style="dim" if found.nothing_changed else "")
    for line in heads_in_words(found):
        console.print(Text(line))
    for note in found.notes:
        console.print(Text.assemble(("note", "yellow"), f" {note}"))
    certain, unknown = found.certain, [change for change in found.changes if change.certain is None]
    if certain:
        console.print(f"\n[bold]Changes beyond chance[/]{_shown(certain, top)}")
        console.print(_changes(certain[:top]))
    if unknown:
        console.print(f"\n[bold]Changes of unknown certainty[/]{_shown(unknown, top)}")
        console.print(_changes(unknown[:top]))
    if found.roles:
        console.print(f"\n[bold]New roles[/]{_shown(found.roles, top)}")
        console.print(_roles(found.roles[:top]))
    moved = [curve for curve in found.curves if curve.before != curve.after]
    if moved:
        console.print("\n[bold]By depth[/], before and after")
        console.print(_curves(moved, console.width))


def _verdict(found: Comparison) -> str:
    if found.nothing_changed:
        return f"nothing changed: all {found.compared:,} numbers are the same"
    judged = sum(change.certain is not None for change in found.changes)
    if not found.changes:
        return f"none of the {found.compared:,} numbers that are compared one by one differs by more than rounding"
    differ = f"{len(found.changes):,} of {found.compared:,} numbers differ"
    return f"{differ}, {len(found.certain):,} beyond chance" if judged else differ


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
            yield f"  {words}: {_named(heads)}"
    for why in dict.fromkeys(match.why for match in left):
        heads = (match.before or match.after or "" for match in left if match.why == why)
        yield f"  not compared: heads of {_named([*dict.fromkeys(head.rpartition('.')[0] for head in heads)])}: {why}"
    if found.roles_compared:
        yield f"roles: {len(found.roles):,} of {found.roles_compared:,} compared heads have another role"


def _named(places: Sequence[str | None]) -> str:
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return f"{', '.join(map(str, places[:NAMED]))}{more}"


def _renamed(name: str, after: str) -> Text:
    """enc.0.5, or enc.0.5 → enc.0.2 where the second model has it under another number."""
    return Text(name if name == after else f"{name} → {after}")


def _shown(items: Sequence[object], top: int) -> str:
    return f", {top} of {len(items):,}" if len(items) > top else ""


def _changes(changes: Sequence[NumberChange]) -> Table:
    table = _table(["where", "reading"], ["before", "after", "difference", "± 95 %"])
    for change in changes:
        colour = "green" if change.difference > 0 else "red"
        table.add_row(
            _renamed(change.where, change.where_after),
            Text(change.reading),
            format_number(change.before),
            format_number(change.after),
            Text(f"{'+' if change.difference > 0 else ''}{format_number(change.difference)}", colour),
            "" if change.margin is None else format_number(change.margin),
        )
    return table


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
        table.caption = Text(f"and {', '.join(curve.reading for curve in curves[len(shown) :])}")
    return table


def _at(side: Sequence[float | None], depth: int) -> str:
    value = side[depth] if depth < len(side) else None
    return "-" if value is None else format_number(value)


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", caption_style="dim", caption_justify="left")
    for heading in words:
        table.add_column(Text(heading))
    for heading in numbers:
        table.add_column(Text(heading), justify="right")
    return table
