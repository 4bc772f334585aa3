"""Some sentences of a corpus, for what would take too long for all of them."""

from __future__ import annotations

import zlib

import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.text.tokens import Tokens


def drawn(tokens: Tokens, one_in: int, seed: int) -> Bool[Tensor, " b"]:
    """One sentence in `one_in`, by a checksum of its tokens and the seed: the same ones in whatever batches."""
    sums = [
        zlib.crc32(str((seed, row[: int(length)])).encode())
        for row, length in zip(tokens.ids.tolist(), tokens.lengths, strict=True)
    ]
    return torch.tensor([number % one_in == 0 for number in sums], device=tokens.ids.device)
