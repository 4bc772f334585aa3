"""A reading: one quantity over the corpus, its table, and all readings of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnworks.core.display import counted, data_frame, format_number, rich_html
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.places import KINDS, HeadId, Kind, Slot
from attnworks.core.registry import unknown_name

LayerValues = Tensor | tuple[str, ...]

NO_ROLE = "none"
"""The label of a head without a role."""
WITHOUT_OUTLIERS = "_without_outliers"
"""The end of the name of a reading that leaves outlying tokens out."""
COMMON_OUTLIERS = 0.1
"""Outlying tokens are common at a depth where a sentence has this number of them on average."""


def tensors(rows: Iterable[LayerValues]) -> list[Tensor]:
    """The rows of numbers, without those of labels."""
    return [row for row in rows if isinstance(row, Tensor)]


def sentences_are(sentences: int) -> str:
    """1 sentence is, 2 sentences are."""
    return f"{counted(sentences, 'sentence')} {'is' if sentences == 1 else 'are'}"


class TextTable(str):
    """Text in aligned columns, shown without quotes at a Python prompt."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _column(reading: Reading) -> list[list[str]]:
    """One value a line, with the ends of its interval if it has one."""

    def entries(rows: tuple[LayerValues, ...]) -> list[Tensor | str]:
        if reading.layered:
            return [row if isinstance(row, Tensor) else " ".join(row) for row in rows]
        return list(rows[0]) if reading.axes else [rows[0]] if isinstance(rows[0], Tensor) else list(rows[0])

    values = entries(reading.value)
    names = _row_names(reading, len(values))
    lines = [[*(reading.axes or ("value",)), reading.name.partition(".")[2] or "value"]]
    if reading.interval is None:
        return lines + [[name, _cell(value)] for name, value in zip(names, values, strict=True)]
    lows, highs = (entries(end) for end in reading.interval)
    lines[0].append("95 % interval")
    for name, value, low, high in zip(names, values, lows, highs, strict=True):
        lines.append([name, _cell(value), f"{_cell(low)} to {_cell(high)}"])
    return lines


def _grid(reading: Reading) -> list[list[str]]:
    """The first axis down and the second across."""
    down, across, *others = reading.axes
    rows = reading.value if reading.layered else tuple(reading.value[0])
    widest = max((len(row) for row in rows), default=0)
    lines = [[f"{down} \\ {across}", *_ticks(reading, across, widest)]]
    for name, row in zip(_row_names(reading, len(rows)), rows, strict=True):
        lines.append([name, *(entry if isinstance(entry, str) else _largest(reading, others, entry) for entry in row)])
    return lines


def _largest(reading: Reading, axes: list[str], entry: Tensor) -> str:
    """The largest number of an entry and where it is; without further axes, the number."""
    if not axes:
        return _cell(entry)
    if not entry.numel() or bool(entry.isnan().all()):
        return "-"
    where = torch.unravel_index(entry.nan_to_num(nan=-torch.inf).argmax(), entry.shape)
    names = [_ticks(reading, axis, size)[int(at)] for axis, size, at in zip(axes, entry.shape, where, strict=True)]
    return f"{','.join(names)}: {_cell(entry[where])}"


def _row_names(reading: Reading, rows: int) -> list[str]:
    if reading.layered:
        return [reading.row_name(row) for row in range(rows)]
    return _ticks(reading, reading.axes[0] if reading.axes else "value", rows)


def _ticks(reading: Reading, axis: str, size: int) -> list[str]:
    labels = reading.ticks.get(axis, ())
    return [f"{label:g}" for label in labels] if len(labels) == size else [str(place) for place in range(size)]


def _cell(value: Tensor | str) -> str:
    return value if isinstance(value, str) else format_number(float(value))


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]


def table_cells(reading: Reading) -> list[list[str]]:
    """The cells of its table, row by row, with the headings first."""
    return _column(reading) if len(reading.axes) < 2 else _grid(reading)


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """One named quantity of one kind of attention, with spread and interval where they are known.

    `tensor` and `numpy()` are its values, `to_frame()` is a table with one row per value.

    name       as in "saturation.entropy"
    kind       of attention: "encoder", "decoder" or "cross"
    axes       ("layer", "head"), ("depth",), ("layer", "head", "offset"), ("length",), ...
    value      one entry per layer (or depth): a tensor over the other axes, or labels; layers may differ in heads.
               Without a layer or depth axis, a single entry.
    description  what the quantity is, in a sentence
    source     the formula or paper that it comes from
    spread     standard deviation over sentences, like value; None where it has no meaning
    interval   ends of the 95 % confidence interval of the mean, like value; None where it has no meaning
    count      number of sentences with a value, like value
    ticks      labels along further axes, if they are not 0, 1, 2, ...
    """

    name: str
    kind: Kind
    axes: tuple[str, ...]
    value: tuple[LayerValues, ...]
    description: str
    source: str
    spread: tuple[Tensor, ...] | None = None
    interval: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None = None
    count: tuple[Tensor, ...] | None = None
    ticks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def layered(self) -> bool:
        return self.axes[:1] in (("layer",), ("depth",))

    def row_name(self, row: int) -> str:
        """enc.3 for a layer, 3 for a depth."""
        return str(Slot(self.kind, row)) if self.axes[0] == "layer" else str(row)

    @property
    def sentences(self) -> int:
        """The largest number of sentences that any of its numbers comes from."""
        return max((int(row.max()) for row in self.count or () if row.numel()), default=0)

    def table(self) -> TextTable:
        """The reading in aligned columns: layers down and heads across, or one axis down with its interval.

        A third axis, such as the offset, is shown by its largest entry: `-1: 0.94`.
        """
        return TextTable("\n".join([self.title, *_aligned(table_cells(self))]))

    @property
    def title(self) -> str:
        """Name, kind of attention and meaning, in one line."""
        return f"{self.name} ({self.kind}): {self.description}"

    @property
    def tensor(self) -> Tensor:
        """All values as one tensor over `axes`. An error for labels, and for layers of different shapes."""
        asked = f"{self.name} as one tensor"
        if any(not isinstance(row, Tensor) for row in self.value):
            raise UsageError(asked, "numbers", "labels", "use numpy() or to_frame()")
        self._check_even(asked)
        rows = tensors(self.value)
        return torch.stack(rows) if self.layered else rows[0]

    def numpy(self) -> Any:
        """All values as one NumPy array over `axes`, also labels. An error for layers of different shapes."""
        if all(isinstance(row, Tensor) for row in self.value):
            return self.tensor.numpy()
        self._check_even(f"{self.name} as one array")
        return np.array(self.value if self.layered else self.value[0])

    def _check_even(self, asked: str) -> None:
        shapes = dict.fromkeys("×".join(map(str, _shape(row))) or "1" for row in self.value)
        if len(shapes) != 1:
            expected, remedy = "layers of the same shape", "use .value, which has one entry per layer, or to_frame()"
            raise UsageError(asked, expected, " and ".join(shapes) or "no layer", remedy)

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per value.

        Its columns are `kind`, the axes (`layer`, `head`, `depth`, `offset` ...), `value`, and as far as they are known
        `spread`, `low` and `high` (the ends of the 95 % interval) and `count` (the number of sentences).
        """
        places = [
            [*([layer] if self.layered else []), *(labels[at] for labels, at in zip(ticks, place, strict=True))]
            for layer, row in enumerate(self.value)
            for ticks in [[self._labels(axis, size) for axis, size in zip(self._inner, _shape(row), strict=True)]]
            for place in np.ndindex(*_shape(row))
        ]
        columns: dict[str, list[Any]] = {"kind": [self.kind] * len(places)}
        columns |= {axis: [place[at] for place in places] for at, axis in enumerate(self.axes)}
        parts = self.parts()
        for name in ("value", "spread", "low", "high", "count"):
            if name in parts:
                columns[name] = [
                    entry
                    for row, shaped in zip(parts[name], self.value, strict=True)
                    for entry in (row if isinstance(row, tuple) else row.expand(_shape(shaped)).reshape(-1).tolist())
                ]
        return data_frame(columns)

    @property
    def _inner(self) -> tuple[str, ...]:
        """The axes within one entry of `value`."""
        return self.axes[1:] if self.layered else self.axes

    def _labels(self, axis: str, size: int) -> list[float]:
        labels = self.ticks.get(axis, ())
        if len(labels) != size:
            return list(range(size))
        return [int(label) if float(label).is_integer() else label for label in labels]

    def __repr__(self) -> str:
        sizes = dict.fromkeys("×".join(map(str, _shape(row))) for row in self.value)
        inner = f" of {' or '.join(sizes)}" if any(sizes) else ""
        return f"<Reading {self.name} ({self.kind}) over {', '.join(self.axes) or 'nothing'}: {len(self.value)}{inner}>"

    def __rich__(self) -> Any:
        from attnworks.exam.render import ReadingTable

        return ReadingTable(self)

    def _repr_html_(self) -> str:
        return rich_html(self)

    def parts(self) -> dict[str, tuple[LayerValues, ...]]:
        """Value, spread, low and high end of the interval, and count, as far as they are known."""
        low, high = self.interval or (None, None)
        parts = {"value": self.value, "spread": self.spread, "low": low, "high": high, "count": self.count}
        return {name: rows for name, rows in parts.items() if rows is not None}

    def to_json(self) -> dict[str, Any]:
        """Nested lists; a number that is missing or not finite is null."""

        def plain(rows: tuple[LayerValues, ...] | None) -> Any:
            if rows is None:
                return None
            lists = [list(row) if isinstance(row, tuple) else _finite(row) for row in rows]
            return lists if self.layered else lists[0]

        return {
            "axes": list(self.axes),
            "kind": self.kind,
            "value": plain(self.value),
            "spread": plain(self.spread),
            "interval": None if self.interval is None else [plain(end) for end in self.interval],
            "count": plain(self.count),
            "source": self.source,
            "description": self.description,
            "ticks": {axis: list(labels) for axis, labels in self.ticks.items()},
        }


class Readings(Mapping[str, Reading]):
    """All readings of an examination by name; with several kinds of attention, by name@kind.

    The name alone is enough where only one kind has it.
    """

    def __init__(self, readings: list[Reading]) -> None:
        self._all = {f"{reading.name}@{reading.kind}": reading for reading in readings}

    def add(self, reading: Reading) -> None:
        self._all[f"{reading.name}@{reading.kind}"] = reading

    def __getitem__(self, name: str) -> Reading:
        if name in self._all:
            return self._all[name]
        of_name = self.of(name)
        if len(of_name) == 1:
            return of_name[0]
        if of_name:
            each = [f"{name}@{reading.kind}" for reading in of_name]
            got, remedy = "a name that several kinds of attention share", f"say which kind, as in {each[0]}"
            raise UsageError(f"reading {name!r}", f"one of {', '.join(each)}", got, remedy)
        raise unknown_name("reading", name, self)

    def get(self, name: str, default: Any = None) -> Any:
        """The reading of this name; the default if there is none, or if several kinds of attention have one."""
        try:
            return self[name]
        except (UnknownNameError, UsageError):
            return default

    def of(self, name: str) -> list[Reading]:
        """The reading of this name in every kind of attention that has it."""
        return [reading for reading in self._all.values() if reading.name == name]

    def kinds(self) -> list[Kind]:
        present = {reading.kind for reading in self._all.values()}
        return [kind for kind in KINDS if kind in present]

    def __contains__(self, name: object) -> bool:
        return name in self._all or (isinstance(name, str) and len(self.of(name)) == 1)

    def __iter__(self) -> Iterator[str]:
        for reading in self._all.values():
            yield reading.name if len(self.kinds()) == 1 else f"{reading.name}@{reading.kind}"

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Readings: {', '.join(self)}>"


def without_outliers(readings: Readings, name: str) -> str:
    """The name of the reading that leaves outlying tokens out, where they are common; elsewhere that of all tokens."""
    numbers = [row for reading in readings.of("rank.outliers") for row in tensors(reading.value)]
    return f"{name}{WITHOUT_OUTLIERS}" if any(bool((row >= COMMON_OUTLIERS).any()) for row in numbers) else name


def _shape(row: LayerValues) -> tuple[int, ...]:
    return tuple(row.shape) if isinstance(row, Tensor) else (len(row),)


def _finite(row: Tensor) -> Any:
    """Nested lists, with None for every number that is not finite."""
    numbers = row.numpy().astype(object)
    numbers[~row.isfinite().numpy()] = None
    return numbers.tolist()


STACK_NAMES = {"encoder": "encoder", "decoder": "decoder", "cross": "cross-attention"}


class HeadValue(NamedTuple):
    """A head and its value in a reading."""

    id: HeadId
    value: float

    @property
    def crosses(self) -> bool:
        return self.id.slot.crosses


class ModelReadings:
    """The readings of a model by head and by depth, and the names of its heads in sentences."""

    def __init__(self, readings: Readings) -> None:
        self.readings, self.several = readings, len(readings.kinds()) > 1

    def heads(self, name: str, end: int | None = None) -> list[HeadValue]:
        """Every head that has a number in this reading; with `end` 0 or 1, that end of its interval."""
        return [
            HeadValue(HeadId(Slot(reading.kind, layer), head), value)
            for reading in self.readings.of(name)
            for layer, row in enumerate(reading.value if end is None else (reading.interval or ((), ()))[end])
            if isinstance(row, Tensor)
            for head, value in enumerate(row.tolist())
            if math.isfinite(value)
        ]

    def at(self, name: str, end: int | None = None) -> dict[HeadId, float]:
        """Head -> value, or one end of its interval."""
        return dict(self.heads(name, end))

    def curves(self, name: str) -> dict[Kind, dict[int, float]]:
        """For every stack: depth (or layer, or length) -> value, where there is a number."""
        found: dict[Kind, dict[int, float]] = {}
        for reading in self.readings.of(name):
            rows = tensors(reading.value)
            if len(reading.axes) == 1 and rows:
                values = torch.stack(rows).flatten() if reading.layered else rows[0]
                found[reading.kind] = {at: value for at, value in enumerate(values.tolist()) if math.isfinite(value)}
        return found

    def labels(self, name: str) -> dict[HeadId, str]:
        return {
            HeadId(Slot(reading.kind, layer), head): label
            for reading in self.readings.of(name)
            for layer, row in enumerate(reading.value)
            if isinstance(row, tuple)
            for head, label in enumerate(row)
        }

    def name_of(self, head: HeadValue) -> str:
        """enc.0.3, or 0.3 where the model has one stack."""
        return str(head.id) if self.several else f"{head.id.slot.layer}.{head.id.head}"

    def stack(self, kind: Kind) -> str:
        """The name of a stack before "layer 3" or "depth 3"; nothing where there is only one."""
        return f"{STACK_NAMES[kind]} " if self.several else ""

    def in_stacks(self, kinds: Iterable[Kind]) -> str:
        """ " in the encoder and the decoder"; nothing where there is only one stack."""
        return f" in {joined_with_and([f'the {STACK_NAMES[kind]}' for kind in kinds])}" if self.several else ""


def joined_with_and(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


NEAR_OFFSET_NAMES = {-1: "previous", 0: "self", 1: "next"}


def offset_role(offset: int, kind: Kind) -> str:
    """The label of attention at this offset. In cross-attention, no token of the other text is the previous one."""
    return f"offset {offset}" if kind == "cross" else NEAR_OFFSET_NAMES.get(offset, f"offset {offset}")


def role_group(label: str) -> str:
    """The label under which heads are counted together: `offset` for every offset."""
    return "offset" if label.startswith("offset ") else label
