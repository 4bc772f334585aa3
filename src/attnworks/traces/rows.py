"""Statistics of every query row of a layer's attention, computed without keeping its maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.attention.heads import HeadWeights, Scoring
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

    Keys outside the sinks are those that `sink_keys` does not mark. The effect of a weight is |P_ij v_j W_O|, the norm
    of what it adds to the stream (Kobayashi et al. 2020); effects are None where W_O is not known.

    visible      keys that each query may see, in the head that sees most
    sink_weight  the weight of the sink logit; zero where the layer has none
    key_entropy  entropy of the weights of the keys divided by their sum; `entropy` where the layer has no sink logit
    scoring      how each head scores
    score_range  of heads whose weights are a softmax of scores; of others it is the range of ln P
    score_norm   |S_i|, the Euclidean norm of each row of scores, before any mask; 0 for heads without s Q K^T
    received     attention that each key gets, averaged over the queries
    rest         sum of the weights of the keys outside the sinks
    rest_max     the largest weight of a key outside the sinks
    diagonal     sum_i P[i, i + o] over the queries, for offsets o from -span to span and keys outside the sinks
    pointed      name -> sum of P[i, j] over the keys j outside the sinks that pointer[i] names
    first_effect, effect, rest_effect, pointed_effect    the same sums of effects: of the first key, of all keys, of the
                 keys outside the sinks, of the keys that a pointer names
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
    rest: Float[Tensor, "b h i"]
    rest_max: Float[Tensor, "b h i"]
    diagonal: Float[Tensor, "b h o"]
    pointed: Mapping[str, Float[Tensor, "b h i"]]
    scoring: Scoring
    first_effect: Float[Tensor, "b h i"] | None = None
    effect: Float[Tensor, "b h i"] | None = None
    rest_effect: Float[Tensor, "b h i"] | None = None
    pointed_effect: Mapping[str, Float[Tensor, "b h i"]] | None = None
    has_sink: bool = False

    def mean(
        self, values: Float[Tensor, "b h i"], where: Bool[Tensor, "b i"] | None = None
    ) -> tuple[Float[Tensor, "b h"], Bool[Tensor, "b 1"]]:
        """Each sentence's mean over its real queries (those of `where`), and whether it has any."""
        counted = self.queries.real if where is None else where & self.queries.real
        number = counted.sum(-1, keepdim=True)
        return (values * counted.unsqueeze(1)).sum(-1) / number.clamp_min(1), number > 0


def sink_keys(keys: Tokens) -> Bool[Tensor, "b j"]:
    """The keys at which attention rests in most models: the first token and every special token."""
    marked = torch.zeros_like(keys.real) if keys.special is None else keys.special & keys.real
    marked[:, :1] = keys.real[:, :1]
    return marked


def output_grams(weights: HeadWeights) -> Float[Tensor, "h v v"]:
    """W_O W_O^T of every head, with which |v W_O|^2 = v (W_O W_O^T) v^T."""
    W_O = weights.W_O.detach()
    W_O = W_O.to(torch.promote_types(W_O.dtype, torch.float32))
    return W_O @ W_O.mT


def grams_of(trace: LayerTrace) -> Float[Tensor, "h v v"] | None:
    """`output_grams` of a layer; None where W_O is unknown or does not fit the values."""
    weights = trace.weights
    if weights is None or weights.W_O.shape[:2] != (trace.heads, trace.V.shape[-1]):
        return None
    return output_grams(weights)


def rows_of(
    trace: LayerTrace,
    span: int,
    pointers: Mapping[str, Int[Tensor, "b i _"]] | None = None,
    on_maps: Callable[[Maps], None] | None = None,
    scratch: Scratch = FRESH,
    grams: Float[Tensor, "h v v"] | None = None,
) -> LayerRows:
    """One pass over the maps of a layer; `on_maps` is called with each piece, which the next one overwrites.

    pointers    name -> up to k different keys of each query; a negative number names no key
    grams       of `output_grams`, for effects
    """
    (b, h, i, _), j = trace.Q.shape, trace.K.shape[2]
    wide = torch.promote_types(trace.Q.dtype, torch.float32)
    new = {"dtype": wide, "device": trace.Q.device}
    pointers = {} if pointers is None else pointers
    sums, score_norm = torch.zeros(len(RowSum), b, h, i, **new), torch.zeros(b, h, i, **new)
    visible = torch.zeros(b, i, dtype=torch.int64, device=trace.Q.device)
    received, diagonal = torch.zeros(b, h, j, **new), torch.zeros(b, h, 2 * span + 1, **new)
    rest, rest_max = torch.zeros(2, b, h, i, **new)
    marked = sink_keys(trace.keys)
    edges, names = Edges.of(pointers, trace), list(pointers)
    pointed = torch.zeros(b, h, i, len(names), **new)
    effects = None if grams is None else torch.zeros(3, b, h, i, **new)
    pointed_effect = None if grams is None else torch.zeros_like(pointed)
    for piece in maps_of(trace, sums, score_norm, scratch):
        own_i, own_j = piece.P.shape[-2:]
        here = (piece.sentences, piece.heads, slice(own_i))
        torch.mean(piece.P, -2, out=received[piece.sentences, piece.heads, :own_j])
        seen = visible[piece.sentences, :own_i]
        torch.maximum(seen, piece.visible, out=seen)
        if on_maps is not None:
            on_maps(piece)
        P = piece.P
        taken, columns = _take_columns(P, marked[piece.sentences, :own_j])  # from here on P is zero at the sinks
        torch.amax(P, -1, out=rest_max[here])
        sizes = None if grams is None else value_sizes(piece, grams)
        if effects is None or sizes is None:
            rest[here] = P.sum(-1)
        else:
            both = P @ torch.stack([torch.ones_like(sizes), sizes], -1)  # [b h i 2]
            rest[here], effects[(2, *here)] = both.unbind(-1)
            at_sinks = sizes.gather(-1, columns[:, None].expand(*sizes.shape[:2], -1)).unsqueeze(-2)  # [b h 1 k]
            effects[(0, *here)] = taken[..., 0] * at_sinks[..., 0]
            effects[(1, *here)] = both[..., 1] + (taken * at_sinks).sum(-1)
        along = diagonal_sums(P.flatten(0, 1), scratch).unflatten(0, P.shape[:2])
        low, high = max(-span, 1 - own_i), min(span, own_j - 1)  # offset o is column o + own_i - 1 of `along`
        offsets = slice(low + span, high + span + 1)
        diagonal[piece.sentences, piece.heads, offsets] = along[..., low + own_i - 1 : high + own_i]
        own = edges.within(piece.sentences)
        found = P[own.sentence, :, own.query, own.key]  # [edges h]
        pointed[here] = own.sums(found, P.shape[:3], len(names))
        if pointed_effect is not None and sizes is not None:
            pointed_effect[here] = own.sums(found * sizes[own.sentence, :, own.key], P.shape[:3], len(names))
    statistics = row_statistics(sums)
    first_effect, effect, rest_effect = (None,) * 3 if effects is None else effects
    return LayerRows(
        trace.slot, trace.queries, trace.keys, span, visible, *statistics, score_norm, received, rest, rest_max,
        diagonal, _by_name(names, pointed), trace.head_scoring, first_effect, effect, rest_effect,
        None if pointed_effect is None else _by_name(names, pointed_effect), trace.sink is not None,
    )  # fmt: skip


class Edges(NamedTuple):
    """The pairs of query and key that pointers name, sorted by sentence, and the number of the pointer of each."""

    sentence: Int[Tensor, " n"]
    query: Int[Tensor, " n"]
    key: Int[Tensor, " n"]
    pointer: Int[Tensor, " n"]

    @classmethod
    def of(cls, pointers: Mapping[str, Int[Tensor, "b i _"]], trace: LayerTrace) -> Edges:
        """Pointers of queries and to keys behind the end of a sentence are left out."""
        if not pointers:
            return cls(*torch.zeros(4, 0, dtype=torch.int64, device=trace.Q.device))
        keys = torch.cat(list(pointers.values()), -1)  # [b i all k]
        numbers = [torch.full((own.shape[-1],), number) for number, own in enumerate(pointers.values())]
        there = (keys >= 0) & (keys < trace.keys.lengths[:, None, None]) & trace.queries.real.unsqueeze(-1)
        sentence, query, column = there.nonzero(as_tuple=True)
        return cls(sentence, query, keys[there], torch.cat(numbers).to(keys.device)[column])

    def within(self, sentences: slice) -> Edges:
        """Those of some sentences, counted from the first of them."""
        ends = torch.searchsorted(self.sentence, torch.tensor([sentences.start, sentences.stop]).to(self.sentence))
        some = slice(*ends.tolist())
        return Edges(self.sentence[some] - sentences.start, self.query[some], self.key[some], self.pointer[some])

    def sums(self, values: Float[Tensor, "n h"], shape: Sequence[int], pointers: int) -> Float[Tensor, "b h i p"]:
        """The sum of the values of each query and pointer; `shape` is b, h, i."""
        b, h, i = shape
        place = (self.sentence * i + self.query) * pointers + self.pointer
        return (
            values.new_zeros(b * i * pointers, h)
            .index_add_(0, place, values)
            .view(b, i, pointers, h)
            .permute(0, 3, 1, 2)
        )


def _by_name(names: list[str], values: Float[Tensor, "b h i p"]) -> dict[str, Tensor]:
    return dict(zip(names, values.unbind(-1), strict=True))


def value_sizes(piece: Maps, grams: Float[Tensor, "all v v"]) -> Float[Tensor, "b h j"]:
    """|v_j W_O|, the factor of the effect of every weight."""
    V = piece.V.to(piece.P.dtype)
    squares = ((V @ grams[piece.heads].to(V)) * V).sum(-1)
    return squares.clamp_min_(0.0).sqrt_()


def _take_columns(
    P: Float[Tensor, "b h i j"], marked: Bool[Tensor, "b j"]
) -> tuple[Float[Tensor, "b h i k"], Int[Tensor, "b k"]]:
    """Set the marked columns of P to zero, in place; return what they were, in order, and zeros, and their numbers."""
    most = int(marked.sum(-1).max())
    columns = marked.to(torch.int8).argsort(stable=True, dim=-1, descending=True)[:, :most]  # the marked ones first
    there = marked.gather(-1, columns)[:, None, None]  # [b 1 1 k]
    index = columns[:, None, None].expand(*P.shape[:3], -1)
    found = P.gather(-1, index)
    P.scatter_(-1, index, found * ~there)
    return found * there, columns
