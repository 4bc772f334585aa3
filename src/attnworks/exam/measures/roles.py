"""The measure `roles`: the offset, syntactic head, rare or repeated token that a head attends to, against chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import BY_HEAD, BY_LAYER, MEASURES, Measure, MeasureContext, ReadingSpec, Sample, Samples
from attnworks.exam.measures.labels import (
    FAMILY_WISE_ERROR,
    MIN_LABEL_SENTENCES,
    RELIABLE_LABEL_SENTENCES,
    best_fixed_offset,
    label_heads,
)
from attnworks.exam.measures.pointers import OffsetSight, Sight, after_same, forced, rarest, same_before, same_nearest
from attnworks.exam.reading import Reading, Readings, sentences_are
from attnworks.text.tokens import NO_WORD, Tokens
from attnworks.traces.rows import LayerRows

COPY_WEIGHT = 0.9
"""A row whose largest weight is at least this gives one value almost unchanged."""

ERROR = f"a model gets any wrong label with probability {FAMILY_WISE_ERROR:.0%} at most".replace("%", " %")

VOITA, CLARK, OLSSON = "Voita et al. 2019", "Clark et al. 2019", "Olsson et al. 2022"


class _Known(NamedTuple):
    """What follows from the tokens of a batch alone; shared by all layers."""

    sight: Sight
    offsets: OffsetSight
    where: Mapping[str, Bool[Tensor, "b i"]]
    samples: Samples


@MEASURES.register("roles")
class Roles(Measure):
    """With I the queries that may see two keys or more, the key in question among them,

    offset            1/|I| sum of P[i, i + o]; a sentence counts for o if I has half of the queries with a choice
    offset_argmax     the share of the same queries whose largest weight is there
    syntactic         the share of tokens whose largest weight is on their syntactic head; _mass: mean weight there
    rare              mean weight on the rarest token of the sentence
    duplicate         mean weight on the last occurrence before of the same token (in an encoder: the nearest other)
    induction         mean weight on the token after the last occurrence before of the same token
    self              mean weight of the token itself
    copy, copy_share  mean largest weight, and the share of rows where it is at least 0.9: such a row gives one value
    uniform           mean exp(H) / visible, which is 1 where all values are averaged
    _chance           what attention spread evenly over the visible keys gives to the same queries
    syntactic_baseline = max_o of syntactic_offset, the share of the same tokens whose head is at offset o: the accuracy
    of the best head that knows positions only.

    Source: Voita et al. 2019 (positional, syntactic, rare), Clark et al. 2019, Olsson et al. 2022 (induction),
    S2.3-S2.5 (copying), S2.8 (averaging).
    Holds when: attention is full or causal (see `Sight`). A pointer to a key that may not be seen does not count.
    Departs: weights rather than shares of argmax, save for syntax; per token rather than per relation.
    """

    name = "roles"
    description = "what each head attends to: offsets, syntax, rare or repeated tokens, or everything"
    cost = "four gathers and some sums per layer"
    default = True
    requires = ("sinks",)

    def __init__(self, context: MeasureContext) -> None:
        super().__init__(context)
        self._pointers: dict[Kind, tuple[Tokens, Tokens, Mapping[str, Tensor]]] = {}
        self._known: dict[Kind, _Known] = {}

    def declares(self) -> tuple[ReadingSpec, ...]:
        by_offset = {"offset": tuple(float(offset) for offset in range(-self.context.span, self.context.span + 1))}
        each, all_heads, even = (*BY_HEAD, "offset"), (*BY_LAYER, "offset"), "what even attention gives to"
        label = "what the head does most above its baseline, or none; " + ERROR
        return (
            ReadingSpec("roles.offset", each, "mean attention at key - query", VOITA, ticks=by_offset),
            ReadingSpec("roles.offset_argmax", each, "share of largest weights at key - query", VOITA, ticks=by_offset),
            ReadingSpec("roles.offset_chance", all_heads, f"{even} each offset", VOITA, ticks=by_offset),
            ReadingSpec("roles.self", BY_HEAD, "mean attention of tokens to themselves", CLARK),
            ReadingSpec("roles.syntactic", BY_HEAD, "share of largest weights that are on the syntactic head", VOITA),
            ReadingSpec("roles.syntactic_mass", BY_HEAD, "mean attention to the syntactic head", CLARK),
            ReadingSpec("roles.syntactic_offset", all_heads, "share of syntactic heads there", VOITA, ticks=by_offset),
            ReadingSpec("roles.syntactic_baseline", BY_LAYER, "accuracy of the best fixed offset", VOITA, "constant"),
            ReadingSpec("roles.rare", BY_HEAD, "mean attention to the rarest token of the sentence", VOITA),
            ReadingSpec("roles.rare_chance", BY_LAYER, f"{even} the rarest token", VOITA),
            ReadingSpec("roles.duplicate", BY_HEAD, "mean attention to another occurrence of the same token", OLSSON),
            ReadingSpec("roles.duplicate_chance", BY_LAYER, f"{even} another occurrence", OLSSON),
            ReadingSpec("roles.induction", BY_HEAD, "mean attention to what followed the same token before", OLSSON),
            ReadingSpec("roles.induction_chance", BY_LAYER, f"{even} what followed before", OLSSON),
            ReadingSpec("roles.copy", BY_HEAD, "mean largest weight; near 1 a head copies single values", "S2.3-S2.5"),
            ReadingSpec("roles.copy_share", BY_HEAD, f"share of rows with a weight from {COPY_WEIGHT}", "S2.3-S2.5"),
            ReadingSpec("roles.uniform", BY_HEAD, "exp(entropy) / visible keys; 1 averages all values", "S2.8"),
            ReadingSpec("roles.label", BY_HEAD, label, VOITA, "constant"),
            ReadingSpec("roles.score", BY_HEAD, "how much: mean attention, for syntax accuracy", VOITA, "constant"),
            ReadingSpec("roles.baseline", BY_HEAD, "the same of even attention or a fixed offset", VOITA, "constant"),
        )

    def pointers(self, slot: Slot, queries: Tokens, keys: Tokens) -> Mapping[str, Int[Tensor, "b i"]]:
        known = self._pointers.get(slot.kind)
        if known is None or known[0] is not queries or known[1] is not keys:
            found = {"roles.rare": rarest(keys).unsqueeze(-1).expand_as(queries.ids)}
            if slot.kind != "cross":
                found["roles.duplicate"] = same_before(queries) if slot.kind == "decoder" else same_nearest(queries)
                found["roles.induction"] = after_same(queries)
                found["roles.syntactic_mass"] = (
                    torch.full_like(queries.ids, NO_WORD) if queries.governor is None else queries.governor
                )
            known = self._pointers[slot.kind] = queries, keys, found
        return known[2]

    def rows(self, rows: LayerRows) -> Samples:
        known = self._of_batch(rows)
        choice, (number, _, counts) = known.sight.choice, known.offsets
        at = rows.argmax - known.sight.position + self.context.span
        has_offset = (rows.argmax >= 0) & (at >= 0) & (at <= 2 * self.context.span)
        at = at.clamp(0, 2 * self.context.span)
        diagonal, weight = rows.diagonal, forced(rows)
        if weight is not None:
            diagonal = diagonal.scatter_add(-1, at, -weight * has_offset)
        hits = torch.zeros_like(diagonal).scatter_add(-1, at, (has_offset & choice.unsqueeze(1)).to(diagonal.dtype))
        seeing, counted = number.clamp_min(1).unsqueeze(1), counts.unsqueeze(1)
        on_offset = diagonal / seeing
        even = (1 - rows.sink_weight) * rows.key_entropy.exp() / rows.visible.clamp_min(1).unsqueeze(1)
        found: dict[str, Sample] = {
            "roles.offset": Sample(on_offset, counted),
            "roles.offset_argmax": Sample(hits / seeing, counted),
            "roles.copy": Sample(*rows.mean(rows.max_weight, choice)),
            "roles.copy_share": Sample(*rows.mean((rows.max_weight >= COPY_WEIGHT).to(diagonal.dtype), choice)),
            "roles.uniform": Sample(*rows.mean(even, choice)),
        }
        for name, where in known.where.items():
            found[name] = Sample(*rows.mean(rows.pointed[name], where))
        if rows.slot.kind != "cross":
            governors = self.pointers(rows.slot, rows.queries, rows.keys)["roles.syntactic_mass"]
            right = (rows.argmax == governors.unsqueeze(1)).to(diagonal.dtype)
            found["roles.syntactic"] = Sample(*rows.mean(right, known.where["roles.syntactic_mass"]))
            found["roles.self"] = Sample(on_offset[..., self.context.span], counted[..., self.context.span])
        return {**found, **known.samples}

    def _of_batch(self, rows: LayerRows) -> _Known:
        known = self._known.get(rows.slot.kind)
        if known is not None and known.sight.fits(rows):
            return known
        sight = Sight.of(rows)
        offsets = sight.offsets(self.context.span)
        pointers = self.pointers(rows.slot, rows.queries, rows.keys)
        where = {name: sight.sees(pointer) for name, pointer in pointers.items()}
        samples = {"roles.offset_chance": Sample(offsets.chance, offsets.counts)}
        for name, counted in where.items():
            if name != "roles.syntactic_mass":
                samples[f"{name}_chance"] = Sample(*sight.mean_even(counted))
            else:
                at = pointers[name] - sight.position + self.context.span
                inside = counted & (at >= 0) & (at <= 2 * self.context.span)
                at = at.clamp(0, 2 * self.context.span)
                here = torch.zeros_like(offsets.chance).scatter_add(-1, at, inside.double())
                tokens = counted.sum(-1, keepdim=True)
                samples["roles.syntactic_offset"] = Sample(here / tokens.clamp_min(1), tokens > 0)
        known = self._known[rows.slot.kind] = _Known(sight, offsets, where, samples)
        return known

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        if "syntactic" in name:
            return "the syntax of the text is not known; give --parses, or use the embedded corpus"
        return "no sentence has a token twice" if name.startswith(("roles.duplicate", "roles.induction")) else None

    def remarks(self, readings: Readings) -> Iterable[str]:
        found = readings.of("roles.offset")
        without = [reading.kind for reading in found if reading.sentences == 0]
        if 0 < len(without) < len(found):
            where = " and ".join("cross-attention" if kind == "cross" else f"the {kind}" for kind in without)
            yield f"no role labels in {where}: in no sentence can half of the queries see a key at one offset"
        counts = [reading.sentences for reading in found if reading.kind not in without or len(without) == len(found)]
        sentences = min(counts, default=RELIABLE_LABEL_SENTENCES)
        if sentences < MIN_LABEL_SENTENCES:
            few = f"{sentences_are(sentences)} too few"
            yield f"no role labels: {few}, because labels need {MIN_LABEL_SENTENCES} or more"
        elif sentences < RELIABLE_LABEL_SENTENCES:
            come_from = f"they come from {sentences} sentences"
            yield f"role labels are unreliable: {come_from}; examine {RELIABLE_LABEL_SENTENCES} or more"

    def conclude(self, readings: Readings) -> Iterable[Reading]:
        declared = {reading.name: reading for reading in self.declares()}
        shares = readings.of("roles.syntactic_offset")
        bases: dict[Kind, tuple[Tensor, ...]] = {found.kind: best_fixed_offset(found) for found in shares}
        for kind, baseline in bases.items():
            yield declared["roles.syntactic_baseline"].reading(kind, baseline)
        enough = {found.kind for found in readings.of("roles.offset") if found.sentences >= MIN_LABEL_SENTENCES}
        for kind, labelled in label_heads(readings, bases).items():
            if kind not in enough:
                continue
            without = "" if f"sinks.first@{kind}" in readings else "; sinks were not measured and are not considered"
            for name, value in labelled._asdict().items():
                spec = declared[f"roles.{name}"]
                yield replace(spec, description=spec.description + without).reading(kind, value)
