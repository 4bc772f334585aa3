"""Dense attention with its map cut to the best one of a given rank, by singular values: exact, and expensive.

The best approximation of low rank has a gradient that is finite wherever it exists.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry
from attnworks.attention.dense import Dense
from attnworks.attention.mask import Mask
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.softmax import masked_softmax, scaled_dot
from attnworks.core.checks import integer
from attnworks.core.tensors import widened


def leading(X: Float[Tensor, "*a i j"], rank: int) -> Float[Tensor, "*a i j"]:
    """X_r = sum_{a <= r} s_a u_a v_a^T, the matrix of rank r nearest to X; X itself if r >= min(i, j).

    Source: Eckart and Young 1936; the approximation by SVD of Conti 2024, section 2.1.3 (S4.116).
    Gradient: in the bases of u and v, with D_ab = u_a^T dX v_b, the differential of X_r is D_ab where a, b <= r, zero
    where a, b > r, and across the cut, a <= r < b,
        (s_a^2 D_ab + s_a s_b D_ba) / (s_a^2 - s_b^2),    and the same with ab and ba exchanged.
    So values that are equal on one side of the cut do no harm, where the gradient of an SVD divides by every gap.
    Holds when: s_r > s_{r+1}. Where a gap across the cut is nothing but rounding, the two directions stay fixed.
    """
    return X if rank >= min(X.shape[-2:]) else _Leading.apply(X, rank)  # pyright: ignore[reportReturnType]


class _Leading(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, rank: int) -> Tensor:
        U, s, Vh = torch.linalg.svd(X, full_matrices=False)
        ctx.save_for_backward(U, s, Vh)
        ctx.rank = rank
        return U[..., :rank] * s[..., None, :rank] @ Vh[..., :rank, :]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (G,), (U, s, Vh), r = gradients, ctx.saved_tensors, ctx.rank
        U_r, U_rest, Vh_r, Vh_rest = U[..., :r], U[..., r:], Vh[..., :r, :], Vh[..., r:, :]
        s_a, s_b = s[..., :r, None], s[..., None, r:]
        gap = s_a - s_b
        rounding = max(G.shape[-2:]) * torch.finfo(s.dtype).eps * s[..., :1, None]
        t = torch.where(gap > rounding, s_b / (gap * (s_a + s_b)), 0.0)
        D_ab, D_ba = U_r.mT @ G @ Vh_rest.mT, (U_rest.mT @ G @ Vh_r.mT).mT
        # The differential is self-adjoint: the projections of G, and the rotation of the two spaces.
        left = U_r @ (U_r.mT @ G)
        projected = left + (G - left) @ Vh_r.mT @ Vh_r
        turned = U_r @ (t * (s_b * D_ab + s_a * D_ba)) @ Vh_rest + U_rest @ (t * (s_b * D_ba + s_a * D_ab)).mT @ Vh_r
        return projected + turned, None


@MECHANISMS.register("truncated")
class Truncated(Dense):
    """Y = P_r V with P_r the matrix of rank r nearest to P = softmax(Q K^T / sqrt(k)); dense where r >= j.

    Source: Conti 2024, section 2.1.3 (S4.105, S4.116); Xie 2021, theorem 2.3 (S0.25): an SVD per head and layer costs
    more than it saves, so this is for study.
    Departs: P_r depends on all queries and keys together. So causal and dense masks are refused, and cross-
    attention too: in a decoder, outputs would depend on later target tokens. Padded queries give zeros, and have no
    part in the approximation. The rows of P_r need not be positive, nor sum to one.
    """

    name = "truncated"
    rows_sum_to_one: ClassVar[bool] = False
    softmax: ClassVar[bool] = False
    supported_masks = frozenset({"real"})
    supports_cross_attention = False

    def __init__(self, *, rank: int = 32) -> None:
        super().__init__()
        self.rank = integer(f"{self.name} with rank", rank, 1, remedy="write for instance truncated:rank=16")

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        real = None if mask.real is None else mask.real[:, None, :, None] & mask.real[:, None, None, :]
        with torch.autocast(Q.device.type, enabled=False):
            P = leading(masked_softmax(scaled_dot(widened(Q), widened(K), scale), real), self.rank).to(Q.dtype)
        P = P if real is None else P.masked_fill(~real, 0.0)
        return Attended(P @ V, P if weights else None)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        P = softmax_by_loops(lambda _, q, k: scale * (q * k).sum(), Q, K, V, mask).P
        assert P is not None
        b, h, n, _ = P.shape
        P_r = torch.zeros_like(P)
        for batch in range(b):
            real = range(n)
            if mask.real is not None:
                real = [key for key in real if mask.real[batch % len(mask.real), key]]
            for head in range(h if real else 0):
                rows = torch.stack([P[batch, head, query, real] for query in real])
                for query, row in zip(real, _nearest(rows, self.rank), strict=True):
                    P_r[batch, head, query, real] = row
        return Attended(torch.einsum("bhij,bhjv->bhiv", P_r, V), P_r)

    def dot_scale(self, d_k: int, context: Context) -> float | None:
        return None  # P_r is no softmax

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        """With 22 n^3 for the SVD of a square matrix (Golub and Van Loan), whatever the rank."""
        h, _, d_v = geometry
        edges, flops, _ = super().cost(queries, keys, geometry)
        flops += h * (22 * keys**3 + 2 * queries * keys * self.rank)
        return AttentionCost(edges, flops, bytes=4 * h * queries * (4 * keys + d_v))


def _nearest(P: Tensor, rank: int) -> Tensor:
    """P_r = P (I + sign(P^T P - tau I)) / 2 with tau between s_r^2 and s_{r+1}^2; Newton's iteration gives the sign.

    It needs neither singular vectors nor their gradients, and the result does not change with tau.
    """
    s = torch.linalg.svdvals(P.detach())
    if rank >= len(s) or s[rank] <= 1e-14 * s[0]:
        return P
    one = torch.eye(len(s), dtype=P.dtype)
    sign = P.mT @ P - (s[rank - 1] ** 2 + s[rank] ** 2) / 2 * one
    for _ in range(30):
        sign = (sign + torch.linalg.inv(sign)) / 2
    return P @ (one + sign) / 2
