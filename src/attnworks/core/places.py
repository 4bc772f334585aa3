"""Names of attention layers and heads: enc.0, dec.1, cross.1; enc.0.3."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from attnworks.core.errors import UsageError

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
"""In the order of a model."""
NO_HEADS = "none"

SHORT_KINDS: dict[Kind, str] = {"encoder": "enc", "decoder": "dec", "cross": "cross"}
_LONG: dict[str, Kind] = {short: kind for kind, short in SHORT_KINDS.items()}


class Slot(NamedTuple):
    """An attention layer: enc.0 (encoder self-attention), dec.1 (decoder self-attention), cross.1."""

    kind: Kind
    layer: int

    @property
    def causal(self) -> bool:
        """Whether later positions are hidden: self-attention of a decoder."""
        return self.kind == "decoder"

    @property
    def crosses(self) -> bool:
        """Whether keys and values come from another sequence than queries."""
        return self.kind == "cross"

    @property
    def order(self) -> tuple[int, int]:
        """Sorts slots as they stand in the model: encoder, decoder, cross-attention, each by layer."""
        return KINDS.index(self.kind), self.layer

    def __str__(self) -> str:
        return f"{SHORT_KINDS[self.kind]}.{self.layer}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        """The slot with exactly this name; ValueError for any other text."""
        short, _, layer = text.partition(".")
        if short not in _LONG or str(slot := cls(_LONG[short], int(layer))) != text or slot.layer < 0:
            raise ValueError(f"slot {text!r}")
        return slot


class HeadId(NamedTuple):
    """One head of an attention layer: enc.0.3."""

    slot: Slot
    head: int

    def __str__(self) -> str:
        return f"{self.slot}.{self.head}"

    @classmethod
    def parse(cls, text: str) -> HeadId:
        """The head with exactly this name; ValueError for any other text."""
        slot, _, head = text.rpartition(".")
        if str(found := cls(Slot.parse(slot), int(head))) != text or found.head < 0:
            raise ValueError(f"head {text!r}")
        return found


def names_head(pattern: str, head: HeadId, *, short: bool) -> bool:
    """Whether a name or pattern names a head; with `short`, also without the kind: 0.3 for enc.0.3."""
    names = [str(head), *([f"{head.slot.layer}.{head.head}"] if short else [])]
    return any(fnmatchcase(name, pattern) for name in names)


def select_heads(pattern: str, heads: Mapping[Slot, int]) -> list[HeadId]:
    """The heads that match at least one of the comma-separated patterns, in the order of the model.

    heads    the number of heads of each layer

    A head is written layer.head, with enc, dec or cross in front where the model has several kinds of layers; * stands
    for any text, and none for no head.
    >>> layers = {Slot("encoder", 0): 3, Slot("encoder", 1): 2}
    >>> [str(head) for head in select_heads("0.2,1.*", layers)]
    ['enc.0.2', 'enc.1.0', 'enc.1.1']
    """
    every = [HeadId(slot, head) for slot, count in heads.items() for head in range(count)]
    kinds = {slot.kind for slot in heads}
    if pattern.strip() == NO_HEADS:
        return []
    asked = f"heads {pattern!r}"
    if not every:
        raise UsageError(asked, "a model with heads to choose", "none", "choose another model")
    selected: set[HeadId] = set()
    for part in (part.strip() for part in pattern.split(",")):
        found = [head for head in every if names_head(part, head, short=len(kinds) == 1)]
        if not found:
            across = "cross" in part and "cross" not in kinds
            which = "heads" if "cross" in kinds else "heads of self-attention"
            ranges = ", ".join(f"{slot}.0 to {slot}.{count - 1}" for slot, count in heads.items() if count)
            got = "cross-attention, which has no positions in common" if across else repr(part)
            last = str(every[-1]) if len(kinds) > 1 else str(every[-1]).partition(".")[2]
            remedy = f"for instance {last}, {every[0].slot}.* or none"
            raise UsageError(asked, f"{which} ({ranges}), by name or with *", got, remedy)
        selected.update(found)
    return [head for head in every if head in selected]
