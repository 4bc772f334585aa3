"""The label of each head: the role that it plays most above its baseline, or `none`.

A candidate of score s and baseline c gains (s - c) / (1 - c): 0 is chance and 1 is all attention. It is significant if
the sentences show that its gain is above g = 0.2 (0.1 for syntax, whose baseline is stronger and whose score is an
accuracy; 0 for `uniform`, whose baseline is 0.9). The label is the significant candidate with the largest gain; of
equals, the first, and offsets come first. `uniform` comes last, because a head that attends to something rare averages
all tokens elsewhere. Without a significant candidate the label is `none`.

A label is wrong if the gain over all sentences of this sort is g or less. The probability that a model gets any wrong
label is at most 5 % (family-wise error, Bonferroni): with m pairs of a head and a candidate in the model, each is
tested at level 0.05 / m by Student's one-sided t-test of the mean score against the least score c + g (1 - c). The
sentences are the sample, and their mean scores are assumed to be normally distributed.

One sentence with exactly the least score is added to the n sentences of each test. In few sentences the scores may
agree by accident, and a spread of 0 would then look like certainty; with this sentence the t statistic is at most n,
with n degrees of freedom. So 2 sentences never give a label, 6 can if m = 60, and 9 if m = 2,000.

Heads with random weights can have a gain above g, for instance a head with much attention to the first token in every
sentence. Their labels are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.stats import t as student
from torch import Tensor

from attnworks.core.places import Kind
from attnworks.exam.reading import NO_ROLE, Reading, Readings

MIN_GAIN = 0.2
MIN_SYNTACTIC_GAIN = 0.1
UNIFORM_BASELINE = 0.9
FAMILY_WISE_ERROR = 0.05
"""The largest probability that a model gets any wrong label."""
MIN_LABEL_SENTENCES = 3
"""Fewer sentences give no labels."""
RELIABLE_LABEL_SENTENCES = 30
"""Labels from fewer sentences are called unreliable. A score with a standard deviation of 0.25 over sentences has a
95 % interval of +-0.09 with 30 of them, less than half of the least gain; with 8 it is +-0.21, as large as it."""

NEAR_OFFSET_NAMES = {-1: "previous", 0: "self", 1: "next"}
CHANCE_ROLE_READINGS = {
    "first": "sinks.first",
    "delimiter": "sinks.delimiter",
    "rare": "roles.rare",
    "duplicate": "roles.duplicate",
    "induction": "roles.induction",
}


class Labels(NamedTuple):
    """One entry per layer; score and baseline are NaN where the label is `none`."""

    label: tuple[tuple[str, ...], ...]
    score: tuple[Float[Tensor, " h"], ...]
    baseline: tuple[Float[Tensor, " h"], ...]


class Candidates(NamedTuple):
    """Roles of every head of a layer: mean and standard deviation of their scores over sentences."""

    names: tuple[str, ...]
    score: Float[Tensor, "h c"]
    spread: Float[Tensor, "h c"]
    sentences: Int[Tensor, "h c"]
    baseline: Float[Tensor, "h c"]
    min_gain: float = MIN_GAIN


def best_fixed_offset(shares: Reading) -> tuple[Tensor, ...]:
    """max_o of the share of tokens whose syntactic head is at offset o, for each layer; NaN without heads."""
    return tuple(_tensor(row).amax(-1) for row in shares.value)


def label_heads(readings: Readings, syntactic_baseline: Mapping[Kind, tuple[Tensor, ...]]) -> dict[Kind, Labels]:
    """The labels of all heads of a model, from the folded readings of `roles` and `sinks`."""
    stacks: dict[Kind, list[list[Candidates]]] = {}
    for found in readings.of("roles.offset"):
        bases = syntactic_baseline.get(found.kind)
        stacks[found.kind] = [_candidates(readings, found.kind, layer, bases) for layer in range(len(found.value))]
    tests = sum(int(_tested(group).sum()) for layers in stacks.values() for groups in layers for group in groups)
    level = FAMILY_WISE_ERROR / max(tests, 1)
    return {
        kind: Labels(*zip(*(choose_label(groups, level) for groups in layers), strict=True))
        for kind, layers in stacks.items()
    }


def _candidates(
    readings: Readings, kind: Kind, layer: int, syntactic_baseline: tuple[Tensor, ...] | None
) -> list[Candidates]:
    """All candidates of one layer; `uniform` is the last."""
    candidates = [_offsets(readings, kind, layer)]
    for name, reading in CHANCE_ROLE_READINGS.items():
        if f"{reading}@{kind}" in readings:
            chance = _tensor(readings[f"{reading}_chance@{kind}"].value[layer])
            candidates.append(_candidate(name, readings[f"{reading}@{kind}"], layer, chance))
    if syntactic_baseline is not None:
        accuracy, baseline = readings[f"roles.syntactic@{kind}"], syntactic_baseline[layer]
        candidates.append(_candidate("syntactic", accuracy, layer, baseline, MIN_SYNTACTIC_GAIN))
    even = _candidate("uniform", readings[f"roles.uniform@{kind}"], layer, torch.tensor(UNIFORM_BASELINE), 0.0)
    return [*candidates, even]


def choose_label(groups: list[Candidates], level: float) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """For each head the name, score and baseline of the candidate, significant at this level, with the largest gain.

    The last group has a label only where no other is significant.
    """
    names = [name for group in groups for name in group.names]
    score = torch.cat([group.score for group in groups], -1)
    baseline = torch.cat([group.baseline for group in groups], -1)
    *gains, last = (_significant_gain(group, level) for group in groups)
    gain = torch.cat([*gains, last.clamp_max(0.0)], -1)
    which = gain.argmax(-1, keepdim=True)
    none = gain.gather(-1, which).isneginf()
    labels = tuple(NO_ROLE if no else names[at] for no, at in torch.cat([none, which], -1).tolist())
    score, baseline = (
        values.gather(-1, which).masked_fill(none, torch.nan).squeeze(-1) for values in (score, baseline)
    )
    return labels, score, baseline


def _significant_gain(group: Candidates, level: float) -> Tensor:
    """The gain, or -inf where it is not significant at this level. Missing numbers (NaN) never are."""
    gain = (group.score - group.baseline) / (1 - group.baseline)
    exceeds = _t_statistic(group) > _t_quantile(group.sentences, level)
    return torch.where((gain > group.min_gain) & _tested(group) & exceeds, gain, -torch.inf)


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
    names = tuple(_offset_name(int(offset), kind) for offset in found.ticks["offset"])
    score, spread, count = _folded(found, layer)
    return Candidates(names, score, spread, count, _tensor(chance.value[layer]).expand_as(score))


def _candidate(name: str, found: Reading, layer: int, baseline: Tensor, min_gain: float = MIN_GAIN) -> Candidates:
    score, spread, count = (numbers.unsqueeze(-1) for numbers in _folded(found, layer))
    return Candidates((name,), score, spread, count, baseline.to(score.dtype).expand_as(score), min_gain)


def _folded(found: Reading, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    assert found.spread is not None and found.count is not None
    return _tensor(found.value[layer]), found.spread[layer], found.count[layer]


def _offset_name(offset: int, kind: Kind) -> str:
    """Cross-attention compares positions of two texts, where no token is the previous one."""
    return f"offset {offset}" if kind == "cross" else NEAR_OFFSET_NAMES.get(offset, f"offset {offset}")


def _tensor(row: Tensor | tuple[str, ...]) -> Tensor:
    assert isinstance(row, Tensor)
    return row
