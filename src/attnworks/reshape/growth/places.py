"""Where to grow, and by how much: as asked for, or where it pays."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.places import Slot, select_heads
from attnworks.models.config import MAX_WIDTH
from attnworks.reshape.growth.apply import GrowthPlace, NewHead
from attnworks.reshape.growth.score import GrowthKind, Score
from attnworks.reshape.growth.survey import GROWTH_KINDS, GrowthSurvey

TRYING_PLACES = "trying places"
"""The stage in which the places to grow at are chosen."""
MAX_WIDTH_DIGITS = 10
"""Digits of a number that can be a width."""


class Spot(NamedTuple):
    """A place and what may grow there."""

    place: GrowthPlace
    kind: GrowthKind

    def __str__(self) -> str:
        return f"{self.place}:{self.kind}"


Widths = dict[Spot, int]
"""How many columns, or heads, to add where."""


class NoBottleneckError(AttnworksError, ValueError):
    """Growing would not pay, or it cannot be known from this text that it would."""


def read_places(asked: str, layers: Mapping[Slot, int]) -> Widths:
    """ "enc.0.3:keys=8,dec.0.*:values=2,enc.1:heads=1" as columns of heads, and heads of layers.

    >>> {str(spot): width for spot, width in read_places("0.*:keys=2", {Slot("encoder", 0): 2}).items()}
    {'enc.0.0:keys': 2, 'enc.0.1:keys': 2}
    """
    widths: Widths = {}
    for part in asked.split(","):
        where, _, what = part.strip().partition(":")
        name, _, number = what.partition("=")
        if name not in GROWTH_KINDS or not number.isdecimal() or not 0 < int(number[:MAX_WIDTH_DIGITS]) <= MAX_WIDTH:
            raise UsageError(
                f"growing at {part.strip()!r}",
                "places such as enc.0.3:keys=8, dec.0.*:values=2 or enc.1:heads=1",
                repr(part.strip()),
                "write layer.head:keys=N or :values=N, or layer:heads=N; or leave it to auto",
            )
        kind: GrowthKind = name  # pyright: ignore[reportAssignmentType]
        if kind == "heads" and int(number) != 1:
            raise UsageError(
                f"growing at {part.strip()!r}", "one new head of a layer at a time", number, f"write {where}:heads=1"
            )
        for place in _heads_of(where, layers) if kind != "heads" else _layers_of(where, layers):
            widths[Spot(place, kind)] = int(number)
    return widths


def _heads_of(where: str, layers: Mapping[Slot, int]) -> list[GrowthPlace]:
    return [GrowthPlace(slot, head) for slot, head in select_heads(where, layers)]


def _layers_of(where: str, layers: Mapping[Slot, int]) -> list[GrowthPlace]:
    return [GrowthPlace(slot, None) for slot, _ in select_heads(f"{where}.0", layers)]


def spread(
    survey: GrowthSurvey, kinds: Sequence[GrowthKind], add: int, most: Mapping[Spot, int] | None = None
) -> Widths:
    """`add` widths, one after the other where the loss should fall most for each parameter.

    most    columns that a spot may get at most; all are free where it is not given

    The first column of a place is tried; what further ones add is taken from the metric of the direction. A new head
    takes as many widths as it has keys and values.
    """
    scores = dict(_tried(survey, kinds))
    paying = {spot: score for spot, score in scores.items() if score.refusal is None}
    queue = [(-score.gain / score.parameters, spot) for spot, score in paying.items()]
    heapq.heapify(queue)
    widths: Widths = {}
    while queue and add:
        worth, spot = heapq.heappop(queue)
        if worth >= 0:
            break
        taken, cost = widths.get(spot, 0), _cost(paying[spot])
        if cost > add or (most is not None and taken >= most.get(spot, 0)):
            continue
        widths[spot] = taken + 1
        add -= cost
        if spot.kind != "heads":
            heapq.heappush(queue, (-_per_parameter(survey, paying[spot], taken + 1), spot))
    if not widths:
        raise _nowhere(survey, scores)
    return {spot: widths[spot] for spot in scores if spot in widths}


def _tried(survey: GrowthSurvey, kinds: Sequence[GrowthKind]) -> Iterator[tuple[Spot, Score]]:
    """Every place with its direction and the best step, layer by layer."""
    places = sum(1 if kind == "heads" else len(heads) for heads in survey.heads.values() for kind in kinds)
    done = 0
    for slot in survey.layers:
        for kind in kinds:
            for score in survey.scores(slot, kind):
                survey.tell(TRYING_PLACES, done, places)
                yield Spot(score.place, kind), survey.tried(score)
                done += 1


def _per_parameter(survey: GrowthSurvey, score: Score, taken: int) -> float:
    """The gain of the next column where `taken` are taken."""
    shares = (1.0,) if score.kind == "heads" else survey.shares(score.place, score.kind)
    share = shares[taken] / shares[0] if taken < len(shares) and shares[0] else 0.0
    return score.gain * share / score.parameters


def _cost(score: Score) -> int:
    addition = score.addition
    return addition.like.W_Q.shape[1] + addition.a.shape[1] if isinstance(addition, NewHead) else 1


def _nowhere(survey: GrowthSurvey, scores: Mapping[Spot, Score]) -> NoBottleneckError:
    if not survey.layers:
        return NoBottleneckError(
            "to grow",
            "a layer that can",
            "; ".join(f"{slot}: {reason}" for slot, reason in list(survey.refused.items())[:2]) or "none",
            "choose another model; the guide to growing lists those that can",
        )
    if not scores:
        return no_bottleneck("no layer with a direction that other sentences confirm by half")
    spot = max(scores, key=lambda spot: (scores[spot].gain, scores[spot].trust))
    reason = scores[spot].refusal or "one width more is more than was asked for"
    return no_bottleneck(f"at {spot}, the best of {len(scores)} places, {reason}")


def no_bottleneck(got: str) -> NoBottleneckError:
    return NoBottleneckError(
        "to grow",
        "a place where more width lowers the loss, also of sentences that the direction was not fitted to",
        got,
        "leave the model as it is, train it further, or give more text",
    )
