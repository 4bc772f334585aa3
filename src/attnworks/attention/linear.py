"""Linear attention: weights are products of features, so that one sum holds all keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mechanism
from attnworks.attention.engines.prefix import guarded, linear_attention
from attnworks.attention.feature_maps import Elu, Exp, FeatureMap, OwnFeatures, RandomFeatures, Relu, Taylor
from attnworks.attention.mask import Mask
from attnworks.attention.reference import may_see
from attnworks.core.checks import choice, integer, number
from attnworks.core.errors import UsageError
from attnworks.core.tensors import widened

FIXED_FEATURE_MAPS: dict[str, type[FeatureMap]] = {"elu": Elu, "relu": Relu, "exp": Exp, "taylor": Taylor}


class LinearState(NamedTuple):
    """The state of linear attention after some positions: S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)."""

    S: Float[Tensor, "b h f v"]
    z: Float[Tensor, "b h f"]


@MECHANISMS.register("linear")
class Linear(Mechanism):
    """Y_i = phi(q_i)^T sum_j phi(k_j) v_j^T / phi(q_i)^T sum_j phi(k_j), in time and memory linear in the length.

    feature    phi: elu, relu, exp, taylor, random (see `feature_maps`), or from Python a callable or module of your own
    features   how many random features
    seed       of the random features
    eps        denominators become sign(den) max(|den|, eps) with sign(0) = 1; by default 1e-6 for taylor and for a map
               of your own. 0 is for maps that are never negative, and the default of the others: where the sum is not
               above the smallest normal number, no key has a weight and the output is zero.

    A scale s is applied to the queries, phi(s q); it is 1 by default, and 1 / sqrt(d_k) for random features.
    Source: Conti 2024, eq. 15 (S4.98), with prefix sums if causal (S4.100); O(n f v) (S4.99).
    Holds when: phi(q)^T phi(k) >= 0 (S4.97), for rows of weights to be positive; nothing else needs it.
    Departs: eq. 15 prints the row Y_i^T as a column. Half precision is computed in float32.
    Without `weights=True`, a chunked kernel runs (`engines.prefix`); second derivatives need `weights=True`.
    """

    name = "linear"
    supported_masks = frozenset({"real", "causal"})

    def __init__(
        self,
        *,
        feature: str | Callable[[Tensor], Tensor] = "elu",
        features: int = 256,
        seed: int = 0,
        eps: float | None = None,
        d_k: int | None = None,
    ) -> None:
        super().__init__()
        _check_options(feature, features, seed, eps)
        self.phi = _feature_map(feature, features, seed, d_k)
        self.eps = self.phi.eps if eps is None else float(eps)

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        dtype, scale = Q.dtype, self.scale(Q.shape[-1], context)
        with torch.autocast(Q.device.type, enabled=False):  # sums over thousands of keys need their digits
            Q, K = self.phi.scaled(widened(Q), widened(K), scale)
            if weights:
                Y, P = self._explicit(Q, K, widened(V), mask)
                return Attended(Y.to(dtype), P.to(dtype))
            real = None if mask.real is None else mask.real.expand(len(K), -1)
            if self.phi.kernel == "identity":
                Q, K = self.phi.queries(Q), self._keys(K, real)
            Y = linear_attention(Q, K, widened(V), real, causal=mask.causal, feature=self.phi.kernel, eps=self.eps)
            return Attended(Y.to(dtype))

    def _explicit(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        A = self.phi.queries(Q) @ self._keys(K, mask.real).mT
        allowed = mask.allowed(*A.shape[-2:], device=A.device)
        A = A if allowed is None else A.masked_fill(~allowed, 0.0)
        P = A / guarded(A.sum(-1, keepdim=True), self.eps)
        return P @ V, P

    def _keys(self, K: Tensor, real: Tensor | None) -> Tensor:
        """The features of keys; padding is mapped as zeros, so that its features are finite whatever it holds."""
        return self.phi.keys(K if real is None else K.masked_fill(~real[:, None, :, None], 0.0))

    def default_scale(self, d_k: int) -> float:
        return self.phi.default_scale(d_k)

    # --- one position at a time ---

    def start(
        self, b: int, geometry: Geometry, *, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> LinearState:
        """The state before the first position of b sequences."""
        h, _, d_v = geometry
        S = torch.zeros(b, h, self.phi.width(geometry), d_v, dtype=dtype, device=device)
        return LinearState(S, torch.zeros_like(S[..., 0]))

    def step(
        self,
        q: Float[Tensor, "b h 1 k"],
        k: Float[Tensor, "b h 1 k"],
        v: Float[Tensor, "b h 1 v"],
        state: LinearState | None = None,
        context: Context | None = None,
    ) -> tuple[Float[Tensor, "b h 1 v"], LinearState]:
        """The output at the next position, and the state after it: causal attention in constant time and memory.

        Source: S4.100, S4.104.
        """
        if not q.dim() == k.dim() == v.dim() == 4 or not q.shape[2] == k.shape[2] == v.shape[2] == 1:
            expected, found = "q, k and v [batch, heads, 1, width]", ", ".join(str(list(T.shape)) for T in (q, k, v))
            remedy = "give one position in each step, or all at once to the mechanism with a causal mask"
            raise UsageError("a step of linear attention", expected, found, remedy)
        phi = self.phi
        Q, K = phi.scaled(widened(q), widened(k), self.scale(q.shape[-1], context or Context()))
        state = _extended(state, phi.keys(K), widened(v))
        query = phi.queries(Q)
        total = (query * state.z.unsqueeze(-2)).sum(-1, keepdim=True)
        return (query @ state.S / guarded(total, self.eps)).to(q.dtype), state

    # --- reference and cost ---

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        (b, h, i, _), (j, v) = Q.shape, V.shape[2:]
        scaled_Q, scaled_K = self.phi.scaled(Q, K, self.scale(Q.shape[-1], context))
        queries, keys = self.phi.queries(scaled_Q), self.phi.keys(scaled_K)
        Y, P = V.new_zeros(b, h, i, v), V.new_zeros(b, h, i, j)
        for batch in range(b):
            for head in range(h):
                rows = keys[batch, head].unbind()
                for query, q in enumerate(queries[batch, head].unbind()):
                    seen = [key for key in range(j) if may_see(mask, batch, head, query, key, i, j)]
                    similar = [(q * rows[key]).sum() for key in seen]
                    total = sum(similar, start=torch.zeros((), dtype=V.dtype))
                    if self.eps == 0 and total <= torch.finfo(V.dtype).tiny:
                        continue
                    if abs(total) < self.eps:
                        total = -self.eps if total < 0 else self.eps
                    if seen:
                        weights = torch.stack(similar) / total
                        P[batch, head, query, seen] = weights
                        Y[batch, head, query] = weights @ V[batch, head, seen]
        return Attended(Y, P)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        """2 f (keys v + queries (v + 1)) FLOPs per head, and those of the map, causal or not.

        An edge is a position that writes to the state or reads it: no pair of positions is ever scored.
        Departs: the chunked causal kernel scores pairs inside chunks, at twice the FLOPs for f = v = 64; a map of your
        own counts nothing.
        """
        del causal  # the recurrence does the same work
        (h, _, v), f = geometry, self.phi.width(geometry)
        flops = 2 * f * (keys * v + queries * (v + 1)) + self.phi.flops(queries + keys, geometry)
        features = (queries + keys) * f if self.phi.kernel == "identity" else 0
        numbers = queries * (v + 1) + f * (v + 1) + features
        return AttentionCost(edges=h * (queries + keys), flops=h * flops, bytes=4 * h * numbers)


def _extended(state: LinearState | None, keys: Tensor, V: Tensor) -> LinearState:
    """The state after one more position; None is the empty state."""
    if state is None:
        return LinearState(keys.mT @ V, keys.sum(-2))
    # an outer product per head, for which a batched matrix product is slow
    return LinearState(torch.addcmul(state.S, keys.mT, V), state.z + keys.squeeze(-2))


def _feature_map(feature: str | Callable[[Tensor], Tensor], features: int, seed: int, d_k: int | None) -> FeatureMap:
    if not isinstance(feature, str):
        return OwnFeatures(feature)
    if feature in FIXED_FEATURE_MAPS:
        return FIXED_FEATURE_MAPS[feature]()
    if d_k is None:
        raise UsageError("random features", "the width of keys", "none", "give d_k=..., or use Linear.for_geometry")
    return RandomFeatures(d_k, features, seed)


def _check_options(feature: object, features: object, seed: object, eps: object) -> None:
    asked, known = "linear attention with", (*FIXED_FEATURE_MAPS, "random")
    if isinstance(feature, str):
        choice("feature map", feature, known)
    elif not callable(feature):
        expected, found = f"{', '.join(known)} or a callable", repr(feature)[:60]
        raise UsageError(f"{asked} feature={found}", expected, found, "write for instance linear:feature=relu")
    integer(f"{asked} features", features, 1, remedy="write for instance linear:feature=random,features=256")
    integer(f"{asked} seed", seed, 0, remedy="write for instance linear:feature=random,seed=1")
    if feature != "random" and (features, seed) != (256, 0):
        expected, remedy = "feature=random with them", "write feature=random, or leave them out"
        raise UsageError(f"{asked} features or seed", expected, f"{features} and {seed}", remedy)
    if eps is not None:
        number(f"{asked} eps", eps, 0, remedy="write for instance linear:eps=1e-6")
