"""The measure `sinks`: attention that gathers on the first token, on delimiters, or on any one position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import BY_HEAD, BY_LAYER, MEASURES, Measure, MeasureContext, ReadingSpec, Sample, Samples
from attnworks.exam.pointers import Sight, forced
from attnworks.exam.reading import Readings
from attnworks.traces.rows import LayerRows

SINK_ATTENTION = 0.3
"""Mean attention to the first token above which it is a sink (Gu et al. 2024)."""

GU, CLARK = "Gu et al. 2024 (attention sinks)", "Clark et al. 2019"
KOBAYASHI = "Kobayashi et al. 2020"
NO_EFFECTS = "the output weights of these heads are not known"
OPENAI = "OpenAI 2025 (gpt-oss model card)"


@MEASURES.register("sinks")
class Sinks(Measure):
    """Attention to positions that carry little information.

    first      1/|I| sum of P[i, 0] over the queries I that may see the first token and another one
    delimiter  the same for all special tokens after the first together; a sentence counts if at least half of the
               queries with a choice may see one
    share      1 if `first` is above 0.3
    strongest  max_j 1/|I| sum of P[i, j] over all queries I with a choice
    Each has the level that attention spread evenly over the visible keys would give.
    learned    1/|I| sum of exp(s) / (sum_j exp(S_ij) + exp(s)) over all queries I: the weight of the learned sink logit
               s of the head, which has no key. NaN, with count 0, in layers without a sink logit.
    rest       1/|I| sum of the weights of all keys but the first token and special tokens, over all queries I with a
               choice
    first_effect, rest_effect
               the same of |P_ij v_j W_O| / sum_j |P_ij v_j W_O|: sinks often have values near zero, so that a head that
               rests adds little to the stream

    Source: Gu et al. 2024 for `first` and `share`; Kobayashi et al. 2020 for effects.
    Departs: queries that may see one key only are left out: in causal attention the first query has no choice.
    """

    name = "sinks"
    description = "attention that gathers on the first token, on delimiters, or on any one position"
    cost = "a few sums per layer"
    default = True

    def __init__(self, context: MeasureContext) -> None:
        super().__init__(context)
        self._sights: dict[Kind, Sight] = {}

    def declares(self) -> tuple[ReadingSpec, ...]:
        readings = {
            "first": ("mean attention to the first token", GU),
            "delimiter": ("mean attention to special tokens after the first, such as [SEP] or </s>", CLARK),
            "share": (f"share of sentences whose first token receives more than {SINK_ATTENTION} on average", GU),
            "strongest": ("mean attention to the position that receives most", GU),
        }
        found = [ReadingSpec(f"sinks.{name}", BY_HEAD, *about) for name, about in readings.items()]
        chance = [
            ReadingSpec(f"sinks.{name}_chance", BY_LAYER, f"{words}, if attention were even", source)
            for name, (words, source) in readings.items()
        ]
        words = "mean weight of the learned sink logit; the weights of the keys sum to one minus this"
        rest = "all tokens but the first and special ones"
        return (
            *found,
            *chance,
            ReadingSpec("sinks.learned", BY_HEAD, words, OPENAI),
            ReadingSpec("sinks.rest", BY_HEAD, f"mean attention to {rest}", CLARK),
            ReadingSpec("sinks.first_effect", BY_HEAD, "share of the effect |P v W_O| of the first token", KOBAYASHI),
            ReadingSpec("sinks.rest_effect", BY_HEAD, f"share of the effect |P v W_O| of {rest}", KOBAYASHI),
        )

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        if name == "sinks.learned":
            return ""  # most models have no sink logits
        if name.endswith("_effect"):
            return NO_EFFECTS
        return "no sentence has a special token after the first" if name.startswith("sinks.delimiter") else None

    def rows(self, rows: LayerRows) -> Samples:
        sight = self._sight(rows)
        received = received_by_choice(rows)
        any_choice = sight.choice.any(-1)
        is_seen = sight.sees(torch.zeros_like(sight.visible).unsqueeze(-1)).squeeze(-1)
        first = received[..., 0] / is_seen.sum(-1, keepdim=True).clamp_min(1)
        first_even, first_counts = sight.mean_even(is_seen)
        assert rows.keys.special is not None
        delimiters = rows.keys.special & rows.keys.real
        delimiters[:, 0] = False
        number = sight.number_seen(delimiters)
        seeing = sight.choice & (number > 0)
        on_delimiters = (received * delimiters.unsqueeze(1)).sum(-1) / seeing.sum(-1, keepdim=True).clamp_min(1)
        delimiter_even, some = sight.mean_even(seeing, number)
        half = some & (2 * seeing.sum(-1) >= sight.choice.sum(-1))
        learned, some_query = rows.mean(rows.sink_weight)
        strongest = received.amax(-1) / sight.choice.sum(-1, keepdim=True).clamp_min(1)
        return {
            "sinks.first": Sample(first, first_counts.unsqueeze(-1)),
            "sinks.first_chance": Sample(first_even, first_counts),
            "sinks.share": Sample((first > SINK_ATTENTION).to(first.dtype), first_counts.unsqueeze(-1)),
            "sinks.share_chance": Sample((first_even > SINK_ATTENTION).to(first.dtype), first_counts),
            "sinks.delimiter": Sample(on_delimiters, half.unsqueeze(-1)),
            "sinks.delimiter_chance": Sample(delimiter_even, half),
            "sinks.strongest": Sample(strongest, any_choice.unsqueeze(-1)),
            "sinks.strongest_chance": Sample(sight.largest_even(), any_choice),
            "sinks.learned": Sample(learned, some_query & rows.has_sink),
            "sinks.rest": Sample(*rows.mean(rows.rest, sight.choice)),
            "sinks.first_effect": _effect_share(rows, rows.first_effect, sight),
            "sinks.rest_effect": _effect_share(rows, rows.rest_effect, sight),
        }

    def _sight(self, rows: LayerRows) -> Sight:
        known = self._sights.get(rows.slot.kind)
        if known is None or not known.fits(rows):
            known = self._sights[rows.slot.kind] = Sight.of(rows)
        return known


def _effect_share(rows: LayerRows, part: Tensor | None, sight: Sight) -> Sample:
    """The mean share of the effect of each row; rows without any effect count as zero."""
    if part is None or rows.effect is None:
        unknown = torch.zeros_like(rows.rest[..., 0])
        return Sample(unknown, unknown.bool())
    return Sample(*rows.mean(part / rows.effect.clamp_min(torch.finfo(part.dtype).tiny), sight.choice))


def received_by_choice(rows: LayerRows) -> Float[Tensor, "b h j"]:
    """sum_i P[i, j] over the queries that may see more than one key."""
    received = rows.received * rows.queries.lengths[:, None, None]
    weight = forced(rows)
    return received if weight is None else received.scatter_add(-1, rows.argmax.clamp_min(0), -weight)
