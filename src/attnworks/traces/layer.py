"""Records of one layer of one forward pass: its attention, and the residual stream after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.heads import HeadWeights, Scoring
from attnworks.core.notation import tolerance
from attnworks.core.places import Kind, Slot
from attnworks.core.tensors import FRESH, Scratch
from attnworks.text.tokens import Tokens

LOG_OF_ZERO = -1e4
"""Stands for ln 0 where scores are computed as ln P."""


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One attention layer of one forward pass.

    K, V       may have fewer heads (groups) than Q, each shared by as many consecutive query heads
    scale      S = scale Q K^T in all heads; None if not all heads score by the same factor
    scoring    how each head scores, for layers without one scale; if not given, the weights of all heads are a softmax
               of scores that are not products of Q and K
    weigh      P of all heads, for those that do not score by a factor of Q K^T
    softcap    c, where S becomes c tanh(S / c)
    mask       which keys may be seen, and what is added to S then
    sink       a logit of each head that takes part in the softmax of every row and has no key and no value: the weights
               of the keys then sum to less than one
    X, Z       what queries, and keys and values, were projected from, where that is known
    weights    head-first weights, where the family is known; given, or read by `read_weights` at their first use
    bilinear   whether S is bilinear in X and Z: no rotary positions, nothing added for positions
    replaced   P of all heads, where an edit gave some of them other weights; rows may have any sum
    at_softmax whether the layer was found in the code of the model, by the softmax of a product
    """

    slot: Slot
    Q: Float[Tensor, "b h i k"]
    K: Float[Tensor, "b g j k"]
    V: Float[Tensor, "b g j v"]
    Y: Float[Tensor, "b h i v"]
    mask: Mask
    scale: float | None
    queries: Tokens
    keys: Tokens
    X: Float[Tensor, "b i e"] | None = None
    Z: Float[Tensor, "b j f"] | None = None
    weights: HeadWeights | None = field(default_factory=lambda: None)
    bilinear: bool = False
    weigh: Callable[[], Tensor] | None = field(default=None, repr=False)
    scoring: Scoring | None = None
    sink: Float[Tensor, " h"] | None = None
    softcap: float | None = None
    replaced: Float[Tensor, "b h i j"] | None = field(default=None, repr=False)
    at_softmax: bool = False
    read_weights: InitVar[Callable[[], HeadWeights] | None] = None

    def __post_init__(self, read_weights: Callable[[], HeadWeights] | None) -> None:
        if read_weights is not None:
            vars(self)["_read_weights"] = read_weights
            del vars(self)["weights"]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> HeadWeights:
            """Read `weights` at their first use. Python calls this for attributes that are not set."""
            if name != "weights" or "_read_weights" not in vars(self):
                raise AttributeError(f"{type(self).__name__} has no {name}")
            return vars(self).setdefault("weights", vars(self)["_read_weights"]())

    @property
    def heads(self) -> int:
        return self.Q.shape[1]

    @property
    def head_scoring(self) -> Scoring:
        """How each head scores."""
        if self.scale is None and self.scoring is not None:
            return self.scoring
        return Scoring((self.scale,) * self.heads, (True,) * self.heads)

    def runs_by_scale(self) -> Iterator[tuple[slice, float | None]]:
        """Runs of consecutive heads that have the same factor of Q K^T, or none, with that factor."""
        start = 0
        for scale, run in groupby(self.head_scoring.scales):
            stop = start + len(list(run))
            yield slice(start, stop), scale
            start = stop

    def scores(
        self, sentences: slice, heads: slice, i: int, j: int, scratch: Scratch = FRESH
    ) -> Float[Tensor, "b h i j"]:
        """S for some sentences and heads, their first i queries and j keys, before any mask.

        All heads must be of one run of `runs_by_scale`. Without a factor of Q K^T, S is ln P, which is after the mask.
        """
        wide = torch.promote_types(self.Q.dtype, torch.float32)
        scales = {*self.head_scoring.scales[heads]}
        assert len(scales) == 1, "heads that score in different ways"
        if scales == {None}:
            return self._weighed[sentences, heads, :i, :j].to(wide).log().clamp_min_(LOG_OF_ZERO)
        Q = self._scaled_queries[sentences, heads, :i]
        K = self.shared(self._wide_keys, heads)[sentences, :, :j]
        S = torch.matmul(Q, K.mT, out=scratch.empty("S", (*Q.shape[:3], j), wide, Q.device))
        return S if self.softcap is None else S.div_(self.softcap).tanh_().mul_(self.softcap)

    @cached_property
    def _scaled_queries(self) -> Float[Tensor, "b h i k"]:
        """Laid out head by head, so that products of some of them need no copy; zero for heads without a factor."""
        wide = self.Q.to(torch.promote_types(self.Q.dtype, torch.float32))
        if self.scale is not None:
            return wide.mul(self.scale).contiguous()
        return wide.mul(wide.new_tensor([scale or 0.0 for scale in self.head_scoring.scales])[:, None, None])

    @cached_property
    def _weighed(self) -> Float[Tensor, "b h i j"]:
        assert self.weigh is not None
        return self.weigh()

    @cached_property
    def _wide_keys(self) -> Float[Tensor, "b g j k"]:
        return self.K.to(torch.promote_types(self.K.dtype, torch.float32)).contiguous()

    def shared(self, grouped: Float[Tensor, "b g j k"], heads: slice) -> Float[Tensor, "b h j k"]:
        """The keys or values of these query heads, repeated where heads share them."""
        if grouped.shape[1] == self.heads:
            return grouped[:, heads]
        every = torch.arange(self.heads, device=grouped.device)[heads]
        return grouped[:, every // (self.heads // grouped.shape[1])]


@dataclass(frozen=True, eq=False)
class StreamTrace:
    """The residual stream before the first block (depth 0) or after block `depth` - 1."""

    kind: Kind
    depth: int
    X: Float[Tensor, "b i e"]
    tokens: Tokens


class LayerHook:
    """Receives one layer at a time while a model runs. This class ignores all; subclasses override what they need."""

    def attention(self, trace: LayerTrace) -> Tensor | None:
        """Called for every attention layer. A returned tensor takes the place of Y."""

    def stream(self, stream: StreamTrace) -> None:
        """Called with the residual stream before the first block and after every block."""


def linear_queries(X: Tensor, Q: Tensor, weights: HeadWeights) -> bool:
    """Whether Q = factor (X W_Q + b_Q) at the last position, which is not so with rotary positions."""
    at = torch.einsum("be,hek->bhk", X[:, -1], weights.W_Q)  # queries [b h k] of the last position
    at = at if weights.b_Q is None else at + weights.b_Q
    tiny = torch.finfo(Q.dtype).tiny
    factor = (at * Q[:, :, -1]).sum() / at.square().sum().clamp_min(tiny)
    error = (factor * at - Q[:, :, -1]).abs().max() / Q[:, :, -1].abs().max().clamp_min(tiny)
    return bool(error < tolerance(Q.dtype).rtol)


def first(output: Any) -> Tensor:
    """The output of a module, or the first of several outputs."""
    return output[0] if isinstance(output, tuple | list) else output


def stream_read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The stream that a block reads: the first tensor of floating-point numbers among its inputs."""
    return next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.is_floating_point())
