"""Examinations, readings and measures in a terminal. All of them adapt to the width of the console."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnworks.core.display import counted, format_number
from attnworks.core.places import SHORT_KINDS, Kind
from attnworks.exam.examination import Examination
from attnworks.exam.measures import all_measures
from attnworks.exam.reading import NO_ROLE, Reading, role_group, table_cells, without_outliers

ROLE_SIGNS = {
    "previous": ("P", "color(74)"),
    "next": ("N", "color(69)"),
    "self": ("S", "color(113)"),
    "offset": ("o", "color(80)"),
    "syntactic": ("h", "color(177)"),
    "rare": ("r", "color(203)"),
    "induction": ("i", "color(205)"),
    "retrieval": ("c", "color(212)"),
    "duplicate": ("=", "color(150)"),
    "aligns": ("a", "color(45)"),
}
SINK_SIGNS = {"first": ("1", "color(220)"), "delimiter": ("d", "color(215)")}
SINK_LEGENDS = {"first": "rests on the first token", "delimiter": "rests on delimiters"}
"""Signs of heads without a role that rest somewhere; heads with a role that rest, too, are underlined."""
INK = "color(233)"
STRONG = 0.5
"""Heads with this score or more are filled; others carry just the letter."""
SHADED = ("ablation.change", "importance.gradient", "saturation.entropy", "sinks.first")
"""What shades the heads where no roles were read."""
BY_DEPTH = {
    "rank.residual": ("residual", "residual 0: all tokens the same"),
    "rank.cosine": ("cosine", "cosine 1: all point the same way"),
    "rank.stable": ("stable rank", "stable rank 1: one direction carries all"),
}
LARGEST = "rank.largest_norm"
"""Shown by depth beside them where tokens are outlying; the others then leave these tokens out."""
TITLES = {"encoder": "encoder", "decoder": "decoder", "cross": "cross-attention"}
GAP = 3
BARS = (6, 3)
"""Cells of a full bar, and of one where space is short."""
FINDINGS_SHOWN = 4
"""Findings shown of each group."""
MOST_AXES = 4
"""Readings with this number of axes are for other programs."""
NAMED = 12
"""Heads, or layers, named in a line."""


class ExamSummary:
    """The headline, model and text, heads by role, depth, findings and notes."""

    def __init__(self, exam: Examination) -> None:
        self.exam = exam

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        exam, width = self.exam, options.max_width
        yield Text(exam.headline.text, "bold")
        yield _header(exam)
        depths = _depths(exam, width)
        for line in _side_by_side([*_grids(exam, depths, width), *depths], width):
            yield ""
            yield line
        if legends := _legends(exam, width):
            yield ""
            yield from legends
        if exam.findings:
            yield Text("\nFindings", "bold")
            for group, findings in exam.grouped_findings().items():
                yield Text(group, "bold dim")
                for finding in findings[:FINDINGS_SHOWN]:
                    yield _bullet("•", finding.text)
                if (more := len(findings) - FINDINGS_SHOWN) > 0:
                    yield _bullet("", f"and {more} more", "dim")
        if exam.notes:
            yield Text("\nNotes", "bold")
            for note in exam.notes:
                yield _bullet("-", note, "dim")


class ReadingTable:
    """A reading in columns; what does not fit beside each other goes below, with the names of the rows again."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(self.reading.title)
        lines = table_cells(self.reading)
        across = max(len(line) for line in lines)
        columns = [[line[at] if at < len(line) else "" for line in lines] for at in range(across)]
        widths = [max(map(len, column)) for column in columns]
        start = 1
        while start < across:
            end, used = start + 1, widths[0] + 2 + widths[start]
            while end < across and used + 2 + widths[end] <= options.max_width:
                used += 2 + widths[end]
                end += 1
            shown = [0, *range(start, end)]
            for row in range(len(lines)):
                cells = (columns[at][row].rjust(widths[at]) for at in shown)
                yield Text("  ".join(cells).rstrip(), "dim" if row == 0 else "")
            start = end


def asked_readings(exam: Examination, measures: Sequence[str]) -> list[Reading]:
    """Every reading of these measures that the summary does not draw."""
    known = all_measures()
    drawn = {name for name in known if known[name].default} - {"structure"}
    return [
        reading
        for reading in exam.readings.values()
        if (name := reading.name.partition(".")[0]) in measures and name not in drawn and len(reading.axes) < MOST_AXES
    ]


def measures_table() -> Table:
    """Every measure, what it measures and what it costs."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("measure", "what it measures", "cost"):
        table.add_column(heading, no_wrap=heading == "measure")
    measures = all_measures()
    for name in sorted(measures, key=lambda name: (not measures[name].default, name)):
        measure = measures[name]
        table.add_row(Text(name, "bold"), measure.description, f"{measure.cost}{' (default)' * measure.default}")
    return table


# Model and text ------------------------------------------------------------------------------------------------------


def _header(exam: Examination) -> Text:
    model, corpus = exam.model, exam.corpus
    about = [_layers_and_heads(model.get("heads")), _counted(model, "parameters"), model.get("dtype")]
    text = [_counted(corpus, "sentences"), _counted(corpus, "tokens"), _counted(corpus, "dropped")]
    if written := corpus.get("written_by_the_model"):
        text.append(f"{written:,} targets written by the model")
    where = next((corpus[key] for key in ("spec", "file", "name") if corpus.get(key)), "text")
    return Text.assemble(
        (str(model.get("name", "model")), "bold"), f"  {_joined(about)}\n", (f"on {where}: {_joined(text)}", "dim")
    )


def _layers_and_heads(slots: object) -> str:
    """12 layers × 12 heads; with several kinds of attention: enc 6 × 8, dec 6 × 8, cross 6 × 8 heads."""
    known = slots if isinstance(slots, dict) else {}
    found = {short: [n for slot, n in known.items() if slot.startswith(f"{short}.")] for short in SHORT_KINDS.values()}
    stacks = {short: heads for short, heads in found.items() if heads}
    sizes = [(len(row), f"{min(row)}" if len(set(row)) == 1 else f"{min(row)}-{max(row)}") for row in stacks.values()]
    if len(set(sizes)) > 1:
        return (
            ", ".join(f"{name} {layers} × {each}" for name, (layers, each) in zip(stacks, sizes, strict=True))
            + " heads"
        )
    for layers, each in sizes[:1]:
        size = f"{counted(layers, 'layer')} × {each} head{'s' * (each != '1')}"
        return size if len(sizes) == 1 else f"{', '.join(stacks)}: each {size}"
    return ""


def _counted(known: object, what: str) -> str:
    value = known.get(what) if isinstance(known, dict) else None
    return f"{value:,} {what}" if isinstance(value, int) and value else ""


def _joined(parts: Sequence[object]) -> str:
    return ", ".join(str(part) for part in parts if part)


# Heads ---------------------------------------------------------------------------------------------------------------


def _grids(exam: Examination, depths: Sequence[Table], width: int) -> list[Text]:
    """A grid of layers and heads for every kind of attention, in the widest cells with which most stand in one line."""
    readings = _coloured(exam)
    several = len(exam.readings.kinds()) > 1
    tries = [[_grid(exam, reading, cell, width, several) for reading in readings] for cell in (3, 2)]
    for beside in (depths, ()):
        for grids in tries:
            if sum(map(_width, [*grids, *beside])) + GAP * (len(grids) + len(beside) - 1) <= width:
                return grids
    return tries[1]


def _coloured(exam: Examination) -> list[Reading]:
    """What the grids show: roles, or else the first reading of heads that there is."""
    for name in ("roles.label", *SHADED):
        if readings := exam.readings.of(name):
            return sorted(readings, key=lambda reading: exam.readings.kinds().index(reading.kind))
    return []


def _grid(exam: Examination, reading: Reading, cell: int, width: int, several: bool) -> Text:
    heads = max((len(row) for row in reading.value), default=0)
    across = max(1, min(heads, (width - 4) // cell))
    score = next((found for found in exam.readings.of("roles.score") if found.kind == reading.kind), None)
    sinks = next((found for found in exam.readings.of("roles.sink") if found.kind == reading.kind), None)
    slots = exam.model.get("heads")
    low, high = _range(reading)
    grid = Text.assemble((TITLES[reading.kind] if several else "layers and heads", "bold"), no_wrap=True)
    for start in range(0, heads, across):
        shown = range(start, min(start + across, heads))
        grid.append("\n" + (" " * 4 + "".join(_tick(head, cell) for head in shown)).rstrip(), style="dim")
        for layer, row in enumerate(reading.value):
            if isinstance(slots, dict) and reading.row_name(layer) not in slots:
                continue  # a layer without attention
            grid.append(f"\n{layer:>3} ", style="dim")
            for head in (head for head in shown if head < len(row)):
                if isinstance(row, Tensor):
                    sign, style = _shade(float(row[head]), low, high)
                else:
                    scores = None if score is None else score.value[layer]
                    strong = not isinstance(scores, Tensor) or float(scores[head]) >= STRONG
                    sink = NO_ROLE if sinks is None else str(sinks.value[layer][head])
                    sign, style = _role(row[head], strong, sink)
                grid.append(f" {sign} " if cell > 2 else f"{sign} ", style=style)
    return grid


def _tick(head: int, cell: int) -> str:
    """Numbers of two digits fill narrow cells, so that every other is left out."""
    if cell > 2:
        return f"{head:>2} "
    return f"{head:<2}" if head < 10 or head % 2 == 0 else "  "


def _role(label: str, strong: bool, sink: str = NO_ROLE) -> tuple[str, str]:
    if label == NO_ROLE:
        return SINK_SIGNS.get(sink, ("·", "dim"))
    sign, colour = ROLE_SIGNS.get(role_group(label), ("?", "white"))
    under = "" if sink == NO_ROLE else "underline "
    return sign, under + (f"bold {INK} on {colour}" if strong else colour)


def _shade(value: float, low: float, high: float) -> tuple[str, str]:
    if not math.isfinite(value):
        return "·", "dim"
    level = 0.0 if high <= low else (value - low) / (high - low)
    return str(min(9, int(10 * level))), f"{INK if level > 0.4 else 'white'} on color({235 + round(18 * level)})"


def _range(reading: Reading) -> tuple[float, float]:
    values = [value for row in reading.value if isinstance(row, Tensor) for value in row.tolist()]
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 0.0)


def _legends(exam: Examination, width: int) -> list[Text]:
    readings = _coloured(exam)
    roles = _labels(readings)
    sinks = _labels(exam.readings.of("roles.sink"))
    sinks = {head: sink for head, sink in sinks.items() if sink != NO_ROLE}
    labels = Counter(map(role_group, roles.values()))
    resting = Counter(sinks[head] for head, role in roles.items() if role == NO_ROLE and head in sinks)
    items = []
    for label in sorted(labels.keys() - {NO_ROLE}, key=lambda label: (*ROLE_SIGNS, label).index(label)):
        sign, style = _role(label, strong=True)
        items.append(Text.assemble((f" {sign} ", style), f" {label} {labels[label]}"))
    for sink, number in resting.items():
        sign, style = SINK_SIGNS.get(sink, ("?", "white"))
        items.append(Text.assemble((f" {sign} ", style), f" only {SINK_LEGENDS.get(sink, sink)} {number}"))
    if unclear := labels[NO_ROLE] - resting.total():
        items.append(Text.assemble((" · ", "dim"), f" no clear role {unclear}"))
    if both := sum(role != NO_ROLE and head in sinks for head, role in roles.items()):
        items.append(Text.assemble((" x ", "underline"), f" has a role and rests {both}"))
    if exam.readings.of("roles.score") and len(labels) > 1:
        items.append(Text(f" filled: score {STRONG} or more", style="dim"))
    for reading in readings if not labels else ():
        low, high = map(format_number, _range(reading))
        items.append(Text(f"{reading.name}@{reading.kind}: 0 is {low}, 9 is {high}", style="dim"))
    by_depth = [Text(words, style="dim") for _, words in _shown_by_depth(exam).values()]
    return [_wrapped(group, width) for group in (items, by_depth) if group]


def _labels(readings: Sequence[Reading]) -> dict[tuple[str, int, int], str]:
    """(kind, layer, head) -> its label."""
    return {
        (reading.kind, layer, head): label
        for reading in readings
        for layer, row in enumerate(reading.value)
        if isinstance(row, tuple)
        for head, label in enumerate(row)
    }


def _wrapped(items: Sequence[Text], width: int) -> Text:
    """Items in lines that are broken only between them."""
    text, used = Text(), 0
    for item in items:
        if used and used + 2 + item.cell_len > width:
            text.append("\n")
            used = 0
        elif used:
            text.append("  ")
            used += 2
        text.append_text(item)
        used += item.cell_len
    return text


# Depth ---------------------------------------------------------------------------------------------------------------


def _depths(exam: Examination, width: int) -> list[Table]:
    """A small table for every stack whose stream was measured, side by side if possible."""
    tables = []
    for bar in BARS:
        tables = [table for kind in exam.readings.kinds() if (table := _depth_table(exam, kind, bar)) is not None]
        if sum(map(_width, tables)) + GAP * (len(tables) - 1) <= width:
            break
    return tables


def _shown_by_depth(exam: Examination) -> dict[str, tuple[str, str]]:
    """Reading -> heading and legend."""
    names = {name: without_outliers(exam.readings, name) for name in BY_DEPTH}
    shown = {names[name]: words for name, words in BY_DEPTH.items() if exam.readings.of(names[name])}
    if {*shown} <= {*BY_DEPTH}:
        return shown
    limit = "largest norm: of a token, over the median; outlying tokens are left out of the rest"
    return shown | {LARGEST: ("largest norm", limit)}


def _depth_table(exam: Examination, kind: Kind, bar: int) -> Table | None:
    shown = _shown_by_depth(exam)
    found = {reading.name: reading for name in shown for reading in exam.readings.of(name) if reading.kind == kind}
    title = f"{TITLES[kind]} by depth" if len(exam.readings.kinds()) > 1 else "by depth"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", title=title, title_style="bold")
    table.title_justify = "left"
    table.add_column("", justify="right", style="dim")
    for name in found:
        table.add_column(shown[name][0], no_wrap=True)
    curves = [[float(row) if isinstance(row, Tensor) else math.nan for row in r.value] for r in found.values()]
    for depth, row in enumerate(zip(*curves, strict=False)):
        table.add_row(str(depth), *(_bar(value, _full(curve), bar) for value, curve in zip(row, curves, strict=True)))
    return table if found else None


def _full(curve: list[float]) -> float:
    """A full bar is one, or the largest value if that is larger."""
    return max([1.0, *(value for value in curve if math.isfinite(value))])


def _bar(value: float, full: float, cells: int) -> Text:
    eighths = round(8 * cells * max(0.0, value) / full) if math.isfinite(value) else 0
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text.assemble((bar.ljust(cells), "cyan"), f" {format_number(value)}")


# Layout --------------------------------------------------------------------------------------------------------------


def _side_by_side(panels: Sequence[Text | Table], width: int) -> Iterator[RenderableType]:
    """Panels beside each other as far as the width goes, then below."""
    line: list[Text | Table] = []
    for panel in panels:
        if line and sum(map(_width, [*line, panel])) + GAP * len(line) > width:
            yield _one_line(line)
            line = []
        line.append(panel)
    if line:
        yield _one_line(line)


def _one_line(panels: Sequence[RenderableType]) -> RenderableType:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for _ in panels:
        grid.add_column(no_wrap=True)
    grid.add_row(*panels)
    return grid


def _width(panel: Text | Table) -> int:
    return Console(width=10_000).measure(panel).maximum


def _bullet(sign: str, text: str, style: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=2, justify="right", style="cyan")
    grid.add_column(style=style)
    grid.add_row(sign, Text(text))
    return grid


# Comparisons ---------------------------------------------------------------------------------------------------------
