"""What every attention mechanism promises, and the registry of those that do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention.mask import Mask
from attnworks.core.errors import UsageError
from attnworks.core.registry import Registry

MECHANISMS: Registry[type[Mechanism]] = Registry("mechanism")


class Attended(NamedTuple):
    """The result of attention: outputs, and the weights if they were asked for."""

    Y: Float[Tensor, "b h i v"]
    P: Float[Tensor, "b h i j"] | None = None


@dataclass(frozen=True)
class Context:
    """What some mechanisms need beyond Q, K, V and the Mask.

    scale           multiplies the scores instead of the mechanism's own factor
    global_tokens   True at tokens that see all and are seen by all, for mechanisms that know such tokens
    second          Q, K and V through a second set of projections, with which global tokens look around
    """

    scale: float | None = None
    global_tokens: Bool[Tensor, "b j"] | None = None
    second: tuple[Tensor, Tensor, Tensor] | None = None


class Geometry(NamedTuple):
    """The size of one attention layer: heads, and the width of a key and of a value in each."""

    heads: int
    d_k: int
    d_v: int


class Cost(NamedTuple):
    """What one forward pass over one sequence takes.

    edges   query-key pairs that are scored, over all heads
    flops   multiply-adds count twice; exponentials are left out
    bytes   float32 memory held besides Q, K and V: the output and what is kept for it
    """

    edges: int
    flops: int
    bytes: int


class Mechanism(nn.Module):
    """(Q [b h i k], K [b h j k], V [b h j v], Mask, Context) -> Attended(Y [b h i v], P [b h i j] or None).

    A mechanism is one file: this class, registered by name, and its `reference`, the same thing in slow loops.
    Options are keyword arguments; sizes that its parameters depend on come from the Geometry given to `fitted`.
    Promises, tested for every registered name: outputs and gradients equal the reference's; a query that sees no key
    gives zeros; a hidden key of finite value has no influence on values or gradients; asking for weights changes
    nothing else.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields of Context without which the mechanism cannot run."""
    masks: ClassVar[frozenset[str]] = frozenset({"padding", "causal", "dense"})
    """Fields of Mask that the mechanism can obey; it refuses the others."""
    stochastic: ClassVar[bool] = True
    """Whether the rows of P are weights: not negative, and of sum one (or zero, where no key is seen)."""
    softmax: ClassVar[bool] = False
    """Whether each row of P is the softmax of one score per key that it sees, so that ln P has their differences."""
    projects_twice: ClassVar[bool] = False
    """Whether it uses Context.second, so that encoder layers have a second set of projections for it."""
    crosses: ClassVar[bool] = True
    """Whether queries may come from another sequence than the keys; if not, they are all or (causal) the last of it."""
    by_content: ClassVar[bool] = True
    """Whether weights depend on Q and K; if not, on positions alone, and a head needs no W_Q and W_K."""

    @classmethod
    def fitted(cls, geometry: Geometry, **options: object) -> Mechanism:
        """Build for a layer of this size. Mechanisms with parameters of their own override it."""
        del geometry
        return cls(**options)

    @property
    def longest(self) -> int | None:
        """The most keys it can attend to, if there is such a number."""
        return None

    def tie(self, first: Mechanism) -> None:
        """Share parameters with `first`, the same spec in an earlier layer. Mechanisms that span layers override it."""

    def forward(
        self,
        Q: Float[Tensor, "b h i k"],
        K: Float[Tensor, "b h j k"],
        V: Float[Tensor, "b h j v"],
        mask: Mask | None = None,
        context: Context | None = None,
        *,
        weights: bool = False,
    ) -> Attended:
        mask, context = Mask() if mask is None else mask, context or Context()
        if not isinstance(mask, Mask):
            raise UsageError(
                asked=f"{self.name} attention",
                expected="a Mask",
                got=type(mask).__name__,
                remedy="wrap a tensor: Mask(dense=...) for queries by keys, Mask(padding=...) for keys",
            )
        self._check(Q, K, V, mask, context)
        if Q.shape[2] == 0:
            P = Q @ K.mT
            return Attended(P @ V, P if weights else None)
        return self.attend(Q, K, V, mask.to(dtype=Q.dtype), context, weights)

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        """The mechanism itself, on inputs that fit together."""
        raise NotImplementedError

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        """The same result in loops over batch, heads, queries and keys: slow, and easy to believe."""
        raise NotImplementedError

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> Cost:
        raise NotImplementedError

    def default_scale(self, d_k: int) -> float:
        """The factor of the scores, unless Context.scale says another."""
        return d_k**-0.5

    def scale(self, d_k: int, context: Context) -> float:
        return self.default_scale(d_k) if context.scale is None else context.scale

    def dot_scale(self, d_k: int, context: Context) -> float | None:
        """s, if P = softmax(s Q K^T + mask); None for a mechanism that weighs otherwise."""
        del d_k, context
        return None

    def _check(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> None:
        if not all(isinstance(T, Tensor) and T.dim() == 4 for T in (Q, K, V)):
            raise UsageError(
                asked=f"{self.name} attention",
                expected="tensors Q, K and V with four axes: [batch, heads, positions, width]",
                got=", ".join(str(list(T.shape)) if isinstance(T, Tensor) else type(T).__name__ for T in (Q, K, V)),
                remedy="for one sequence and one head write Q[None, None]",
            )
        (b, h, i, k), j = Q.shape, K.shape[2]
        if K.shape != (b, h, j, k) or V.shape[:3] != (b, h, j):
            raise UsageError(
                asked=f"{self.name} attention",
                expected=f"K [{b}, {h}, keys, {k}] and V [{b}, {h}, keys, any] for Q {list(Q.shape)}",
                got=f"K {list(K.shape)} and V {list(V.shape)}",
                remedy="give all three the same batch and heads, Q and K one width, K and V one length",
            )
        mask.check(b, h, i, j)
        self._check_defined(mask, i, j)
        self._check_context(context, Q, K, V)
        for field in sorted(self.needs):
            if getattr(context, field) is None:
                raise UsageError(
                    asked=f"{self.name} attention",
                    expected=f"a context with {field}",
                    got="none",
                    remedy=f"pass Context({field}=...)",
                )

    def _check_defined(self, mask: Mask, i: int, j: int) -> None:
        given = {"padding": mask.padding is not None, "causal": mask.causal, "dense": mask.dense is not None}
        for kind in (kind for kind, present in given.items() if present and kind not in self.masks):
            raise UsageError(
                asked=f"{self.name} attention with a {kind} mask",
                expected=f"at most {' and '.join(sorted(self.masks)) or 'no mask'}",
                got=f"a {kind} mask",
                remedy="use dense or window attention there",
            )
        if not self.crosses and not mask.causal and i != j:
            raise UsageError(
                asked=f"{self.name} attention from one sequence to another",
                expected="queries and keys of one sequence",
                got=f"{i} queries and {j} keys",
                remedy="use dense attention across, or Mask(causal=True) if the queries are the last positions",
            )

    def _check_context(self, context: Context, Q: Tensor, K: Tensor, V: Tensor) -> None:
        tokens, second, (b, j) = context.global_tokens, context.second, (K.shape[0], K.shape[2])
        fits = isinstance(tokens, Tensor) and tokens.dtype == torch.bool and tuple(tokens.shape) in {(b, j), (1, j)}
        if tokens is not None and not fits:
            tensor = isinstance(tokens, Tensor)
            raise UsageError(
                asked=f"{self.name} attention with global tokens",
                expected=f"one boolean per key, shape [{b}, {j}]",
                got=f"shape {list(tokens.shape)} of {str(tokens.dtype)[6:]}" if tensor else type(tokens).__name__,
                remedy="pass global_tokens as [batch, keys], True at global tokens; .bool() makes it of zeros and ones",
            )
        if second is not None and [T.shape for T in second] != [Q.shape, K.shape, V.shape]:
            raise UsageError(
                asked=f"{self.name} attention with second projections",
                expected=f"Q, K and V of the same shapes again: {list(Q.shape)}, {list(K.shape)}, {list(V.shape)}",
                got=", ".join(str(list(T.shape)) for T in second),
                remedy="project the same tokens twice",
            )


def dense_edges(queries: int, keys: int, causal: bool) -> int:
    """Query-key pairs of one head: queries x keys, less the later keys when causal."""
    hidden = queries * (queries - 1) // 2 if causal else 0
    return queries * keys - hidden
