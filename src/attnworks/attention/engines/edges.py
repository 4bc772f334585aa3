"""Softmax attention edge by edge, for any graph: scores, weights and gradients exist only where there is an edge."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnworks.core.tensors import widened


@dataclass(frozen=True, eq=False)
class Edges:
    """A graph by rows: query r sees keys[start[r] : start[r + 1]]. The same by columns, for gradients of keys.

    Arrays, which may be remembered; `on` gives them as tensors.
    """

    start: np.ndarray
    keys: np.ndarray
    query: np.ndarray
    key_start: np.ndarray
    key_query: np.ndarray
    by_key: np.ndarray

    @classmethod
    def of(cls, degrees: np.ndarray, keys: np.ndarray, n: int) -> Edges:
        """From the number of keys of each query, and all keys in the order of the queries, among n."""
        query, by_key = np.arange(len(degrees)).repeat(degrees), keys.argsort(kind="stable")
        return cls(_starts(degrees), keys, query, _starts(np.bincount(keys, minlength=n)), query[by_key], by_key)

    def __len__(self) -> int:
        return len(self.keys)

    def on(self, device: torch.device) -> Graph:
        return Graph(**{name: torch.as_tensor(part, device=device) for name, part in vars(self).items()})


class Graph(NamedTuple):
    """Edges as tensors."""

    start: Tensor
    keys: Tensor
    query: Tensor
    key_start: Tensor
    key_query: Tensor
    by_key: Tensor


def attend_edges(
    Q: Tensor, K: Tensor, V: Tensor, graphs: Sequence[Edges], scale: float, hidden: Tensor | None = None
) -> Tensor:
    """Y [b h i v] over the edges of one graph for all heads, or of one for each; `hidden` [b j] keys are not seen."""
    wide = (widened(T) for T in (Q, K, V))
    with torch.autocast(Q.device.type, enabled=False):
        Y = _OverEdges.apply(*wide, tuple(graph.on(Q.device) for graph in graphs), scale, hidden)
    assert isinstance(Y, Tensor)
    return Y.to(Q.dtype)


class _OverEdges(torch.autograd.Function):
    """Sampled and sparse matrix products; weights are kept for the backward pass, one number per edge."""

    @staticmethod
    def forward(ctx, Q: Tensor, K: Tensor, V: Tensor, graphs: tuple[Graph, ...], scale: float, hidden: Tensor | None):
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
        along = (dY * Y).sum(-1)
        for P, (b, h, graph) in zip(kept, _heads(Q, ctx.graphs), strict=True):
            dP = _sampled(graph, dY[b, h], V[b, h], 1.0)
            dS = (dP - along[b, h][graph.query]) * P * ctx.scale
            dQ[b, h] = _rows(graph, dS, K.shape[2]) @ K[b, h]
            dK[b, h] = _columns(graph, dS, Q.shape[2]) @ Q[b, h]
            dV[b, h] = _columns(graph, P, Q.shape[2]) @ dY[b, h]
        return dQ, dK, dV, None, None, None


def _heads(Q: Tensor, graphs: tuple[Graph, ...]):
    for b in range(Q.shape[0]):
        for h in range(Q.shape[1]):
            yield b, h, graphs[h % len(graphs)]


def _sampled(graph: Graph, rows: Tensor, columns: Tensor, scale: float) -> Tensor:
    """scale rows_q . columns_k for every edge (q, k)."""
    at = _csr(graph.start, graph.keys, rows.new_zeros(len(graph.keys)), (len(rows), len(columns)))
    return torch.sparse.sampled_addmm(at, rows.contiguous(), columns.contiguous().mT, beta=0.0, alpha=scale).values()


def _softmax(S: Tensor, graph: Graph) -> Tensor:
    """Over the edges of each query; all zero where they are all -inf."""
    degree = len(S) // max(1, len(graph.start) - 1)
    if (graph.start[1:] - graph.start[:-1] == degree).all() and degree and not S.isneginf().any():
        return S.view(-1, degree).softmax(-1).flatten()
    largest = torch.segment_reduce(S, "max", offsets=graph.start, initial=-torch.inf)
    shifted = S - largest.masked_fill(largest == -torch.inf, 0.0)[graph.query]
    total = torch.segment_reduce(shifted.exp_(), "sum", offsets=graph.start, initial=0.0)
    return shifted.div_(total.masked_fill_(total == 0, 1.0)[graph.query])


def _rows(graph: Graph, values: Tensor, keys: int) -> Tensor:
    return _csr(graph.start, graph.keys, values, (len(graph.start) - 1, keys))


def _columns(graph: Graph, values: Tensor, queries: int) -> Tensor:
    return _csr(graph.key_start, graph.key_query, values[graph.by_key], (len(graph.key_start) - 1, queries))


def _csr(start: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(start, columns, values, size, check_invariants=False)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], counts.cumsum()])


@cache
def _warn_once() -> None:
    """torch says once per process that sparse tensors are young; let it say so here, unheard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _csr(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, 1))
