"""One head of one sentence through a mechanism, without the axes of batch and heads."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Context, Mask, Mechanism


def outputs(
    mechanism: Mechanism,
    Q: Float[Tensor, "i k"],
    K: Float[Tensor, "j k"],
    V: Float[Tensor, "j v"],
    *,
    mask: Mask | None = None,
    context: Context | None = None,
) -> Float[Tensor, "i w"]:
    """Y, as wide as the values that the mechanism makes of V."""
    return mechanism(Q[None, None], K[None, None], V[None, None], mask, context).Y[0, 0].detach()


def weights(
    mechanism: Mechanism,
    Q: Float[Tensor, "i k"],
    K: Float[Tensor, "j k"],
    V: Float[Tensor, "j v"],
    *,
    mask: Mask | None = None,
    context: Context | None = None,
) -> Float[Tensor, "i j"]:
    """P."""
    P = mechanism(Q[None, None], K[None, None], V[None, None], mask, context, weights=True).P
    assert P is not None
    return P[0, 0].detach()
