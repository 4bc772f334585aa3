"""What stands out in the readings, said in plain words.

Each finder answers one question about the whole model, so that no two findings contradict each other. A finding says
what it means and what to do about it, then the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from attnworks.exam.examination import Finding
from attnworks.exam.finding_words import (
    ModelReadings,
    counted_heads,
    head_names,
    its_or_their,
    joined_with_and,
    verb_for,
    whole_percent,
)
from attnworks.exam.head_findings import (
    ablated_heads,
    faint_heads,
    first_token_heads,
    head_roles,
    narrow_heads,
    redundant_heads,
    structured_heads,
)
from attnworks.exam.reading import Readings, number
from attnworks.traces.layer import Kind

ALIKE = 0.9
"""Tokens are alike where their mean cosine is above this."""
APART = 0.5
"""The residual falls if less than this part of it is left at some depth."""
KEPT = 0.1
"""There is no collapse only if tokens keep this part of the stream apart at every depth."""
SATURATED, ONE_KEY = 0.05, 0.9
"""Mean Jacobian norm below, and mean largest weight above, which a head is saturated."""
MOST = 0.8
AGAINST = 0.01
"""Paths work against the others if they take more than this part of the output away."""
FEW_LAYERS = 0.5
"""Paths through at most this part of the attention layers are short."""
LOOSE = 10.0


def find(readings: Readings) -> tuple[Finding, ...]:
    """All findings, group after group; in a group the largest effect first.

    Readings that are absent, or hold no number, are passed over.
    """
    model = ModelReadings(readings)
    found: list[Finding] = []
    for group, finders in FINDERS.items():
        of_group = [replace(finding, group=group) for finder in finders for finding in finder(model)]
        found += sorted(of_group, key=lambda finding: -finding.weight)
    return tuple(found)


# Health of gradients and the residual stream --------------------------------------------------------------------------


def _saturated(model: ModelReadings) -> Iterator[Finding]:
    """A small Jacobian alone could also mean attention spread over many keys: the largest weight tells them apart."""
    top = model.at("saturation.max_weight")
    flat = [head for head in model.heads("saturation.jacobian") if head.value < SATURATED]
    found = sorted((head for head in flat if top.get(head.at, 0.0) > ONE_KEY), key=lambda head: head.value)
    if found:
        most = f"{model.name_of(found[0])} most, " if len(found) > 1 else ""
        text = f"{counted_heads(model, found)} {verb_for('is', found)} saturated: each query attends to almost one "
        text += f"key, so little gradient reaches {its_or_their(found)} scores "
        text += f"({most}mean Jacobian norm {number(found[0].value)})"
        weight = 0.5 + 0.2 * (1 - found[0].value / SATURATED)
        yield Finding(text, weight, ("saturation.jacobian", "saturation.max_weight"), head_names(found))


def _collapse(model: ModelReadings) -> Iterator[Finding]:
    """Whether tokens become alike, by cosine and by residual; that there is no collapse only if both agree.

    The residual is judged by the depth where least is left, wherever it lies.
    """
    alike, falls, kept = list(_alike(model)), [], []
    for kind, curve in model.curves("rank.residual").items():
        if len(curve) < 2 or curve[min(curve)] <= 0:
            continue
        lowest = min(curve, key=lambda depth: curve[depth])
        left = curve[lowest] / curve[min(curve)]
        if left < APART:
            falls.append((left, kind, lowest))
        else:
            kept.append((curve[lowest], kind, lowest))
    yield from alike
    if falls:
        yield _falling(model, sorted(falls))
    elif kept and min(kept)[0] >= KEPT and not alike:
        least, kind, lowest = min(kept)
        text = "no rank collapse: tokens stay apart at every depth "
        text += f"(they differ in {number(least)} of the stream or more, least at {model.stack(kind)}depth {lowest})"
        yield Finding(text, 0.35, ("rank.residual",))


def _alike(model: ModelReadings) -> Iterator[Finding]:
    places, most = [], 0.0
    for kind, curve in model.curves("rank.cosine").items():
        for first, last in _runs(depth for depth, value in curve.items() if value >= ALIKE):
            places.append(_after(first, last, model.stack(kind)))
            most = max(most, *(curve[depth] for depth in range(first, last + 1)))
    if places:
        text = f"tokens are nearly the same {joined_with_and(places)}: attention can hardly tell them apart there "
        text += f"(mean cosine{' up to' if len(places) > 1 else ''} {number(most)})"
        yield Finding(text, 0.8 + 0.2 * min(1.0, (most - ALIKE) / (1 - ALIKE)), ("rank.cosine",))


def _falling(model: ModelReadings, falls: list[tuple[float, Kind, int]]) -> Finding:
    """About all stacks where tokens come together, with the numbers of the one where they do most."""
    _, kind, lowest = falls[0]
    curve = model.curves("rank.residual")[kind]
    first, last = min(curve), max(curve)
    before, least, after = curve[first], curve[lowest], curve[last]
    where = model.in_stacks(kind for _, kind, _ in falls)
    text = f"tokens become alike with depth{where}: later layers can hardly tell them apart, check skip connections "
    text += f"and norms ({number(before)} of the stream differs at depth {first}, "
    text += f"{number(least)} at {model.stack(kind) if len(falls) > 1 else ''}depth {lowest}"
    text += f", {number(after)} at depth {last})" if after > least else ")"
    return Finding(text, 0.9 - 0.2 * min(1.0, after / before), ("rank.residual",))


def _paths(model: ModelReadings) -> Iterator[Finding]:
    """How many attention layers the output passes; of every stack in one finding."""
    carried: list[tuple[float, str]] = []
    against: list[tuple[float, str]] = []
    for kind, share in model.curves("paths.share").items():
        if len(share) < 2:
            continue
        longest = max(share)
        least = min(share, key=lambda length: share[length])
        enough = next((n for n in sorted(share) if sum(share[m] for m in share if m <= n) >= MOST), longest)
        if share[least] < -AGAINST:
            lost = f"{whole_percent(-share[least])} of the output{model.in_stacks([kind])}"
            against.append((-share[least], f"those through {_layers(least)} take away {lost}"))
        else:
            part = whole_percent(sum(share[length] for length in share if length <= enough))
            carried.append((enough / longest, f"{model.stack(kind)}{part} through at most {enough} of {longest}"))
    if against:
        text = f"some paths work against the others: {'; '.join(text for _, text in against)}"
        yield Finding(text, 0.45 + 0.1 * min(1.0, max(against)[0]), ("paths.share",))
    if carried:
        most = max(carried)[0]
        few = "most of the output passes few attention layers: they hardly build on one another"
        many = "much of the output passes many attention layers: they build on one another"
        text = f"{few if most <= FEW_LAYERS else many} ({', '.join(text for _, text in carried)})"
        yield Finding(text, 0.3 + 0.3 * (1 - min(carried)[0]), ("paths.share",))


def _bounds(model: ModelReadings) -> Iterator[Finding]:
    curves = model.curves("bounds.ratio")
    ratios = [(ratio, model.stack(kind), layer) for kind, curve in curves.items() for layer, ratio in curve.items()]
    if ratios:
        ratio, stack, layer = min(ratios)
        where = f"{stack}layer {layer}"
        if ratio < LOOSE:
            text = f"the diameter bound nearly tells how far apart tokens stay in {where} "
            text += f"({number(ratio)} times what was measured)"
        else:
            text = "the diameter bound is too loose to tell how far apart tokens stay "
            text += f"({number(ratio)} times what was measured in {where}, more in others)"
        yield Finding(text, 0.5 if ratio < LOOSE else 0.3, ("bounds.ratio",))


FINDERS: dict[str, tuple[Callable[[ModelReadings], Iterable[Finding]], ...]] = {
    "What heads do": (head_roles, first_token_heads, structured_heads),
    "What can be removed or is missing": (ablated_heads, faint_heads, redundant_heads, narrow_heads),
    "Health of gradients and the residual stream": (_saturated, _collapse, _paths, _bounds),
}
"""Group -> its finders, in the order in which groups are shown."""


def _runs(depths: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of every run of consecutive numbers."""
    first = last = None
    for depth in depths:
        if last is None or depth != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = depth
        last = depth
    if first is not None and last is not None:
        yield first, last


def _after(first: int, last: int, stack: str) -> str:
    """Depth d is what block d - 1 leaves; depth 0 are the embeddings."""
    if last == 0:
        return f"at the {stack}embeddings"
    if first == 0:
        return f"from the {stack}embeddings to layer {last - 1}"
    return f"after {stack}layer {first - 1}" if first == last else f"after {stack}layers {first - 1}-{last - 1}"


def _layers(layers: int) -> str:
    return f"{layers} attention layer{'s' if layers != 1 else ''}"
