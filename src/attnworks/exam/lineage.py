"""Where the heads of a reshaped model come from: their names in the model before the first reshape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from attnworks.core.errors import UsageError, short_number
from attnworks.core.json_records import parse

MAX_HEADS = 2**16
"""The largest number of heads of a layer."""
LINEAGE = "lineage"
"""The key of the lineage in the description of an examined model."""
ADDED = "+"
"""Separates the name of an added head from the fingerprint of the model in which it first appears."""
FINGERPRINT_DIGITS = 12
"""Digits of a fingerprint in the name of a head."""


@dataclass(frozen=True, kw_only=True)
class HeadMap:
    """Which head of a layer became which.

    before    number of heads before
    after     for every head after, its number before; None for a new head
    """

    before: int
    after: tuple[int | None, ...]

    def out_of_range(self) -> str | None:
        """What is impossible in this map, in words; None if nothing is."""
        if not 0 <= self.before <= MAX_HEADS or len(self.after) > MAX_HEADS:
            return f"{short_number(self.before)} before and {len(self.after)} after, of at most {MAX_HEADS}"
        kept = [head for head in self.after if head is not None]
        odd = next((head for head in kept if not 0 <= head < self.before), None)
        if odd is not None:
            return f"head {short_number(odd)} of {self.before}"
        return None if len({*kept}) == len(kept) else "the same head twice"


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The reshapes of a model, and where its heads come from.

    original      fingerprint of all weights before the first reshape
    reshapes      titles of the reshapes, first to last
    counts        for every layer that lost or gained heads, their number before the first reshape
    heads         the heads that these layers have now, by their first names: enc.0.5 for a head of the original model,
                  enc.0.12+3fa9c1d20b77 for one that was added
    unrecorded    layers whose heads also changed without a receipt, for instance by growth during training
    """

    original: str
    reshapes: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)
    heads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unrecorded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.counts.keys() != self.heads.keys() or {*self.unrecorded} & self.heads.keys():
            raise _malformed("numbers and names of heads for different layers")
        for slot, names in self.heads.items():
            if (odd := next((name for name in names if not _is_name(name, slot)), None)) is not None:
                raise _malformed(f"the name {odd!r}")
            if len({*names}) != len(names):
                raise _malformed(f"a name twice in {slot}")

    def to_json(self) -> dict[str, Any]:
        heads = {slot: list(names) for slot, names in self.heads.items()}
        lists = {"reshapes": list(self.reshapes), "heads": heads, "unrecorded": list(self.unrecorded)}
        return asdict(self) | lists


@runtime_checkable
class ReshapeRecord(Protocol):
    """The part of a receipt that the lineage needs.

    fingerprint    fingerprints of all weights before and after the reshape
    heads          for every layer that lost or gained heads, which became which
    title          the reshape in a few words
    """

    @property
    def fingerprint(self) -> tuple[str, str]: ...
    @property
    def heads(self) -> Mapping[str, HeadMap]: ...
    @property
    def title(self) -> str: ...


def lineage_of(receipts: Sequence[ReshapeRecord], heads: Mapping[str, int]) -> Lineage | None:
    """Follow heads through these receipts, first to last; None without receipts.

    heads    number of heads of each layer of the model now
    """
    if not receipts:
        return None
    counts: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    for receipt in receipts:
        for slot, became in receipt.heads.items():
            counts.setdefault(slot, became.before)
            names[slot] = _after(slot, names.get(slot), became, receipt.fingerprint[1][:FINGERPRINT_DIGITS])
    known = [slot for slot in names if _unbroken(slot, receipts) and len(names[slot]) == heads.get(slot)]
    return Lineage(
        original=receipts[0].fingerprint[0],
        reshapes=tuple(receipt.title for receipt in receipts),
        counts={slot: counts[slot] for slot in known},
        heads={slot: tuple(names[slot]) for slot in known},
        unrecorded=tuple(slot for slot in names if slot not in known and slot in heads),
    )


def read_lineage(model: Mapping[str, Any]) -> Lineage | None:
    """The lineage in the description of a model; an error if it is malformed or has other numbers of heads."""
    saved = model.get(LINEAGE)
    if saved is None:
        return None
    lineage = parse(Lineage, saved, LINEAGE) if isinstance(saved, dict) else None
    counts = model.get("heads")
    numbers = {} if lineage is None else {slot: len(names) for slot, names in lineage.heads.items()}
    if lineage is None or not isinstance(counts, dict) or any(counts.get(slot) != n for slot, n in numbers.items()):
        raise _malformed("something else")
    return lineage


def _malformed(got: str) -> UsageError:
    expected = "the first name of every head of a layer, each once"
    return UsageError("the lineage of heads", expected, got, "examine the model again")


def _is_name(name: str, slot: str) -> bool:
    return re.fullmatch(rf"{re.escape(slot)}\.\d{{1,6}}(\{ADDED}\w*)?", name) is not None


def _after(slot: str, names: Sequence[str] | None, became: HeadMap, model: str) -> list[str]:
    """The first names of the heads after a reshape, from those before it; None before the first reshape.

    A head whose number is not among those before is named as a new one; `_unbroken` finds such layers.
    """

    def first_name(number: int, head: int | None) -> str:
        if head is None or (names is not None and head >= len(names)):
            return f"{slot}.{number}{ADDED}{model}"
        return f"{slot}.{head}" if names is None else names[head]

    return [first_name(number, head) for number, head in enumerate(became.after)]


def _unbroken(slot: str, receipts: Sequence[ReshapeRecord]) -> bool:
    """Whether every receipt starts with the number of heads of the layer that the receipt before it ends with."""
    maps = [receipt.heads[slot] for receipt in receipts if slot in receipt.heads]
    return [became.before for became in maps[1:]] == [len(became.after) for became in maps[:-1]]
