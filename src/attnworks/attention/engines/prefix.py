"""Linear attention in linear time: keys and values are summed into states [f v], chunk by chunk."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.core.tensors import Scratch

_ELEMENTWISE = ("identity", "elu", "relu", "exp")
"""Feature maps that the kernel applies itself, chunk by chunk, in both passes, so that features are never stored."""

KEYS_PER_CHUNK = 64
"""Positions of a chunk, inside which pairs are scored; as many as a usual head is wide, where states cost the same."""
ROWS_AT_ONCE = 4096
"""Positions times heads times sequences in one operation: large operations, and buffers that stay in the cache."""
CHUNK_PADDING = 8
"""Columns beside V. The first is all ones and sums the denominator; the others keep rows aligned in memory."""


def linear_attention(
    Q: Float[Tensor, "b h i f"],
    K: Float[Tensor, "b h j f"],
    V: Float[Tensor, "b h j v"],
    real: Bool[Tensor, "b j"] | None = None,
    *,
    causal: bool = False,
    feature: str = "identity",
    eps: float = 0.0,
) -> Float[Tensor, "b h i v"]:
    """Y_i = phi(q_i)^T S_i / guarded(phi(q_i)^T z_i) with S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j).

    The sums run over all real keys or, if causal, over those up to the query's own position; queries are the last i of
    the j positions. `feature` is one of _ELEMENTWISE; with "exp", each query's largest exponent is subtracted.
    Source: Conti 2024, eq. 15 and the prefix sums after it (S4.98-S4.100).
    Departs: causal sums in two levels. Pairs are scored inside chunks of KEYS_PER_CHUNK positions. The states between
    the chunks of one stretch are summed up at once, and one state per stretch is kept for the backward pass.
    Subtracting states on the way back, instead of keeping some, loses digits.
    One derivative only: `backward` is no differentiable operation.
    """
    assert feature in _ELEMENTWISE, feature
    return _forward(Q, K, V, real, causal, feature, eps)[0]


def guarded(den: Float[Tensor, "*a"], eps: float) -> Float[Tensor, "*a"]:
    """A denominator that can be divided by.

    eps > 0   sign(den) max(|den|, eps), where sign(0) = 1
    eps = 0   for features that are never negative: infinity where den is not above the smallest normal number of its
              type. The query saw nothing, and gets zeros, without a gradient
    """
    if eps > 0:
        return torch.where(den < 0, den.clamp(max=-eps), den.clamp(min=eps))
    return torch.threshold(den, torch.finfo(den.dtype).tiny, torch.inf)


@torch.library.custom_op(
    "attnworks::linear_attention",
    mutates_args=(),
    schema="(Tensor Q, Tensor K, Tensor V, Tensor? real, bool causal, str feature, float eps) "
    "-> (Tensor, Tensor, Tensor)",
)
def _forward(
    Q: Tensor, K: Tensor, V: Tensor, real: Tensor | None, causal: bool, feature: str, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Y, the denominators that it was divided by, and the states [f v+8] that the backward pass needs."""
    Y, den, states = _outputs(Q, K, V, causal)
    plan = _Plan.of(Q, K)
    for part in plan.parts():
        kernel = _Kernel(plan, Q[part], K[part], V[part], None if real is None else real[part], feature, eps)
        (kernel.causal if causal else kernel.full)(Y[part], den[part], states[:, part])
    if eps == 0:  # set zeros afterwards, all at once: cheaper than a check in every chunk
        nothing = den <= torch.finfo(den.dtype).tiny
        if nothing.any():
            Y.masked_fill_(nothing, 0.0)
            den.masked_fill_(nothing, torch.inf)
    return Y, den, states


@torch.library.custom_op(
    "attnworks::linear_attention_backward",
    mutates_args=(),
    schema="(Tensor G, Tensor Q, Tensor K, Tensor V, Tensor? real, Tensor Y, Tensor den, Tensor states, bool causal, "
    "str feature, float eps) -> (Tensor, Tensor, Tensor)",
)
def _backward(G, Q, K, V, real, Y, den, states, causal, feature, eps) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by Q, K and V, given the gradient G by Y."""
    empty = torch.empty_like if Q.shape[2] else torch.zeros_like
    gradients = empty(Q), empty(K), empty(V)
    plan = _Plan.of(Q, K)
    for part in plan.parts():
        kernel = _Kernel(plan, Q[part], K[part], V[part], None if real is None else real[part], feature, eps)
        back = kernel.causal_back if causal else kernel.full_back
        back(_Result(G[part], Y[part], den[part]), states[:, part], *(gradient[part] for gradient in gradients))
    return gradients


_forward.register_fake(lambda Q, K, V, real, causal, feature, eps: _outputs(Q, K, V, causal))
_backward.register_fake(lambda G, Q, K, V, *rest: (torch.empty_like(Q), torch.empty_like(K), torch.empty_like(V)))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    Q, K, V, real, *ctx.settings = inputs
    ctx.save_for_backward(Q, K, V, real, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, G: Tensor | None, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    if G is None:
        return (None,) * 7
    return *_backward(G, *ctx.saved_tensors, *ctx.settings), None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_remember)


def _outputs(Q: Tensor, K: Tensor, V: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for Y (laid out as Q is: models have heads beside each other), denominators and states."""
    (b, h, i, f), (j, v) = Q.shape, V.shape[2:]
    heads_inside = Q.stride(1) < Q.stride(2)
    Y = Q.new_empty(b, i, h, v).transpose(1, 2) if heads_inside else Q.new_empty(b, h, i, v)
    kept = max(0, _Plan.of(Q, K).stretch_count() - (1 if i == j else 0)) if causal else 1
    return Y, Q.new_empty(b, h, i, 1), Q.new_empty(kept, b, h, f, v + CHUNK_PADDING)


class _Stretch(NamedTuple):
    """Positions start..stop in chunks of one size."""

    start: int
    stop: int
    chunk: int

    def later(self, offset: int) -> _Stretch:
        return self._replace(start=self.start + offset, stop=self.stop + offset)


class _Plan(NamedTuple):
    """How i queries of b sequences are split: `together` sequences at a time, in stretches of `length` positions."""

    b: int
    i: int
    together: int
    length: int

    @classmethod
    def of(cls, Q: Tensor, K: Tensor) -> _Plan:
        (b, h, i, _), j = Q.shape, K.shape[2]
        together = max(1, min(b, ROWS_AT_ONCE // max(1, h * min(max(i, j), KEYS_PER_CHUNK))))
        return cls(b, i, together, KEYS_PER_CHUNK * max(1, ROWS_AT_ONCE // max(1, KEYS_PER_CHUNK * h * together)))

    def parts(self) -> list[slice]:
        return [slice(first, first + self.together) for first in range(0, self.b if self.i else 0, self.together)]

    def stretch_count(self) -> int:
        return -(-(self.i // KEYS_PER_CHUNK * KEYS_PER_CHUNK) // self.length) + (1 if self.i % KEYS_PER_CHUNK else 0)

    def stretches(self) -> list[_Stretch]:
        """Stretches of whole chunks, then the rest as one shorter chunk."""
        whole = self.i // KEYS_PER_CHUNK * KEYS_PER_CHUNK
        stretches = [
            _Stretch(start, min(start + self.length, whole), KEYS_PER_CHUNK) for start in range(0, whole, self.length)
        ]
        return stretches if whole == self.i else [*stretches, _Stretch(whole, self.i, self.i - whole)]

    def pieces(self, n: int) -> list[_Stretch]:
        """n positions in pieces of one chunk each, for sums over all positions; half as long as stretches."""
        length = max(KEYS_PER_CHUNK, self.length // 2)
        cuts = [(start, min(start + length, n)) for start in range(0, n, length)]
        return [_Stretch(start, stop, stop - start) for start, stop in cuts]


class _Result(NamedTuple):
    """What the backward pass starts from: the gradient G by Y, Y itself, and its denominators."""

    G: Tensor
    Y: Tensor
    den: Tensor


class _Kernel:
    """Some sequences of the batch, and the buffers that all their chunks share.

    Buffers are [c b h chunk .] with the number of the chunk c first: the matrices of consecutive chunks, and the states
    between them, are then contiguous, as the batched matrix product needs them.
    """

    def __init__(
        self, plan: _Plan, Q: Tensor, K: Tensor, V: Tensor, real: Tensor | None, feature: str, eps: float
    ) -> None:
        self.plan, self.Q, self.K, self.V, self.feature, self.eps = plan, Q, K, V, feature, eps
        self.real = None if real is None else real[:, None, :, None].to(Q.dtype)
        self.scratch, self.buffers = Scratch(), dict[tuple[str, tuple[int, ...]], Tensor]()
        (b, h, self.i, self.f), (self.j, self.v) = Q.shape, V.shape[2:]
        self.heads, self.width = b * h, self.v + CHUNK_PADDING

    def empty(self, name: str, *shape: int) -> Tensor:
        """The buffer of this name in this shape. Views take microseconds to make, so they are kept."""
        if (name, shape) not in self.buffers:
            self.buffers[name, shape] = self.scratch.empty(name, shape, self.Q.dtype, self.Q.device)
        return self.buffers[name, shape]

    def chunks(self, name: str, buffer: Tensor) -> Tensor:
        """That buffer [c b h chunk .] as one batch of matrices, [c*b*h chunk .]."""
        return self.empty(name, buffer.shape[:-2].numel(), *buffer.shape[-2:])

    def widened(self, name: str, first: float) -> None:
        """Fill the columns beside V (ones) or beside its gradient (zeros), once for all chunks."""
        beside = self.empty(name, self.heads * min(self.plan.length, self.i), self.width)[:, self.v :]
        beside.zero_()[:, 0] = first

    # --- shared by forward and backward, full and causal ---

    def mapped(self, name: str, X: Tensor, at: _Stretch, *, keys: bool) -> Tensor:
        """Features [c*b*h chunk f] of some queries or keys; those of padding are zero."""
        x = _cut(X, at)
        features = self.empty(name, *x.shape)
        real = None if self.real is None or not keys else _cut(self.real, at)
        if real is not None:
            x = torch.mul(x, real, out=features)
        match self.feature:
            case "elu":  # elu(x) + 1 = exp(min(x, 0)) + max(x, 0), without the cancellation of exp(x) - 1 + 1
                above = torch.clamp(x, min=0, out=self.empty("above", *x.shape))
                torch.clamp(x, max=0, out=features).exp_().add_(above)
            case "relu":
                torch.clamp(x, min=0, out=features)
            case "exp":
                torch.exp(x if keys else torch.sub(x, x.amax(-1, keepdim=True), out=features), out=features)
            case "identity":
                features.copy_(x)
        if real is not None:
            features.mul_(real)
        return self.chunks(name, features)

    def pulled_back(self, gradient: Tensor, features: Tensor, into: Tensor, at: _Stretch, *, keys: bool) -> None:
        """Write the gradient by Q or K, given that by its features: times the slopes of the map, 0 at padding."""
        target = _cut(into, at)
        if self.feature == "identity":
            self.pasted(gradient, into, at)
            if self.real is not None and keys:
                target.mul_(_cut(self.real, at))
            return
        slope = {"elu": lambda: features.clamp_(max=1), "relu": features.sign_, "exp": lambda: features}[self.feature]()
        torch.mul(gradient.view(target.shape), slope.view(target.shape), out=target)

    def pasted(self, chunks: Tensor, into: Tensor, at: _Stretch) -> None:
        target = _cut(into, at)
        target.copy_(chunks.view(target.shape))

    def values(self, at: _Stretch) -> Tensor:
        """V with a column of ones, [c*b*h chunk v+8]."""
        x = _cut(self.V, at)
        wide = self.empty("V", *x.shape[:-1], self.width)
        wide[..., : self.v] = x
        return self.chunks("V", wide)

    def write(self, sums: Tensor, Y: Tensor, den: Tensor, at: _Stretch) -> None:
        """Y = numerators / denominators, which are the columns of `sums` [c*b*h chunk v+8]."""
        y = _cut(Y, at)
        sums = sums.view(*y.shape[:-1], self.width)
        divisor = sums[..., self.v : self.v + 1]
        if self.eps > 0:
            divisor = guarded(divisor, self.eps)
        _cut(den, at).copy_(divisor)
        torch.div(sums[..., : self.v], divisor, out=y)

    def outgoing(self, result: _Result, at: _Stretch) -> Tensor:
        """The gradients by numerators and denominators, [c*b*h chunk v+8]."""
        y, den = _cut(result.Y, at), _cut(result.den, at)
        wide = self.empty("G", *y.shape[:-1], self.width)
        numerators = torch.div(_cut(result.G, at), den, out=wide[..., : self.v])
        product = torch.mul(numerators, y, out=self.empty("product", *y.shape))
        by_den = torch.sum(product, -1, keepdim=True, out=wide[..., self.v : self.v + 1]).neg_()
        if self.eps > 0:
            by_den.masked_fill_(den.abs() <= self.eps, 0.0)
        return self.chunks("G", wide)

    def absorbed(self, n: int, state: Tensor) -> Tensor:
        """sum over the first n keys of phi(k) (v, 1)^T, written into `state` [b*h f v+8]."""
        S, z = self.empty("S", self.heads, self.f, self.v).zero_(), self.empty("z", self.heads, self.f).zero_()
        for at in self.plan.pieces(n):
            keys = self.mapped("K", self.K, at, keys=True)
            S.baddbmm_(keys.mT, self.V[:, :, at.start : at.stop].flatten(0, 1))
            z.add_(keys.sum(1))
        state[..., : self.v], state[..., self.v], state[..., self.v + 1 :] = S, z, 0.0
        return state

    def released(self, n: int, R: Tensor, dK: Tensor, dV: Tensor) -> None:
        """The gradients of the first n keys and values, given the gradient R of the state that they built."""
        R_S, R_z = R[..., : self.v].contiguous(), R[..., self.v].unsqueeze(1).contiguous()
        for at in self.plan.pieces(n):
            keys = self.mapped("K", self.K, at, keys=True)
            values = self.V[:, :, at.start : at.stop].flatten(0, 1)
            by_V = torch.bmm(keys, R_S, out=self.empty("by_V", *values.shape))
            self.pasted(by_V, dV, at)
            by_K = torch.baddbmm(R_z, values, R_S.mT, out=self.empty("by_K", self.heads, at.chunk, self.f))
            self.pulled_back(by_K, keys, dK, at, keys=True)

    # --- full: every query sees every key ---

    def full(self, Y: Tensor, den: Tensor, states: Tensor) -> None:
        state = self.absorbed(self.j, states[0].flatten(0, 1))
        for at in self.plan.pieces(self.i):
            queries = self.mapped("Q", self.Q, at, keys=False)
            sums = torch.bmm(queries, state, out=self.empty("sums", self.heads, at.chunk, self.width))
            self.write(sums, Y, den, at)

    def full_back(self, result: _Result, states: Tensor, dQ: Tensor, dK: Tensor, dV: Tensor) -> None:
        state = states[0].flatten(0, 1)
        R = torch.zeros_like(state)
        self.widened("G", 0.0)
        for at in self.plan.pieces(self.i):
            queries, G = self.mapped("Q", self.Q, at, keys=False), self.outgoing(result, at)
            R.baddbmm_(queries.mT, G)
            by_Q = torch.bmm(G, state.mT, out=self.empty("by_Q", self.heads, at.chunk, self.f))
            self.pulled_back(by_Q, queries, dQ, at, keys=False)
        self.released(self.j, R, dK, dV)

    # --- causal: no query sees a later key ---

    def causal(self, Y: Tensor, den: Tensor, states: Tensor) -> None:
        offset, state, kept = self.j - self.i, None, iter(states.flatten(1, 2))
        if offset:
            state = self.absorbed(offset, next(kept))
        self.widened("V", 1.0)
        for at in self.plan.stretches():
            queries = self.mapped("Q", self.Q, at, keys=False)
            keys, values = self.mapped("K", self.K, at.later(offset), keys=True), self.values(at.later(offset))
            sums = torch.bmm(self.scores(queries, keys), values, out=self.empty("sums", *values.shape))
            following = next(kept, None) if at.stop < self.i else None
            before, first = self.states_before(keys, values, state, following)
            if len(before):
                sums[first:].baddbmm_(queries[first:], before)
            self.write(sums, Y, den, at)
            state = following

    def causal_back(self, result: _Result, states: Tensor, dQ: Tensor, dK: Tensor, dV: Tensor) -> None:
        offset, R = self.j - self.i, None
        kept = [*([] if offset else [None]), *states.flatten(1, 2)]
        self.widened("V", 1.0)
        self.widened("G", 0.0)
        for at, state in zip(reversed(self.plan.stretches()), reversed(kept), strict=True):
            here = at.later(offset)
            queries, keys = self.mapped("Q", self.Q, at, keys=False), self.mapped("K", self.K, here, keys=True)
            values, G = self.values(here), self.outgoing(result, at)
            P = self.scores(queries, keys)
            dP = torch.bmm(G, values.mT, out=self.empty("dP", *P.shape)).tril_()

            by_Q = torch.bmm(dP, keys, out=self.empty("by_Q", *queries.shape))
            before, first = self.states_before(keys, values, state, None)
            if len(before):
                by_Q[first:].baddbmm_(G[first:], before.mT)

            by_K = torch.bmm(dP.mT, queries, out=self.empty("by_K", *keys.shape))
            by_V = torch.bmm(P.mT, G[..., : self.v], out=self.empty("by_V", *values.shape[:2], self.v))
            after, R = self.states_after(queries, G, R, state is not None)
            if len(after):
                by_K[: len(after)].baddbmm_(values[: len(after)], after.mT)
                by_V[: len(after)].baddbmm_(keys[: len(after)], after[..., : self.v])

            self.pulled_back(by_Q, queries, dQ, at, keys=False)
            self.pulled_back(by_K, keys, dK, here, keys=True)
            self.pasted(by_V, dV, here)
        if R is not None and offset:
            self.released(offset, R, dK, dV)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """phi(q_i)^T phi(k_j) inside every chunk, for j <= i."""
        return torch.bmm(queries, keys.mT, out=self.empty("P", *keys.shape[:2], keys.shape[1])).tril_()

    def states_before(
        self, keys: Tensor, values: Tensor, state: Tensor | None, following: Tensor | None
    ) -> tuple[Tensor, int]:
        """The states [c*b*h f v+8] before the chunks of a stretch, and the row of the first chunk that has one.

        The first chunk of a sequence has no state before it. `following` receives the state after the stretch.
        """
        chunks = len(keys) // self.heads
        first, last = 0 if state is not None else 1, chunks - (following is None)
        sums = self.empty("states", chunks + 1, self.heads, self.f, self.width)
        if last:
            rows = last * self.heads
            torch.bmm(keys[:rows].mT, values[:rows], out=sums[1 : last + 1].flatten(0, 1))
        if state is not None:
            sums[0] = state
        for chunk in range(first + 1, last + 1):
            sums[chunk] += sums[chunk - 1]
        if following is not None:
            following.copy_(sums[chunks])
        return sums[first:chunks].flatten(0, 1), first * self.heads

    def states_after(self, queries: Tensor, G: Tensor, R: Tensor | None, more: bool) -> tuple[Tensor, Tensor | None]:
        """The gradients by the states after the chunks and, if `more` comes before the stretch, by the one before."""
        chunks = len(queries) // self.heads
        first, last = 0 if more else 1, chunks - (R is None)
        sums = self.empty("states", chunks + 1, self.heads, self.f, self.width)
        if first < chunks:
            rows = first * self.heads
            torch.bmm(queries[rows:].mT, G[rows:], out=sums[first:chunks].flatten(0, 1))
        if R is not None:
            sums[chunks] = R
        for chunk in reversed(range(first, last)):
            sums[chunk] += sums[chunk + 1]
        carried = self.empty("R", self.heads, self.f, self.width).copy_(sums[0]) if more else None
        return sums[1 : last + 1].flatten(0, 1), carried


def _cut(X: Tensor, at: _Stretch) -> Tensor:
    """A view of positions start..stop of X [b h n .]: [c b h chunk .], or [b h chunk .] if they are one chunk."""
    part = X[:, :, at.start : at.stop]
    return part if at.chunk == at.stop - at.start else part.unflatten(2, (-1, at.chunk)).permute(2, 0, 1, 3, 4)
