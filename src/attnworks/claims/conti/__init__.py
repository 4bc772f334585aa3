"""S4: Conti 2024, "The math behind transformers"."""

from attnworks.claims.conti import (
    block,
    cost,
    decoder,
    kernels,
    low_rank,
    pooling,
    positions,
    sizes,
    softmax,
    sparse,
    structure,
    words,
)

__all__ = [
    "block",
    "cost",
    "decoder",
    "kernels",
    "low_rank",
    "pooling",
    "positions",
    "sizes",
    "softmax",
    "sparse",
    "structure",
    "words",
]
