"""Attention over any directed graph on the positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mechanism
from attnworks.attention.dense import Dense, fused
from attnworks.attention.engines.edges import EdgeList, attend_edges
from attnworks.attention.mask import Mask
from attnworks.attention.patterns import FullPattern, Pattern
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.sparse import attend_table, hidden_keys
from attnworks.core.errors import UsageError

_Checked = Pattern | Tensor | Sequence[Sequence[int]] | Callable[[int, int], bool]
_Given = _Checked | np.ndarray
PAIRS_AT_ONCE = 2**15
"""Pairs that are read at once when edges are collected."""


@MECHANISMS.register("graph")
class Graph(Mechanism):
    """Y_i = sum_{j in N(i)} P_ij v_j, the softmax over the neighbours N(i) alone.

    `graph` is one of: a boolean matrix (row i, column j: query i sees key j), a list of neighbours for each query, a
    predicate (i, j) -> bool for sequences of any length, or a Pattern. Without one it is full, and this is dense
    attention. A predicate is called once for every pair; `WherePattern` takes one on index tensors, which is faster.
    Second derivatives need `weights=True`.

    Source: Conti 2024, eq. 11 (S4.74).
    Departs: scores are scaled and X is not added, so that the full graph is the attention of a Transformer (S4.75).
    """

    name = "graph"
    softmax = True

    def __init__(self, *, graph: _Given | None = None) -> None:
        super().__init__()
        self.graph: _Checked = FullPattern() if graph is None else _checked(graph)
        self._known: dict[tuple[int, int, int, bool], tuple[EdgeList[np.ndarray], ...]] = {}

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        (b, h, i, k), j = Q.shape, K.shape[2]
        scale = self.scale(k, context)
        if isinstance(self.graph, FullPattern) and not weights:
            return Attended(fused(Q, K, V, mask, scale))
        if weights or mask.dense is not None:
            table = self.table(h, i, j, mask.causal).to(Q.device)[None]
            return attend_table(Q, K, V, table, mask, scale, weights)
        return Attended(attend_edges(Q, K, V, self.collected(h, i, j, mask.causal), scale, hidden_keys(mask, b)))

    def table(self, heads: int, i: int, j: int, causal: bool = False) -> Bool[Tensor, "#h i j"]:
        """All pairs, for queries that are the last i positions of j when causal."""
        return torch.cat(list(self._pieces(heads, i, j, causal)), 1)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        i, j = Q.shape[2], K.shape[2]
        scale = self.scale(Q.shape[-1], context)
        offset = j - i if mask.causal else 0

        def linked(batch: int, head: int, query: int, key: int) -> bool:
            query += offset
            match self.graph:
                case Pattern():
                    return self.graph.sees(head, query, key, max(i, j), mask.causal)
                case Tensor():
                    return bool(self.graph[query, key])
                case Sequence():
                    return key in self.graph[query]
                case _:
                    return bool(self.graph(query, key))

        return softmax_by_loops(lambda _, q, k: scale * (q * k).sum(), Q, K, V, mask, linked)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        h, d_k, d_v = geometry
        if isinstance(self.graph, FullPattern):
            return Dense().cost(queries, keys, geometry, causal=causal)
        edges = sum(int(rows.sum()) * h // len(rows) for rows in self._pieces(h, queries, keys, causal))
        return AttentionCost(edges, flops=2 * edges * (d_k + d_v), bytes=4 * (edges + h * queries * d_v))

    def collected(self, heads: int, i: int, j: int, causal: bool) -> tuple[EdgeList[np.ndarray], ...]:
        """One edge list for all heads, or one for each, cached for the last sizes."""
        size = heads, i, j, causal
        if size not in self._known:
            self._known = {**dict(list(self._known.items())[-7:]), size: self._collect(*size)}
        return self._known[size]

    def _collect(self, heads: int, i: int, j: int, causal: bool) -> tuple[EdgeList[np.ndarray], ...]:
        found = [
            [(rows.sum(-1), rows.nonzero()[1]) for rows in piece.numpy()] for piece in self._pieces(heads, i, j, causal)
        ]
        return tuple(
            EdgeList.of(np.concatenate([degrees for degrees, _ in head]), np.concatenate([keys for _, keys in head]), j)
            for head in zip(*found, strict=True)
        )

    def _pieces(self, heads: int, i: int, j: int, causal: bool):
        """Rows of the table, some at a time: [1 or h, rows, j]."""
        self._check_size(i, j, causal)
        offset, key = j - i if causal else 0, torch.arange(j)
        links = self.graph.links(heads, max(i, j), causal) if isinstance(self.graph, Pattern) else None
        rows = max(16, PAIRS_AT_ONCE // j)
        for start in range(0, i, rows):
            query = torch.arange(start, min(i, start + rows))[:, None] + offset
            if links is not None:
                seen = links(torch.arange(heads)[:, None, None], query, key)
                seen = seen.expand(1 if seen.dim() == 2 else heads, len(query), j)
            elif isinstance(self.graph, Tensor):
                seen = self.graph[None, query[:, 0]]
            elif isinstance(self.graph, Sequence):
                seen = torch.zeros(1, len(query), j, dtype=torch.bool)
                for row, position in enumerate(query[:, 0].tolist()):
                    seen[0, row, list(self.graph[position])] = True
            else:
                assert callable(self.graph)
                seen = torch.tensor([[[bool(self.graph(q, k)) for k in range(j)] for q in query[:, 0].tolist()]])
            yield seen & (key <= query) if causal else seen

    def _check_size(self, i: int, j: int, causal: bool) -> None:
        rows = j if causal else i
        if isinstance(self.graph, Tensor):
            fits, size = tuple(self.graph.shape) == (rows, j), f"a matrix {list(self.graph.shape)}"
        elif isinstance(self.graph, Sequence):
            largest = max((max(row, default=-1) for row in self.graph), default=-1)
            fits, size = len(self.graph) == rows and largest < j, f"{len(self.graph)} lists with keys up to {largest}"
        else:
            return
        if not fits:
            expected = f"a graph of {rows} queries and {j} keys"
            raise UsageError(f"{self.name} attention", expected, size, "give a predicate (i, j)")


def _checked(graph: _Given) -> _Checked:
    """Boolean, or lists of whole numbers from 0, or something to call."""
    graph = torch.as_tensor(graph) if isinstance(graph, np.ndarray) else graph
    if isinstance(graph, Tensor):
        good, got = graph.dtype == torch.bool and graph.dim() == 2, f"{graph.dtype} with {graph.dim()} axes"
    elif isinstance(graph, Sequence) and not isinstance(graph, str):
        good = all(
            isinstance(row, Sequence | set) and all(type(key) is int and key >= 0 for key in row) for row in graph
        )
        got = "lists with other entries than positions from 0"
    else:
        good, got = isinstance(graph, Pattern) or callable(graph), f"{graph!r:.40}"
    if not good:
        expected = "a boolean matrix, a list of neighbours for each query, a predicate (i, j) -> bool or a Pattern"
        raise UsageError("graph attention", expected, got, "for instance graph=lambda i, j: abs(i - j) <= 2")
    return graph
