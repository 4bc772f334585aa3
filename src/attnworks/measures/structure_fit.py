"""The nearest structured form of each head: a diagonal, a band, a column, blocks of columns, a permutation or a map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from attnworks.linalg.structure import fit, winner
from attnworks.measures.contract import MEASURES, Declared, Measure, Sample, Samples
from attnworks.measures.drawing import drawn
from attnworks.measures.reading import Reading, Readings
from attnworks.traces.layer import Slot
from attnworks.traces.maps import Maps

HEADS = ("layer", "head")
SOURCE = "Conti 2024, section 3.1.1 (S4.133), D12"
EPS = 0.02
SENTENCES = 16
"""About so many of a corpus are fitted."""
RELIABLE = SENTENCES // 2
"""Forms from fewer sentences are called unreliable: that is less than half of what the measure aims at."""
LONGEST = 64
"""Maps of more tokens are left out: the search for blocks of columns grows with their cube."""
FAMILIES = {
    "zero": "nothing at all, a baseline",
    "uniform": "all tokens evenly",
    "identity": "each token to itself",
    "offset": "each token to the one at a fixed offset",
    "column": "all tokens to one",
    "columns": "blocks of neighbours to one of them (rare tokens)",
    "band": "any weights up to two tokens away",
    "permutation": "each token to another one",
    "map": "each token to any one",
}
ACROSS = ("zero", "uniform", "column", "map")
"""Families of attention to another sequence, where there is no diagonal."""


@MEASURES.register("structure")
class Structure(Measure):
    """Of every family the member P nearest to the head, with errors up to eps = 0.02 forgiven, and the family that
    explains the head best at equal length of description (`linalg.structure.fit`).

    structure.<family>    the error, sum_ij max(|h - p| - eps, 0) per query: at most 2
    structure.duel        the error of a family where it may spend as many bits as the costlier of it and another takes
    structure.form        the family that wins most duels of these means; none where nothing at all does
    structure.distance    its error

    Source: Conti 2024, section 3.1.1 (S4.131, S4.133, S4.149), D12.
    Departs: the document calls every form a permutation, and chooses by error alone.
    """

    name = "structure"
    words = "which structured form each head is nearest to: diagonal, band, column, blocks, permutation"
    cost = f"1 forward pass for 12 tokens, 3 for 64, of about {SENTENCES} sentences; longer texts are left out"
    default = True

    def declares(self) -> tuple[Declared, ...]:
        errors = (Declared(f"structure.{name}", HEADS, f"error of {words}", SOURCE) for name, words in FAMILIES.items())
        return (
            *errors,
            Declared(
                "structure.duel", (*HEADS, "family", "other"), f"errors at equal cost: {', '.join(FAMILIES)}", SOURCE
            ),
            Declared("structure.form", HEADS, "the family that explains the head best, or none", SOURCE, "constant"),
            Declared("structure.distance", HEADS, "its error: 0 is a perfect fit, 2 the worst", SOURCE, "constant"),
        )

    def maps(self, maps: Maps) -> Samples:
        P, names = maps.P.detach(), ACROSS if maps.slot.kind == "cross" else tuple(FAMILIES)
        chosen = drawn(maps.queries, max(1, self.setting.up_to(LONGEST) // SENTENCES), self.setting.seed)
        chosen = chosen & (max(P.shape[-2:]) <= LONGEST)
        duels = P.new_zeros(*P.shape[:2], len(names), len(names))
        if chosen.any():
            duels[chosen] = fit(P[chosen], names, eps=EPS, causal=maps.slot.kind == "decoder").duels
        errors = zip(names, duels.diagonal(dim1=-2, dim2=-1).unbind(-1), strict=True)
        told = chosen[:, None]
        return {
            **{f"structure.{name}": Sample(error, told) for name, error in errors},
            "structure.duel": Sample(duels, told[..., None, None]),
        }

    def remarks(self, readings: Readings) -> Iterable[str]:
        """One for all kinds of attention, of the one with the fewest sentences."""
        used = min((duel.sentences for duel in readings.of("structure.duel")), default=0)
        texts = self.setting.sentences
        longer = texts - self.setting.up_to(LONGEST)
        source, remedy = f"come from {used} sentence{'s' * (used != 1)}", f"examine {RELIABLE} or more"
        if longer:
            are = "is" if longer == 1 else "are"
            source = f"come from {used} of {texts} texts, of which {longer} {are} longer than {LONGEST} tokens"
            remedy = f"cut texts with --max-tokens {LONGEST}"
        if 0 < used < RELIABLE:
            yield f"structured forms are unreliable: they {source}; {remedy}"
        elif used and longer:
            yield f"structured forms {source}; {remedy} to use more"

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        del name, slots, readings
        return f"no text has {LONGEST} tokens or fewer; cut texts with --max-tokens {LONGEST}"

    def conclude(self, readings: Readings) -> Iterable[Reading]:
        declared = {reading.name: reading for reading in self.declares()}
        for duel in (duel for duel in readings.of("structure.duel") if duel.sentences):
            names = ACROSS if duel.kind == "cross" else tuple(FAMILIES)
            winners = [_winner(row) for row in duel.value if isinstance(row, Tensor)]
            labels = tuple(tuple("none" if at <= 0 else names[at] for at in row.tolist()) for row in winners)
            found = (
                torch.where(
                    at < 0, torch.nan, row.diagonal(dim1=-2, dim2=-1).gather(-1, at.clamp_min(0)[:, None])[:, 0]
                )
                for row, at in zip(duel.value, winners, strict=True)
                if isinstance(row, Tensor)
            )
            for name, value in (("structure.form", labels), ("structure.distance", tuple(found))):
                told = declared[name]
                yield Reading(name, duel.kind, told.axes, value, told.words, told.source)


def _winner(duels: Tensor) -> Tensor:
    """The family that wins, of several the first; -1 for a head of which nothing is known."""
    first = torch.arange(duels.shape[-1], dtype=duels.dtype).expand(duels.shape[:-1])
    return torch.where(duels.isnan().any(-1).any(-1), -1, winner(duels, first))
