"""The measure `structure`: the nearest structured form of each head, such as a diagonal, a band or a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.core.display import counted
from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import BY_HEAD, MEASURES, Measure, ReadingSpec, Sample, Samples, sampled_sentences
from attnworks.exam.reading import Reading, Readings, tensors
from attnworks.exam.structure.fits import fit, offset_duels, winner
from attnworks.traces.maps import Maps

_SOURCE = "Conti 2024, section 3.1.1 (S4.133), D12"
FORGIVEN_ERROR = 0.02
FIT_SENTENCES = 16
"""About the number of sentences of a corpus that are fitted."""
MIN_RELIABLE_SENTENCES = FIT_SENTENCES // 2
"""Forms from fewer sentences are called unreliable: that is less than half of what the measure aims at."""
FIT_MAX_TOKENS = 64
"""Maps of more tokens are left out: the search for blocks of columns grows with their cube."""
FAMILY_DESCRIPTIONS = {
    "zero": "nothing at all, a baseline",
    "even": "all tokens that may be seen, with the same weight",
    "identity": "each token to itself",
    "offset": "each token to the one at a fixed offset",
    "column": "all tokens to one",
    "columns": "blocks of neighbours to one of them (rare tokens)",
    "band": "any weights up to two tokens away",
    "permutation": "each token to another one",
    "map": "each token to any one",
}
CROSS_FAMILIES = ("zero", "even", "column", "map")
"""Families of attention to another sequence, where there is no diagonal."""
PATTERNLESS_FAMILIES = ("zero", "map")
"""Families that describe no pattern: the zero matrix, and any map of queries to single keys."""
BASELINE_FAMILIES = ("even", *PATTERNLESS_FAMILIES)
"""Families that are no structured form: also even attention, as untrained heads have it."""
MIN_EXPLAINED = 0.5
"""The share of a head that a pattern must explain to be its form."""
NO_FORM = "none"


@MEASURES.register("structure")
class Structure(Measure):
    """Of every family the member P nearest to the head, with errors up to eps = 0.02 forgiven, and the pattern that
    explains the head best at equal length of description (`exam.structure.fit`).

    structure.<family>     the error, sum_ij max(|h - p| - eps, 0) per query: at most 2
    structure.shift        the offset of "offset": one for each head over all sentences, the one of least mean error
                           among those up to half of the mean number of tokens, so that half of all queries have a key
    structure.tokens       mean number of tokens of the sentences that were fitted
    structure.duel         the error of a family if it may use the bits of the longer of it and another
    structure.offset_duel  the same for every offset
    structure.closest      the family that wins most duels of these means, if it explains at least half of the head;
                           or else the family of least error; never zero or map
    structure.distance     the error of the closest family
    structure.explained    the share of the head that it explains: 1 - error / error of zero
    structure.form         the closest family if it wins most duels and explains at least half of the head; none else,
                           and for even attention, which untrained heads have

    Source: Conti 2024, section 3.1.1 (S4.131, S4.133, S4.149), D12.
    Departs: the document calls every form a permutation, and chooses by error alone.
    """

    name = "structure"
    description = "which structured form each head has: diagonal, band, column, blocks, permutation"
    cost = f"2 forward passes for 12 tokens, 5 for 64, of about {FIT_SENTENCES} sentences; longer texts are left out"
    default = True

    @property
    def offsets(self) -> Tensor:
        """Every offset that leaves at least half of the queries with a key, in a text of the largest length."""
        furthest = min(self.context.max_length, FIT_MAX_TOKENS) // 2
        return torch.arange(-furthest, furthest + 1)

    def declares(self) -> tuple[ReadingSpec, ...]:
        errors = (
            ReadingSpec(f"structure.{name}", BY_HEAD, f"error of {words}", _SOURCE)
            for name, words in FAMILY_DESCRIPTIONS.items()
        )
        families, ticks = ", ".join(FAMILY_DESCRIPTIONS), {"offset": tuple(self.offsets.tolist())}
        against = f"errors at equal cost of each token to the one at this offset, against: {families}"
        enough = f"worth its length and explains {MIN_EXPLAINED} or more"
        concluded = {
            "shift": "the offset of the nearest shifted diagonal: -1 is the token before",
            "closest": f"the pattern that is {enough}; or else that of least error",
            "distance": "error of the closest pattern: 0 is a perfect fit, 2 the worst",
            "explained": "share of the head that the closest pattern explains: 1 is a perfect fit",
            "form": f"the closest pattern if it is {enough}, and not even attention; or none",
        }
        return (
            *errors,
            ReadingSpec("structure.tokens", BY_HEAD, "mean number of tokens of the fitted sentences", _SOURCE),
            ReadingSpec("structure.duel", (*BY_HEAD, "family", "other"), f"errors at equal cost: {families}", _SOURCE),
            ReadingSpec("structure.offset_duel", (*BY_HEAD, "offset", "other"), against, _SOURCE, ticks=ticks),
            *(
                ReadingSpec(f"structure.{name}", BY_HEAD, words, _SOURCE, "constant")
                for name, words in concluded.items()
            ),
        )

    def maps(self, maps: Maps) -> Samples:
        P, names, offsets = maps.P.detach(), families_of(maps.slot.kind), self.offsets.to(maps.P.device)
        one_in = max(1, self.context.up_to(FIT_MAX_TOKENS) // FIT_SENTENCES)
        chosen = sampled_sentences(maps.queries, one_in, self.context.seed) & (max(P.shape[-2:]) <= FIT_MAX_TOKENS)
        duels, by_offset = (P.new_zeros(*P.shape[:2], rows, len(names)) for rows in (len(names), len(offsets)))
        if chosen.any():
            fitted = fit(P[chosen], names, eps=FORGIVEN_ERROR, causal=maps.slot.kind == "decoder")
            duels[chosen] = fitted.duels
            if "offset" in names:
                by_offset[chosen] = offset_duels(fitted, offsets)
        samples = {name: duels[..., place, place] for place, name in enumerate(names) if name != "offset"}
        samples |= {"tokens": torch.full_like(duels[..., 0, 0], P.shape[-2]), "duel": duels}
        samples |= {"offset_duel": by_offset} if "offset" in names else {}
        return {
            f"structure.{name}": Sample(values, chosen.view(-1, *[1] * (values.dim() - 1)))
            for name, values in samples.items()
        }

    def remarks(self, readings: Readings) -> Iterable[str]:
        """One remark for all kinds of attention, about the kind with the fewest sentences."""
        used = min((duel.sentences for duel in readings.of("structure.duel")), default=0)
        texts = self.context.sentences
        longer = texts - self.context.up_to(FIT_MAX_TOKENS)
        source, remedy = f"come from {counted(used, 'sentence')}", f"examine {MIN_RELIABLE_SENTENCES} or more"
        if longer:
            are = "is" if longer == 1 else "are"
            source = f"come from {used} of {texts} texts, of which {longer} {are} longer than {FIT_MAX_TOKENS} tokens"
            remedy = f"cut texts with --max-length {FIT_MAX_TOKENS}"
        if 0 < used < MIN_RELIABLE_SENTENCES:
            yield f"structured forms are unreliable: they {source}; {remedy}"
        elif used and longer:
            yield f"structured forms {source}; {remedy} to use more"

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        return f"no text has {FIT_MAX_TOKENS} tokens or fewer; cut texts with --max-length {FIT_MAX_TOKENS}"

    def conclude(self, readings: Readings) -> Iterable[Reading]:
        declared = {reading.name: reading for reading in self.declares()}
        for duel in (duel for duel in readings.of("structure.duel") if duel.sentences):
            kind, names, found = duel.kind, families_of(duel.kind), duel
            if "offset" in names:
                by_offset, tokens = (readings[f"structure.{name}@{kind}"] for name in ("offset_duel", "tokens"))
                places = [
                    _nearest(row[..., names.index("offset")], self.offsets, length)
                    for row, length in zip(tensors(by_offset.value), tensors(tokens.value), strict=True)
                ]
                shifts = (torch.where(at < 0, torch.nan, self.offsets.double()[at]) for at in places)
                yield declared["structure.shift"].reading(kind, shifts)
                offset, found = _with_offsets(duel, by_offset, places, declared)
                yield offset
                yield found
            by_layer = [closest_forms(row, names) for row in tensors(found.value)]
            for part, name in enumerate(("closest", "distance", "explained", "form")):
                yield declared[f"structure.{name}"].reading(kind, (row[part] for row in by_layer))


class ClosestForms(NamedTuple):
    """By head: the closest pattern, its error, the share of the head that it explains, and the form or none."""

    closest: tuple[str, ...]
    distance: Float[Tensor, " h"]
    explained: Float[Tensor, " h"]
    form: tuple[str, ...]


def families_of(kind: Kind) -> tuple[str, ...]:
    return CROSS_FAMILIES if kind == "cross" else tuple(FAMILY_DESCRIPTIONS)


def closest_forms(duels: Float[Tensor, "h f f"], names: tuple[str, ...]) -> ClosestForms:
    """The closest pattern of each head by its duels; "none" and NaN for a head without a fitted sentence.

    Where the family "zero" has no error, there is nothing to explain, and the share is NaN.
    """
    errors = duels.diagonal(dim1=-2, dim2=-1)
    nothing = errors[:, names.index("zero")]
    shares = torch.where(nothing[:, None] > 0, 1 - errors / nothing[:, None], torch.nan)
    described = torch.tensor([name not in PATTERNLESS_FAMILIES for name in names], device=duels.device)
    first = torch.arange(len(names), dtype=duels.dtype, device=duels.device).expand(errors.shape)
    won = winner(duels, first)
    enough = described[won] & (shares.gather(-1, won[:, None])[:, 0] >= MIN_EXPLAINED)
    closest = torch.where(enough, won, errors.masked_fill(~described, torch.inf).argmin(-1))
    known = ~duels.isnan().any(-1).any(-1)
    distance, explained = (
        torch.where(known, values.gather(-1, closest[:, None])[:, 0], torch.nan) for values in (errors, shares)
    )
    nearest = tuple(names[at] if sure else NO_FORM for at, sure in zip(closest.tolist(), known.tolist(), strict=True))
    formed = zip(nearest, enough.tolist(), strict=True)
    form = tuple(name if sure and name not in BASELINE_FAMILIES else NO_FORM for name, sure in formed)
    return ClosestForms(nearest, distance, explained, form)


def _nearest(
    errors: Float[Tensor, "h o"], offsets: Int[Tensor, " o"], tokens: Float[Tensor, " h"]
) -> Int[Tensor, " h"]:
    """The index of the offset of least error among those up to half of the tokens; of several the one nearest to 0.

    It is -1 for a head without a fitted sentence.
    """
    order = offsets.abs().argsort(stable=True)
    allowed = 2 * offsets.abs() <= tokens[:, None]
    place = order[errors.masked_fill(~allowed, torch.inf)[:, order].argmin(-1)]
    return torch.where(tokens.isnan(), -1, place)


def _with_offsets(
    duel: Reading, by_offset: Reading, places: Sequence[Int[Tensor, " _"]], specs: Mapping[str, ReadingSpec]
) -> Iterator[Reading]:
    """The errors of the family "offset" at the chosen offset of each head, and the duels with its row replaced.

    places    by layer, the index of the chosen offset of each head; `by_offset` has rows [h o f], `duel` [h f f]
    """
    own = families_of(duel.kind).index("offset")
    errors, duels, before = {}, {}, duel.parts()
    for part, rows in by_offset.parts().items():
        chosen = [row[torch.arange(len(row)), at] for row, at in zip(tensors(rows), places, strict=True)]  # [h f]
        errors[part] = tuple(row[:, own] for row in chosen)
        both = zip(tensors(before[part]), chosen, strict=True)
        duels[part] = tuple(row.index_copy(1, torch.tensor([own]), new[:, None]) for row, new in both)
    yield specs["structure.offset"].reading(duel.kind, **errors)
    yield specs["structure.duel"].reading(duel.kind, **duels)
