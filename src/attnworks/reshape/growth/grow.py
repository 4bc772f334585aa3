"""Grow attention where capacity is missing: wider keys, wider values, or more heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import nn

from attnworks.core.checks import choice, integer, text
from attnworks.core.display import Progress, hidden, overall_progress, silent
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.exam.lineage import HeadMap
from attnworks.models.anatomy import heads_of
from attnworks.models.config import MAX_WIDTH
from attnworks.models.modes import inference_mode
from attnworks.reshape.contract import AUTO, RESHAPES, Reshape, ReshapeContext, ReshapeResult
from attnworks.reshape.growth.apply import GrowthStep, Keys, grown
from attnworks.reshape.growth.cost import COMPARING, SEARCHING, measured_cost, searching_sentences
from attnworks.reshape.growth.methods import METHODS, Method
from attnworks.reshape.growth.places import NoBottleneckError, Spot, Widths, no_bottleneck, read_places, spread
from attnworks.reshape.growth.score import GrowthTrial, Score
from attnworks.reshape.growth.statistics import MIN_SENTENCES
from attnworks.reshape.growth.survey import GROWTH_KINDS, GrowthSurvey
from attnworks.reshape.surgery import attention_parts, check_can_grow, layers_of
from attnworks.traces.loss import TextLoss

REFIT_METHOD = "document"
"""The method that writes queries and keys anew."""


@RESHAPES.register("grow")
@dataclass(frozen=True, kw_only=True)
class Grow(Reshape):
    """More columns of W_Q and W_K (keys), of W_V and W_O (values), or new heads, where they lower the loss most.

    add      widths to add in all: columns of keys or of values; a new head counts as many as it has of both
    where    "auto": where they pay most for each parameter; or places: "enc.0.3:keys=8,dec.*:values=2,enc.1:heads=1"
    kinds    that "auto" may choose from
    by       "fisher", or a baseline to compare with: "whitened", "random", "zero", "gradmax", "document"
    compare  measure every baseline at the same places too; one that cannot grow all of them is not measured

    Directions are fitted to half of the text and tried on a quarter of it, which gives the prediction; the step is
    searched on the last quarter. The scaling factor of the scores stays, so that a step of zero changes nothing. If
    other sentences confirm less than half of the slope at a place, the place is left out if "auto" chose it, and the
    receipt says why; it is an error if the place was asked for. A best step of zero is an error too.
    Source: Burgund (S3.13-S3.30), with the increment fitted instead of the scores (D10), downhill, in the metric of the
    softmax, over batches, masks and heads.
    """

    name: ClassVar[str] = "grow"
    calibration_sentences: ClassVar[int] = 4096
    calibration_tokens: ClassVar[int] = 65_536

    add: int = 0
    where: str = AUTO
    kinds: tuple[str, ...] = GROWTH_KINDS
    by: str = "fisher"
    compare: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str) or not self.kinds or not {*self.kinds} <= {*GROWTH_KINDS}:
            got, known = ", ".join(map(str, self.kinds)), f"some of {', '.join(GROWTH_KINDS)}"
            raise UsageError(f"growing {got}", known, got or "none", "name the kinds that may grow")
        integer("growing with add", self.add, 0, MAX_WIDTH, "8, for instance")
        if self.add and self.where != AUTO:
            asked = f"growing by {self.add} at {self.where}"
            raise UsageError(asked, "add, or places with amounts", "both", "leave out add")
        choice("method of growing", self.by, METHODS)
        text("places to grow at", self.where, 'where="auto"')

    @property
    def keeps_optimizer_state(self) -> bool:
        return self.by != REFIT_METHOD

    def check(self, model: nn.Module) -> None:
        layers = layers_of(model)
        for (place, kind), width in (self.asked(model) or {}).items():
            check_can_grow(model, place.slot)
            widest = len(heads_of(layers[place.slot])[0].W_Q)
            if width > widest:
                asked = f"growing {place} by {width} {kind}"
                raise UsageError(asked, f"at most {widest} (d_e)", str(width), "ask for fewer")

    def asked(self, model: nn.Module) -> Widths | None:
        """Places, kinds and widths that were asked for; None if they are to be chosen."""
        if self.where == AUTO:
            return None
        counts = {slot: part.heads for slot, part in attention_parts(model, cross=True).items()}
        return read_places(self.where, counts)

    def make(self, context: ReshapeContext) -> ReshapeResult:
        asked = self.asked(context.model)
        if not asked and not self.add:
            return ReshapeResult(grown(context.model, ()), {}, 0.0)
        kinds = {*self.kinds} if asked is None else {at.kind for at in asked}
        slots = None if asked is None else {at.place.slot for at in asked}
        tell = self._with_cost_estimate(context, kinds, slots, len(asked or ()))
        survey = survey_growth(context.calibration, tell, kinds, slots)
        widths = (
            spread(survey, [kind for kind in GROWTH_KINDS if kind in self.kinds], self.add) if asked is None else asked
        )
        chosen = plan_step(survey, METHODS[self.by], widths, context.seed, every_place=asked is not None)
        widths = {spot: width for spot, width in widths.items() if spot not in chosen.left_out}
        others: dict[str, nn.Module] = {}
        not_compared: dict[str, str] = {}
        ways = [name for name in METHODS if self.compare and name != self.by]
        for number, name in enumerate(ways):
            survey.tell(COMPARING, number, len(ways))
            try:
                other = plan_step(survey, METHODS[name], widths, context.seed, refuse=False, every_place=True)
                others[f"loss_by_{name}"] = grown(context.model, other.steps)
            except (UsageError, NoBottleneckError) as error:
                not_compared[f"comparison with {name}"] = f"expected {error.expected}, got {error.got}"
        facts: dict[str, float] = {}
        if self.by != REFIT_METHOD:
            facts["difference_at_zero"] = output_difference(context.calibration, chosen.at_zero)
        for score in chosen.scores:
            facts |= {f"{name}_{score.place}:{score.kind}": getattr(score, name) for name in ("trust", "residual")}
            if isinstance(score.addition, Keys) and score.addition.turns is not None:
                facts[f"angle_{score.place}:{score.kind}"] = float(score.addition.turns[0])
        left_out = {**{str(spot): reason for spot, reason in chosen.left_out.items()}, **not_compared}
        heads: dict[str, HeadMap] = {}  # new heads come after the old ones
        for (place, kind), width in widths.items():
            if kind == "heads":
                before = len(survey.heads[place.slot])
                heads[str(place.slot)] = HeadMap(before=before, after=(*range(before), *(None,) * width))
        new, done = grown(context.model, chosen.steps), describe_changes(survey, widths)
        return ReshapeResult(new, done, -chosen.fall, facts, others, left_out, heads)

    def _with_cost_estimate(
        self, context: ReshapeContext, kinds: Collection[str], slots: Collection[Slot] | None, given: int
    ) -> Progress:
        """Report the estimated cost, then how much of it is done. Nothing is timed if no callback was given."""
        if context.tell in (silent, hidden):
            return silent
        check_sentences(context.calibration)
        compared = len(METHODS) - 1 if self.compare else 0
        cost = measured_cost(context.calibration, kinds, slots, add=self.add, given=given, compared=compared)
        context.tell(str(cost), 0, 0)
        return overall_progress(context.tell, cost.stages)


class PlannedStep(NamedTuple):
    """The steps, the same with length zero, the predicted fall of the loss, the scores of the places, and the places
    that do not grow, with the reason."""

    steps: Sequence[GrowthStep]
    at_zero: Sequence[GrowthStep]
    fall: float
    scores: Sequence[Score]
    left_out: Mapping[Spot, str]


def survey_growth(
    text_loss: TextLoss, tell: Progress, kinds: Collection[str], slots: Collection[Slot] | None = None
) -> GrowthSurvey:
    """A survey of these kinds of growth in some layers, or in all, after a check of the objective and the text."""
    check_sentences(text_loss)
    return GrowthSurvey(text_loss, tell, [kind for kind in GROWTH_KINDS if kind in kinds], slots)


def check_sentences(text_loss: TextLoss) -> None:
    """Raise an error for an objective that no change can lower, and for too few sentences."""
    if text_loss.objective.relative:
        asked = f"to grow by the objective {text_loss.objective.name!r}"
        got = "one that compares the model with itself, and is 0 now"
        remedy = "take a model with an output layer for words (lm, mlm, seq2seq), or give a function in Python"
        raise UsageError(asked, "an objective that a change of the model can lower", got, remedy)
    sentences = sum(map(len, text_loss.text.batches))
    if sentences < MIN_SENTENCES:
        remedy = "give more text: every fourth sentence is held out, and sentences that repeat count once"
        raise UsageError("to grow", f"{MIN_SENTENCES} sentences or more to learn from", str(sentences), remedy)


def plan_step(
    survey: GrowthSurvey, method: Method, widths: Widths, seed: int, *, refuse: bool = True, every_place: bool = False
) -> PlannedStep:
    """The columns of a method, how far to go with them, and what that should do.

    refuse       raise NoBottleneckError if the best step is zero
    every_place  raise NoBottleneckError if the method leaves out a place, before any step is searched for

    The prediction comes from the checking sentences, the step from those to search on.
    """
    line = method(survey, widths, seed)
    if every_place and line.left_out:
        spot, reason = next(iter(line.left_out.items()))
        raise no_bottleneck(f"at {spot}, {reason}")
    at_zero = line.steps(0.0)
    if line.start is None:
        steps = line.steps(1.0)
        fall = survey.trial.loss - survey.trial.with_steps(steps)
        return PlannedStep(steps, at_zero, fall, line.scores, line.left_out)
    survey.tell(SEARCHING, 0, 2)
    expected = survey.trial.search_along(line.steps, line.start)
    survey.tell(SEARCHING, 1, 2)
    trial = GrowthTrial(survey.text_loss, searching_sentences(survey.text_loss))
    found = trial.search_along(line.steps, line.start)
    survey.tell(SEARCHING, 2, 2)
    if refuse and line.scores and not found.step:
        raise no_bottleneck("no step that lowers the loss of the sentences on which steps are tried")
    step = found.step or line.start  # columns of zeros on both sides would never learn
    return PlannedStep(line.steps(step), at_zero, survey.trial.loss - expected.value, line.scores, line.left_out)


def output_difference(text_loss: TextLoss, steps: Sequence[GrowthStep]) -> float:
    """The largest difference of outputs that these steps make, relative to the largest output, on a few sentences."""
    original: Any = text_loss.original
    batch = text_loss.objective.prepare(text_loss.text.batch(0)[0]).to(original.device)
    changed = original.with_model(grown(original.model, steps))
    with inference_mode(original.model), inference_mode(changed.model):
        before, after = (subject.run(batch).hidden for subject in (original, changed))
        real = batch.sides("encoder" if batch.target is None else "decoder")[0].real
        return float((after - before)[real].abs().max() / before[real].abs().max())


def describe_changes(survey: GrowthSurvey, widths: Widths) -> dict[str, str]:
    """In words: 4 -> 6 keys."""
    done: dict[str, str] = {}
    for (place, kind), width in widths.items():
        heads, name = survey.heads[place.slot], "W_Q" if kind == "keys" else "W_V"
        before = len(heads) if place.head is None else getattr(heads[place.head], name).shape[1]
        done[str(place)] = ", ".join(filter(None, (done.get(str(place)), f"{before} -> {before + width} {kind}")))
    return done
