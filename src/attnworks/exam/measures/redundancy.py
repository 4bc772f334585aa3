"""The measure `redundancy`: which heads of a layer attend to the same keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.core.places import Slot
from attnworks.exam.measure import BY_HEAD, MEASURES, Measure, ReadingSpec, Sample, Samples
from attnworks.exam.reading import Reading, Readings, tensors
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import WEIGHTS_AT_ONCE, Maps, RowSum, maps_of, row_statistics, same_lengths

LIN = "Lin 1991"
NO_TWIN = "none"
"""The twin of a head that is alone in its layer."""

DISTANCE = ReadingSpec(
    "redundancy.distance",
    (*BY_HEAD, "other"),
    "Jensen-Shannon distance between heads of a layer; 0: same attention, 1: nothing in common",
    LIN,
)
NEAREST = ReadingSpec("redundancy.nearest", BY_HEAD, "distance to the most similar head of the layer", LIN)
TWIN = ReadingSpec("redundancy.twin", BY_HEAD, "the most similar head of the layer", LIN, "constant")


@MEASURES.register("redundancy")
class Redundancy(Measure):
    """d(h, h') = sqrt(JS(h, h') / ln 2), JS = 1/n sum_i H((p_i + q_i) / 2) - (H(p_i) + H(q_i)) / 2 over the n queries
    of a sentence that see any key, where p_i and q_i are the attention of heads h and h' of one layer.

    0 for the same attention, 1 for attention without a common key; a metric between heads, as the root of JS is one.
    nearest and twin are the smallest mean distance to another head of the layer, and that head.
    Source: Jensen-Shannon divergence of Lin 1991; Clark et al. 2019, section 6, compare heads by it.
    Departs: Clark et al. sum over all tokens and take no root.
    """

    name = "redundancy"
    description = "which heads of a layer attend to the same keys"
    cost = "0.2 to 0.6 forward passes for 32 tokens and 12 heads, 1 to 3 for 512; it grows with the square of the heads"

    def declares(self) -> tuple[ReadingSpec, ...]:
        return DISTANCE, NEAREST, TWIN

    @torch.no_grad()
    def layer(self, trace: LayerTrace) -> Samples:
        b, heads = trace.Q.shape[:2]
        wide = torch.promote_types(trace.Q.dtype, torch.float32)
        sums = torch.zeros(b, heads, heads, dtype=wide, device=trace.Q.device)
        queries = torch.zeros(b, dtype=torch.int64, device=trace.Q.device)
        for sentences, P in all_heads(trace):
            sums[sentences] += divergences(P)
            queries[sentences] += P.any(-1).any(1).sum(-1)
        mean = sums / queries.clamp_min(1)[:, None, None]
        distance = (mean / math.log(2)).clamp(0.0, 1.0).sqrt()
        return {"redundancy.distance": Sample(distance, (queries > 0)[:, None, None])}

    def conclude(self, readings: Readings) -> Iterable[Reading]:
        for distance in readings.of("redundancy.distance"):
            yield from _nearest(distance)


def _nearest(distance: Reading) -> Iterator[Reading]:
    """The entries of `distance` at the twins, and their names."""
    rows = tensors(distance.value)
    others = [torch.where(torch.eye(len(row), dtype=torch.bool), torch.inf, row) for row in rows]
    twins = [row.argmin(-1, keepdim=True) if len(row) else row.new_zeros(0, 1, dtype=torch.long) for row in others]

    def at_twins(tables: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return tuple(table.gather(-1, twin).squeeze(-1) for table, twin in zip(tables, twins, strict=True))

    value = tuple(torch.where(row.isfinite(), row, torch.nan) for row in at_twins(others))
    names = tuple(
        tuple(
            f"{Slot(distance.kind, layer)}.{head}" if has_twin else NO_TWIN
            for head, has_twin in zip(twin.squeeze(-1).tolist(), row.isfinite().tolist(), strict=True)
        )
        for layer, (twin, row) in enumerate(zip(twins, value, strict=True))
    )
    statistics = {part: at_twins(tensors(rows)) for part, rows in distance.parts().items() if part != "value"}
    yield NEAREST.reading(distance.kind, value, **statistics)
    yield TWIN.reading(distance.kind, names)


def divergences(P: Float[Tensor, "b h i j"]) -> Float[Tensor, "b h h"]:
    """sum_i JS(P[h, i], P[h', i]) in nats, for every two heads.

    With s = p + q and t = (p - q) / s,   JS = 1/4 sum_j s_j ((1 + t_j) ln(1 + t_j) + (1 - t_j) ln(1 - t_j)),
    which is the difference of entropies without its cancellation: near p = q the error of sqrt(JS) is that of p - q.
    """
    b, heads = P.shape[:2]
    D = P.new_zeros(b, heads, heads)
    limit, tiny = 1 - torch.finfo(P.dtype).eps / 2, torch.finfo(P.dtype).tiny
    for h in range(heads - 1):
        p, q = P[:, h, None], P[:, h + 1 :]
        s = p + q
        t = (p - q).div_(s.clamp_min(tiny)).clamp_(-limit, limit)
        terms = t.log1p().mul_(1 + t)
        t.neg_()
        terms.addcmul_(t.log1p(), 1 + t)
        D[:, h, h + 1 :] = D[:, h + 1 :, h] = terms.mul_(s).sum((-2, -1)) / 4
    return D


def all_heads(trace: LayerTrace) -> Iterator[tuple[slice, Float[Tensor, "b h i j"]]]:
    """P of all heads at once, for some sentences and some of their queries at a time: each row once, without padding.

    Keys that no query of the piece can see, behind it in causal attention, are left out. A sink logit is one more key.
    """
    known = trace.weigh() if trace.scale is None and trace.weigh is not None else None
    for sentences, i, j in same_lengths(trace.queries, trace.keys, WEIGHTS_AT_ONCE // trace.heads):
        step = max(1, WEIGHTS_AT_ONCE // max(1, (sentences.stop - sentences.start) * trace.heads * j))
        for start in range(0, i, step):
            part = _part(trace, sentences, slice(start, min(start + step, i)), known)
            yield sentences, _with_sink(part) if trace.sink is not None else _joined(maps_of(part))


def _with_sink(trace: LayerTrace) -> Float[Tensor, "b h i j"]:
    """P with the weight of the sink as the last key.

    It is computed from the scores: 1 - sum_j P_ij would lose a small weight by cancellation.
    """
    wide = torch.promote_types(trace.Q.dtype, torch.float32)
    sums = torch.zeros(len(RowSum), *trace.Q.shape[:3], dtype=wide, device=trace.Q.device)
    P = _joined(maps_of(trace, sums))
    return torch.cat([P, row_statistics(sums).sink_weight.unsqueeze(-1)], -1)


def _joined(pieces: Iterable[Maps]) -> Float[Tensor, "b h i j"]:
    return torch.cat([piece.P for piece in pieces], dim=1)


def _part(trace: LayerTrace, sentences: slice, rows: slice, known: Tensor | None) -> LayerTrace:
    """The layer as if it had these sentences and queries alone."""
    mask = trace.mask
    keys = trace.K.shape[2]
    seen = rows.stop + keys - trace.Q.shape[2] if mask.causal else keys
    dense = mask.dense
    if dense is not None:
        dense = dense[sentences] if dense.dim() == 4 and dense.shape[0] > 1 else dense
        dense = dense[..., rows, :seen]
    return replace(
        trace,
        Q=trace.Q[sentences, :, rows],
        K=trace.K[sentences, :, :seen],
        V=trace.V[sentences, :, :seen],
        Y=trace.Y[sentences, :, rows],
        mask=Mask(causal=mask.causal, dense=dense),
        queries=trace.queries.part(sentences, rows),
        keys=trace.keys.part(sentences, slice(seen)),
        X=None,
        Z=None,
        weigh=None if known is None else lambda: known[sentences, :, rows, :seen],
    )
