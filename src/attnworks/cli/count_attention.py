"""What `attnworks count --mechanism` and `attnworks count --compare` show."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from attnworks.attention import MECHANISMS, Geometry, MechanismSpec
from attnworks.attention.complexity import MAX_COUNTED_LENGTH, Complexity, complexity, pays_from, recurrent_complexity
from attnworks.cli.console import console, print_json
from attnworks.cli.count import readable
from attnworks.core.display import counted
from attnworks.core.errors import UsageError
from attnworks.models.counting import quadratic_share


def check_positions(n: int) -> None:
    """Some mechanisms count their edges position by position."""
    if n > MAX_COUNTED_LENGTH:
        raise UsageError(f"count --n {n}", f"at most {MAX_COUNTED_LENGTH:,} positions", f"{n:,}", "choose a smaller n")


def show_one(text: str, n: int, heads: int, width: int, causal: bool, as_json: bool) -> None:
    """One mechanism against dense attention: edges, FLOPs, bytes, and from which length it pays."""
    spec, geometry = MechanismSpec.parse(text), Geometry(heads, width, width)
    if causal and "causal" not in MECHANISMS[spec.name].supported_masks:
        raise UsageError(f"{spec.name} with --causal", "a mechanism with a causal form", "none", "leave --causal out")
    mechanism = spec.build(geometry)
    cost, dense = (kind.cost(n, n, geometry, causal=causal) for kind in (mechanism, MECHANISMS["dense"]()))
    ratios = {part: getattr(cost, part) / getattr(dense, part) for part in cost._fields}
    first = pays_from(mechanism, geometry, causal=causal)
    if as_json:
        size = {"n": n, "heads": heads, "width": width, "causal": causal}
        counts = {"cost": cost._asdict(), "dense": dense._asdict(), "ratio": ratios, "pays_from": first}
        print_json({"mechanism": str(spec)} | size | counts)
        return
    table = _table([""], [str(spec), "dense", "of dense"])
    for part, word, write in (("edges", "edges", _exact), ("flops", "FLOPs", _exact), ("bytes", "bytes", readable)):
        numbers = (write(getattr(side, part)) for side in (cost, dense))
        table.add_row(word, *numbers, _share(ratios[part]))
    screen = console()
    screen.print(_title(str(spec), n, heads, width, "causal self-attention" if causal else "self-attention"), table)
    screen.print(_verdict(n, ratios["flops"], first))


def show_all(n: int, heads: int, width: int, as_json: bool) -> None:
    """The table of complexities per layer, the cheapest mechanism first."""
    geometry = Geometry(heads, width, width)
    rows = sorted((complexity(MechanismSpec(name), n, geometry) for name in MECHANISMS), key=lambda row: row.cost.flops)
    rows.append(recurrent_complexity(n, geometry))
    dense = next(row.cost for row in rows if row.name == "dense")
    share = quadratic_share(n, heads * width)
    if as_json:
        size = {"n": n, "heads": heads, "width": width, "quadratic_share": share}
        print_json(size | {"rows": [_row_as_json(row, dense.flops) for row in rows]})
        return
    table = _table(["mechanism", "time", "memory", "steps"], ["longest path", "edges", "FLOPs", "bytes", "of dense"])
    for row in rows:
        if row is rows[-1]:
            table.add_row()
        table.add_row(
            Text(row.name, "bold" if row.name == "dense" else ""),
            str(row.time),
            str(row.memory),
            row.steps,
            row.path.law if row.path.layers is None else f"{row.path.law} {row.path.layers:,}",
            _short(row.cost.edges) if row.cost.edges else "-",
            _short(row.cost.flops),
            readable(row.cost.bytes),
            _share(row.cost.flops / dense.flops),
        )
    screen = console()
    screen.print(_title("One layer", n, heads, width, "self-attention"), table)
    for note in _notes(rows, n, heads * width, share):
        screen.print(note, style="dim")


def _notes(rows: list[Complexity], n: int, d: int, share: float) -> list[str]:
    costly = [f"{row.name} ({', '.join(row.options)})" for row in rows if row.options]
    constants = [f"Options are constants in O(); the time grows with those of {', '.join(costly)}."] if costly else []
    return [
        f"\nn positions, all heads d = {d:,} wide. Steps must wait for each other. The longest path between positions "
        "is in layers, in the recurrent layer in steps. Projections to Q, K, V are left out.",
        *constants,
        "Bytes are what is held besides Q, K and V; weights, if they are asked for, add O(n²) a head.",
        f"In a whole layer of this width, with {4 * d:,} in the feed-forward part, the n² part of dense attention "
        f"takes n / (n + 6d) = {100 * share:.1f} % of the FLOPs, and half of them at n = {6 * d:,}.",
    ]


def _row_as_json(row: Complexity, dense_flops: int) -> dict[str, object]:
    return {
        "mechanism": row.name,
        "time": str(row.time),
        "memory": str(row.memory),
        "steps": row.steps,
        "path": row.path._asdict(),
        **row.cost._asdict(),
        "of_dense": row.cost.flops / dense_flops,
        "options": row.options,
    }


def _verdict(n: int, ratio: float, first: int | None) -> Text:
    here = f"at n = {n:,}"
    pays = f"never fewer up to n = {MAX_COUNTED_LENGTH:,}" if first is None else f"fewer from n = {first:,} on"
    if ratio < 1:
        return Text(f"{1 / ratio:.3g} times fewer FLOPs than dense {here}; {pays}.", "green")
    if ratio == 1:
        return Text(f"As many FLOPs as dense {here}; {pays}.")
    return Text(f"More expensive than dense {here}: {ratio:.3g} times the FLOPs; {pays}.", "yellow")


def _title(what: str, n: int, heads: int, width: int, kind: str) -> Text:
    layer = f"{counted(heads, 'head')} of width {width}"
    return Text.assemble((what, "bold"), f": {kind} over n = {n:,} positions, {layer}\n")


def _table(words: list[str], numbers: list[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in words:
        table.add_column(Text(heading), no_wrap=True)
    for heading in numbers:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    return table


def _share(ratio: float) -> Text:
    """A percentage, or how many times as much; green below dense, yellow above."""
    words = f"{ratio:,.0f} ×" if ratio >= 100 else f"{ratio:.3g} ×" if ratio >= 10 else f"{100 * ratio:.3g} %"
    return Text(words, "green" if ratio < 1 else "yellow" if ratio > 1 else "")


def _exact(number: int) -> str:
    return f"{number:,}"


def _short(number: float) -> str:
    """Three digits and a letter."""
    for letter in ("", "k", "M", "G", "T", "P"):
        if number < 999.5:
            return f"{number:.3g} {letter}".rstrip()
        number /= 1000
    return f"{number:.3g} E"
