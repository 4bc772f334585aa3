"""The best direction of growth at every place of a model, and how far the loss falls along it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadMatrices
from attnworks.core.display import Progress
from attnworks.core.places import Slot
from attnworks.models.anatomy import Part, heads_of
from attnworks.reshape.growth.apply import GrowthPlace, GrowthStep, NewHead, Values
from attnworks.reshape.growth.directions import whitened_direction
from attnworks.reshape.growth.graded import GradedLayer, output_of
from attnworks.reshape.growth.metric import ScoreSample
from attnworks.reshape.growth.pairs import PairSums, gather_pair_sums, scan_angles, with_key_bias
from attnworks.reshape.growth.score import (
    MIN_TRUST,
    VARIANCE_CUTOFFS,
    DirectionSolver,
    GrowthKind,
    GrowthTrial,
    Score,
    best_direction,
    better,
    checking_sentences,
    head_score,
    key_scores,
    value_scores,
)
from attnworks.reshape.growth.solvers import shortened
from attnworks.reshape.growth.statistics import GrowthSums, gather_sample, gather_sums
from attnworks.reshape.surgery import layers_of, refusal_to_grow
from attnworks.traces.loss import TextLoss

GROWTH_KINDS: tuple[GrowthKind, ...] = get_args(GrowthKind)
ANGLES, PAIRS_PASS = "comparing angles of pairs", "searching for pairs that turn by position"
"""Stages after the first pass, for keys of layers with rotary positions; the second is a pass over the whole text."""
PASSES = ("searching for bottlenecks", "searching for keys of new heads", "searching for values of new heads")
"""Stages that are backward passes over the whole text; the last two only where new heads are asked for."""
COPIES, KEYS_OF_COPIES = "trying copies of heads", "fitting keys of new heads"
"""Stages of the search for new heads, before the second pass and before the third."""
COLUMNS_AHEAD = 8
"""The number of columns of one place that are compared with those of other places."""


class _Copy(NamedTuple):
    """A new head, the head that it was copied from, and how far to go with its values."""

    parent: int
    new: NewHead
    step: float


def growable_layers(
    model: nn.Module, slots: Collection[Slot] | None = None
) -> tuple[dict[Slot, Part], dict[Slot, str]]:
    """Attention layers that can grow, and for the others the reason why they cannot, in words.

    slots    the layers to look at; all if None
    """
    layers = {slot: part for slot, part in layers_of(model).items() if slots is None or slot in slots}
    reasons = {slot: refusal_to_grow(model, slot) for slot in layers}
    refused = {slot: reason for slot, reason in reasons.items() if reason is not None}
    return {slot: part for slot, part in layers.items() if slot not in refused}, refused


class GrowthSurvey:
    """Directions of growth, from one backward pass over a text, more where new heads or frequency pairs may be added.

    slots      the layers to look at; all if None
    every      how many heads each layer has
    refused    layers that cannot grow, with the reason in words
    trial      tries steps on the sentences that check
    """

    def __init__(
        self,
        text_loss: TextLoss,
        tell: Progress,
        kinds: Collection[GrowthKind] = GROWTH_KINDS,
        slots: Collection[Slot] | None = None,
    ) -> None:
        self.text_loss, self.tell, self.kinds = text_loss, tell, kinds
        model = text_loss.original.model
        self.every = {slot: part.heads for slot, part in layers_of(model).items()}
        self.layers, self.refused = growable_layers(model, slots)
        self.outputs = {slot: output_of(part) for slot, part in self.layers.items()}
        self.heads = {slot: heads_of(part) for slot, part in self.layers.items()}
        self.sums = gather_sums(text_loss, self.outputs, partial(tell, PASSES[0]))
        self.trial = GrowthTrial(text_loss, checking_sentences(text_loss))
        self._sample: tuple[Slot, ScoreSample] | None = None
        self._scores: dict[tuple[object, ...], list[Score]] = {}
        self._tried: dict[Score, Score] = {}
        self._new_heads = self._find_new_heads() if "heads" in kinds else {}

    def scale(self, slot: Slot) -> float:
        """The factor of a layer's scores; a layer without one has no scores that keys could change."""
        scale = self.sums[slot].scale
        return 1.0 if scale is None else scale

    def scores(
        self,
        slot: Slot,
        kind: GrowthKind,
        p: int = 1,
        heads: tuple[int, ...] | None = None,
        solve: DirectionSolver = best_direction,
    ) -> list[Score]:
        """The best p columns for some heads of a layer, or for all, not tried yet; no score if there is no direction.

        A new head has its own widths. Only directions of keys depend on `solve`. Keys are plain columns, not pairs.
        """
        key = (slot, kind, p, heads, solve if kind == "keys" else None)
        if key in self._scores:
            return self._scores[key]
        sums = self.sums[slot] if heads is None else self.sums[slot].of_heads(heads)
        like = self.heads[slot][0]
        match kind:
            case "keys" if sums.scale is None:
                return []
            case "keys":
                sample = self.sample(slot) if heads is None else self.sample(slot).of_heads(heads)
                found = key_scores(slot, sums.means()[0], sample, like, p, solve)
            case "values":
                found = value_scores(slot, sums, like.b_V is not None, p)
            case "heads":
                return [self._new_heads[slot]] if slot in self._new_heads else []
        numbers = range(len(found)) if heads is None else heads
        places = (GrowthPlace(slot, head) for head in numbers)
        self._scores[key] = [replace(score, place=place) for score, place in zip(found, places, strict=True)]
        return self._scores[key]

    def pair_scores(
        self, slot: Slot, p: int = 1, heads: tuple[int, ...] | None = None, solve: DirectionSolver = best_direction
    ) -> dict[int, Score]:
        """The best p frequency pairs for some heads of a layer, or for all, as far as a pair may serve a head."""
        if slot not in self.pairs:
            return {}
        pairs, like = self.pairs[slot], self.heads[slot][0]
        chosen = [head for head in pairs.angles if heads is None or head in heads]
        key = ("pairs", slot, p, tuple(chosen), solve)
        if key not in self._scores:
            sample = self.sample(slot) if like.b_K is None else with_key_bias(self.sample(slot))
            T, rows = pairs.means(), list(pairs.angles)
            self._scores[key] = []
            for head in chosen:
                row, alone = rows.index(head), sample.of_heads((head,))._replace(angle=pairs.angles[head])
                (score,) = key_scores(slot, T[:, row : row + 1], alone, like, p, solve)
                self._scores[key].append(replace(score, place=GrowthPlace(slot, head)))
        return dict(zip(chosen, self._scores[key], strict=True))

    def smallest(self, slot: Slot, kind: GrowthKind) -> list[Score]:
        """For every head the best column, or the best pair where that should lower the loss by more per parameter."""
        plain = self.scores(slot, kind)
        pairs = self.pair_scores(slot) if kind == "keys" and plain else {}
        return [better(score, pairs.get(head)) for head, score in enumerate(plain)]

    def tried(self, score: Score) -> Score:
        """With its best step; the same score is tried once."""
        if score not in self._tried:
            self._tried[score] = score.tried(self.trial, self.scale(score.place.slot))
        return self._tried[score]

    def shares(self, score: Score) -> tuple[float, ...]:
        """What each of the first columns or pairs at a place adds to the gain, by a direction in closed form."""
        slot, head = score.place
        assert head is not None
        if score.is_pair:
            return self.pair_scores(slot, COLUMNS_AHEAD, solve=whitened_direction)[head].shares
        return self.scores(slot, score.kind, COLUMNS_AHEAD, solve=whitened_direction)[head].shares

    def sample(self, slot: Slot) -> ScoreSample:
        """The sample of a layer. Only that of the last layer is kept in memory."""
        if self._sample is None or self._sample[0] != slot:
            self._sample = (slot, gather_sample(self.text_loss, slot))
        return self._sample[1]

    # --- frequency pairs ---

    @cached_property
    def pairs(self) -> dict[Slot, PairSums]:
        """T of frequency pairs, for heads of layers that may turn which a pair serves better than a column.

        Angles come from a sample of each of these layers, then sums over the whole text for these angles. Methods that
        add plain columns never ask for them.
        """
        if "keys" not in self.kinds:
            return {}
        slots = [slot for slot, sums in self.sums.items() if sums.may_turn and not slot.crosses]
        angles: dict[Slot, dict[int, float]] = {}
        for done, slot in enumerate(slots):
            self.tell(ANGLES, done, len(slots))
            biased = self.heads[slot][0].b_K is not None
            angles[slot] = scan_angles(self.text_loss, slot, self.outputs[slot], biased_keys=biased)
        return gather_pair_sums(self.text_loss, self.outputs, angles, partial(self.tell, PAIRS_PASS))

    # --- new heads ---

    def _find_new_heads(self) -> dict[Slot, Score]:
        """One for each layer: a copy of the head for which more values help most, with its own values and keys.

        The values of the copy are solved for, then its keys by the gradient of its own scores, then the values again.
        Heads that do not start from a copy fit noise. Queries and keys of new heads are plain maps of the input of the
        layer, so that there is no copy of those that are rotated or normed.
        """
        slots = [slot for slot, sums in self.sums.items() if sums.scale is not None and sums.linear]
        copies: dict[Slot, _Copy] = {}
        for done, slot in enumerate(slots):
            self.tell(COPIES, done, len(slots))
            if (found := self._copied_head(slot)) is not None:
                copies[slot] = found
        sums = self._sums_of(copies, PASSES[1])
        fitted: dict[Slot, _Copy] = {}
        for done, slot in enumerate(copies):
            self.tell(KEYS_OF_COPIES, done, len(copies))
            fitted[slot] = self._with_fitted_keys(slot, copies[slot], sums[slot])
        sums = self._sums_of(fitted, PASSES[2])
        return {slot: head_score(slot, new, sums[slot]) for slot, (_, new, _) in fitted.items()}

    def _sums_of(self, news: dict[Slot, _Copy], stage: str) -> dict[Slot, GrowthSums]:
        outputs = {slot: self.outputs[slot] for slot in news}

        def alone(layer: GradedLayer) -> GradedLayer:
            parent, new, _ = news[layer.trace.slot]
            return layer.as_head(new.like, new.a, new.b, parent)

        return gather_sums(self.text_loss, outputs, partial(self.tell, stage), alone)

    def _copied_head(self, slot: Slot) -> _Copy | None:
        """The head to start from, with as many values as it has, and the best step; None if no head is confirmed."""
        width = max(head.W_V.shape[1] for head in self.heads[slot])
        scores = [score for score in self.scores(slot, "values", width) if score.trust >= MIN_TRUST]
        if not scores:
            return None
        score = max(scores, key=lambda score: score.checked_slope)
        tried = self.tried(score)
        assert score.place.head is not None and isinstance(score.addition, Values)
        return _Copy(score.place.head, NewHead(self.heads[slot][score.place.head], *score.addition), tried.step)

    def _with_fitted_keys(self, slot: Slot, copy: _Copy, sums: GrowthSums) -> _Copy:
        """The copied head with keys that serve its values, as far as the loss falls."""
        parent, new, step = copy
        sample, scale = self.sample(slot), self.scale(slot)
        (fitted, checked), _, _ = sums.means()
        k = new.like.W_Q.shape[1]
        alone = sample.of_heads((parent,))
        direction = best_direction(fitted, alone, k, cutoff=VARIANCE_CUTOFFS[-1])
        slope = step * float(-(checked @ direction.beta * direction.alpha).sum())

        def changed(t: float) -> NewHead:
            return new._replace(like=_with_keys(new.like, direction.alpha[0], direction.beta[0], t / scale, sample))

        def steps(new: NewHead) -> list[GrowthStep]:
            return [GrowthStep(GrowthPlace(slot, None), new, step)]

        found = self.trial.search(slope, lambda t: steps(changed(t)), whole=self.trial.with_steps(steps(new)))
        return copy._replace(new=changed(found.step)) if found.step else copy


def _with_keys(like: HeadMatrices, alpha: Tensor, beta: Tensor, t: float, sample: ScoreSample) -> HeadMatrices:
    """W_Q W_K^T + t alpha beta^T in as many columns as before, as near as can be on the sample."""
    W_Q = like.W_Q if like.b_Q is None else torch.cat([like.W_Q, like.b_Q.unsqueeze(0)])
    left, right = torch.cat([W_Q.to(alpha), t * alpha], 1), torch.cat([like.W_K.to(beta), beta], 1)
    left, right = shortened(left, right, W_Q.shape[1], sample.X.flatten(0, 1), sample.Y.flatten(0, 1))
    if like.b_Q is None:
        return like._replace(W_Q=left, W_K=right)
    b_K = None if like.b_K is None else torch.zeros_like(left[-1])
    return like._replace(W_Q=left[:-1], W_K=right, b_Q=left[-1], b_K=b_K)
