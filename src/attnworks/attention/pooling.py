"""Attention pooling: any similarity of queries and keys, any map of values. Slow, and the general case."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mechanism, dense_edges
from attnworks.attention.dense import explicit
from attnworks.attention.feature_maps import Elu
from attnworks.attention.mask import Mask
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.softmax import masked_softmax, scaled_dot
from attnworks.core.checks import choice
from attnworks.core.errors import UsageError
from attnworks.core.tensors import widened

_Similarity = Callable[[Tensor, Tensor], Tensor]
"""(Q [b h i k], K [b h j k]) -> f(q_i, k_j) >= 0 [b h i j]"""
_ValueMap = Callable[[Tensor], Tensor]
"""V [b h j v] -> g(v_j) [b h j any]"""

_elu = Elu().keys
"""elu(x) + 1, exact to the last digits for x far below zero."""

_EXPONENTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "exp": scaled_dot,
    "gaussian": lambda Q, K, s: s * (Q @ K.mT - K.square().sum(-1).unsqueeze(-2) / 2),  # ||q||^2 / 2 cancels in C
}
"""log f(q_i, k_j) for all pairs, up to a constant per query, by name."""
_SIMILARITIES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "polynomial": lambda Q, K, s: (1 + scaled_dot(Q, K, s)).square(),
    "elu": lambda Q, K, s: _elu(s * Q) @ _elu(K).mT,
}
"""f(q_i, k_j) for all pairs, by name."""
VALUE_MAPS: dict[str, _ValueMap] = {"identity": lambda V: V, "relu": torch.relu, "tanh": torch.tanh}
"""g(v_j), by name."""


@MECHANISMS.register("pooling")
class Pooling(Mechanism):
    """o_i = (1 / C_i) sum_j f(q_i, k_j) g(v_j) with C_i = sum_j f(q_i, k_j), over the keys that query i may see.

    similarity   f >= 0: "exp" exp(s q.k), which is dense attention; "gaussian" exp(-s ||q - k||^2 / 2); "polynomial"
                 (1 + s q.k)^2; "elu" phi(s q).phi(k) with phi = elu + 1, which is linear attention; or any function of
                 Q [b h i k] and K [b h j k] that gives [b h i j]. By default s = 1/sqrt(k), and 1 for "elu"
    values       g: "identity", "relu", "tanh", or any function of V [b h j v], such as a linear layer

    Source: Conti 2024, eq. 13 and 18 (S4.122-S4.125).
    Departs: C depends on the query, and f must not be negative: the document also takes f(q, k) = q.k, with which the
    weights need not be a convex combination (scores 1 and -.99 give weights 100 and -99). An additive mask multiplies
    f by its exponential. A query that sees nothing, or for which f is zero everywhere, gives zeros.
    """

    name = "pooling"

    def __init__(self, *, similarity: str | _Similarity = "exp", values: str | _ValueMap = "identity") -> None:
        super().__init__()
        named = {"similarity": (similarity, {**_EXPONENTS, **_SIMILARITIES}), "values": (values, VALUE_MAPS)}
        for option, (given, known) in named.items():
            if not callable(given):
                choice(f"{self.name} with {option}", given, known)
        self.similarity, self.values = similarity, values

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        if isinstance(self.similarity, str) and self.similarity in _EXPONENTS:
            P = explicit(_EXPONENTS[self.similarity](widened(Q), widened(K), scale), widened(V), mask).P
            assert P is not None
        else:
            f, added = widened(self._similarity(Q, K, scale)), mask.additive()
            exponent = torch.zeros_like(f) if added is None else added.to(f.dtype).expand_as(f)
            weighed = f * masked_softmax(exponent, mask.allowed(*f.shape[-2:], device=f.device))
            C = weighed.sum(-1, keepdim=True)
            P = weighed / torch.where(C > 0, C, 1.0)
        Y = P @ widened(self._values(V))
        return Attended(Y.to(V.dtype), P.to(V.dtype) if weights else None)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        scale, (i, j) = self.scale(Q.shape[-1], context), (Q.shape[2], K.shape[2])
        G = torch.cat([self._values(V[:, :, key : key + 1]) for key in range(j)], 2)
        if self.similarity == "exp":
            return softmax_by_loops(lambda _, q, k: scale * (q * k).sum(), Q, K, G, mask)
        if self.similarity == "gaussian":
            return softmax_by_loops(lambda _, q, k: -scale * (q - k).square().sum() / 2, Q, K, G, mask)
        alone = softmax_by_loops(lambda _, q, k: torch.zeros((), dtype=Q.dtype), Q, K, G, mask).P  # only the mask
        assert alone is not None
        rows = []
        for query in range(i):
            one = Q[:, :, query : query + 1]
            f = [self._similarity(one, K[:, :, key : key + 1], scale)[..., 0, 0] for key in range(j)]
            weighed = torch.stack([alone[:, :, query, key] * f[key] for key in range(j)], -1)
            C = weighed.sum(-1, keepdim=True)
            rows.append(weighed / torch.where(C > 0, C, 1.0))
        P = torch.stack(rows, 2)
        return Attended(torch.einsum("bhij,bhjv->bhiv", P, G), P)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        """As if f took one product of q and k, and g nothing."""
        h, d_k, d_v = geometry
        edges = h * dense_edges(queries, keys, causal)
        flops = 2 * h * queries * keys * d_k + 2 * edges * d_v
        return AttentionCost(edges, flops, bytes=4 * h * queries * (2 * keys + d_v))

    def default_scale(self, d_k: int) -> float:
        return 1.0 if self.similarity == "elu" else super().default_scale(d_k)

    def _similarity(self, Q: Tensor, K: Tensor, scale: float) -> Tensor:
        if not callable(self.similarity):
            return _SIMILARITIES[self.similarity](widened(Q), widened(K), scale)
        f, shape = self.similarity(Q, K), (*Q.shape[:3], K.shape[2])
        fits = tuple(f.shape) == shape
        if not fits or not bool((f >= 0).all()):
            expected = f"numbers from 0 of shape {list(shape)}"
            found = "negative numbers or NaN" if fits else f"shape {list(f.shape)}"
            remedy = "give f(Q, K) >= 0 for every pair, for instance by exp, relu or square"
            raise UsageError(f"{self.name} attention with a similarity of one's own", expected, found, remedy)
        return f

    def _values(self, V: Tensor) -> Tensor:
        G = self.values(V) if callable(self.values) else VALUE_MAPS[self.values](V)
        if G.shape[:3] != V.shape[:3]:
            asked = f"{self.name} attention with a map of values of one's own"
            expected = f"shape [{', '.join(map(str, V.shape[:3]))}, any]"
            raise UsageError(asked, expected, f"shape {list(G.shape)}", "give g(V) with one row for each row of V")
        return G
