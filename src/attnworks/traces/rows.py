"""Statistics of every query row of a layer's attention, computed without keeping its maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.attention.heads import Scoring
from attnworks.core.places import Slot
from attnworks.core.tensors import FRESH, Scratch
from attnworks.text.tokens import Tokens
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import Maps, RowSum, diagonal_sums, maps_of, row_statistics


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Statistics of all heads of one layer on one batch; zero (argmax: -1) at padding.

    Weights are those of P: where a layer has a sink logit, `received`, `diagonal` and `pointed` are not divided by what
    the sink leaves. `traces.maps.RowStatistics` says what each statistic of a row is then.

    visible      keys that each query may see, in the head that sees most
    sink_weight  the weight of the sink; zero where the layer has none
    key_entropy  entropy of the weights of the keys divided by their sum; `entropy` where the layer has no sink
    scoring      how each head scores
    score_range  of heads whose weights are a softmax of scores; of others it is the range of ln P
    score_norm   |S_i|, the Euclidean norm of each row of scores, before any mask; 0 for heads without s Q K^T
    received     attention that each key gets, averaged over the queries
    diagonal     sum_i P[i, i + o] over the queries, for offsets o from -span to span
    pointed      name -> P[i, pointer(i)] for each of `pointers`, zero where it points to no key
    has_sink     whether the layer has a sink logit
    """

    slot: Slot
    queries: Tokens
    keys: Tokens
    span: int
    visible: Int[Tensor, "b i"]
    entropy: Float[Tensor, "b h i"]
    max_weight: Float[Tensor, "b h i"]
    jacobian_norm: Float[Tensor, "b h i"]
    score_range: Float[Tensor, "b h i"]
    argmax: Int[Tensor, "b h i"]
    sink_weight: Float[Tensor, "b h i"]
    key_entropy: Float[Tensor, "b h i"]
    score_norm: Float[Tensor, "b h i"]
    received: Float[Tensor, "b h j"]
    diagonal: Float[Tensor, "b h o"]
    pointed: Mapping[str, Float[Tensor, "b h i"]]
    scoring: Scoring
    has_sink: bool = False

    def mean(
        self, values: Float[Tensor, "b h i"], where: Bool[Tensor, "b i"] | None = None
    ) -> tuple[Float[Tensor, "b h"], Bool[Tensor, "b 1"]]:
        """Each sentence's mean over its real queries (those of `where`), and whether it has any."""
        counted = self.queries.real if where is None else where & self.queries.real
        number = counted.sum(-1, keepdim=True)
        return (values * counted.unsqueeze(1)).sum(-1) / number.clamp_min(1), number > 0


def rows_of(
    trace: LayerTrace,
    span: int,
    pointers: Mapping[str, Int[Tensor, "b i"]] | None = None,
    on_maps: Callable[[Maps], None] | None = None,
    scratch: Scratch = FRESH,
) -> LayerRows:
    """One pass over the maps of a layer; `on_maps` is called with each piece, which the next one overwrites."""
    (b, h, i, _), j = trace.Q.shape, trace.K.shape[2]
    wide = torch.promote_types(trace.Q.dtype, torch.float32)
    new = {"dtype": wide, "device": trace.Q.device}
    pointers = {} if pointers is None else pointers
    sums, score_norm = torch.zeros(len(RowSum), b, h, i, **new), torch.zeros(b, h, i, **new)
    visible = torch.zeros(b, i, dtype=torch.int64, device=trace.Q.device)
    received, diagonal = torch.zeros(b, h, j, **new), torch.zeros(b, h, 2 * span + 1, **new)
    names = list(pointers)
    pointed = torch.zeros(b, h, i, len(names), **new)
    at = torch.stack([pointers[name] for name in names], -1).unsqueeze(1) if names else None
    for piece in maps_of(trace, sums, score_norm, scratch):
        own_i, own_j = piece.P.shape[-2:]
        here = (piece.sentences, piece.heads, slice(own_i))
        torch.mean(piece.P, -2, out=received[piece.sentences, piece.heads, :own_j])
        along = diagonal_sums(piece.P.flatten(0, 1), scratch).unflatten(0, piece.P.shape[:2])
        low, high = max(-span, 1 - own_i), min(span, own_j - 1)  # offset o is column o + own_i - 1 of `along`
        offsets = slice(low + span, high + span + 1)
        diagonal[piece.sentences, piece.heads, offsets] = along[..., low + own_i - 1 : high + own_i]
        if at is not None:  # [b 1 i pointers]
            key = at[piece.sentences, :, :own_i]
            found = piece.P.gather(-1, key.clamp(0, own_j - 1).expand(*piece.P.shape[:3], -1))
            pointed[here] = found * ((key >= 0) & (key < own_j))
        seen = visible[piece.sentences, :own_i]
        torch.maximum(seen, piece.visible, out=seen)
        if on_maps is not None:
            on_maps(piece)
    statistics = row_statistics(sums)
    return LayerRows(
        trace.slot, trace.queries, trace.keys, span, visible, *statistics, score_norm, received, diagonal,
        dict(zip(names, pointed.unbind(-1), strict=True)), trace.head_scoring, trace.sink is not None,
    )  # fmt: skip
