"""Where to grow, and by how much: as asked for, or where it pays."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from attnworks.core.errors import AttnworksError, UsageError
from attnworks.models.config import LARGEST_WIDTH
from attnworks.reshape.growth.apply import NewHead, Place
from attnworks.reshape.growth.score import Kind, Score
from attnworks.reshape.growth.survey import KINDS, Survey
from attnworks.reshape.heads import choose_heads

TRYING = "trying places"
"""The stage in which the places to grow at are chosen."""
LONGEST = 10
"""Digits of a number that can be a width."""


class Spot(NamedTuple):
    """A place and what may grow there."""

    place: Place
    kind: Kind

    def __str__(self) -> str:
        return f"{self.place}:{self.kind}"


Widths = dict[Spot, int]
"""How many columns, or heads, to add where."""


class NoBottleneckError(AttnworksError, ValueError):
    """Growing would not pay, or it cannot be known from this text that it would."""


def read_places(asked: str, layers: Mapping[str, int]) -> Widths:
    """ "enc.0.3:keys=8,dec.0.*:values=2,enc.1:heads=1" as columns of heads, and heads of layers.

    >>> read_places("0.*:keys=2", {"enc.0": 2})
    {Spot(place=Place(slot='enc.0', head=0), kind='keys'): 2, Spot(place=Place(slot='enc.0', head=1), kind='keys'): 2}
    """
    widths: Widths = {}
    for part in asked.split(","):
        where, _, what = part.strip().partition(":")
        name, _, number = what.partition("=")
        if name not in KINDS or not number.isdecimal() or not 0 < int(number[:LONGEST]) <= LARGEST_WIDTH:
            raise UsageError(
                asked=f"growing at {part.strip()!r}",
                expected="places such as enc.0.3:keys=8, dec.0.*:values=2 or enc.1:heads=1",
                got=repr(part.strip()),
                remedy="write layer.head:keys=N or :values=N, or layer:heads=N; or leave it to auto",
            )
        kind: Kind = name  # pyright: ignore[reportAssignmentType]
        if kind == "heads" and int(number) != 1:
            raise UsageError(
                asked=f"growing at {part.strip()!r}",
                expected="one new head of a layer at a time: the next depends on what that one does",
                got=number,
                remedy=f"write {where}:heads=1, and grow again",
            )
        for place in _heads_of(where, layers) if kind != "heads" else _layers_of(where, layers):
            widths[Spot(place, kind)] = int(number)
    return widths


def _heads_of(where: str, layers: Mapping[str, int]) -> list[Place]:
    return [Place(slot, head) for slot, head in choose_heads(where, layers)]


def _layers_of(where: str, layers: Mapping[str, int]) -> list[Place]:
    return [Place(slot, None) for slot, _ in choose_heads(f"{where}.0", layers)]


def spread(survey: Survey, kinds: Sequence[Kind], add: int, most: Mapping[Spot, int] | None = None) -> Widths:
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


def _tried(survey: Survey, kinds: Sequence[Kind]) -> Iterator[tuple[Spot, Score]]:
    """Every place with its direction and the best step, layer by layer."""
    places = sum(1 if kind == "heads" else len(heads) for heads in survey.heads.values() for kind in kinds)
    done = 0
    for slot in survey.layers:
        for kind in kinds:
            for score in survey.scores(slot, kind):
                survey.watch(TRYING, done, places)
                yield Spot(score.place, kind), survey.tried(score)
                done += 1


def _per_parameter(survey: Survey, score: Score, taken: int) -> float:
    """The gain of the next column where `taken` are taken."""
    shares = (1.0,) if score.kind == "heads" else survey.shares(score.place, score.kind)
    share = shares[taken] / shares[0] if taken < len(shares) and shares[0] else 0.0
    return score.gain * share / score.parameters


def _cost(score: Score) -> int:
    addition = score.addition
    return addition.like.W_Q.shape[1] + addition.a.shape[1] if isinstance(addition, NewHead) else 1


def _nowhere(survey: Survey, scores: Mapping[Spot, Score]) -> NoBottleneckError:
    if not survey.layers:
        return NoBottleneckError(
            asked="to grow",
            expected="a layer that can",
            got="; ".join(f"{slot}: {reason}" for slot, reason in list(survey.refused.items())[:2]) or "none",
            remedy="choose another model; the guide to growing lists those that can",
        )
    if not scores:
        return no_bottleneck("no layer with a direction that other sentences confirm by half")
    spot = max(scores, key=lambda spot: (scores[spot].gain, scores[spot].trust))
    reason = scores[spot].refusal or "one width more is more than was asked for"
    return no_bottleneck(f"at {spot}, the best of {len(scores)} places, {reason}")


def no_bottleneck(got: str) -> NoBottleneckError:
    return NoBottleneckError(
        asked="to grow",
        expected="a place where more width lowers the loss, also of sentences that the direction was not fitted to",
        got=got,
        remedy="leave the model as it is, train it further, or give more text",
    )
