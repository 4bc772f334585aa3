"""Token sequences that know their words, syntactic heads and rarity, and the batches that a model reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError

NONE = -1
"""No word, or no head."""

Kind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One sequence, as `Tokens` holds many of. Without knowledge of syntax `head` is None."""

    ids: tuple[int, ...]
    special: tuple[bool, ...]
    word: tuple[int, ...]
    head: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def text_ids(self) -> list[int]:
        """The ids of the text itself, without special tokens."""
        return [identity for identity, special in zip(self.ids, self.special, strict=True) if not special]


@dataclass(frozen=True, eq=False)
class Tokens:
    """One side of a batch, padded on the right.

    real     False at padding
    special  added by the tokenizer, such as [CLS] or </s>
    word     index of the word that a token belongs to; -1 at special tokens and padding, and where words are unknown
    head     position of the first token of the syntactic head's word, for every token of a word; never a token itself;
             -1 for roots, special tokens, padding and heads that are unknown or cut off
    rarity   -log(n_w / n) of a token that makes up n_w of the n tokens of the text; -inf at special tokens and padding,
             so that the largest is that of the rarest token of the text
    """

    ids: Int[Tensor, "b i"]
    real: Bool[Tensor, "b i"]
    special: Bool[Tensor, "b i"]
    word: Int[Tensor, "b i"]
    head: Int[Tensor, "b i"] | None
    rarity: Float[Tensor, "b i"]

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        """Real tokens of each row, special ones included."""
        return self.real.sum(-1)

    def to(self, device: torch.device | str) -> Tokens:
        return self._each(lambda tensor: tensor.to(device))

    def part(self, sentences: slice, places: slice) -> Tokens:
        """Some sentences, and some places of them."""
        return self._each(lambda tensor: tensor[sentences, places])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        ids, real, special, word, rarity = map(change, (self.ids, self.real, self.special, self.word, self.rarity))
        return Tokens(ids, real, special, word, None if self.head is None else change(self.head), rarity)


def collate_tokens(rows: Sequence[TokenRow], pad_id: int, rarity: Mapping[int, float] | None = None) -> Tokens:
    """Pad rows on the right into one batch; `rarity` is that of the whole text (of these rows alone if not given).

    A row without heads has -1 among rows with heads.
    """
    if not rows:
        raise UsageError(asked="a batch", expected="at least one row", got="none", remedy="give a row")
    known = count_rarity(rows) if rarity is None else rarity
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())

    def padded(sequences: Sequence[Sequence[float]], filler: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*values, *[filler] * (longest - len(values))] for values in sequences], dtype=dtype)

    with_heads = any(row.head is not None for row in rows)
    return Tokens(
        ids=padded([row.ids for row in rows], pad_id, torch.int64),
        real=torch.arange(longest) < lengths[:, None],
        special=padded([row.special for row in rows], False, torch.bool),
        word=padded([row.word for row in rows], NONE, torch.int64),
        head=padded([row.head or (NONE,) * len(row) for row in rows], NONE, torch.int64) if with_heads else None,
        rarity=padded([_rarities(row, known) for row in rows], -math.inf, torch.float32),
    )


def count_rarity(rows: Sequence[TokenRow]) -> Mapping[int, float]:
    """-log(n_w / n) of every kind of token w in the rows, in the order of the ids; special tokens are not counted.

    >>> count_rarity([TokenRow((7, 8, 7, 7), (False,) * 4, (0, 1, 2, 3))])[8] == math.log(4)
    True
    """
    counts = Counter(identity for row in rows for identity in row.text_ids)
    total = counts.total()
    return {identity: math.log(total / counts[identity]) for identity in sorted(counts)}


def text_batches(*sides: Sequence[TokenRow], tokens_per_batch: int) -> list[list[int]]:
    """Which rows make up each batch: all rows, from short to long, ties in their order.

    A batch is cut where its padded size (rows times the longest of them, summed over the sides) would pass
    `tokens_per_batch`; it has one row at least. Sides, such as sources and targets, stay together.
    """
    if tokens_per_batch < 1:
        raise UsageError(
            asked="tokens per batch", expected="one or more", got=str(tokens_per_batch), remedy="ask for more tokens"
        )
    if len(counts := {len(rows) for rows in sides}) > 1:
        raise UsageError(
            asked="batches of several sides",
            expected="the same number of rows on each",
            got=" and ".join(str(len(rows)) for rows in sides),
            remedy=f"give {max(counts)} rows on each side",
        )
    lengths = [tuple(map(len, rows)) for rows in zip(*sides, strict=True)]
    batches: list[list[int]] = []
    longest: tuple[int, ...] = ()
    for row in sorted(range(len(lengths)), key=lambda row: sum(lengths[row])):
        grown = tuple(map(max, longest, lengths[row])) if batches else lengths[row]
        if batches and sum(grown) * (len(batches[-1]) + 1) <= tokens_per_batch:
            batches[-1].append(row)
            longest = grown
        else:
            batches.append([row])
            longest = lengths[row]
    return batches


def _rarities(row: TokenRow, known: Mapping[int, float]) -> list[float]:
    try:
        return [
            -math.inf if special else known[identity] for identity, special in zip(row.ids, row.special, strict=True)
        ]
    except KeyError as missing:
        raise UsageError(
            asked=f"rarity of token {missing}",
            expected="a token of the text that rarity was counted in",
            got="another",
            remedy="count rarity over all rows",
        ) from None


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
