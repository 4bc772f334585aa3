"""Match the heads of two examined models, also after heads were cut or added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from attnworks.core.places import Slot
from attnworks.exam.lineage import ADDED, Lineage, read_lineage

State = Literal["compared", "cut", "new", "not compared"]


class Match(NamedTuple):
    """One head, by its names in both models.

    head      its first name: that in the original model, or in the model in which it was added
    before    its name in the first model; None if that model lacks it
    after     its name in the second model; None if that model lacks it
    state     "compared": both models have it. "cut": it was cut from one model. "new": it was added to one model. "not
              compared": the matching head of the other model is not known
    why       the reason, if it is not compared
    """

    head: str
    before: str | None
    after: str | None
    state: State
    why: str | None = None


class _LayerHeads(NamedTuple):
    """The heads of one layer of one model: their first names, and their number before the first reshape."""

    names: tuple[str, ...]
    original: int
    recorded: bool = False


Layers = Mapping[str, int]
"""Layer, such as enc.0 -> number of heads."""


def match_heads(before: Layers, after: Layers, models: tuple[Mapping[str, Any], Mapping[str, Any]]) -> list[Match]:
    """Every head of both models, layer by layer, matched by the names that heads had before the first reshape.

    before, after   number of heads of every layer
    models          the descriptions of the two models in their examinations

    Heads of a layer are matched if it had the same number of heads in both models before the first reshape.
    """
    lineages = read_lineage(models[0]), read_lineage(models[1])
    return [
        match
        for slot in sorted({*before, *after}, key=lambda slot: Slot.parse(slot).order)
        for match in _in_layer(slot, (before.get(slot), after.get(slot)), lineages, models)
    ]


def _in_layer(
    slot: str,
    counts: tuple[int | None, int | None],
    lineages: tuple[Lineage | None, Lineage | None],
    models: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> Iterator[Match]:
    (before, after), (first, second) = counts, lineages
    if before is None or after is None:
        lacking, model = ("first", models[0]) if before is None else ("second", models[1])
        heads = model.get("heads")
        there = isinstance(heads, Mapping) and slot in heads
        what = "examination has no readings of these heads" if there else "model has no such layer"
        yield from _apart(slot, before or 0, after or 0, f"the {lacking} {what}")
        return
    if first is not None and first == second and before == after and slot in first.unrecorded:
        first = second = None  # the same model twice: its heads match, although their first names are not known
    one, other = _layer(slot, before, first), _layer(slot, after, second)
    if one is None or other is None or one.original != other.original:
        yield from _apart(slot, before, after, _why_not(one, other, (before, after)))
        return
    places = {name: f"{slot}.{number}" for number, name in enumerate(other.names)}
    there = {*one.names}
    for number, name in enumerate(one.names):
        yield Match(name, f"{slot}.{number}", places.get(name), "compared" if name in places else _state(name))
    yield from (Match(name, None, place, _state(name)) for name, place in places.items() if name not in there)


def _why_not(one: _LayerHeads | None, other: _LayerHeads | None, now: tuple[int, int]) -> str:
    """The reason for which heads of two layers cannot be matched."""
    if one is None or other is None:
        which = "both models" if one is other else f"the {'first' if one is None else 'second'} model"
        return f"in {which} heads also changed without a receipt, for instance by growth during training"
    if one.recorded or other.recorded:
        return f"{one.original} heads against {other.original} before any were cut or added: the models differ"
    return f"{now[0]} heads against {now[1]}, and no receipt says which head became which"


def _state(name: str) -> State:
    """The state of a head that one model lacks."""
    return "new" if ADDED in name else "cut"


def _apart(slot: str, before: int, after: int, why: str) -> Iterator[Match]:
    for number in range(before):
        yield Match(f"{slot}.{number}", f"{slot}.{number}", None, "not compared", why)
    for number in range(after):
        yield Match(f"{slot}.{number}", None, f"{slot}.{number}", "not compared", why)


def _layer(slot: str, heads: int, lineage: Lineage | None) -> _LayerHeads | None:
    """The heads of a layer; None if their first names are not known."""
    if lineage is not None and slot in lineage.heads and len(lineage.heads[slot]) == heads:
        return _LayerHeads(lineage.heads[slot], lineage.counts[slot], recorded=True)
    if lineage is not None and slot in (*lineage.unrecorded, *lineage.heads):
        return None
    return _LayerHeads(tuple(f"{slot}.{head}" for head in range(heads)), heads)
