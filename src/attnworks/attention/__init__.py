"""Attention mechanisms: (Q, K, V, Mask, Context) -> Attended(Y, P).

>>> import torch
>>> from attnworks import attention
>>> Q, K, V = torch.randn(3, 2, 8, 11, 16).unbind()
>>> attend = attention.get("dense")()
>>> attend(Q, K, V, attention.Mask(causal=True)).Y.shape
torch.Size([2, 8, 11, 16])
"""

from attnworks.attention import (
    bahdanau,
    bigbird,
    dense,
    graph,
    linear,
    linformer,
    longformer,
    luong,
    patterns,
    pooling,
    sketched,
    structured,
    truncated,
    window,
)
from attnworks.attention.check import MechanismCheck
from attnworks.attention.check import check_mechanism as check
from attnworks.attention.contract import (
    MECHANISMS,
    Attended,
    AttentionCost,
    Context,
    Geometry,
    Mechanism,
    MechanismSpec,
)
from attnworks.attention.mask import Mask

__all__ = [
    "MECHANISMS",
    "Attended",
    "AttentionCost",
    "Context",
    "Geometry",
    "Mask",
    "Mechanism",
    "MechanismCheck",
    "MechanismSpec",
    "bahdanau",
    "bigbird",
    "check",
    "dense",
    "get",
    "graph",
    "linear",
    "linformer",
    "longformer",
    "luong",
    "names",
    "patterns",
    "pooling",
    "sketched",
    "structured",
    "truncated",
    "window",
]


def get(name: str) -> type[Mechanism]:
    """The mechanism class registered under `name`; an unknown name lists the known ones."""
    return MECHANISMS[name]


def names() -> tuple[str, ...]:
    """Every registered mechanism."""
    return tuple(MECHANISMS)
