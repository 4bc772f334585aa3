"""The roles of each head: at most two of what it attends to outside the sinks, and where it rests.

A candidate of score s and baseline c gains (s - c) / (1 - c): 0 is chance and 1 is all attention. It is significant if
the sentences show that its gain is above g = 0.2 (0.1 for syntax, whose baseline is stronger and whose score is an
accuracy). The label is the significant candidate with the largest gain, the second role the next one. Of equal gains
the candidate listed first wins; offsets are listed first. Without a significant candidate the label is `none`. The same
test says whether a head rests on the first token or on delimiters, from its whole attention. Scores outside the sinks
are shares of what a sink leaves, so they count only for heads that leave some: MIN_REST_SHARE of the attention, or of
its effect.

Where probes were run on a causal model, offsets, repeated tokens and induction are decided by them: on random
tokens, neither content nor syntax can be mistaken for them. A head has such a role if the probe finds PROBE_ATTENTION
of its whole attention there, and the interval is above chance.

A label is wrong if the gain over all sentences of this sort is g or less. The probability that a model gets any wrong
label from its text is at most 5 % (family-wise error, Bonferroni): with m pairs of a head and a candidate in the model,
each is tested at level 0.05 / m by Student's one-sided t-test of the mean score against the least score c + g (1 - c).
The sentences are the sample, and their mean scores are assumed to be normally distributed.

One sentence with exactly the least score is added to the n sentences of each test. In few sentences the scores may
agree by accident, and a spread of 0 would then look like certainty; with this sentence the t statistic is at most n,
with n degrees of freedom. So 2 sentences never give a label, 6 can if m = 60, and 9 if m = 2,000.

Heads with random weights can have a gain above g, for instance a head with much attention to the first token in every
sentence. Their labels are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import t as student
from torch import Tensor

from attnworks.core.places import Kind
from attnworks.exam.probes.roles import ROLES_WITH_A_PROBE, DecidedRoles, probes_decide, roles_by_probe
from attnworks.exam.reading import NO_ROLE, Reading, Readings, offset_role

MIN_GAIN = 0.2
MIN_SYNTACTIC_GAIN = 0.1
MIN_REST_SHARE = 0.05
"""The least mean share of attention, or of its effect, outside the sinks of a head with a role there."""
FAMILY_WISE_ERROR = 0.05
"""The largest probability that a model gets any wrong label."""
MIN_LABEL_SENTENCES = 3
"""Fewer sentences give no labels."""
RELIABLE_LABEL_SENTENCES = 30
"""Labels from fewer sentences are called unreliable. A score with a standard deviation of 0.25 over sentences has a
95 % interval of +-0.09 with 30 of them, less than half of the least gain; with 8 it is +-0.21, as large as it."""

CHANCE_ROLE_READINGS = {"rare": "roles.rare", "duplicate": "roles.duplicate", "induction": "roles.induction"}
ALIGNMENT_READINGS = ("sides.aligned", "sides.gold")
SINK_READINGS = {"first": "sinks.first", "delimiter": "sinks.delimiter"}


class Labels(NamedTuple):
    """One entry per layer; score and baseline are NaN where the label is `none`."""

    label: tuple[tuple[str, ...], ...]
    score: tuple[Float[Tensor, " h"], ...]
    baseline: tuple[Float[Tensor, " h"], ...]
    second: tuple[tuple[str, ...], ...]
    sink: tuple[tuple[str, ...], ...]


class Candidates(NamedTuple):
    """Roles of every head of a layer: mean and standard deviation of their scores over sentences.

    allowed    heads that may have these roles; None for all
    """

    names: tuple[str, ...]
    score: Float[Tensor, "h c"]
    spread: Float[Tensor, "h c"]
    sentences: Int[Tensor, "h c"]
    baseline: Float[Tensor, "h c"]
    min_gain: float = MIN_GAIN
    allowed: Bool[Tensor, " h"] | None = None


class ChosenRoles(NamedTuple):
    """The role of each head with the largest gain, its score and baseline, and the role with the next largest gain."""

    label: tuple[str, ...]
    score: Float[Tensor, " h"]
    baseline: Float[Tensor, " h"]
    second: tuple[str, ...]


def best_fixed_offset(shares: Reading) -> tuple[Tensor, ...]:
    """max_o of the share of tokens whose syntactic head is at offset o, for each layer; NaN without heads."""
    return tuple(_tensor(row).amax(-1) for row in shares.value)


def label_heads(readings: Readings, syntactic_baseline: Mapping[Kind, tuple[Tensor, ...]]) -> dict[Kind, Labels]:
    """The labels of all heads of a model, from the folded readings of `roles`, `sinks` and `probes`."""
    roles: dict[Kind, list[list[Candidates]]] = {}
    sinks: dict[Kind, list[list[Candidates]]] = {}
    for found in readings.of("roles.offset"):
        kind, layers = found.kind, range(len(found.value))
        bases = syntactic_baseline.get(kind)
        roles[kind] = [_outside_sinks(readings, kind, layer, bases) for layer in layers]
        sinks[kind] = [_of_sinks(readings, kind, layer) for layer in layers]
    groups = [group for stacks in (roles, sinks) for layers in stacks.values() for some in layers for group in some]
    level = FAMILY_WISE_ERROR / max(1, sum(int(_tested(group).sum()) for group in groups))
    labels = {}
    for kind, layers in roles.items():
        probed = probes_decide(readings, kind)
        chosen = [
            choose_roles(
                [*(decide(group, level) for group in some), *(roles_by_probe(readings, kind, layer) if probed else ())]
            )
            for layer, some in enumerate(layers)
        ]
        rests = [choose_roles([decide(group, level) for group in some]).label for some in sinks[kind]]
        labels[kind] = Labels(
            label=tuple(choice.label for choice in chosen),
            score=tuple(choice.score for choice in chosen),
            baseline=tuple(choice.baseline for choice in chosen),
            second=tuple(choice.second for choice in chosen),
            sink=tuple(rest or (NO_ROLE,) * len(choice.label) for rest, choice in zip(rests, chosen, strict=True)),
        )
    return labels


def _outside_sinks(
    readings: Readings, kind: Kind, layer: int, syntactic_baseline: tuple[Tensor, ...] | None
) -> list[Candidates]:
    """The candidates of one layer that the text decides."""
    found, probed = [], probes_decide(readings, kind)
    if not probed:
        found.append(_offsets(readings, kind, layer))
    for name, reading in CHANCE_ROLE_READINGS.items():
        if f"{reading}@{kind}" in readings and not (probed and name in ROLES_WITH_A_PROBE):
            chance = _tensor(readings[f"{reading}_chance@{kind}"].value[layer])
            found.append(_candidate(name, readings[f"{reading}@{kind}"], layer, chance))
    found += alignment_candidates(readings, kind, layer)
    if syntactic_baseline is not None:
        accuracy, baseline = readings[f"roles.syntactic@{kind}"], syntactic_baseline[layer]
        found.append(_candidate("syntactic", accuracy, layer, baseline, MIN_SYNTACTIC_GAIN))
    allowed = _leaves_some(readings, kind, layer)
    return [group._replace(allowed=allowed) for group in found]


def alignment_candidates(readings: Readings, kind: Kind, layer: int) -> list[Candidates]:
    """The role `aligns`, by one partner of each token in the other text, or by the known alignment; nothing without
    sequences of two texts."""
    names = [name for name in ALIGNMENT_READINGS if f"{name}@{kind}" in readings]
    return [
        _candidate("aligns", readings[f"{name}@{kind}"], layer, _tensor(readings[f"{name}_chance@{kind}"].value[layer]))
        for name in names
    ]


def _leaves_some(readings: Readings, kind: Kind, layer: int) -> Bool[Tensor, " h"] | None:
    """Heads that leave MIN_REST_SHARE of their attention, or of its effect, to keys outside the sinks."""
    names = [name for name in (f"sinks.rest@{kind}", f"sinks.rest_effect@{kind}") if name in readings]
    shares = [_tensor(readings[name].value[layer]).nan_to_num(0.0) for name in names]
    return torch.stack(shares).amax(0) >= MIN_REST_SHARE if shares else None


def _of_sinks(readings: Readings, kind: Kind, layer: int) -> list[Candidates]:
    found = []
    for name, reading in SINK_READINGS.items():
        if f"{reading}@{kind}" in readings:
            chance = _tensor(readings[f"{reading}_chance@{kind}"].value[layer])
            found.append(_candidate(name, readings[f"{reading}@{kind}"], layer, chance))
    return found


def decide(group: Candidates, level: float) -> DecidedRoles:
    """Which candidates are significant at this level."""
    return DecidedRoles(group.names, group.score, group.baseline, _significant_gain(group, level))


def choose_roles(groups: Sequence[DecidedRoles]) -> ChosenRoles:
    """For each head the two roles with the largest gains; `none` where it has fewer."""
    if not groups:
        return ChosenRoles((), torch.empty(0), torch.empty(0), ())
    names = [name for group in groups for name in group.names]
    score, baseline, gain = (torch.cat(part, -1) for part in list(zip(*groups, strict=True))[1:])
    first = gain.argmax(-1, keepdim=True)
    distinct = torch.tensor([names.index(name) for name in names])  # equal numbers for equal names
    next_gain = gain.masked_fill(distinct == distinct[first], -torch.inf)
    none = gain.gather(-1, first).isneginf()
    score, baseline = (
        values.gather(-1, first).masked_fill(none, torch.nan).squeeze(-1) for values in (score, baseline)
    )
    second = _names(names, next_gain, next_gain.argmax(-1, keepdim=True))
    return ChosenRoles(_names(names, gain, first), score, baseline, second)


def _names(names: Sequence[str], gain: Float[Tensor, "h c"], which: Int[Tensor, "h 1"]) -> tuple[str, ...]:
    none = gain.gather(-1, which).isneginf()
    return tuple(NO_ROLE if no else names[int(at)] for no, at in torch.cat([none, which], -1).tolist())


def _significant_gain(group: Candidates, level: float) -> Tensor:
    """The gain, or -inf where it is not significant at this level. Missing numbers (NaN) never are."""
    gain = (group.score - group.baseline) / (1 - group.baseline)
    exceeds = _t_statistic(group) > _t_quantile(group.sentences, level)
    has = (gain > group.min_gain) & _tested(group) & exceeds
    if group.allowed is not None:
        has &= group.allowed.unsqueeze(-1)
    return torch.where(has, gain, -torch.inf)


def _tested(group: Candidates) -> Tensor:
    """Which candidates have a score and a spread."""
    return (group.sentences >= 2) & group.baseline.isfinite()


def _t_statistic(group: Candidates) -> Tensor:
    """Of the mean score against the least score, with one more sentence that has exactly the least score.

    With d = score - least, this sentence makes the mean of d n d / (n + 1) and the sum of squares about it
    (n - 1) spread^2 + n d^2 / (n + 1), with n degrees of freedom.
    """
    n = group.sentences.to(group.score.dtype)
    above = group.score - (group.baseline + group.min_gain * (1 - group.baseline))
    squares = (n - 1) * group.spread.square() + n * above.square() / (n + 1)
    return n * above / (n + 1) / (squares / (n * (n + 1))).sqrt()


def _t_quantile(degrees: Int[Tensor, "h c"], level: float) -> Float[Tensor, "h c"]:
    distinct, where = degrees.unique(return_inverse=True)
    return torch.as_tensor(student.isf(level, distinct.clamp_min(1).numpy()), dtype=torch.float64)[where]


def _offsets(readings: Readings, kind: Kind, layer: int) -> Candidates:
    found, chance = readings[f"roles.offset@{kind}"], readings[f"roles.offset_chance@{kind}"]
    names = tuple(offset_role(int(offset), kind) for offset in found.ticks["offset"])
    score, spread, count = _folded(found, layer)
    return Candidates(names, score, spread, count, _tensor(chance.value[layer]).expand_as(score))


def _candidate(name: str, found: Reading, layer: int, baseline: Tensor, min_gain: float = MIN_GAIN) -> Candidates:
    score, spread, count = (numbers.unsqueeze(-1) for numbers in _folded(found, layer))
    return Candidates((name,), score, spread, count, baseline.to(score.dtype).unsqueeze(-1).expand_as(score), min_gain)


def _folded(found: Reading, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    assert found.spread is not None and found.count is not None
    return _tensor(found.value[layer]), found.spread[layer], found.count[layer]


def _tensor(row: Tensor | tuple[str, ...]) -> Tensor:
    assert isinstance(row, Tensor)
    return row
