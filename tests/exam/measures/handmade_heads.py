"""Heads whose role is known because it was put in by hand, on the embedded corpus, and a fold as an examiner's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import Measure, MeasureContext, ReadingSpec, Sample
from attnworks.exam.reading import Reading, Readings
from attnworks.exam.statistics import Moments
from attnworks.text import grammar
from attnworks.text.passages import Passage
from attnworks.text.tokens import TokenRow, Tokens, collate, count_rarity
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import rows_of

PAD_ID, FIRST, TAG, LAST = range(4)
POINTED, RESTING, TURNED_AWAY = 0.75, 0.6, 0.99
"""What a head gives to the keys that it points at, to a sink where it has a role too, and where it has none."""
SINKS = ("first", "delimiter")

Form = Literal["bert", "source", "target", "tagged"]
FRAMES: dict[Form, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "bert": ((FIRST,), (LAST,)),
    "source": ((), (LAST,)),
    "target": ((FIRST,), ()),
    "tagged": ((FIRST, TAG), ()),
}
"""Special tokens before and after the words."""


@cache
def drawn_pairs(number: int, seed: int) -> list[Passage]:
    return grammar.pairs(number, seed, "test")


def written_rows(seed: int, number: int, form: Form, side: Literal["source", "target"] = "source") -> list[TokenRow]:
    """Words as tokens, with the heads that the grammar knows."""
    before, after = FRAMES[form]
    ids: dict[str, int] = {}
    rows = []
    for pair in drawn_pairs(number, seed):
        text = pair.source if side == "source" else pair.target
        assert text is not None and text.words is not None and text.governors is not None
        words, heads = text.words, text.governors
        shifted = [head + len(before) if head >= 0 else -1 for head in heads]
        own = [ids.setdefault(word, 11 + len(ids)) for word in words]
        special = [True] * len(before) + [False] * len(words) + [True] * len(after)
        none_before, none_after = [-1] * len(before), [-1] * len(after)
        rows.append(
            TokenRow(
                (*before, *own, *after),
                tuple(special),
                (*none_before, *range(len(words)), *none_after),
                (*none_before, *shifted, *none_after),
            )
        )
    return rows


def padded_batches(rows: Sequence[TokenRow], size: int) -> list[Tokens]:
    rarity = count_rarity(rows)
    return [collate(rows[start : start + size], PAD_ID, rarity) for start in range(0, len(rows), size)]


def keys_behind(keys: TokenRow) -> list[int]:
    """The keys outside the sinks: all but the first token and special tokens."""
    return [j for j, special in enumerate(keys.special) if j > 0 and not special]


def shares_of(name: str) -> list[tuple[float, str]]:
    """The roles of a head, and how much of its attention each gets.

    first                  0.75
    first + offset -1      0.6, and 0.75 of what that leaves
    offset -1 + rare       0.375 each
    nothing but first      0.99
    """
    if name.startswith("nothing but "):
        return [(TURNED_AWAY, name.removeprefix("nothing but "))]
    roles = name.split(" + ")
    left = 1 - RESTING if len(roles) > 1 and roles[0] in SINKS else 1.0
    own = roles if left == 1.0 else roles[1:]
    return [(RESTING, roles[0])] * (left < 1) + [(POINTED * left / len(own), role) for role in own]


def pointed_keys(
    name: str, queries: TokenRow, keys: TokenRow, rarity: dict[int, float], i: int, causal: bool
) -> list[int]:
    """Which visible keys a head of this role looks at from query i."""
    same: list[int] = []
    if name in ("duplicate", "induction") and not queries.special[i]:
        same = [j for j, token in enumerate(keys.ids) if token == queries.ids[i] and j != i and not keys.special[j]]
    before = [j for j in same if j < i]
    if name.startswith("offset"):
        found = [i + int(name.split()[1])]
    elif name == "syntactic":
        found = [queries.governor[i]] if queries.governor is not None else []
    elif name == "rare":
        text = keys_behind(keys)
        found = [max(text, key=lambda j: (rarity[keys.ids[j]], -j))] if text else []
    elif name == "first":
        found = [0]
    elif name == "delimiter":
        found = [j for j, special in enumerate(keys.special) if special and j > 0]
    elif name == "duplicate":
        found = before if causal else same
    elif name == "induction":
        found = [j + 1 for j in before if j + 1 < i]
    else:
        found = []
    return [j for j in found if 0 <= j < len(keys) and (j <= i or not causal)]


def handmade_maps(
    names: Sequence[str],
    queries: Sequence[TokenRow],
    keys: Sequence[TokenRow],
    rarity: dict[int, float],
    causal: bool,
    noise: Literal["even", "random"],
    source: torch.Generator,
) -> list[Tensor]:
    """For each sentence P [h i j]: the shares of `shares_of` on the keys pointed at, and the rest spread.

    The share of a role without a key is spread evenly. A head "random s" has softmax of s times noise.
    """
    spreads = torch.tensor([float(name.split()[1]) if name.startswith("random") else 0.0 for name in names])
    maps = []
    for queries_row, keys_row in zip(queries, keys, strict=True):
        h, i, j = len(names), len(queries_row), len(keys_row)
        visible = torch.ones(i, j, dtype=torch.bool)
        visible = visible.tril() if causal else visible
        even = visible.double() / visible.sum(-1, keepdim=True)
        drawn = torch.rand(h, i, j, generator=source, dtype=torch.float64).log().neg() * visible
        drawn = drawn / drawn.sum(-1, keepdim=True)
        P = torch.zeros(h, i, j, dtype=torch.float64)
        for head, name in enumerate(names):
            shares = shares_of(name)
            P[head] = (1 - sum(share for share, _ in shares)) * (even if noise == "even" else drawn[head])
            for share, role in shares:
                for at in range(i):
                    pointed = pointed_keys(role, queries_row, keys_row, rarity, at, causal)
                    P[head, at] += share * even[at] if not pointed else 0.0
                    for key in pointed:
                        P[head, at, key] += share / len(pointed)
        scores = spreads[:, None, None] * torch.randn(h, i, j, generator=source, dtype=torch.float64)
        random = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        maps.append(torch.where(spreads[:, None, None] > 0, random, P))
    return maps


def handmade_traces(
    kind: Kind, form: Form, names: Sequence[str], seed: int, noise: Literal["even", "random"], number: int
) -> list[LayerTrace]:
    """Layers of up to five heads, the last one of the rest, on a number of sentences in three padded batches."""
    causal, size = kind == "decoder", -(-number // 3)
    keys = written_rows(seed, number, form)
    queries = written_rows(seed, number, "target", "target") if kind == "cross" else keys
    order = sorted(range(number), key=lambda row: (len(keys[row]), len(queries[row])))
    keys, queries = [keys[row] for row in order], [queries[row] for row in order]
    source = torch.Generator().manual_seed(seed)
    maps = handmade_maps(names, queries, keys, dict(count_rarity(keys)), causal, noise, source)
    key_batches = padded_batches(keys, size)
    query_batches = padded_batches(queries, size) if kind == "cross" else key_batches
    traces = []
    for batch, (Q, K) in enumerate(zip(query_batches, key_batches, strict=True)):
        P = batched(maps[batch * size : (batch + 1) * size], Q, K)
        for layer, heads in enumerate((slice(5), slice(5, None))[: 1 + (len(names) > 5)]):
            traces.append(trace_of(Slot(kind, layer), P[:, heads], Q, K, causal))
    return traces


def trace_of(
    slot: Slot,
    P: Tensor,
    queries: Tokens,
    keys: Tokens,
    causal: bool,
    V: Tensor | None = None,
    dense: Tensor | None = None,
) -> LayerTrace:
    """A layer that weighs as P says; its values are zero if they are not given."""
    b, h, i, j = P.shape
    Q, K = P.new_zeros(b, h, i, 1), P.new_zeros(b, h, j, 1)
    mask = Mask(real=keys.real, causal=causal, dense=dense)
    V = K if V is None else V
    Y = P.new_zeros(b, h, i, V.shape[-1])
    return LayerTrace(slot, Q, K, V, Y, mask, None, queries, keys, weigh=lambda: P)


def batched(maps: Sequence[Tensor], queries: Tokens, keys: Tokens) -> Tensor:
    """Maps of sentences as one padded tensor, with numbers at padding that must not be looked at."""
    b, i = queries.ids.shape
    P = torch.full((b, maps[0].shape[0], i, keys.ids.shape[1]), 0.37, dtype=torch.float64)
    for sentence, own in enumerate(maps):
        P[sentence, :, : own.shape[1], : own.shape[2]] = own
    return P


def look(measure: Measure, trace: LayerTrace, span: int, grams: Tensor | None = None) -> dict[str, Sample]:
    """What one measure reads off the rows of one layer."""
    pointers = measure.pointers(trace.slot, trace.queries, trace.keys)
    return dict(measure.rows(rows_of(trace, span, pointers, grams=grams)))


def examine(measures: Sequence[type[Measure]], traces: Iterable[LayerTrace], grams: Tensor | None = None) -> Readings:
    """Every sample folded over its sentences, then what follows from all of them."""
    traces = list(traces)
    longest = max(max(int(side.lengths.max()) for side in (trace.queries, trace.keys)) for trace in traces)
    context = MeasureContext(longest)
    chosen = [measure(context) for measure in measures]
    declared = {reading.name: reading for measure in chosen for reading in measure.declares()}
    folds: dict[tuple[str, Kind], dict[int, Moments]] = {}
    for trace in traces:
        pointers: dict[str, Tensor] = {}
        for measure in chosen:
            pointers |= measure.pointers(trace.slot, trace.queries, trace.keys)
        rows = rows_of(trace, min(longest - 1, 512), pointers, grams=grams)
        for name, sample in chain.from_iterable(measure.rows(rows).items() for measure in chosen):
            layers = folds.setdefault((name, trace.slot.kind), {})
            layers.setdefault(trace.slot.layer, Moments(tuple(sample.values.shape[1:]))).add(*sample)
    readings = Readings([_reading(declared[name], kind, layers) for (name, kind), layers in folds.items()])
    for concluded in [reading for measure in chosen for reading in measure.conclude(readings)]:
        readings.add(concluded)
    return readings


def _reading(declared: ReadingSpec, kind: Kind, layers: dict[int, Moments]) -> Reading:
    folds = [layers[layer] for layer in sorted(layers)]
    lows, highs = zip(*(fold.interval for fold in folds), strict=True)
    return Reading(
        declared.name, kind, declared.axes, tuple(fold.value for fold in folds), declared.description, declared.source,
        tuple(fold.spread for fold in folds), (lows, highs), tuple(fold.count for fold in folds), declared.ticks,
    )  # fmt: skip
