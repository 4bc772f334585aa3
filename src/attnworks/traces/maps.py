"""The attention maps of a layer, a few at a time: small enough to stay near the processor, and never kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.attention.mask import as_four_axes
from attnworks.core.tensors import FRESH, Scratch
from attnworks.text.tokens import Tokens
from attnworks.traces.layer import LOWEST_LOG, LayerTrace, Slot
from attnworks.traces.row_sums import attend_rows

WEIGHTS_AT_ONCE = 2**18
"""Attention weights computed at a time by each thread: a megabyte in float32."""


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of some consecutive sentences of one length and some heads, cropped to their real tokens.

    P          rows sum to one, or to less where the layer has a sink logit or a row sees no key
    visible    keys that each query may see, in the head that sees most
    V          the values of the same sentences and heads
    queries    the tokens that look
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

    sums, norms    where the sums of `linalg.rows` and |S_i| of every row are written, if they are wanted
    scratch        memory for the maps, which the next ones overwrite
    """
    at_once = WEIGHTS_AT_ONCE * torch.get_num_threads()
    for sentences, i, j in same_lengths(trace.queries, trace.keys, at_once // trace.heads):
        queries = trace.queries.part(sentences, slice(i))
        for heads, scale in _head_slices(trace, at_once // max(1, (sentences.stop - sentences.start) * i * j)):
            S = trace.scores(sentences, heads, i, j, scratch)
            added, allowed = _masked(trace, sentences, heads, i, j)
            if scale is None:  # what the mask adds is in the weights that S was read off
                allowed = _without_empty_rows(S, allowed)
                scored = _with_scores(S, allowed)
            else:
                scored = allowed
                if norms is not None:
                    torch.linalg.vector_norm(S, dim=-1, out=norms[sentences, heads, :i])
                if added is not None:
                    S += added
            own = None if sums is None else sums[:, sentences, heads, :i]
            sink = None if trace.sink is None else trace.sink.detach()[heads, None].to(S.dtype)
            P = attend_rows(S, scored, own, scratch, sink)
            V = trace.shared(trace.V, heads)[sentences, :, :j]
            yield Maps(trace.slot, sentences, heads, P, _visible(allowed, S), V, queries)


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
    """At most this many heads at a time that score alike, with their factor of Q K^T."""
    for run, scale in trace.alike():
        for start in range(run.start, run.stop, max(1, at_once)):
            yield slice(start, min(start + max(1, at_once), run.stop)), scale


def _masked(trace: LayerTrace, sentences: slice, heads: slice, i: int, j: int) -> tuple[Tensor | None, Tensor | None]:
    """What the mask adds to these scores, and which keys it lets be seen; padding is cropped already."""
    mask = trace.mask
    added = allowed = None
    if mask.dense is not None:
        dense = as_four_axes(mask.dense)
        dense = dense[sentences if dense.shape[0] > 1 else slice(None), heads if dense.shape[1] > 1 else slice(None)]
        dense = dense[..., :i, :j]
        allowed = dense if dense.dtype == torch.bool else dense > HIDDEN_BELOW
        added = None if dense.dtype == torch.bool else dense.masked_fill(~allowed, 0.0)
    if mask.causal and i > 1:
        past = torch.ones(i, j, dtype=torch.bool, device=trace.Q.device).tril(trace.K.shape[-2] - trace.Q.shape[-2])
        allowed = past if allowed is None else allowed & past
    return added, None if allowed is None or bool(allowed.all()) else allowed


def _without_empty_rows(S: Tensor, allowed: Tensor | None) -> Tensor | None:
    """Rows of a mechanism that gives no weight to any key see none: their scores are those of weights zero."""
    some = (S > LOWEST_LOG).any(-1, keepdim=True)
    if bool(some.all()):
        return allowed
    return some.expand_as(S) if allowed is None else allowed & some


def _with_scores(S: Tensor, allowed: Tensor | None) -> Tensor | None:
    """Keys without weight have no score: ln 0 is not the smallest one of a row."""
    some = S > LOWEST_LOG
    if bool(some.all()):
        return allowed
    return some if allowed is None else allowed & some


def _visible(allowed: Tensor | None, S: Tensor) -> Tensor:
    b, _, i, j = S.shape
    if allowed is None:
        return torch.full((b, i), j, device=S.device)
    return as_four_axes(allowed).sum(-1).amax(1).expand(b, i)


HIDDEN_BELOW = -1e9
"""Additive masks write the smallest number of their type, or -inf, where a key is hidden."""
