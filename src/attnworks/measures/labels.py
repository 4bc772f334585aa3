"""Heads -> one label each: the role that a head plays most above its baseline, if it plays any.

A candidate of score s and baseline c gains (s - c) / (1 - c): 0 is chance and 1 is all attention. It stands if
  - its gain reaches 0.2 (0.1 for syntax, whose baseline is stronger and whose score is an accuracy),
  - the lower end of the confidence interval of s is above c, and
  - at least three sentences counted.
The label is the candidate that stands with the largest gain; of equals, the one that positions explain. Where none
stands, a head whose exp(entropy) / visible keys is surely above 0.9 is `uniform`, and any other `none`. A head that
points at something rare averages everything elsewhere, so that `uniform` comes last.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.measures.reading import Reading, Readings
from attnworks.traces.layer import Kind

LEAST_GAIN = 0.2
LEAST_SYNTACTIC_GAIN = 0.1
NEARLY_EVEN = 0.9
FEWEST_SENTENCES = 3
RELIABLE_SENTENCES = 30
"""Labels from fewer sentences are called unreliable. A score with a standard deviation of 0.25 over sentences has a
95 % interval of +-0.09 with 30 of them, less than half of the least gain; with 8 it is +-0.21, as large as that."""

NEAR = {-1: "previous", 0: "self", 1: "next"}
AGAINST_CHANCE = {
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
    """Roles of every head of a layer, with the lower ends of the intervals of their scores."""

    names: tuple[str, ...]
    score: Float[Tensor, "h c"]
    low: Float[Tensor, "h c"]
    sentences: Int[Tensor, "h c"]
    baseline: Float[Tensor, "h c"]
    least_gain: float = LEAST_GAIN


def best_fixed_offset(shares: Reading) -> tuple[Tensor, ...]:
    """max_o of the share of tokens whose syntactic head is at offset o, for each layer; NaN without heads."""
    return tuple(_tensor(row).amax(-1) for row in shares.value)


def label_heads(readings: Readings, kind: Kind, syntactic_baseline: tuple[Tensor, ...] | None) -> Labels:
    """The labels of all heads of this kind of attention, from the folded readings of `roles` and `sinks`."""
    layers = []
    for layer in range(len(readings[f"roles.offset@{kind}"].value)):
        candidates = [_offsets(readings, kind, layer)]
        for name, reading in AGAINST_CHANCE.items():
            if f"{reading}@{kind}" in readings:
                chance = _tensor(readings[f"{reading}_chance@{kind}"].value[layer])
                candidates.append(_candidate(name, readings[f"{reading}@{kind}"], layer, chance))
        if syntactic_baseline is not None:
            accuracy, baseline = readings[f"roles.syntactic@{kind}"], syntactic_baseline[layer]
            candidates.append(_candidate("syntactic", accuracy, layer, baseline, LEAST_SYNTACTIC_GAIN))
        even = _candidate("uniform", readings[f"roles.uniform@{kind}"], layer, torch.tensor(NEARLY_EVEN), 0.0)
        layers.append(choose(candidates, even))
    return Labels(*zip(*layers, strict=True))


def choose(candidates: list[Candidates], otherwise: Candidates) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """For each head the name, score and baseline of the candidate that stands with the largest gain."""
    groups = [*candidates, otherwise]
    names = [name for group in groups for name in group.names]
    score = torch.cat([group.score for group in groups], -1)
    baseline = torch.cat([group.baseline for group in groups], -1)
    gain = torch.cat([*map(_standing_gain, candidates), _standing_gain(otherwise).clamp_max(0.0)], -1)
    which = gain.argmax(-1, keepdim=True)
    none = gain.gather(-1, which).isneginf()
    labels = tuple(
        "none" if no else names[at] for no, at in zip(none[:, 0].tolist(), which[:, 0].tolist(), strict=True)
    )
    score = score.gather(-1, which).masked_fill(none, torch.nan)
    baseline = baseline.gather(-1, which).masked_fill(none, torch.nan)
    return labels, score.squeeze(-1), baseline.squeeze(-1)


def _standing_gain(group: Candidates) -> Tensor:
    """The gain, or -inf where a candidate does not stand; numbers that are not there (NaN) never do."""
    gain = (group.score - group.baseline) / (1 - group.baseline)
    stands = (gain >= group.least_gain) & (group.low > group.baseline) & (group.sentences >= FEWEST_SENTENCES)
    return torch.where(stands, gain, -torch.inf)


def _offsets(readings: Readings, kind: Kind, layer: int) -> Candidates:
    found, chance = readings[f"roles.offset@{kind}"], readings[f"roles.offset_chance@{kind}"]
    names = tuple(_offset_name(int(offset), kind) for offset in found.ticks["offset"])
    return Candidates(
        names, *_certain(found, layer), _tensor(chance.value[layer]).expand_as(_tensor(found.value[layer]))
    )


def _candidate(name: str, found: Reading, layer: int, baseline: Tensor, least_gain: float = LEAST_GAIN) -> Candidates:
    score, low, count = (numbers.unsqueeze(-1) for numbers in _certain(found, layer))
    return Candidates((name,), score, low, count, baseline.to(score.dtype).expand_as(score), least_gain)


def _certain(found: Reading, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    assert found.interval is not None and found.count is not None
    return _tensor(found.value[layer]), found.interval[0][layer], found.count[layer]


def _offset_name(offset: int, kind: Kind) -> str:
    """In cross-attention, positions of two texts are compared, and none is previous to another."""
    return f"offset {offset}" if kind == "cross" else NEAR.get(offset, f"offset {offset}")


def _tensor(row: Tensor | tuple[str, ...]) -> Tensor:
    assert isinstance(row, Tensor)
    return row
