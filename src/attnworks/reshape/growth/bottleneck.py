"""Where capacity is missing: how much the loss would fall for more keys, more values, or one more head."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import MEASURES, Measure, ReadingSpec
from attnworks.exam.reading import Reading
from attnworks.reshape.growth.score import GrowthKind, trial_sentences
from attnworks.reshape.growth.statistics import MIN_SENTENCES
from attnworks.reshape.growth.survey import GROWTH_KINDS, PASSES, GrowthSurvey
from attnworks.traces.loss import TextLoss

_SOURCE = "Burgund, section 2 (S3.9-S3.30), D10"
GAIN_PARAMETERS = 1000
_GAIN_DESCRIPTIONS: dict[GrowthKind, str] = {
    "keys": "predicted fall of the loss for one more column of keys and queries, or a pair, per 1000 parameters",
    "values": "predicted fall of the loss for one more column of values and row of outputs, per 1000 parameters",
    "heads": "predicted fall of the loss for one more head in the layer, per 1000 parameters",
}
_TRUST_DESCRIPTION = "how much of the slope other sentences confirm: about 1 all of it; below 0.5 growth is refused"


@MEASURES.register("bottleneck")
class Bottleneck(Measure):
    """The loss along the best direction of growth at every place, on sentences that the direction was not fitted to.

    bottleneck.keys, .values    fall of the loss at the best step, per 1000 parameters; 0 where growth is refused
    bottleneck.heads            the same for one more head of the layer
    bottleneck.*_trust          slope on the checking sentences / slope on the fitting sentences

    Directions are fitted to half of the sentences and checked on a quarter. Layers that cannot grow have no readings.
    Source: Burgund, section 2 (S3.9-S3.30), D10; directions in the metric of the softmax.
    """

    name = "bottleneck"
    description = "how much the loss would fall for more keys, values or heads, per parameter"
    cost = "3 backward passes, and about 6 forward passes over a quarter of the sentences for every head and kind"
    passes = len(PASSES)

    def declares(self) -> tuple[ReadingSpec, ...]:
        return tuple(spec for kind in GROWTH_KINDS for spec in _specs(kind))

    def cost_of_text(self) -> str:
        tried = len(range(self.context.sentences)[trial_sentences(self.context.sentences)])
        return self.cost.replace("a quarter of the sentences", f"{tried} sentence{'s' * (tried != 1)}")

    def from_loss(self, loss: TextLoss, advance: Callable[[int], None]) -> tuple[list[Reading], list[str]]:
        self.refusal = _refusal(loss)
        if self.refusal is not None:
            return [], []

        def tell(stage: str, done: int, total: int) -> None:
            del total
            if stage in PASSES:
                advance(len(loss.text.batches[done]))

        survey = GrowthSurvey(loss, tell)
        notes = [f"{slot} cannot grow: {reason}" for slot, reason in survey.refused.items()]
        return list(self._readings(survey)), notes

    def _readings(self, survey: GrowthSurvey) -> Iterator[Reading]:
        kinds: list[Kind] = list(dict.fromkeys(slot.kind for slot in survey.every))
        for kind in GROWTH_KINDS:
            found = {slot: _gain_and_trust(survey, slot, kind) for slot in survey.every}
            for attention in kinds:
                columns = zip(*(both for slot, both in found.items() if slot.kind == attention), strict=True)
                for spec, value in zip(_specs(kind), columns, strict=True):
                    yield Reading(spec.name, attention, spec.axes, value, spec.description, _SOURCE)


def _refusal(loss: TextLoss) -> str | None:
    """Why growth cannot be predicted for this model and text; None if it can."""
    if len(loss.text.kept) < MIN_SENTENCES:
        return f"it needs {MIN_SENTENCES} sentences or more, and there are {len(loss.text.kept)}"
    if loss.objective.relative:
        what = f"the objective {loss.objective.name!r} compares a changed model with the original one"
        return f"{what}, so that no change can lower it; choose another with --objective"
    if not loss.original.can_reshape:
        return "the parts of this model are not known, so that it cannot grow"
    return None


def _specs(kind: GrowthKind) -> tuple[ReadingSpec, ReadingSpec]:
    """The readings of the gain and of the trust."""
    axes = ("layer",) if kind == "heads" else ("layer", "head")
    gain = ReadingSpec(f"bottleneck.{kind}", axes, _GAIN_DESCRIPTIONS[kind], _SOURCE, "constant")
    return gain, ReadingSpec(f"bottleneck.{kind}_trust", axes, _TRUST_DESCRIPTION, _SOURCE, "constant")


def _gain_and_trust(survey: GrowthSurvey, slot: Slot, kind: GrowthKind) -> tuple[Tensor, Tensor]:
    """Gain and trust of every head of a layer, or of a new one; NaN where there is no direction."""
    scores = [survey.tried(score) for score in survey.smallest(slot, kind)] if slot in survey.layers else []
    shape = () if kind == "heads" else (survey.every[slot],)
    if not scores:
        return torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    gains = [GAIN_PARAMETERS * one.gain / one.parameters if one.refusal is None else 0.0 for one in scores]
    return torch.tensor(gains).reshape(shape), torch.tensor([score.trust for score in scores]).reshape(shape)
