"""Linformer: keys and values are projected along the sequence to a few rows, over which queries attend."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mechanism
from attnworks.attention.dense import fused
from attnworks.attention.mask import Mask
from attnworks.attention.reference import may_see
from attnworks.attention.softmax import scaled_dot
from attnworks.core.checks import choice, integer
from attnworks.core.errors import UsageError

Sharing = Literal["none", "heads", "keys-values", "layers"]


@MECHANISMS.register("linformer")
class Linformer(Mechanism):
    """Y = softmax(Q (E K)^T / sqrt(k)) (F V) with learned E, F [rank length]; its map on the keys is P = softmax(.) F.

    rank     rows that the keys, and the values, are projected to
    length   the longest sequence of keys; a shorter one of j keys uses the first j columns of E and F
    share    "none": E and F for each head; "heads": one E and one F; "keys-values": one matrix E = F for all heads;
             "layers": one for all heads and all layers of a model

    Source: Conti 2024, eq. 17 (S4.106, S4.117, S4.118).
    Departs: scale 1/sqrt(k), where the document prints 1/k. Padded keys and values are zero before they are projected,
    so that the amount of padding changes nothing. Causal and dense masks are refused: a projected key is a
    mixture of all positions. The rows of P need not be positive, nor sum to one.
    """

    name = "linformer"
    rows_sum_to_one: ClassVar[bool] = False
    supported_masks = frozenset({"real"})

    def __init__(self, *, heads: int = 1, rank: int = 128, length: int = 1024, share: Sharing = "heads") -> None:
        super().__init__()
        self.rank = integer(f"{self.name} with rank", rank, 1, remedy="write for instance linformer:rank=64")
        self.length = integer(f"{self.name} with length", length, 1, remedy="write for instance linformer:length=512")
        choice(f"{self.name} with share", share, get_args(Sharing))
        self.share = share
        shape = (heads if share == "none" else 1, rank, length)
        self.E = nn.Parameter(torch.randn(shape) * rank**-0.5)
        self.F = nn.Parameter(torch.randn(shape) * rank**-0.5) if share in ("none", "heads") else None

    @property
    def max_keys(self) -> int | None:
        return self.length

    def share_with(self, first: Mechanism) -> None:
        if self.share == "layers" and isinstance(first, Linformer):
            self.E = first.E

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        E, F = (T.to(K.dtype) for T in self._for_keys(K.shape[-2]))
        if mask.real is not None:
            # Zero columns of E and F have the effect of zero rows of K and V, and are fewer where heads share E and F.
            hidden = ~mask.real[:, None, None, :]
            E, F = E.masked_fill(hidden, 0.0), F.masked_fill(hidden, 0.0)
        EK, FV, scale = _project(E, K), _project(F, V), self.scale(Q.shape[-1], context)
        if not weights:
            return Attended(fused(Q, EK, FV, Mask(), scale))
        A = scaled_dot(Q, EK, scale).softmax(-1)
        return Attended(A @ FV, A @ F)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        (b, h, i, _), j = Q.shape, K.shape[2]
        E, F = (T.expand(h, self.rank, j) for T in self._for_keys(j))
        scale = self.scale(Q.shape[-1], context)
        Y, P = torch.zeros(b, h, i, V.shape[-1], dtype=V.dtype), torch.zeros(b, h, i, j, dtype=V.dtype)
        for batch in range(b):
            seen = [key for key in range(j) if may_see(mask, batch, 0, 0, key, i, j)]
            for head in range(h if seen else 0):
                EK = sum(torch.outer(E[head, :, key], K[batch, head, key]) for key in seen)
                FV = sum(torch.outer(F[head, :, key], V[batch, head, key]) for key in seen)
                for query in range(i):
                    scores = scale * (EK * Q[batch, head, query]).sum(-1)
                    exponentials = torch.exp(scores - scores.max().detach())
                    A = exponentials / exponentials.sum()
                    Y[batch, head, query] = (A[:, None] * FV).sum(0)
                    for key in seen:
                        P[batch, head, query, key] = (A * F[head, :, key]).sum()
        return Attended(Y, P)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        """Edges are pairs of a query and a projected key."""
        h, d_k, d_v = geometry
        edges = h * queries * self.rank
        flops = 2 * (edges + h * keys * self.rank) * (d_k + d_v)
        return AttentionCost(edges, flops, bytes=4 * h * (self.rank * (d_k + d_v) + queries * (d_v + 1)))

    def _for_keys(self, j: int) -> tuple[Float[Tensor, "#h r j"], Float[Tensor, "#h r j"]]:
        """E and F of the first j positions."""
        if j > self.length:
            limit = f"at most {self.length}, the length that E and F were built for"
            remedy = f"cut the sequence, or build and train with {self.name}:length={j}"
            raise UsageError(f"{self.name} attention to {j} keys", limit, str(j), remedy)
        return self.E[..., :j], (self.E if self.F is None else self.F)[..., :j]


def _project(E: Float[Tensor, "*a r j"], K: Float[Tensor, "b h j k"]) -> Float[Tensor, "b h r k"]:
    """E K: for an E that heads share, one product over all heads.

    E @ K would be as fast forward, but its gradient first builds a [rank length] table per head and sentence.
    """
    return torch.einsum("...hrj,...hjk->...hrk", E, K)
