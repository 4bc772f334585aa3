"""Dense attention through a random projection along the keys, as in the lemma of Johnson and Lindenstrauss."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry
from attnworks.attention.dense import Dense, explicit, fused
from attnworks.attention.mask import Mask
from attnworks.attention.reference import may_see
from attnworks.attention.softmax import scaled_dot
from attnworks.core.checks import integer
from attnworks.core.tensors import widened

QUERIES_PER_CHUNK = 64
"""Queries of one chunk under a causal mask."""


def sketch_error_formula(P: Float[Tensor, "*a i j"], V: Float[Tensor, "*a j v"], k: int) -> Float[Tensor, "*a"]:
    """sqrt(E ||P R^T R V - P V||_F^2) / ||P V||_F = sqrt((1 + ||P||_F^2 ||V||_F^2 / ||P V||_F^2) / k).

    Source: D8 summed over the columns w of V: E ||P R^T R w - P w||^2 = (||P||_F^2 ||w||^2 + ||P w||^2) / k.
    Departs: theorem 2.3 has the error relative to ||P w|| alone, which no k = O(log n) gives (S0.21).
    """
    ratio = torch.linalg.matrix_norm(P) * torch.linalg.matrix_norm(V) / torch.linalg.matrix_norm(P @ V)
    return ((1 + ratio.square()) / k).sqrt()


@MECHANISMS.register("sketched")
class Sketched(Dense):
    """Y = P~ V with P~ = P R^T R on the keys that a query may see, P the dense map, and R [rank j] from N(0, 1/rank).

    rank   rows of R, one matrix for all heads and sentences
    seed   draws the same R for every sequence of the same length; by default each call draws a new one from torch's
           generator, so that outputs and weights of two calls belong to different matrices

    Source: Xie 2021, theorem 2.3 (S0.21-S0.24); Conti 2024, section 2.1.3 (S4.110-S4.112).
    Departs: the error is not relative to ||P v|| alone, see `expected_error`. R mixes all keys, so that masks are
    applied to P~ as well as to P; the mean of P~ is still P. The rows of P~ need not be positive, nor sum to one.
    """

    name = "sketched"
    rows_sum_to_one: ClassVar[bool] = False
    softmax: ClassVar[bool] = False

    def __init__(self, *, rank: int = 128, seed: int | None = None) -> None:
        super().__init__()
        self.rank = integer(f"{self.name} with rank", rank, 1, remedy="write for instance sketched:rank=64")
        if seed is not None:
            integer(f"{self.name} with seed", seed, 0, remedy="write for instance sketched:seed=1")
        self.seed = seed

    def draw(self, K: Float[Tensor, "b h j k"]) -> Float[Tensor, "r j"]:
        """R for these keys; drawn in float32, so that a seed means the same numbers in every type."""
        source = None if self.seed is None else torch.Generator(K.device).manual_seed(self.seed)
        R = torch.randn(K.shape[-2], self.rank, generator=source, dtype=torch.float32, device=K.device).mT
        return (R * self.rank**-0.5).to(widened(K).dtype)

    def expected_error(self, P: Float[Tensor, "*a i j"], V: Float[Tensor, "*a j v"]) -> Float[Tensor, "*a"]:
        """sqrt(E ||P~ V - P V||_F^2) / ||P V||_F = sqrt((1 + ||P||_F^2 ||V||_F^2 / ||P V||_F^2) / rank).

        Source: D8. Holds when: all queries see the same keys, and V is zero at the others.
        """
        return sketch_error_formula(P, V, self.rank)

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        scale, R = self.scale(Q.shape[-1], context), self.draw(K)
        b, h, i, _ = Q.shape
        wide = widened(V) if mask.real is None else widened(V).masked_fill(~mask.real[:, None, :, None], 0.0)
        if weights or mask.dense is not None:
            sketch = explicit(scaled_dot(widened(Q), widened(K), scale), R.mT, mask).Y @ R
            allowed = mask.allowed(*sketch.shape[-2:], device=Q.device)
            sketch = sketch if allowed is None else sketch.masked_fill(~allowed, 0.0)
            return Attended((sketch @ wide).to(V.dtype), sketch.to(V.dtype) if weights else None)
        if not mask.causal or i == 1:
            return Attended(fused(Q, K, (R.mT @ (R @ wide)).to(V.dtype), mask, scale))
        mixed = fused(Q, K, R.mT.to(V.dtype).expand(b, h, -1, -1), mask, scale)
        return Attended(_causal_product(widened(mixed), R, wide).to(V.dtype))

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        P = super().reference(Q, K, V, mask, context).P
        assert P is not None
        (b, h, i, j), R = P.shape, self.draw(K)
        sketch = torch.zeros_like(P)
        for batch in range(b):
            for head in range(h):
                for query in range(i):
                    for key in range(j):
                        if may_see(mask, batch, head, query, key, i, j):
                            mixed = P[batch, head, query] * (R.mT @ R[:, key])
                            sketch[batch, head, query, key] = mixed.sum()
        return Attended(torch.einsum("bhij,bhjv->bhiv", sketch, V), sketch)

    def dot_scale(self, d_k: int, context: Context) -> float | None:
        return None  # P~ is no softmax

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        h, _, d_v = geometry
        edges, flops, held = super().cost(queries, keys, geometry, causal=causal)
        flops += 4 * h * keys * self.rank * d_v
        if causal and queries > 1:  # P R^T instead of P V, and pairs inside chunks
            pairs = h * queries * min(QUERIES_PER_CHUNK, queries)
            flops += 2 * edges * (self.rank - d_v) + 2 * pairs * (self.rank + d_v)
            held += 4 * h * queries * self.rank
        return AttentionCost(edges, flops, held + 4 * (self.rank * keys + h * keys * d_v))


def _causal_product(
    A: Float[Tensor, "b h i r"], R: Float[Tensor, "r j"], V: Float[Tensor, "b h j v"]
) -> Float[Tensor, "b h i v"]:
    """Y_i = A_i sum_j R_j v_j^T over the keys up to query i, the queries being the last positions; in O(j).

    A chunk of queries takes the sum over the chunks before, and pairs inside its own chunk.
    """
    i, start = A.shape[-2], V.shape[-2] - A.shape[-2]
    # A [b h c q r], V [b h c q v], R [c r q], with c chunks of q queries; `before` is the sum of keys before the first
    before = (R[:, :start] @ V[..., :start, :]).unsqueeze(2)
    missing = -i % QUERIES_PER_CHUNK
    A, V = (F.pad(T, (0, 0, 0, missing)).unflatten(2, (-1, QUERIES_PER_CHUNK)) for T in (A, V[..., start:, :]))
    R = F.pad(R[:, start:], (0, missing)).unflatten(1, (-1, QUERIES_PER_CHUNK)).transpose(0, 1)
    # sums [b h c r v] over all chunks before each one
    earlier = before + F.pad((R @ V).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    return (A @ earlier + (A @ R).tril() @ V).flatten(2, 3)[:, :, :i]
