"""Softmax attention over the edges of any graph: scores, weights and gradients exist only where there is an edge."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnworks.core.tensors import widened

_A = TypeVar("_A", np.ndarray, Tensor)


@dataclass(frozen=True, eq=False)
class EdgeList(Generic[_A]):
    """The edges of a graph, sorted by query and by key: as numpy arrays, which can be cached, or as tensors.

    start, keys             query r sees keys[start[r] : start[r + 1]]
    query                   the query of each edge
    key_start, key_query    key c is seen by key_query[key_start[c] : key_start[c + 1]], for gradients of keys
    by_key                  the edges in the order of their keys
    """

    start: _A
    keys: _A
    query: _A
    key_start: _A
    key_query: _A
    by_key: _A

    @staticmethod
    def of(degrees: np.ndarray, keys: np.ndarray, n: int) -> EdgeList[np.ndarray]:
        """From the number of keys of each query, and the keys (of n) of all queries, one query after the other."""
        query, by_key = np.arange(len(degrees)).repeat(degrees), keys.argsort(kind="stable")
        return EdgeList(_starts(degrees), keys, query, _starts(np.bincount(keys, minlength=n)), query[by_key], by_key)

    def __len__(self) -> int:
        return len(self.keys)

    def to_torch(self, device: torch.device) -> EdgeList[Tensor]:
        return EdgeList(**{name: torch.as_tensor(part, device=device) for name, part in vars(self).items()})


def attend_edges(
    Q: Tensor, K: Tensor, V: Tensor, graphs: Sequence[EdgeList[np.ndarray]], scale: float, hidden: Tensor | None = None
) -> Tensor:
    """Y [b h i v] over the edges of one graph for all heads, or of one for each; `hidden` [b j] keys are not seen."""
    wide = (widened(T) for T in (Q, K, V))
    with torch.autocast(Q.device.type, enabled=False):
        Y = _OverEdges.apply(*wide, tuple(graph.to_torch(Q.device) for graph in graphs), scale, hidden)
    assert isinstance(Y, Tensor)
    return Y.to(Q.dtype)


_Graphs = tuple[EdgeList[Tensor], ...]


class _OverEdges(torch.autograd.Function):
    """Sampled and sparse products per sentence and head; P, one number per edge, is kept for the backward pass."""

    @staticmethod
    def forward(ctx, Q: Tensor, K: Tensor, V: Tensor, graphs: _Graphs, scale: float, hidden: Tensor | None):
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
    @once_differentiable
    def backward(ctx, dY: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        Q, K, V, Y, *kept = ctx.saved_tensors
        dQ, dK, dV = (T.new_empty(T.shape) for T in (Q, K, V))
        along = (dY * Y).sum(-1)  # [b h i], sum_j P_ij dP_ij
        for P, (b, h, graph) in zip(kept, _heads(Q, ctx.graphs), strict=True):
            dP = _sampled(graph, dY[b, h], V[b, h], 1.0)
            dS = (dP - along[b, h][graph.query]) * P * ctx.scale
            dQ[b, h] = _rows(graph, dS, K.shape[2]) @ K[b, h]
            dK[b, h] = _columns(graph, dS, Q.shape[2]) @ Q[b, h]
            dV[b, h] = _columns(graph, P, Q.shape[2]) @ dY[b, h]
        return dQ, dK, dV, None, None, None


def _heads(Q: Tensor, graphs: _Graphs):
    for b in range(Q.shape[0]):
        for h in range(Q.shape[1]):
            yield b, h, graphs[h % len(graphs)]


def _sampled(graph: EdgeList[Tensor], rows: Tensor, columns: Tensor, scale: float) -> Tensor:
    """scale rows_q . columns_k for every edge (q, k)."""
    at = _csr(graph.start, graph.keys, rows.new_zeros(len(graph.keys)), (len(rows), len(columns)))
    return torch.sparse.sampled_addmm(at, rows.contiguous(), columns.contiguous().mT, beta=0.0, alpha=scale).values()


def _softmax(S: Tensor, graph: EdgeList[Tensor]) -> Tensor:
    """Over the edges of each query; all zero where they are all -inf."""
    degree = len(S) // max(1, len(graph.start) - 1)
    if (graph.start[1:] - graph.start[:-1] == degree).all() and degree and not S.isneginf().any():
        return S.view(-1, degree).softmax(-1).flatten()
    largest = torch.segment_reduce(S, "max", offsets=graph.start, initial=-torch.inf)
    shifted = S - largest.masked_fill(largest == -torch.inf, 0.0)[graph.query]
    total = torch.segment_reduce(shifted.exp_(), "sum", offsets=graph.start, initial=0.0)
    return shifted.div_(total.masked_fill_(total == 0, 1.0)[graph.query])


def _rows(graph: EdgeList[Tensor], values: Tensor, keys: int) -> Tensor:
    return _csr(graph.start, graph.keys, values, (len(graph.start) - 1, keys))


def _columns(graph: EdgeList[Tensor], values: Tensor, queries: int) -> Tensor:
    return _csr(graph.key_start, graph.key_query, values[graph.by_key], (len(graph.key_start) - 1, queries))


def _csr(start: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(start, columns, values, size, check_invariants=False)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], counts.cumsum()])


@cache
def _warn_once() -> None:
    """Take torch's warning, once per process, that sparse tensors are in beta, and ignore it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _csr(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, 1))
