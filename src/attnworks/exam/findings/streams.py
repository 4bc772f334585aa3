"""Findings about the health of gradients and of the residual stream."""

from __future__ import annotations

from collections.abc import Iterator

from attnworks.core.display import counted, format_number
from attnworks.core.places import Kind
from attnworks.exam.examination import ExamFinding
from attnworks.exam.findings.roles import POSITION_ROLES, ROLE_SENTENCES
from attnworks.exam.findings.words import (
    ABLATION_COMMAND,
    BARE_COMMAND,
    count_heads,
    head_names,
    percent_of,
    place_after,
    runs,
)
from attnworks.exam.reading import COMMON_OUTLIERS, HeadValue, ModelReadings, joined_with_and, without_outliers

MEAN_COSINE_ALIKE = 0.9
"""Tokens are nearly the same where their mean cosine is this or more."""
RESIDUAL_DROP = 1 / 3
"""Tokens become alike if the residual falls below this share of the first one at some depth.

In SmolLM2-135M it falls to 0.40 to 0.60 of the first one, without outlying tokens, and the model works.
"""
MIN_RESIDUAL_SHARE = 0.1
"""There is no collapse if the relative residual is this or more at every depth."""
MASSIVE_CHANNELS = 10
"""Outlying tokens are massive activations if this number of channels, or fewer, hold 90 % of their squared norm."""
SATURATED_JACOBIAN, ONE_KEY_WEIGHT = 0.05, 0.9
"""A head is saturated if its mean Jacobian norm is below the first and its mean largest weight above the second."""
MOST_ATTENTION_SHARE = 0.8
"""The share of the output that counts as most of it."""
OPPOSING_PATH_SHARE = 0.01
"""Paths work against the others if they subtract more than this share of the output."""
FEW_LAYERS_SHARE = 0.5
"""Few attention layers are at most this share of all."""
LOOSE_BOUND_FACTOR = 10.0
"""A bound predicts nothing if it is this many times the measured value or more."""


def saturated_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """Saturated heads have a small Jacobian and a large weight; attention spread over many keys has only the first."""
    top = model.at("saturation.max_weight")
    flat = [head for head in model.heads("saturation.jacobian") if head.value < SATURATED_JACOBIAN]
    found = sorted((head for head in flat if top.get(head.id, 0.0) > ONE_KEY_WEIGHT), key=lambda head: head.value)
    if found:
        most = f"most in head {model.name_of(found[0])}: " if len(found) > 1 else ""
        their, attend = ("its", "attends") if len(found) == 1 else ("their", "attend")
        does = _fixed_role(model, found[0]) if len(found) == 1 else ""
        what = does or f"{attend} to almost one key per query"
        text = f"{count_heads(model, found)} {what}, and {their} queries and keys hardly learn any more: little "
        text += "gradient reaches the scores, so to train further, scale the queries down "
        text += f"({most}mean Jacobian norm {format_number(found[0].value)})"
        weight = 0.5 + 0.2 * (1 - found[0].value / SATURATED_JACOBIAN)
        yield ExamFinding(text, weight, ("saturation.jacobian", "saturation.max_weight"), head_names(found))


def massive_activations(model: ModelReadings) -> Iterator[ExamFinding]:
    """Where single tokens are far larger than the others, with the numbers of the depth where they are largest."""
    norms, numbers = (model.curves(f"rank.{name}") for name in ("largest_norm", "outliers"))
    found: list[tuple[float, Kind, int]] = [
        (ratio, kind, depth)
        for kind, curve in norms.items()
        for depth, ratio in curve.items()
        if numbers.get(kind, {}).get(depth, 0.0) >= COMMON_OUTLIERS
    ]
    if not found:
        return
    ratio, kind, depth = max(found)
    of_stack = runs(other for _, stack, other in found if stack == kind)
    first, last = next((first, last) for first, last in of_stack if first <= depth <= last)
    more = len(found) - (last - first + 1)

    def share(of: str) -> float:
        return model.curves(f"rank.outliers_{of}").get(kind, {}).get(depth, 0.0)

    which, them = "single tokens", "them"
    if max(share("first"), share("delimiter")) >= 0.5:
        which, them = f"{'the first' if share('first') >= 0.5 else 'a special'} token", "it"
    what = "massive activations" if 0 < share("channels") <= MASSIVE_CHANNELS else "a far larger norm than the others"
    text = f"{which} {'has' if them == 'it' else 'have'} {what} {place_after(first, last, model.stack(kind))}"
    text += f" and at {counted(more, 'more depth')}" * (more > 0)
    text += f": keep {them} in sparse attention and quantise with care; rank and cosine leave {them} out "
    text += f"(up to {format_number(ratio)} times the median norm)"
    yield ExamFinding(text, 0.6, ("rank.outliers", "rank.largest_norm"))


def _fixed_role(model: ModelReadings, head: HeadValue) -> str:
    """always attends to the previous token, of a head with such a role; else nothing."""
    role = model.labels("roles.label").get(head.id, "")
    return f"always {ROLE_SENTENCES[role]}" if role in POSITION_ROLES and role in ROLE_SENTENCES else ""


def rank_collapse(model: ModelReadings) -> Iterator[ExamFinding]:
    """Whether tokens become alike, by cosine and by the least residual at any depth; no collapse only if both agree.

    Outlying tokens, which decide these numbers alone, are left out.
    """
    alike, falls, kept = list(_alike(model)), [], []
    reading = without_outliers(model.readings, "rank.residual")
    for kind, curve in model.curves(reading).items():
        if len(curve) < 2 or curve[min(curve)] <= 0:
            continue
        lowest = min(curve, key=lambda depth: curve[depth])
        left = curve[lowest] / curve[min(curve)]
        if left < RESIDUAL_DROP:
            falls.append((left, kind, lowest))
        else:
            kept.append((curve[lowest], kind, lowest))
    yield from alike
    if falls:
        yield _falling(model, reading, sorted(falls))
    elif kept and min(kept)[0] >= MIN_RESIDUAL_SHARE and not alike:
        least, kind, lowest = min(kept)
        share, where = format_number(least), f"{model.stack(kind)}depth {lowest}"
        text = "no rank collapse: tokens stay apart at every depth, so nothing needs to change "
        text += f"(the smallest part of the stream in which they differ is {share}, at {where})"
        yield ExamFinding(text, 0.35, (reading,))


def _alike(model: ModelReadings) -> Iterator[ExamFinding]:
    places, most, reading = [], 0.0, without_outliers(model.readings, "rank.cosine")
    for kind, curve in model.curves(reading).items():
        for first, last in runs(depth for depth, value in curve.items() if value >= MEAN_COSINE_ALIKE):
            places.append(place_after(first, last, model.stack(kind)))
            most = max(most, *(curve[depth] for depth in range(first, last + 1)))
    if places:
        text = f"tokens are nearly the same {joined_with_and(places)}: attention can hardly distinguish them there, "
        up_to = " up to" * (len(places) > 1)
        text += f"check skip connections and norms (mean cosine{up_to} {format_number(most)})"
        weight = 0.8 + 0.2 * min(1.0, (most - MEAN_COSINE_ALIKE) / (1 - MEAN_COSINE_ALIKE))
        yield ExamFinding(text, weight, (reading,), command=BARE_COMMAND)


def _falling(model: ModelReadings, reading: str, falls: list[tuple[float, Kind, int]]) -> ExamFinding:
    """All stacks where tokens become alike, with the numbers of the one where they do most."""
    _, kind, lowest = falls[0]
    curve = model.curves(reading)[kind]
    first, last = min(curve), max(curve)
    before, least, after = curve[first], curve[lowest], curve[last]
    where = model.in_stacks(kind for _, kind, _ in falls)
    text = f"tokens become alike with depth{where}: later layers can hardly distinguish them, check skip connections "
    text += f"and norms ({format_number(before)} of the stream differs at depth {first}, "
    text += f"{format_number(least)} at {model.stack(kind) if len(falls) > 1 else ''}depth {lowest}"
    text += f", {format_number(after)} at depth {last})" if after > least else ")"
    return ExamFinding(text, 0.9 - 0.2 * min(1.0, after / before), (reading,), command=BARE_COMMAND)


def path_lengths(model: ModelReadings) -> Iterator[ExamFinding]:
    """How many attention layers the output passes; all stacks in one finding."""
    carried: list[tuple[float, str]] = []
    against: list[tuple[float, str]] = []
    for kind, share in model.curves("paths.share").items():
        if len(share) < 2:
            continue
        longest = max(share)
        least = min(share, key=lambda length: share[length])
        up_to = {n: sum(share[m] for m in share if m <= n) for n in sorted(share)}
        enough = next((n for n, part in up_to.items() if part >= MOST_ATTENTION_SHARE), longest)
        if share[least] < -OPPOSING_PATH_SHARE:
            part = f"{percent_of(-share[least])} of the output{model.in_stacks([kind])}"
            against.append((-share[least], f"those through {counted(least, 'attention layer')} subtract {part}"))
        else:
            part = f"{percent_of(up_to[enough])} through at most {enough} of {longest}"
            carried.append((enough / longest, f"{model.stack(kind)}{part}"))
    if against:
        text = "some paths work against the others: measure ablation to see which heads can be removed "
        text += f"({'; '.join(text for _, text in against)})"
        weight = 0.45 + 0.1 * min(1.0, max(against)[0])
        yield ExamFinding(text, weight, ("paths.share",), command=ABLATION_COMMAND)
    if carried:
        few = "most of the output passes few attention layers: they hardly build on one another, so fewer may be enough"
        many = "much of the output passes many attention layers: they build on one another, so keep all of them"
        parts = ", ".join(part for _, part in carried)
        text = f"{few if max(carried)[0] <= FEW_LAYERS_SHARE else many} ({parts})"
        yield ExamFinding(text, 0.3 + 0.3 * (1 - min(carried)[0]), ("paths.share",))


def diameter_bounds(model: ModelReadings) -> Iterator[ExamFinding]:
    curves = model.curves("bounds.ratio")
    ratios = [(ratio, model.stack(kind), layer) for kind, curve in curves.items() for layer, ratio in curve.items()]
    if ratios:
        ratio, stack, layer = min(ratios)
        where = f"{stack}layer {layer}"
        tight = f"the weights of {where} limit how far apart tokens stay: only larger ones would allow more "
        tight += f"(the diameter bound is {format_number(ratio)} times the measured diameter)"
        loose = "the diameter bound is too loose to predict how far apart tokens stay: use the measured diameter "
        loose += f"(the bound is {format_number(ratio)} times that in {where}, and more in others)"
        is_tight = ratio < LOOSE_BOUND_FACTOR
        yield ExamFinding(tight if is_tight else loose, 0.5 if is_tight else 0.3, ("bounds.ratio",))
