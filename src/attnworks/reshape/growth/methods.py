"""Methods that fill new columns: the direction that lowers the loss most, and baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.core.registry import Registry
from attnworks.reshape.growth.apply import GrowthStep, Keys, NewHead, Rewritten, Values
from attnworks.reshape.growth.cost import FITTING
from attnworks.reshape.growth.directions import whitened_direction
from attnworks.reshape.growth.graded import graded_layers, query_states
from attnworks.reshape.growth.places import Spot, Widths, no_bottleneck
from attnworks.reshape.growth.score import FIRST_STEP_LOSS_SHARE, DirectionSolver, Score, best_direction, better
from attnworks.reshape.growth.statistics import metric_sentences
from attnworks.reshape.growth.survey import GrowthSurvey


class Line(NamedTuple):
    """What is added, as a function of the step.

    start     the first step that a search for the best one tries; None if there is nothing to search for
    left_out  places that were asked for and do not grow, with the reason
    """

    steps: Callable[[float], list[GrowthStep]]
    start: float | None
    scores: Sequence[Score] = ()
    left_out: Mapping[Spot, str] = {}


Method = Callable[[GrowthSurvey, Widths, int], Line]
METHODS: Registry[Method] = Registry("method of growing")


@METHODS.register("fisher")
def fisher(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """The direction that lowers the loss most in the metric of the softmax, where other sentences confirm it."""
    del seed
    return _confirmed_line(survey, widths, best_direction)


@METHODS.register("whitened")
def whitened(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """The same without the alternating solver: singular vectors of the whitened gradient."""
    del seed
    return _confirmed_line(survey, widths, whitened_direction)


@METHODS.register("random")
def random_columns(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """Random columns on both sides, downhill, with the best step."""
    generator = torch.Generator().manual_seed(seed)
    additions = [(spot, _random(survey, spot, width, generator)) for spot, width in widths.items()]
    signed = [(spot.place, new, 1.0 if _descends(survey, spot, new) else -1.0) for spot, new in additions]

    def steps(t: float) -> list[GrowthStep]:
        return [GrowthStep(place, new, t * sign, survey.scale(place.slot)) for place, new, sign in signed]

    return Line(steps, FIRST_STEP_LOSS_SHARE)


@METHODS.register("zero")
def zero(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """Random queries (or values) and zero keys (or outputs), which change nothing until they are trained."""
    generator = torch.Generator().manual_seed(seed)
    return fixed_line(survey, widths, lambda spot, width: _second_zero(_random(survey, spot, width, generator)))


@METHODS.register("gradmax")
def gradmax(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """Zero queries (or values) and the keys (or outputs) that make their gradient largest, as GradMax does for MLPs."""
    del seed
    return fixed_line(survey, widths, lambda spot, width: _largest_gradient(survey, spot, width))


@METHODS.register("document")
def document(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """Burgund's, as printed: rank k + p of the pseudo-inverse of B = S + dL/dS (S3.13, S3.27); keys only."""
    del seed
    refit = refit_steps(survey, widths)
    return Line(lambda t: refit(1.0), None)


# --- directions ---


def _confirmed(survey: GrowthSurvey, spot: Spot, width: int, solve: DirectionSolver) -> Score | str:
    """The direction at a place with its best step, or why nothing should grow there."""
    found = _directions(survey, spot, width, solve)
    if not found:
        if spot.kind != "heads":
            return "no direction: the layer does not score by Q K^T alone"
        if not survey.sums[spot.place.slot].linear:
            return "no direction: queries and keys are no plain maps of the layer's input, as those of new heads are"
        return "no direction: for no new head do other sentences confirm half of the slope"
    score = survey.tried(found[0])
    if score.refusal is not None:
        return score.refusal
    new = score.addition
    assert isinstance(new, Keys | Values | NewHead)
    nonzero = int((new.beta.any(0) if isinstance(new, Keys) else new.b.any(1)).sum())
    return f"{width} columns where this text has directions for {nonzero}" if nonzero < width else score


def _directions(survey: GrowthSurvey, spot: Spot, width: int, solve: DirectionSolver) -> list[Score]:
    """One, or none where there is no such direction; with frequency pairs where they should lower the loss by more."""
    (slot, head), kind = spot
    if head is None:
        return survey.scores(slot, kind)
    if width > 1 or (kind == "keys" and solve is not best_direction):
        plain = survey.scores(slot, kind, width, (head,), solve)
    else:
        plain = survey.scores(slot, kind)[head : head + 1]
    if kind != "keys" or width % 2:
        return plain
    pairs = survey.pair_scores(slot, width // 2, (head,), solve)
    return [better(score, pairs.get(head)) for score in plain]


def _confirmed_line(survey: GrowthSurvey, widths: Widths, solve: DirectionSolver) -> Line:
    """All confirmed directions together, each with the step that is best for it alone."""
    found: dict[Spot, Score | str] = {}
    for done, (spot, width) in enumerate(widths.items()):
        survey.tell(FITTING, done, len(widths))
        found[spot] = _confirmed(survey, spot, width, solve)
    scores = [score for score in found.values() if isinstance(score, Score)]
    left_out = {spot: reason for spot, reason in found.items() if isinstance(reason, str)}
    if not scores:
        spot, reason = next(iter(left_out.items()))
        raise no_bottleneck(f"at {spot}, {reason}")

    def steps(t: float) -> list[GrowthStep]:
        return [GrowthStep(one.place, one.addition, t * one.step, survey.scale(one.place.slot)) for one in scores]

    slope = sum(score.step * score.checked_slope for score in scores)
    return Line(steps, FIRST_STEP_LOSS_SHARE * abs(survey.trial.loss) / slope, scores, left_out)


# --- baselines ---


def fixed_line(
    survey: GrowthSurvey, widths: Widths, addition: Callable[[Spot, int], Keys | Values | NewHead | Rewritten]
) -> Line:
    """Fixed columns, without a step to search for."""
    steps = [
        GrowthStep(spot.place, addition(spot, width), scale if spot.kind == "keys" else 1.0, scale)
        for spot, width in widths.items()
        for scale in (survey.scale(spot.place.slot),)
    ]
    return Line(lambda t: steps, None)


def _random(survey: GrowthSurvey, spot: Spot, width: int, generator: torch.Generator) -> Keys | Values | NewHead:
    """Entries of variance 1 / rows."""
    like = survey.heads[spot.place.slot][spot.place.head or 0]

    def draw(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(like.W_Q.device) * rows**-0.5

    (e, k), f, (g, v), d = like.W_Q.shape, len(like.W_K), like.W_V.shape, like.W_O.shape[1]
    match spot.kind:
        case "keys":
            bias = None if like.b_Q is None else torch.zeros(width, dtype=torch.float64, device=like.W_Q.device)
            return Keys(draw(e, width), draw(f, width), bias)
        case "values":
            return Values(draw(g, width), draw(width, d))
        case "heads":
            zeros = None if like.b_Q is None else torch.zeros_like(like.b_Q)
            keys = like._replace(W_Q=draw(e, k), W_K=draw(f, k), b_Q=zeros, b_K=zeros)
            return NewHead(keys, draw(g, v), draw(v, d))


def _descends(survey: GrowthSurvey, spot: Spot, addition: Keys | Values | NewHead) -> bool:
    """Whether a positive step lowers the loss, on the fitting sentences."""
    (keys, _), (values, _), _ = survey.sums[spot.place.slot].means()
    match addition:
        case Keys():
            alpha = addition.alpha if addition.bias is None else torch.cat([addition.alpha, addition.bias[None]])
            return bool((keys[spot.place.head] * (alpha @ addition.beta.mT)).sum() <= 0)
        case Values():
            return bool((values[spot.place.head] * (addition.a @ addition.b)).sum() <= 0)
        case NewHead():
            return True


def _second_zero(addition: Keys | Values | NewHead) -> Keys | Values | NewHead:
    if isinstance(addition, Keys):
        return addition._replace(beta=torch.zeros_like(addition.beta))
    return addition._replace(b=torch.zeros_like(addition.b))


def _largest_gradient(survey: GrowthSurvey, spot: Spot, width: int) -> Keys | Values | NewHead:
    """The right singular vectors of T, as long as the columns that are there."""
    slot, head = spot.place.slot, spot.place.head or 0
    (keys, _), (values, _), _ = survey.sums[slot].means()
    like = survey.heads[slot][head]
    width = like.W_V.shape[1] if spot.kind == "heads" else width
    T = keys[head] if spot.kind == "keys" else values[head]
    vectors = torch.linalg.svd(T, full_matrices=False)[2][:width]
    vectors = F.pad(vectors, (0, 0, 0, width - len(vectors)))
    if spot.kind == "keys":
        length = like.W_K.norm(dim=0).mean().to(T)
        bias = None if like.b_Q is None else T.new_zeros(width)
        return Keys(T.new_zeros(like.W_Q.shape[0], width), (length * vectors).mT, bias)
    b = like.W_O.norm(dim=1).mean().to(T) * vectors
    a = T.new_zeros(like.W_V.shape[0], width)
    return Values(a, b) if spot.kind == "values" else NewHead(like, a, b)


# --- the document's truncation ---


def refit_steps(survey: GrowthSurvey, widths: Widths) -> Callable[[float], list[GrowthStep]]:
    """t -> heads whose product W_Q W_K^T is [mean over sentences of X^+ (S + t dL/dS) Z^+T] cut to rank k + p."""
    spots = list(widths.items())
    if any(spot.kind != "keys" for spot, _ in spots):
        raise kind_refusal("document", "keys")
    slots = dict.fromkeys(spot.place.slot for spot, _ in spots)
    for slot in slots:
        asked, sums = f"growing {slot} by document", survey.sums[slot]
        if sums.scale is None or not sums.linear or survey.layers[slot].shares is not None:
            expected = "heads with keys of their own that score by one factor of X W_Q (Z W_K)^T"
            raise UsageError(asked, expected, "other scores", "choose another method")
    targets = {slot: _targets(survey, slot) for slot in slots}

    def steps(t: float) -> list[GrowthStep]:
        found: list[GrowthStep] = []
        for spot, width in spots:
            slot, at = spot.place
            assert at is not None
            head, (S, G), scale = survey.heads[slot][at], targets[slot], survey.scale(slot)
            U, s, Vh = torch.linalg.svd((S[at] + t * G[at]) / scale)
            rank = head.W_Q.shape[1] + width
            root = s[:rank].sqrt()
            left, right = (F.pad(side[:, : len(root)] * root, (0, rank - len(root))) for side in (U, Vh.mT))
            biases = {} if head.b_Q is None else {"b_Q": left[-1], "b_K": torch.zeros_like(left[-1])}
            new = head._replace(W_Q=left if head.b_Q is None else left[:-1], W_K=right, **biases)
            found.append(GrowthStep(spot.place, Rewritten(new), 1.0, scale))
        return found

    return steps


def _targets(survey: GrowthSurvey, slot: Slot) -> tuple[Tensor, Tensor]:
    """mean X^+ S Z^+T and mean X^+ (dL/dS) Z^+T over some of the fitting sentences, [h e f] each."""
    text_loss, sentences = survey.text_loss, 0
    S = G = torch.zeros(())
    for batch, rows in text_loss.batches(metric_sentences(text_loss)):
        for layer in graded_layers(text_loss, batch, rows, {slot: survey.outputs[slot]}):
            trace = layer.trace
            assert trace.Z is not None
            X, Z = (
                torch.linalg.pinv(states.detach().double() * side.real.unsqueeze(-1)).unsqueeze(1)
                for states, side in ((query_states(trace), trace.queries), (trace.Z, trace.keys))
            )
            scores = trace.scores(slice(None), slice(None), trace.Q.shape[2], trace.K.shape[2])
            S = S + (X @ scores.double() @ Z.mT).sum(0)
            G = G + (X @ layer.by_scores().double() @ Z.mT).sum(0)
            sentences += len(X)
    return S / sentences, G / sentences


def kind_refusal(method: str, kinds: str) -> UsageError:
    remedy = "choose those kinds, or another method"
    return UsageError(f"growing by {method}", f"only {kinds} to grow", "another kind", remedy)
