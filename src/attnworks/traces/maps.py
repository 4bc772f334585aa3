"""The attention maps of a layer, a megabyte at a time, and statistics of their single rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.attention.mask import as_four_axes
from attnworks.core.places import Slot
from attnworks.core.tensors import FRESH, Scratch
from attnworks.text.tokens import Tokens
from attnworks.traces.layer import LOG_OF_ZERO, LayerTrace

HIDDEN_SCORE = -1e30
"""The score of a key that may not be seen: far below all others, and finite, so that 0 times it is 0."""

WEIGHTS_AT_ONCE = 2**18
"""Attention weights computed at a time by each thread: a megabyte in float32."""
HIDDEN_SCORE_BELOW = -1e9
"""Additive masks write the smallest number of their type, or -inf, where a key is hidden."""


class RowSum(IntEnum):
    """Sums over a row of scores, with d_j = S_j - max S, in this order along the first axis of the sums.

    TOP, LOW     largest and smallest score of the keys that may be seen
    TIES, PLACE  how many keys share the largest score, and the sum of their positions
    R1, R2, R3   sum of exp(k d_j) over the other keys, k = 1, 2, 3
    DROP         sum of d_j exp(d_j)
    SINK         the sink logit less the largest score of the keys, HIDDEN_SCORE where the row has no sink
    """

    TOP, LOW, TIES, PLACE, R1, R2, R3, DROP, SINK = range(9)


class RowStatistics(NamedTuple):
    """How near each row of P is to a unit vector; all zero for a row that sees no key.

    A sink logit is one more entry of the row's softmax, without a key and without a value. Entropy and Jacobian norm
    are those of the whole softmax, with the sink as an entry. All others are about keys.

    max_weight    of the keys
    score_range   of the keys
    argmax        the key with the largest weight; -1 where several share it, and where no key is seen
    sink_weight   the weight of the sink: what the weights of the keys lack to one; 0 where there is no sink
    key_entropy   of the weights of the keys divided by their sum; the same as `entropy` where there is no sink
    """

    entropy: Float[Tensor, "*a i"]
    max_weight: Float[Tensor, "*a i"]
    jacobian_norm: Float[Tensor, "*a i"]
    score_range: Float[Tensor, "*a i"]
    argmax: Int[Tensor, "*a i"]
    sink_weight: Float[Tensor, "*a i"]
    key_entropy: Float[Tensor, "*a i"]


def attend_rows(
    S: Float[Tensor, "*a i j"],
    allowed: Bool[Tensor, "*#a #i #j"] | None = None,
    sums: Float[Tensor, "r *a i"] | None = None,
    scratch: Scratch = FRESH,
    sink: Float[Tensor, "*#a #i"] | None = None,
) -> Float[Tensor, "*a i j"]:
    """P = softmax(S) over the allowed keys, and the sums that `row_statistics` needs, in few passes over S.

        P_ij = exp(S_ij) / (sum_{j' allowed} exp(S_ij') + exp(sink_i)),   the last term only where a sink is given
    Source: the sink logit of gpt-oss (OpenAI 2025), which takes weight and adds nothing to the output.
    Departs: S is overwritten, P is scratch memory. A row that sees no key has weights zero.
    """
    sums = S.new_empty(len(RowSum), *S.shape[:-1]) if sums is None else sums
    hidden = None if allowed is None else ~allowed
    lowest = S if hidden is None else S.masked_fill(hidden, torch.inf)
    torch.amin(lowest, -1, out=sums[RowSum.LOW])
    if hidden is not None:
        S.masked_fill_(hidden, HIDDEN_SCORE)
    torch.amax(S, -1, out=sums[RowSum.TOP])
    D = S.sub_(sums[RowSum.TOP].unsqueeze(-1))
    largest, E = scratch.like("largest", D), scratch.like("E", D)
    torch.eq(D, 0.0, out=largest)
    torch.sum(largest, -1, out=sums[RowSum.TIES])
    sums[RowSum.PLACE] = largest @ torch.arange(S.shape[-1], dtype=S.dtype, device=S.device)
    top = sums[RowSum.PLACE].long().unsqueeze(-1) if bool((sums[RowSum.TIES] == 1).all()) else None
    torch.exp(D, out=E)
    E.sub_(largest) if top is None else E.scatter_(-1, top, 0.0)
    torch.sum(E, -1, out=sums[RowSum.R1])
    torch.sum(D.mul_(E), -1, out=sums[RowSum.DROP])
    torch.sum(torch.mul(E, E, out=D), -1, out=sums[RowSum.R2])
    torch.sum(D.mul_(E), -1, out=sums[RowSum.R3])
    E.add_(largest) if top is None else E.scatter_(-1, top, 1.0)
    Z = sums[RowSum.TIES] + sums[RowSum.R1]
    if sink is None:
        sums[RowSum.SINK] = HIDDEN_SCORE
    else:
        sums[RowSum.SINK] = sink - sums[RowSum.TOP]
        Z += sums[RowSum.SINK].exp()
    P = E.div_(Z.unsqueeze(-1))
    return P if hidden is None else P.masked_fill_(hidden, 0.0)


def row_statistics(sums: Float[Tensor, "r *a i"]) -> RowStatistics:
    """Entropy, largest weight, Jacobian norm, range of scores and argmax of every row, from its sums.

        Z = c + r_1,   H = ln Z - sum_j d_j exp(d_j) / Z,   max P = 1 / Z,
        ||diag(p) - p p^T||_F^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2
    Let t be the sink logit minus the largest score (t may be negative). The sink is one more entry: Z becomes
    c + r_1 + exp(t), its weight is exp(t) / (c + r_1 + exp(t)), and H = h + (1 - sink weight) H(keys), h being the
    entropy of sink against keys.
    Source: S4.46-S4.50 and S0.34; the same numbers as `attention.softmax`.
    Rows that see no key, and those whose sums are all zero, have statistics zero, except that the weight of a sink is 1
    where no key is seen.
    """
    top, low, c, place, r1, r2, r3, drop, t = sums
    there = (sums != 0).any(0)
    seeing = there & ~(top <= HIDDEN_SCORE / 2)
    keys = torch.where(seeing, c + r1, 1.0)
    sink_weight = torch.where(there, (t - keys.log()).sigmoid(), 0.0)
    *entries, entries_drop = _with_sink(c, r1, r2, r3, drop, torch.where(seeing, t, HIDDEN_SCORE))
    Z = torch.where(seeing, entries[0] + entries[1], 1.0)
    return RowStatistics(
        entropy=torch.where(seeing, Z.log() - entries_drop / Z, 0.0),
        max_weight=torch.where(seeing, 1 / (keys + t.exp()), 0.0),
        jacobian_norm=torch.where(seeing, _jacobian_norm(Z, *entries), 0.0),
        score_range=torch.where(seeing, top - low, 0.0),
        argmax=torch.where(seeing & (c == 1), place, -1.0).long(),
        sink_weight=sink_weight,
        key_entropy=torch.where(seeing, keys.log() - drop / keys, 0.0),
    )


def _with_sink(c: Tensor, r1: Tensor, r2: Tensor, r3: Tensor, drop: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    """TIES, R1, R2, R3 and DROP with one more entry, t above the largest key; if t > 0, it is the largest, c = 1."""
    below, above = t.clamp_max(0.0).exp(), (-t).clamp_max(0.0).exp()
    larger = t > 0
    return (
        torch.where(larger, 1.0, c),
        torch.where(larger, (c + r1) * above, r1 + below),
        torch.where(larger, (c + r2) * above**2, r2 + below**2),
        torch.where(larger, (c + r3) * above**3, r3 + below**3),
        torch.where(larger, (drop - t * (c + r1)) * above, drop + t * below),
    )


def _jacobian_norm(Z: Tensor, c: Tensor, r1: Tensor, r2: Tensor, r3: Tensor) -> Tensor:
    """Z^4 ||J||^2 = (c + r2) Z^2 - 2 (c + r3) Z + (c + r2)^2, which is near zero only if c = 1 and Z is near 1.

    If c = 1, Z^2 - 2 Z + 1 is written as r1^2, and the rest has no negative term, as r3 <= r2 exp(second d).
    """
    one = r1.square() + 2 * r2 + (r2 * Z - 2 * r3) * Z + r2.square()
    second, third = c + r2, c + r3
    several = second * Z.square() - 2 * third * Z + second.square()
    return torch.where(c == 1, one, several).clamp_min(0.0).sqrt() / Z.square()


def diagonal_sums(P: Float[Tensor, "m i j"], scratch: Scratch = FRESH) -> Float[Tensor, "m o"]:
    """sum_i P[i, i + o] for every offset o from -(i - 1) to j - 1.

    Each row is stored behind i zeros. A view that starts one entry later in each row has diagonals as columns.
    """
    m, i, j = P.shape
    width = i + j
    wide = scratch.zeros((m, i * width + i), P)
    wide[:, : i * width].view(m, i, width)[..., i:] = P
    skewed = wide.as_strided((m, i, width - 1), (wide.shape[1], width + 1, 1), storage_offset=1)
    return skewed.sum(-2)


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of some consecutive sentences of one length and some heads, cropped to their real tokens.

    P          rows sum to one, or to less where the layer has a sink logit or a row sees no key; to anything where an
               edit gave the head other weights
    visible    keys that each query may see, in the head that sees most
    V          the values of the same sentences and heads
    queries    the tokens of the rows
    """

    slot: Slot
    sentences: slice
    heads: slice
    P: Float[Tensor, "b h i j"]
    visible: Int[Tensor, "b i"]
    V: Float[Tensor, "b h j v"]
    queries: Tokens


def maps_of(
    trace: LayerTrace,
    sums: Float[Tensor, "r b h i"] | None = None,
    norms: Float[Tensor, "b h i"] | None = None,
    scratch: Scratch = FRESH,
) -> Iterator[Maps]:
    """All maps of a layer, each once. Padding is cropped away, so that every row and column is a real token's.

    sums, norms    where the sums of `RowSum` and |S_i| of every row are written, if they are wanted
    scratch        memory for the maps, which the next ones overwrite
    """
    at_once = WEIGHTS_AT_ONCE * torch.get_num_threads()
    for sentences, i, j in same_lengths(trace.queries, trace.keys, at_once // trace.heads):
        queries = trace.queries.part(sentences, slice(i))
        for heads, scale in _head_slices(trace, at_once // max(1, (sentences.stop - sentences.start) * i * j)):
            S = trace.scores(sentences, heads, i, j, scratch)
            added, allowed = _masked(trace, sentences, heads, i, j)
            if scale is None:  # S = ln P already contains what the mask adds
                has_weight = S > LOG_OF_ZERO  # rows without any weight see no key
                allowed = _both(allowed, has_weight.any(-1, keepdim=True).expand_as(S))
                scored = _both(allowed, has_weight)  # ln 0 is not the smallest score of a row
            else:
                scored = allowed
                if norms is not None:
                    torch.linalg.vector_norm(S, dim=-1, out=norms[sentences, heads, :i])
                if added is not None:
                    S += added
            own = None if sums is None else sums[:, sentences, heads, :i]
            sink = None if trace.sink is None else trace.sink.detach()[heads, None].to(S.dtype)
            P = attend_rows(S, scored, own, scratch, sink)
            if trace.replaced is not None:
                P.copy_(trace.replaced[sentences, heads, :i, :j])
            V = trace.shared(trace.V, heads)[sentences, :, :j]
            yield Maps(trace.slot, sentences, heads, P, _visible(allowed, S), V, queries)


def masked_scores(trace: LayerTrace) -> Float[Tensor, "b h i j"]:
    """S of a layer as its softmax reads it: with what the mask adds, and -inf where a key is hidden.

    Heads whose weights are no softmax of Q K^T have ln P instead. The whole table is built.
    """
    b, h, i, _ = trace.Q.shape
    j = trace.K.shape[2]
    S = trace.Q.new_empty((b, h, i, j), dtype=torch.promote_types(trace.Q.dtype, torch.float32))
    for heads, scale in trace.runs_by_scale():
        added, allowed = _masked(trace, slice(b), heads, i, j)
        S[:, heads] = trace.scores(slice(b), heads, i, j)
        if added is not None and scale is not None:
            S[:, heads] += added
        if allowed is not None:
            S[:, heads] = S[:, heads].masked_fill(~allowed, -torch.inf)
    return S if trace.mask.real is None else S.masked_fill(~trace.mask.real[:, None, None, :], -torch.inf)


def same_lengths(queries: Tokens, keys: Tokens, pairs: int) -> Iterator[tuple[slice, int, int]]:
    """Runs of consecutive sentences with the same numbers of real queries and keys, of about `pairs` pairs of them."""
    lengths = list(zip(queries.lengths.tolist(), keys.lengths.tolist(), strict=True))
    start = 0
    for end in range(1, len(lengths) + 1):
        i, j = lengths[start]
        full = (end - start + 1) * i * j > pairs
        if end == len(lengths) or lengths[end] != (i, j) or full:
            yield slice(start, end), i, j
            start = end


def _head_slices(trace: LayerTrace, at_once: int) -> Iterator[tuple[slice, float | None]]:
    """Slices of at most `at_once` consecutive heads with the same factor of Q K^T, and that factor."""
    for run, scale in trace.runs_by_scale():
        for start in range(run.start, run.stop, max(1, at_once)):
            yield slice(start, min(start + max(1, at_once), run.stop)), scale


def _masked(trace: LayerTrace, sentences: slice, heads: slice, i: int, j: int) -> tuple[Tensor | None, Tensor | None]:
    """What the mask adds to these scores, and which keys may be seen, if not all; both broadcast to [b h i j]."""
    mask = trace.mask
    added = allowed = None
    if mask.dense is not None:
        dense = as_four_axes(mask.dense)
        dense = dense[sentences if dense.shape[0] > 1 else slice(None), heads if dense.shape[1] > 1 else slice(None)]
        dense = dense[..., :i, :j]
        allowed = dense if dense.dtype == torch.bool else dense > HIDDEN_SCORE_BELOW
        added = None if dense.dtype == torch.bool else dense.masked_fill(~allowed, 0.0)
    if mask.causal and i > 1:
        past = torch.ones(i, j, dtype=torch.bool, device=trace.Q.device).tril(trace.K.shape[-2] - trace.Q.shape[-2])
        allowed = past if allowed is None else allowed & past
    return added, None if allowed is None or bool(allowed.all()) else allowed


def _both(allowed: Tensor | None, other: Tensor) -> Tensor | None:
    """Where both are True. None stands for True everywhere."""
    if bool(other.all()):
        return allowed
    return other if allowed is None else allowed & other


def _visible(allowed: Tensor | None, S: Tensor) -> Int[Tensor, "b i"]:
    """How many keys each query may see, in the head that sees most."""
    b, _, i, j = S.shape
    if allowed is None:
        return torch.full((b, i), j, device=S.device)
    return as_four_axes(allowed).sum(-1).amax(1).expand(b, i)
