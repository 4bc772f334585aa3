"""Token batches without text, and a hook that keeps what it is shown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnworks.text.tokens import Batch, TokenRow, Tokens, collate
from attnworks.traces.layer import LayerTrace, StreamTrace
from attnworks.traces.maps import maps_of
from attnworks.traces.subject import LayerHook


def random_tokens(lengths: Sequence[int], words: int = 50, seed: int = 0) -> Tokens:
    """Sentences of these lengths, the first and last token special."""
    generator = torch.Generator().manual_seed(seed)
    rows = [
        TokenRow(
            tuple((torch.randint(words - 3, (length,), generator=generator) + 3).tolist()),
            (True, *[False] * (length - 2), True)[:length],
            tuple(range(length)),
        )
        for length in lengths
    ]
    return collate(rows, 1)


def random_batch(source: Sequence[int], target: Sequence[int] | None = None, words: int = 50) -> Batch:
    return Batch(
        random_tokens(source, words), None if target is None else random_tokens(target, words, seed=len(source))
    )


class Keep(LayerHook):
    def __init__(self) -> None:
        self.traces: list[LayerTrace] = []
        self.streams: list[StreamTrace] = []

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.traces.append(trace)
        return None

    def stream(self, stream: StreamTrace) -> None:
        self.streams.append(stream)


def dense_map(trace: LayerTrace) -> Tensor:
    """P [b h i j] of a whole layer, zero at padding."""
    P = torch.zeros(*trace.Q.shape[:3], trace.K.shape[2], dtype=torch.promote_types(trace.Q.dtype, torch.float32))
    for piece in maps_of(trace):
        i, j = piece.P.shape[-2:]
        P[piece.sentences, piece.heads, :i, :j] = piece.P
    return P
