"""The measure `roles`: the offset, syntactic head, rare or repeated token that a head attends to, against chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
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
from attnworks.exam.measures.sinks import KOBAYASHI, NO_EFFECTS
from attnworks.exam.pointers import OffsetSight, Sight, after_same, near_keys, rarest, same_tokens
from attnworks.exam.probes.roles import PROBE_ATTENTION, probes_decide
from attnworks.exam.reading import Reading, Readings, sentences_are
from attnworks.text.tokens import NO_WORD, Tokens
from attnworks.traces.rows import LayerRows, sink_keys

COPY_WEIGHT = 0.9
"""A row whose largest weight is at least this gives one value almost unchanged."""
MIN_REST = 1e-4
"""A sentence counts for a head if the queries in question give more than this share of their attention to keys outside
the sinks: of less, rounding in float32 and keys that hardly matter would decide."""
EVEN_TOLERANCE = 1e-5
"""A weight is larger than even attention if it is so by this share."""

ERROR = f"a model gets any wrong label with probability {FAMILY_WISE_ERROR:.0%} at most".replace("%", " %")
BEHIND = "outside the sinks"

VOITA, CLARK, OLSSON = "Voita et al. 2019", "Clark et al. 2019", "Olsson et al. 2022"
NEAR = {"previous": -1, "self": 0, "next": 1}
POINTERS = {
    "previous": "the previous token",
    "self": "the token itself",
    "next": "the next token",
    "syntactic_mass": "the syntactic head",
    "rare": "the rarest token of the sentence",
    "duplicate": "other occurrences of the same token",
    "induction": "what followed the same token before",
}


CHANCES = ("roles.rare_chance", "roles.duplicate_chance", "roles.induction_chance")


class _Known(NamedTuple):
    """What follows from the tokens of a batch alone; shared by all layers.

    whole       which keys queries see
    outside      the same among the keys outside the sinks
    where       pointer -> queries that see a key of it
    seen        pointer -> how many keys of it each query sees
    """

    whole: Sight
    outside: Sight
    offsets: OffsetSight
    only_key: Int[Tensor, "b i"]
    where: Mapping[str, Bool[Tensor, "b i"]]
    seen: Mapping[str, Int[Tensor, "b i"]]
    samples: Samples


@MEASURES.register("roles")
class Roles(Measure):
    """What a head attends to outside the sinks: the first token, special tokens and learned sink logits are left out.
    With R_i the weight that query i gives to all other keys, and I the queries that may see two of them or more, the
    key in question among them,

    offset            sum of P[i, i + o] / sum of R_i over I; a sentence counts for o if I has half of the queries with
                      a choice
    syntactic         the share of tokens whose largest weight outside the sinks is on their syntactic head; _mass: as
                      offset, of the weight there
    rare              as offset, of the rarest token of the sentence
    duplicate         of all occurrences before of the same token (in an encoder: of all others)
    induction         of the tokens that followed an occurrence before of the same token
    self              of the token itself
    _chance           what even attention outside the sinks gives to the same keys, with the same R_i
    _effect           the same shares of |P_ij v_j W_O|, what a weight adds to the stream
    copy, copy_share  mean largest weight of all keys, and the share of rows where it is 0.9 or more: such a row gives
                      one value
    evenness          mean exp(H) / visible over all keys, which is 1 where all values are averaged
    syntactic_baseline = max_o of syntactic_offset, the share of the same tokens whose head is at offset o: the accuracy
    of the best head that knows positions only.

    Source: Voita et al. 2019 (positional, syntactic, rare), Clark et al. 2019, Olsson et al. 2022 (induction),
    Kobayashi et al. 2020 (effects), S2.3-S2.5 (copying), S2.8 (averaging).
    Holds when: attention is full or causal (see `Sight`). A pointer to a key that may not be seen does not count.
    Departs: weights rather than shares of argmax, save for syntax; per token rather than per relation. Rows are weighed
    by R_i: a row that gives nearly everything to a sink says little about the rest.
    """

    name = "roles"
    description = "what each head attends to outside the sinks: offsets, syntax, rare or repeated tokens"
    cost = "some gathers and sums per layer"
    default = True
    requires = ("sinks",)

    def __init__(self, context: MeasureContext) -> None:
        super().__init__(context)
        self._pointers: dict[Kind, tuple[Tokens, Tokens, Mapping[str, Tensor]]] = {}
        self._known: dict[Kind, _Known] = {}

    def declares(self) -> tuple[ReadingSpec, ...]:
        by_offset = {"offset": tuple(float(offset) for offset in range(-self.context.span, self.context.span + 1))}
        each, all_heads = (*BY_HEAD, "offset"), (*BY_LAYER, "offset")
        share = f"share of the attention {BEHIND}"
        label = f"what the head does most {BEHIND}, or none; {ERROR}; in causal models with probes, from "
        label += f"{PROBE_ATTENTION} of the attention there"
        chances = [
            ReadingSpec(name, BY_HEAD, f"what even attention {BEHIND} gives to the same keys", VOITA)
            for name in CHANCES
        ]
        effects = [
            ReadingSpec(
                f"roles.{name}_effect", BY_HEAD, f"share of the effect |P v W_O| {BEHIND} on {words}", KOBAYASHI
            )
            for name, words in POINTERS.items()
        ]
        return (
            ReadingSpec("roles.offset", each, f"{share} at key - query", VOITA, ticks=by_offset),
            ReadingSpec("roles.offset_chance", each, "the same of even attention", VOITA, ticks=by_offset),
            ReadingSpec("roles.self", BY_HEAD, f"{share} on the token itself", CLARK),
            ReadingSpec("roles.syntactic", BY_HEAD, f"share of largest weights {BEHIND} on the syntactic head", VOITA),
            ReadingSpec("roles.syntactic_mass", BY_HEAD, f"{share} on the syntactic head", CLARK),
            ReadingSpec("roles.syntactic_offset", all_heads, "share of syntactic heads there", VOITA, ticks=by_offset),
            ReadingSpec("roles.syntactic_baseline", BY_LAYER, "accuracy of the best fixed offset", VOITA, "constant"),
            ReadingSpec("roles.rare", BY_HEAD, f"{share} on the rarest token of the sentence", VOITA),
            ReadingSpec("roles.duplicate", BY_HEAD, f"{share} on other occurrences of the same token", OLSSON),
            ReadingSpec("roles.induction", BY_HEAD, f"{share} on what followed the same token before", OLSSON),
            *chances,
            *effects,
            ReadingSpec("roles.copy", BY_HEAD, "mean largest weight; near 1 a head copies single values", "S2.3-S2.5"),
            ReadingSpec("roles.copy_share", BY_HEAD, f"share of rows with a weight from {COPY_WEIGHT}", "S2.3-S2.5"),
            ReadingSpec("roles.evenness", BY_HEAD, "exp(entropy) / visible keys; 1 averages all values", "S2.8"),
            ReadingSpec("roles.label", BY_HEAD, label, VOITA, "constant"),
            ReadingSpec("roles.score", BY_HEAD, "how much of it: a share of attention or of tokens", VOITA, "constant"),
            ReadingSpec("roles.baseline", BY_HEAD, "the same of even attention or a fixed offset", VOITA, "constant"),
            ReadingSpec("roles.second", BY_HEAD, "a second role that the head has, or none", VOITA, "constant"),
            ReadingSpec("roles.sink", BY_HEAD, "where the head rests: first, delimiter or none", CLARK, "constant"),
        )

    def pointers(self, slot: Slot, queries: Tokens, keys: Tokens) -> Mapping[str, Int[Tensor, "b i _"]]:
        known = self._pointers.get(slot.kind)
        if known is None or known[0] is not queries or known[1] is not keys:
            one_key = (*queries.ids.shape, 1)
            found = {"roles.rare": rarest(keys)[:, None, None].expand(one_key)}
            if slot.kind != "cross":
                found |= {f"roles.{name}": near_keys(queries.ids, 1)[..., o + 1 : o + 2] for name, o in NEAR.items()}
                found["roles.duplicate"] = same_tokens(queries, before=slot.kind == "decoder")
                found["roles.induction"] = after_same(queries)
                none = torch.full_like(queries.ids, NO_WORD)
                governor = none if queries.governor is None else queries.governor
                found["roles.syntactic_mass"] = governor.unsqueeze(-1)
            known = self._pointers[slot.kind] = queries, keys, found
        return known[2]

    def rows(self, rows: LayerRows) -> Samples:
        known = self._of_batch(rows)
        whole, outside = known.whole.choice, known.outside
        evenness = (1 - rows.sink_weight) * rows.key_entropy.exp() / rows.visible.clamp_min(1).unsqueeze(1)
        copies = (rows.max_weight >= COPY_WEIGHT).to(rows.max_weight.dtype)
        found: dict[str, Sample] = {
            "roles.copy": Sample(*rows.mean(rows.max_weight, whole)),
            "roles.copy_share": Sample(*rows.mean(copies, whole)),
            "roles.evenness": Sample(*rows.mean(evenness, whole)),
        }
        rest = rows.rest  # [b h i]
        even = rest * outside.even.to(rest).unsqueeze(1)
        found |= self._offsets(rows, known, rest, even)
        for name, where in known.where.items():
            if name.removeprefix("roles.") not in NEAR:
                found[name] = _share(rows.pointed[name], rest, where)
            if f"{name}_chance" in CHANCES:
                found[f"{name}_chance"] = _share(even * known.seen[name].unsqueeze(1), rest, where)
            if rows.rest_effect is not None and rows.pointed_effect is not None:
                found[f"{name}_effect"] = _share(rows.pointed_effect[name], rows.rest_effect, where, least=0.0)
            else:
                unknown = torch.zeros_like(rest[..., 0])
                found[f"{name}_effect"] = Sample(unknown, unknown.bool())
        if rows.slot.kind != "cross":
            right = self._largest_on_governor(rows, outside)
            found["roles.syntactic"] = Sample(*rows.mean(right, known.where["roles.syntactic_mass"]))
            offset = found["roles.offset"]
            assert offset.valid is not None
            found["roles.self"] = Sample(offset.values[..., self.context.span], offset.valid[..., self.context.span])
        return {**found, **known.samples}

    def _offsets(
        self, rows: LayerRows, known: _Known, rest: Float[Tensor, "b h i"], even: Float[Tensor, "b h i"]
    ) -> Samples:
        """Weights at each offset, and those of even attention, over R_i of the queries that may see a key there."""
        span, (seen, number, counts) = self.context.span, known.offsets
        diagonal = rows.diagonal
        at = known.only_key - known.outside.position + span  # of the queries without a choice, which are left out
        there = (known.only_key >= 0) & (at >= 0) & (at <= 2 * span)
        if bool(there.any()):
            place = at.clamp(0, 2 * span).unsqueeze(1).expand_as(rows.rest)
            diagonal = diagonal.scatter_add(-1, place, -rows.rest * there.unsqueeze(1))
        seen = seen.to(rest)  # [b i o]
        given = rest @ seen  # [b h o]
        valid = counts.unsqueeze(1) & (given > MIN_REST * number.unsqueeze(1))
        shares = (values / given.clamp_min(torch.finfo(given.dtype).tiny) for values in (diagonal, even @ seen))
        return {
            name: Sample(share.clamp(0.0, 1.0).where(valid, 0.0), valid)
            for name, share in zip(("roles.offset", "roles.offset_chance"), shares, strict=True)
        }

    def _largest_on_governor(self, rows: LayerRows, outside: Sight) -> Float[Tensor, "b h i"]:
        """1 where the largest weight outside the sinks is on the syntactic head, and above that of even attention."""
        on_governor = rows.pointed["roles.syntactic_mass"]
        even = rows.rest / outside.visible.clamp_min(1).unsqueeze(1)
        right = (on_governor >= rows.rest_max) & (on_governor > (1 + EVEN_TOLERANCE) * even)
        return right.to(on_governor.dtype)

    def _of_batch(self, rows: LayerRows) -> _Known:
        known = self._known.get(rows.slot.kind)
        if known is not None and known.whole.fits(rows):
            return known
        whole, outside = Sight.of(rows), Sight.of(rows, rows.keys.real & ~sink_keys(rows.keys))
        offsets = outside.offsets(self.context.span)
        pointers = self.pointers(rows.slot, rows.queries, rows.keys)
        seen = {name: outside.sees(keys).sum(-1) for name, keys in pointers.items()}
        where = {name: number > 0 for name, number in seen.items()}
        samples: dict[str, Sample] = {}
        if rows.slot.kind != "cross":
            counted, governor = where["roles.syntactic_mass"], pointers["roles.syntactic_mass"].squeeze(-1)
            at = governor - outside.position + self.context.span
            inside = counted & (at >= 0) & (at <= 2 * self.context.span)
            shares = torch.zeros(offsets.number.shape, dtype=torch.float64, device=at.device)
            shares.scatter_add_(-1, at.clamp(0, 2 * self.context.span), inside.double())
            tokens = counted.sum(-1, keepdim=True)
            samples["roles.syntactic_offset"] = Sample(shares / tokens.clamp_min(1), tokens > 0)
        known = _Known(whole, outside, offsets, outside.only_key(), where, seen, samples)
        self._known[rows.slot.kind] = known
        return known

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        if name.endswith("_effect"):
            whole = readings.of(name.removesuffix("_effect"))
            known = any(reading.sentences for reading in readings.of("sinks.rest_effect"))
            return "" if known or (whole and not any(reading.sentences for reading in whole)) else NO_EFFECTS
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
        probed = any(probes_decide(readings, reading.kind) for reading in found)
        labels = "role labels other than those of probes" if probed else "role labels"
        if sentences < MIN_LABEL_SENTENCES:
            few = f"{sentences_are(sentences)} too few"
            yield f"no {labels}: {few}, because labels need {MIN_LABEL_SENTENCES} or more"
        elif sentences < RELIABLE_LABEL_SENTENCES:
            come_from = f"they come from {sentences} sentences"
            yield f"{labels} are unreliable: {come_from}; examine {RELIABLE_LABEL_SENTENCES} or more"

    def conclude(self, readings: Readings) -> Iterable[Reading]:
        declared = {reading.name: reading for reading in self.declares()}
        shares = readings.of("roles.syntactic_offset")
        bases: dict[Kind, tuple[Tensor, ...]] = {found.kind: best_fixed_offset(found) for found in shares}
        for kind, baseline in bases.items():
            yield declared["roles.syntactic_baseline"].reading(kind, baseline)
        enough = {found.kind for found in readings.of("roles.offset") if found.sentences >= MIN_LABEL_SENTENCES}
        enough |= {found.kind for found in readings.of("probes.offset") if probes_decide(readings, found.kind)}
        for kind, labelled in label_heads(readings, bases).items():
            if kind not in enough:
                continue
            without = "" if f"sinks.first@{kind}" in readings else "; sinks were not measured and are not considered"
            for name, value in labelled._asdict().items():
                spec = declared[f"roles.{name}"]
                yield replace(spec, description=spec.description + without).reading(kind, value)


def _share(
    values: Float[Tensor, "b h i"], of: Float[Tensor, "b h i"], where: Bool[Tensor, "b i"], least: float = MIN_REST
) -> Sample:
    """sum of values / sum of `of` over the queries `where`, if the mean of the latter is more than `least`."""
    counted = where.unsqueeze(1)
    whole, number = (of * counted).sum(-1), where.sum(-1, keepdim=True)
    valid = (whole > least * number) & (number > 0)
    share = (values * counted).sum(-1) / whole.clamp_min(torch.finfo(whole.dtype).tiny)
    return Sample(share.clamp(0.0, 1.0).where(valid, 0.0), valid)
