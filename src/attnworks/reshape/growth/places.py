"""Where to grow, and by how many columns: as asked for, or where the loss falls most per parameter."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.places import Slot, select_heads
from attnworks.models.config import MAX_WIDTH
from attnworks.reshape.growth.apply import GrowthPlace
from attnworks.reshape.growth.score import GrowthKind, Score
from attnworks.reshape.growth.survey import GROWTH_KINDS, GrowthSurvey

TRYING_PLACES = "trying places"
"""The stage in which the places to grow at are chosen."""
MAX_WIDTH_DIGITS = 10
"""The largest number of digits that a width is read from."""


class Spot(NamedTuple):
    """A place and what may grow there."""

    place: GrowthPlace
    kind: GrowthKind

    def __str__(self) -> str:
        return f"{self.place}:{self.kind}"


Widths = dict[Spot, int]
"""How many columns, or heads, to add where."""


class NoBottleneckError(AttnworksError, ValueError):
    """Growing would not lower the loss, or this text is not enough to show that it would."""


def read_places(asked: str, layers: Mapping[Slot, int]) -> Widths:
    """ "enc.0.3:keys=8,dec.0.*:values=2,enc.1:heads=1" as columns of heads, and heads of layers.

    >>> {str(spot): width for spot, width in read_places("0.*:keys=2", {Slot("encoder", 0): 2}).items()}
    {'enc.0.0:keys': 2, 'enc.0.1:keys': 2}
    """
    widths: Widths = {}
    for part in asked.split(","):
        where, _, what = part.strip().partition(":")
        name, _, number = what.partition("=")
        asked_here = f"growing at {part.strip()!r}"
        if name not in GROWTH_KINDS or not number.isdecimal() or not 0 < int(number[:MAX_WIDTH_DIGITS]) <= MAX_WIDTH:
            expected = "places such as enc.0.3:keys=8, dec.0.*:values=2 or enc.1:heads=1"
            remedy = "write layer.head:keys=N or :values=N, or layer:heads=N; or leave it to auto"
            raise UsageError(asked_here, expected, repr(part.strip()), remedy)
        kind: GrowthKind = name  # pyright: ignore[reportAssignmentType]
        if kind == "heads" and int(number) != 1:
            raise UsageError(asked_here, "one new head of a layer at a time", number, f"write {where}:heads=1")
        for slot, head in select_heads(f"{where}.0" if kind == "heads" else where, layers):
            widths[Spot(GrowthPlace(slot, None if kind == "heads" else head), kind)] = int(number)
    return widths


def spread(
    survey: GrowthSurvey, kinds: Sequence[GrowthKind], add: int, most: Mapping[Spot, int] | None = None
) -> Widths:
    """Distribute `add` widths, one after the other, to where the loss should fall most per parameter.

    most    the largest number of columns of each spot; no limit if it is None

    The gain of the first column of a place is measured; the gain of further ones is estimated from the metric of the
    direction. A pair takes two widths, a new head as many as it has keys and values.
    """
    scores = dict(_tried(survey, kinds))
    paying = {spot: score for spot, score in scores.items() if score.refusal is None}
    queue = [(-score.gain / score.parameters, spot) for spot, score in paying.items()]
    heapq.heapify(queue)
    taken = dict.fromkeys(paying, 0)
    while queue and add:
        worth, spot = heapq.heappop(queue)
        if worth >= 0:
            break
        score = paying[spot]
        if score.columns > add or (most is not None and (taken[spot] + 1) * _widths_of(score) > most.get(spot, 0)):
            continue
        taken[spot] += 1
        add -= score.columns
        if spot.kind != "heads":  # the gain of the next column or pair: what it adds, relative to the first one
            shares = survey.shares(score)
            share = shares[taken[spot]] / shares[0] if taken[spot] < len(shares) and shares[0] else 0.0
            heapq.heappush(queue, (-(score.gain * share / score.parameters), spot))
    widths = {spot: times * _widths_of(paying[spot]) for spot, times in taken.items() if times}
    if not widths:
        raise _nowhere(survey, scores)
    return {spot: widths[spot] for spot in scores if spot in widths}


def _widths_of(score: Score) -> int:
    """How much wider a place becomes by one addition: by the columns of a pair, or by one head."""
    return 1 if score.kind == "heads" else score.columns


def _tried(survey: GrowthSurvey, kinds: Sequence[GrowthKind]) -> Iterator[tuple[Spot, Score]]:
    """Every place with its direction and the best step, layer by layer."""
    places = sum(1 if kind == "heads" else len(heads) for heads in survey.heads.values() for kind in kinds)
    done = 0
    for slot in survey.layers:
        for kind in kinds:
            for score in survey.smallest(slot, kind):
                survey.tell(TRYING_PLACES, done, places)
                yield Spot(score.place, kind), survey.tried(score)
                done += 1


def _nowhere(survey: GrowthSurvey, scores: Mapping[Spot, Score]) -> NoBottleneckError:
    if not survey.layers:
        got = "; ".join(f"{slot}: {reason}" for slot, reason in list(survey.refused.items())[:2]) or "none"
        remedy = "choose another model; the guide to growing lists those that can"
        return NoBottleneckError("to grow", "a layer that can", got, remedy)
    if not scores:
        return no_bottleneck("no direction in any layer: other sentences confirm less than half of the slope of each")
    spot = max(scores, key=lambda spot: (scores[spot].gain, scores[spot].trust))
    reason = scores[spot].refusal or "one more of them is more than was asked for"
    return no_bottleneck(f"at {spot}, the best of {len(scores)} places, {reason}")


def no_bottleneck(got: str) -> NoBottleneckError:
    expected = "a place where more width lowers the loss, also of sentences that the direction was not fitted to"
    return NoBottleneckError("to grow", expected, got, "leave the model as it is, train it further, or give more text")
