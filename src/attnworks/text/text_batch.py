"""What a model reads at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from attnworks.text.tokens import Tokens

Kind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, eq=False)
class TextBatch:
    """One side, or a source and the target that the decoder reads."""

    source: Tokens
    target: Tokens | None = None

    def __iter__(self) -> Iterator[Tokens | None]:
        """Source, target: to be taken apart like a pair."""
        yield self.source
        yield self.target

    def sides(self, kind: Kind) -> tuple[Tokens, Tokens]:
        """The tokens of queries and of keys in attention of this kind."""
        own = self.source if kind == "encoder" or self.target is None else self.target
        return own, self.source if kind == "cross" else own

    def to(self, device: torch.device | str) -> TextBatch:
        return TextBatch(self.source.to(device), None if self.target is None else self.target.to(device))

    def some(self, sentences: slice) -> TextBatch:
        """Some of the sentences, without padding that none of them needs."""
        sides = [
            None if side is None else side.part(sentences, slice(int(side.lengths[sentences].max()))) for side in self
        ]
        assert sides[0] is not None
        return TextBatch(sides[0], sides[1])

    def __len__(self) -> int:
        return len(self.source.ids)
