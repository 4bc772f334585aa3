"""The sparse family on a GPU: torch's FlexAttention with a block mask made from the pattern."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attnworks.attention.mask import Mask


def attend_flex(
    Q: Tensor, K: Tensor, V: Tensor, linked: Callable[..., Tensor], mask: Mask, scale: float, *, alike: bool = False
) -> Tensor:
    """Y [b h i v] over the pairs where linked(batch, head, query, key); blocks without any edge are never visited.

    alike   whether all sentences have the same pairs, so that one mask serves them
    On a CPU it has no backward pass, and serves the tests alone; there the mask is made from a table of all pairs.
    """
    (b, h, i, _), j = Q.shape, K.shape[2]
    real = torch.ones(b, j, dtype=torch.bool, device=Q.device) if mask.padding is None else mask.padding.expand(b, -1)
    latest = j - i if mask.causal else j  # the last key that row 0 may see
    blocks = create_block_mask(
        lambda batch, head, row, key: (
            linked(batch, head, row + (j - i), key) & (key <= row + latest) & real[batch, key]
        ),
        B=None if alike else b,
        H=h,
        Q_LEN=i,
        KV_LEN=j,
        device=str(Q.device),
        _compile=Q.device.type != "cpu",
    )
    run = flex_attention if Q.device.type == "cpu" else _compiled()
    Y = run(Q, K, V, block_mask=blocks, scale=scale)
    assert isinstance(Y, Tensor)
    return Y


@cache
def _compiled() -> Callable[..., object]:
    return torch.compile(flex_attention, dynamic=False)
