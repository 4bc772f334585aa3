"""Attention by position alone: a convex mix of fixed maps, and a small sparse error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mechanism
from attnworks.attention.fixed_maps import MapMember, MapMembers, among, block_size, fixed, positions, read_members
from attnworks.attention.mask import Mask, as_four_axes
from attnworks.attention.reference import may_see, softmax_by_loops
from attnworks.attention.softmax import masked_softmax
from attnworks.core.checks import number
from attnworks.core.errors import UsageError
from attnworks.core.tensors import widened


def _shifted_sum(
    V: Float[Tensor, "b h j v"], weights: Float[Tensor, "h o"], offsets: Sequence[int], queries: int
) -> Float[Tensor, "b h i v"]:
    """Y_p = sum_o w_o V_{p + o} for the last `queries` positions p; rows beyond the ends are zero.

    This is the product of V and a matrix with constant diagonals, in time proportional to the number of diagonals.
    One operator with its own gradient takes a half to a quarter of the time of the same sum in torch's operators.
    """
    Y = _ShiftedSum.apply(V, weights, tuple(offsets), queries)
    assert isinstance(Y, Tensor)
    return Y


class _ShiftedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, V: Tensor, weights: Tensor, offsets: tuple[int, ...], queries: int):
        ctx.save_for_backward(V, weights)
        ctx.offsets = offsets
        Y = V.new_zeros(*V.shape[:2], queries, V.shape[-1])
        for column, to, source in _moves(offsets, queries, V.shape[2]):
            Y[:, :, to].addcmul_(weights[:, column, None, None], V[:, :, source])
        return Y

    @staticmethod
    @once_differentiable
    def backward(ctx, dY: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        V, weights = ctx.saved_tensors
        dV, dw = V.new_zeros(V.shape), torch.zeros_like(weights)
        for column, to, source in _moves(ctx.offsets, dY.shape[2], V.shape[2]):
            dV[:, :, source].addcmul_(weights[:, column, None, None], dY[:, :, to])
            dw[:, column] = (V[:, :, source] * dY[:, :, to]).sum((0, 2, 3))
        return dV, dw, None, None


def reach(offset: int, queries: int, keys: int) -> range:
    """The queries that have a key at this offset; queries are the last positions of the keys."""
    return range(max(0, queries - keys - offset), min(queries, queries - offset))


def _moves(offsets: tuple[int, ...], queries: int, keys: int) -> Iterator[tuple[int, slice, slice]]:
    """(column, rows of Y, rows of V) for each offset that reaches any row."""
    for column, offset in enumerate(offsets):
        if rows := reach(offset, queries, keys):
            shift = keys - queries + offset
            yield column, slice(rows.start, rows.stop), slice(rows.start + shift, rows.stop + shift)


@MECHANISMS.register("structured")
class Structured(Mechanism):
    """Y = P V, P_ij = W_ij exp(M_ij) / sum_j' W_ij' exp(M_ij'), W_ij = sum_m mix_m F_m(i, j) + sum_o e_o [j = i + o].

    members   F_m, rows of sum one, or zero where their key may not be seen: "-2..2" keys i-2 to i+2, "first" and "last"
              that query i may see, "mean" of all that it may see, "block4" the first key of each four positions
    error     offsets of the sparse error E that are no members, or "none"
    eps       0 <= e_o <= eps
    learned   whether mix and e are parameters, or buffers that only `set_weights` changes

    Each head has its own mix = softmax(log_mix) and e = eps sigmoid(raw_error). Q, K and the scale are ignored.
    Source: Conti 2024, eq. 19 and 20 (S4.133, S4.137-S4.140), with the support of E as the budget that makes it sparse
    (S4.135); S4.134: no F_m but the offset 0 is a permutation.
    Holds when: e >= 0 loses nothing where no member reaches: maps are not negative, so that the nearest E there is
    their entries clipped to [-eps, eps] (D11, S4.143). Blocks are counted from the first position, padding included.
    Departs: rows of eq. 19 need not sum to one (S4.133); here they are divided by their sum over the keys that may be
    seen. A query whose members and errors all point at keys that it may not see gives zeros. The free B of Sigma_2 is
    one weight for each diagonal, without dropout.
    A long sequence takes O(n (members + errors) v) time and O(n v) memory, unless `weights=True` or a dense mask is
    given; second derivatives need `weights=True`.
    """

    name = "structured"
    supports_cross_attention: ClassVar[bool] = False
    by_content: ClassVar[bool] = False
    few_pairs: ClassVar[int] = 64 * 64
    """Most pairs of a query and a key for which one product with their table is quicker than many small steps."""

    def __init__(
        self,
        *,
        heads: int = 1,
        members: MapMembers = "-2..2/first/last/mean",
        error: MapMembers | None = "-8/-4/4/8",
        eps: float = 0.02,
        learned: bool = True,
    ) -> None:
        super().__init__()
        _check_options(eps, learned)
        self.members, self.eps = read_members(members, f"{self.name} with members={members}"), float(eps)
        self.error = _error_offsets(error, self.members)
        self.log_mix: Tensor
        self.raw_error: Tensor | None
        # A mix of one member, and an error that is bound to zero, cannot learn.
        self._hold("log_mix", torch.randn(heads, len(self.members)), learned and len(self.members) > 1)
        self._hold("raw_error", torch.zeros(heads, len(self.error)) if self.error else None, learned and self.eps > 0)

    def _hold(self, name: str, value: Tensor | None, learned: bool) -> None:
        if learned and value is not None:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    @property
    def mix(self) -> Float[Tensor, "h m"]:
        """The weight of each member; rows sum to one."""
        return widened(self.log_mix).softmax(-1)

    @property
    def errors(self) -> Float[Tensor, "h o"]:
        """e_o of each offset of the error, from 0 to eps."""
        if self.raw_error is None:
            return widened(self.log_mix)[:, :0]
        return self.eps * widened(self.raw_error).sigmoid()

    @torch.no_grad()
    def set_weights(
        self,
        mix: Float[Tensor, "r m"],
        error: Float[Tensor, "r o"] | None = None,
        heads: Sequence[int] | slice = slice(None),
    ) -> None:
        """Set the weights of the members, up to a factor for each head, and the error (None: no error).

        Heads that are not named keep their weights bit for bit.
        """
        error = torch.zeros(self.errors[heads].shape) if error is None else error
        _check_given("mix", mix, self.mix[heads].shape, math.inf)
        _check_given("error", error, self.errors[heads].shape, self.eps)
        self.log_mix[heads] = (mix / mix.sum(-1, keepdim=True)).log().to(self.log_mix)
        if self.raw_error is not None and self.eps > 0:
            self.raw_error[heads] = (error / self.eps).logit().to(self.raw_error)

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        del K, context
        wide, (i, j) = widened(V), (Q.shape[2], V.shape[2])
        with torch.autocast(V.device.type, enabled=False):
            if not weights and mask.dense is None and i * j > self.few_pairs:
                return Attended(self._spread(wide, mask, i).to(V.dtype))
            P = self._explicit(wide, mask, i)
            return Attended((P @ wide).to(V.dtype), P.to(V.dtype) if weights else None)

    def _spread(self, V: Tensor, mask: Mask, i: int) -> Float[Tensor, "b h i v"]:
        """W V / (row sums of W), without the table W [h i j]: the column of ones beside V becomes the row sums."""
        weights, sources = self._weights(V), _Sources(V, mask, i)
        offsets = [o for o in weights if isinstance(o, int) and not (mask.causal and o > 0)]
        columns = torch.stack([weights[o] for o in offsets], 1) if offsets else self.mix.to(V)[:, :0]
        others = [m for m in weights if isinstance(m, str)]
        # Members that are no offsets come first: [b h 1 v+1] where all queries have the same row, else [b h i v+1].
        Y = sum(weights[m][:, None, None] * sources.rows(m) for m in others)
        Y = Y + _shifted_sum(sources.V, columns, offsets, i)
        return _divided(Y[..., :-1], Y[..., -1:])

    def _explicit(self, V: Tensor, mask: Mask, i: int) -> Float[Tensor, "b h i j"]:
        (b, h, j, _), weights = V.shape, self._weights(V)
        allowed = mask.allowed(i, j, device=V.device)
        seen = torch.ones(1, 1, i, j, dtype=torch.bool, device=V.device) if allowed is None else allowed
        seen, still = seen.expand(-1, -1, i, j), [m for m in weights if fixed(m)]
        W = V.new_zeros(h, i, j)
        if still:  # the same table [i j] of a member for every sentence
            maps = torch.stack([positions(m, seen) for m in still]).to(V.dtype)
            W = torch.einsum("mh,mij->hij", torch.stack([weights[m] for m in still]), maps)
        W = W * seen + sum(weights[m][:, None, None] * among(m, seen, V.dtype) for m in weights if not fixed(m))
        W = W.expand(b, h, i, j)
        bias = mask.additive()
        if bias is not None:
            # Softmax of M over the keys with W > 0 is exp(M) up to a factor per row, and does not overflow.
            W = W * masked_softmax(widened(as_four_axes(bias)).expand_as(W), W > 0)
        return _divided(W, W.sum(-1, keepdim=True))

    def _weights(self, V: Tensor) -> dict[MapMember, Tensor]:
        """mix_m and e_o [h] of each member and each offset of the error, in the type of V."""
        both = torch.cat([self.mix, self.errors], 1).to(V).expand(V.shape[1], -1)
        return dict(zip((*self.members, *self.error), both.unbind(1), strict=True))

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        (b, h, i, _), j = Q.shape, K.shape[2]
        zero, weights = torch.zeros((), dtype=V.dtype), self._weights(V)

        def row(batch: int, head: int, query: int) -> Tensor:
            W, seen = [zero] * j, [key for key in range(j) if may_see(mask, batch, head, query, key, i, j)]
            for member, weight in weights.items():
                keys = _keys_by_hand(member, query + j - i, seen)
                for key in keys:
                    W[key] = W[key] + weight[head] / len(keys)
            return torch.stack(W)

        W = torch.stack([row(*at) for at in product(range(b), range(h), range(i))]).unflatten(0, (b, h, i))
        # exp(M) up to a factor for each query, over the keys with a weight
        alone = softmax_by_loops(lambda *_: zero, Q, K, V, mask, lambda *at: bool(W[at] > 0)).P
        assert alone is not None
        weighed = alone * W
        total = weighed.sum(-1, keepdim=True)
        P = weighed / torch.where(total > 0, total, 1.0)
        return Attended(torch.einsum("bhij,bhjv->bhiv", P, V), P)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        """An edge is a row that a query reads, of V or of a mean; no pair is scored. Short sequences take a table."""
        h, _, d_v = geometry
        edges = h * sum(
            queries if isinstance(member, str) else 0 if causal and member > 0 else len(reach(member, queries, keys))
            for member in (*self.members, *self.error)
        )
        means = h * keys * ("mean" in self.members)
        numbers = (queries + keys) * (d_v + 1) + queries * d_v
        flops = (2 * edges + means) * (d_v + 1)
        if queries * keys <= self.few_pairs:
            flops = 2 * h * queries * keys * (d_v + len(self.members) + len(self.error))
        return AttentionCost(edges, flops, bytes=4 * h * numbers)


class _Sources:
    """V with a column of ones [b h j v+1], zero at padding; `rows` gives the row that a member brings to each query."""

    def __init__(self, V: Tensor, mask: Mask, i: int) -> None:
        self.real, self.causal, self.i = mask.real, mask.causal, i
        self.V = F.pad(V, (0, 1), value=1.0)
        if self.real is not None:
            self.V = self.V.masked_fill(~self.real[:, None, :, None], 0.0)
        self.position = torch.arange(V.shape[2], device=V.device)

    def rows(self, member: str) -> Float[Tensor, "b h #i w"]:
        if member == "first":
            return self._first()
        if member == "last":
            return self._last()
        if member == "mean":
            total = self.V.cumsum(2)[:, :, -self.i :] if self.causal else self.V.sum(2, keepdim=True)
            return total / total[..., -1:].clamp_min(1.0)
        size, j = block_size(member), self.V.shape[2]
        return self.V[:, :, ::size].repeat_interleave(min(size, j), 2)[:, :, j - self.i : j]

    def _first(self) -> Tensor:
        if self.real is None:
            return self.V[:, :, :1]
        first = self.real.int().argmax(-1, keepdim=True)
        row = self._at(first)
        return row * (self.position[-self.i :] >= first)[:, None, :, None] if self.causal else row

    def _last(self) -> Tensor:
        if self.real is None:
            return self.V[:, :, -self.i :] if self.causal else self.V[:, :, -1:]
        real = self.position * self.real
        return self._at(real.cummax(-1).values[:, -self.i :] if self.causal else real.amax(-1, keepdim=True))

    def _at(self, index: Int[Tensor, "#b r"]) -> Float[Tensor, "b h r w"]:
        """These rows; where no key is real the index is that of padding, whose row is zero."""
        b, h, _, w = self.V.shape
        return self.V.gather(2, index[:, None, :, None].expand(b, h, -1, w))


def _divided(W: Float[Tensor, "*a w"], total: Float[Tensor, "*a 1"]) -> Float[Tensor, "*a w"]:
    """W / total, and zeros where total = 0."""
    return W * torch.where(total > 0, total, 1.0).reciprocal()


def _keys_by_hand(member: MapMember, position: int, seen: list[int]) -> list[int]:
    """The keys among which a member divides its weight, for the reference."""
    if member == "mean":
        return seen
    if member in ("first", "last"):
        return seen[:1] if member == "first" else seen[-1:]
    key = position + member if isinstance(member, int) else position - position % block_size(member)
    return [key] if key in seen else []


def _check_given(what: str, given: Tensor, shape: torch.Size, most: float) -> None:
    bounds = f"numbers from 0 to {most}" if most < math.inf else "finite numbers from 0, not all 0 in any head"
    fits = given.shape == shape
    right = fits and bool(((given >= 0) & (given <= most) & given.isfinite()).all())
    if not right or (most == math.inf and not bool(given.any(-1).all())):
        found = "others" if fits else f"shape {list(given.shape)}"
        remedy = "give a row for each head, in the order of `members` and of `error`"
        raise UsageError(f"{Structured.name} with this {what}", f"{bounds}, of shape {list(shape)}", found, remedy)


def _error_offsets(error: object, members: tuple[MapMember, ...]) -> tuple[int, ...]:
    asked = f"{Structured.name} with error={error}"
    offsets = () if error in (None, "none", "") or error == () else read_members(error, asked)
    for offset in offsets:
        if isinstance(offset, str) or offset in members:
            raise UsageError(
                asked, "offsets other than those of members", str(offset), "leave it out, or write error=none"
            )
    return tuple(offset for offset in offsets if isinstance(offset, int))


def _check_options(eps: object, learned: object) -> None:
    number(f"{Structured.name} with eps", eps, 0, 1, remedy="write for instance structured:eps=0.02")
    if not isinstance(learned, bool):
        asked = f"{Structured.name} with learned={learned}"
        raise UsageError(asked, "true or false", repr(learned), "write learned=false")
