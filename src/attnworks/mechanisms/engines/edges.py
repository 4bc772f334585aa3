"""Softmax attention edge by edge, for any graph: scores, weights and gradients exist only where there is an edge."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor

from attnworks.linalg.safe import widened


@dataclass(frozen=True, eq=False)
class Edges:
    """A graph by rows: query r sees keys[start[r] : start[r + 1]]. The same by columns, for gradients of keys."""

    start: Int[Tensor, " rows_1"]
    keys: Int[Tensor, " e"]
    query: Int[Tensor, " e"]
    key_start: Int[Tensor, " keys_1"]
    key_query: Int[Tensor, " e"]
    by_key: Int[Tensor, " e"]
    degree: int | None

    @classmethod
    def of(cls, degrees: Int[Tensor, " r"], keys: Int[Tensor, " e"], n: int) -> Edges:
        """From the number of keys of each query, and all keys in the order of the queries, among n."""
        query = torch.arange(len(degrees), device=keys.device).repeat_interleave(degrees)
        by_key = keys.argsort(stable=True)
        even = bool(len(degrees)) and bool((degrees == degrees[0]).all()) and int(degrees[0]) > 0
        key_start = _starts(torch.bincount(keys, minlength=n))
        degree = int(degrees[0]) if even else None
        return cls(_starts(degrees), keys, query, key_start, query[by_key], by_key, degree)

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device) -> Edges:
        if self.keys.device == device:
            return self
        moved = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **moved)


def attend_edges(
    Q: Tensor, K: Tensor, V: Tensor, graphs: Sequence[Edges], scale: float, hidden: Tensor | None = None
) -> Tensor:
    """Y [b h i v] over the edges of one graph for all heads, or of one for each; `hidden` [b j] keys are not seen."""
    wide = (widened(T) for T in (Q, K, V))
    return _OverEdges.apply(*wide, tuple(graphs), scale, hidden).to(Q.dtype)  # pyright: ignore[reportOptionalMemberAccess]


class _OverEdges(torch.autograd.Function):
    """Sampled and sparse matrix products; weights are kept for the backward pass, one number per edge."""

    @staticmethod
    def forward(ctx, Q: Tensor, K: Tensor, V: Tensor, graphs: tuple[Edges, ...], scale: float, hidden: Tensor | None):
        _warn_once()
        Y = Q.new_empty(*Q.shape[:3], V.shape[-1])
        kept = []
        for b, h, graph in _heads(Q, graphs):
            S = _sampled(graph, Q[b, h], K[b, h], scale)
            if hidden is not None:
                S = S.masked_fill(hidden[b][graph.keys], -torch.inf)
            P = _softmax(S, graph)
            Y[b, h] = _rows(graph, P, K.shape[2]) @ V[b, h]
            kept.append(P)
        ctx.save_for_backward(Q, K, V, Y, *kept)
        ctx.graphs, ctx.scale = graphs, scale
        return Y

    @staticmethod
    def backward(ctx, dY: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        Q, K, V, Y, *kept = ctx.saved_tensors
        dQ, dK, dV = (T.new_empty(T.shape) for T in (Q, K, V))
        along = (dY * Y).sum(-1)
        for P, (b, h, graph) in zip(kept, _heads(Q, ctx.graphs), strict=True):
            dP = _sampled(graph, dY[b, h], V[b, h], 1.0)
            dS = (dP - along[b, h][graph.query]) * P * ctx.scale
            dQ[b, h] = _rows(graph, dS, K.shape[2]) @ K[b, h]
            dK[b, h] = _columns(graph, dS, Q.shape[2]) @ Q[b, h]
            dV[b, h] = _columns(graph, P, Q.shape[2]) @ dY[b, h]
        return dQ, dK, dV, None, None, None


def _heads(Q: Tensor, graphs: tuple[Edges, ...]):
    for b in range(Q.shape[0]):
        for h in range(Q.shape[1]):
            yield b, h, graphs[h % len(graphs)]


def _sampled(graph: Edges, rows: Tensor, columns: Tensor, scale: float) -> Tensor:
    """scale rows_q . columns_k for every edge (q, k)."""
    at = _csr(graph.start, graph.keys, rows.new_zeros(len(graph)), (len(rows), len(columns)))
    return torch.sparse.sampled_addmm(at, rows.contiguous(), columns.contiguous().mT, beta=0.0, alpha=scale).values()


def _softmax(S: Tensor, graph: Edges) -> Tensor:
    """Over the edges of each query; all zero where they are all -inf."""
    if graph.degree is not None and not S.isneginf().any():
        return S.view(-1, graph.degree).softmax(-1).flatten()
    largest = torch.segment_reduce(S, "max", offsets=graph.start, initial=-torch.inf)
    shifted = S - largest.masked_fill(largest == -torch.inf, 0.0)[graph.query]
    total = torch.segment_reduce(shifted.exp_(), "sum", offsets=graph.start, initial=0.0)
    return shifted.div_(total.masked_fill_(total == 0, 1.0)[graph.query])


def _rows(graph: Edges, values: Tensor, keys: int) -> Tensor:
    return _csr(graph.start, graph.keys, values, (len(graph.start) - 1, keys))


def _columns(graph: Edges, values: Tensor, queries: int) -> Tensor:
    return _csr(graph.key_start, graph.key_query, values[graph.by_key], (len(graph.key_start) - 1, queries))


def _csr(start: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(start, columns, values, size, check_invariants=False)


def _starts(counts: Tensor) -> Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


@cache
def _warn_once() -> None:
    """torch says once per process that sparse tensors are young; let it say so here, unheard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _csr(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, 1))
