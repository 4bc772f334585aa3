"""What a measure found, folded over the corpus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.registry import unknown_name
from attnworks.exam.table import TextTable, reading_table
from attnworks.traces.layer import SHORT, Kind

Row = Tensor | tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Reading:
    """One named quantity of one kind of attention, with what is known of its certainty.

    axes       ("layer", "head"), ("depth",), ("layer", "head", "offset"), ("length",), ...
    value      one entry per layer (or depth): a tensor over the other axes, or labels; layers may differ in heads.
               Without a layer or depth axis, a single entry.
    spread     standard deviation over sentences, like value; None where it has no meaning
    interval   ends of the 95 % confidence interval of the mean, like value; None where it has no meaning
    count      sentences that counted, like value
    ticks      labels along further axes, if they are not 0, 1, 2, ...
    """

    name: str
    kind: Kind
    axes: tuple[str, ...]
    value: tuple[Row, ...]
    words: str
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
        return f"{SHORT[self.kind]}.{row}" if self.axes[0] == "layer" else str(row)

    @property
    def sentences(self) -> int:
        """The most sentences that counted for any of its numbers."""
        return max((int(row.max()) for row in self.count or () if row.numel()), default=0)

    def table(self) -> TextTable:
        """The reading in aligned columns: layers down and heads across."""
        return reading_table(self)

    def to_json(self) -> dict[str, Any]:
        """Nested lists; a number that is not there, or not finite, is null."""

        def plain(rows: tuple[Row, ...] | None) -> Any:
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
            "words": self.words,
            "ticks": {axis: list(labels) for axis, labels in self.ticks.items()},
        }


class Readings(Mapping[str, Reading]):
    """All readings of an examination by name; with several kinds of attention, by name@kind.

    A name alone will do where only one kind has it.
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
            raise UsageError(
                asked=f"reading {name!r}",
                expected=f"one of {', '.join(f'{name}@{reading.kind}' for reading in of_name)}",
                got="a name that several kinds of attention share",
                remedy=f"say which kind, as in {name}@{of_name[0].kind}",
            )
        raise unknown_name("reading", name, self)

    def of(self, name: str) -> list[Reading]:
        """The reading of this name in every kind of attention that has it."""
        return [reading for reading in self._all.values() if reading.name == name]

    def kinds(self) -> list[Kind]:
        present = {reading.kind for reading in self._all.values()}
        return [kind for kind in ("encoder", "decoder", "cross") if kind in present]

    def __contains__(self, name: object) -> bool:
        return name in self._all or (isinstance(name, str) and len(self.of(name)) == 1)

    def __iter__(self) -> Iterator[str]:
        for reading in self._all.values():
            yield reading.name if len(self.kinds()) == 1 else f"{reading.name}@{reading.kind}"

    def __len__(self) -> int:
        return len(self._all)


def _finite(row: Tensor) -> Any:
    """As lists; what is not finite becomes None."""
    return row.tolist() if bool(torch.isfinite(row).all()) else _without_holes(row.tolist())


def _without_holes(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_holes(item) for item in value]
    return value if math.isfinite(value) else None
