"""Rows of token ids, the padded batches that a model reads, and which rows make up each batch.

A row may be annotated with special tokens, words, syntactic governors and rarity, as examinations need it. Rows of
training have ids alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import compress
from operator import not_

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.checks import integer
from attnworks.core.errors import UsageError
from attnworks.core.places import Kind
from attnworks.text.vocabulary import PAD

NO_WORD = -1
"""No word, or no governor."""
NO_SIDE = -1
"""In neither of two texts."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One sequence; `Tokens` holds many. Rows of training have ids alone. Without syntax, `governor` is None.

    A row of one text has neither `side` nor `type_ids` nor `aligned`.
    """

    ids: tuple[int, ...]
    special: tuple[bool, ...] = ()
    word: tuple[int, ...] = ()
    governor: tuple[int, ...] | None = None
    side: tuple[int, ...] | None = None
    type_ids: tuple[int, ...] | None = None
    aligned: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def text_ids(self) -> list[int]:
        """The ids of the text itself, without special tokens."""
        return list(compress(self.ids, map(not_, self.special))) if self.special else list(self.ids)


RowPair = tuple[TokenRow, TokenRow]
"""A source, which ends in <eos>, and a target, which begins with <bos>."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """One side of a batch, padded on the right. Batches of training have ids and real tokens only.

    real     False at padding
    special  added by the tokenizer, such as [CLS] or </s>
    word     index of the word that a token belongs to; -1 at special tokens and padding, and where words are unknown
    governor position of the first token of the syntactic governor, for every token of a word; never a token itself;
             -1 for roots, special tokens, padding and governors that are unknown or cut off
    rarity   -log(n_w / n) of a token that makes up n_w of the n tokens of the text; -inf at special tokens and padding,
             so that the largest is that of the rarest token of the text
    side     0 in the first text and 1 in the second, where two texts are one sequence; -1 at tokens of neither text;
             None if no row has two texts
    type_ids `token_type_ids` of a tokenizer for two texts, 0 at padding; None if no row has any
    aligned  positions of the tokens of the other text that each token is a translation of, -1 after the last one; None
             if no row has a known alignment
    padded   False if no row has padding, known without reading `real`
    """

    ids: Int[Tensor, "b i"]
    real: Bool[Tensor, "b i"]
    special: Bool[Tensor, "b i"] | None = None
    word: Int[Tensor, "b i"] | None = None
    governor: Int[Tensor, "b i"] | None = None
    rarity: Float[Tensor, "b i"] | None = None
    side: Int[Tensor, "b i"] | None = None
    type_ids: Int[Tensor, "b i"] | None = None
    aligned: Int[Tensor, "b i l"] | None = None
    padded: bool = True

    @property
    def mask(self) -> Bool[Tensor, "b i"] | None:
        """`real`, or None if nothing is padded, so that attention takes its path without a mask."""
        return self.real if self.padded else None

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
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "padded"}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True, eq=False)
class Batch:
    """One side, or a source and the target that the decoder reads; `rows` are the numbers of the sentences."""

    source: Tokens
    target: Tokens | None = None
    rows: Int[Tensor, " b"] | None = None

    def sides(self, kind: Kind) -> tuple[Tokens, Tokens]:
        """The tokens of queries and of keys in attention of this kind."""
        own = self.source if kind == "encoder" or self.target is None else self.target
        return own, self.source if kind == "cross" else own

    def labels(self, end_id: int | None) -> tuple[Int[Tensor, "b t"], Bool[Tensor, "b t"]]:
        """The token that follows each token of the target, and True where there is such a token.

        `end_id` follows the last token of a row, unless that token is `end_id` itself or `end_id` is None.
        """
        assert self.target is not None
        ids, real = self.target.ids, self.target.real
        following, counted = F.pad(ids[:, 1:], (0, 1)), F.pad(real[:, 1:], (0, 1))
        if end_id is None:
            return following, counted
        last = (self.target.lengths - 1).clamp_min(0)[:, None]  # [b 1], the position of the last real token
        ended = ids.gather(1, last) == end_id
        return following.scatter(1, last, end_id), counted.scatter(1, last, ~ended)

    def to(self, device: torch.device | str) -> Batch:
        """The same tokens on another device; `rows` stay where they are."""
        return Batch(self.source.to(device), None if self.target is None else self.target.to(device), self.rows)

    def some(self, sentences: slice) -> Batch:
        """Some of the sentences, without padding that none of them needs."""

        def part(side: Tokens) -> Tokens:
            return side.part(sentences, slice(int(side.lengths[sentences].max())))

        target = None if self.target is None else part(self.target)
        return Batch(part(self.source), target, None if self.rows is None else self.rows[sentences])

    def __len__(self) -> int:
        return len(self.source.ids)


def collate(
    rows: Sequence[TokenRow], pad_id: int, rarity: Mapping[int, float] | None = None, *, annotate: bool = True
) -> Tokens:
    """Pad rows on the right into one side of a batch.

    rarity      rarity of every token in the whole text (counted in these rows alone if not given)
    annotate    False for ids alone, as in training

    A row without governors has -1 among rows with governors, and a row of one text among rows of two.
    """
    if not rows:
        raise UsageError("a batch", "at least one row", "none", "give a row")
    lengths = [len(row.ids) for row in rows]
    longest = max(lengths)

    def pad(sequences: Iterable[Sequence[float]], filler: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*values, *[filler] * (longest - len(values))] for values in sequences], dtype=dtype)

    ids = pad([row.ids for row in rows], pad_id, torch.int64)
    tokens = Tokens(ids, torch.arange(longest) < torch.tensor(lengths)[:, None], padded=min(lengths) < longest)
    if not annotate:
        return tokens
    known = count_rarity(rows) if rarity is None else rarity
    parsed, joined, typed, linked = (
        any(getattr(row, name) is not None for row in rows) for name in ("governor", "side", "type_ids", "aligned")
    )
    return replace(
        tokens,
        special=pad([row.special for row in rows], False, torch.bool),
        word=pad([row.word for row in rows], NO_WORD, torch.int64),
        governor=pad([row.governor or () for row in rows], NO_WORD, torch.int64) if parsed else None,
        rarity=pad([_rarities(row, known) for row in rows], -math.inf, torch.float32),
        side=pad([row.side or () for row in rows], NO_SIDE, torch.int64) if joined else None,
        type_ids=pad([row.type_ids or () for row in rows], 0, torch.int64) if typed else None,
        aligned=_padded_links(rows, longest) if linked else None,
    )


def _padded_links(rows: Sequence[TokenRow], longest: int) -> Int[Tensor, "b i l"]:
    """`aligned` of every row, padded to the longest row and to the largest number of links of a token."""
    links = max(len(found) for row in rows for found in row.aligned or ((),))
    padded = torch.full((len(rows), longest, links), NO_WORD)
    for number, row in enumerate(rows):
        for token, found in enumerate(row.aligned or ()):
            padded[number, token, : len(found)] = torch.tensor(found, dtype=torch.int64)
    return padded


def collate_pairs(pairs: Sequence[RowPair], rows: Sequence[int] | None = None) -> Batch:
    """A batch of training; `rows` are the numbers of these pairs in the corpus."""
    source, target = (collate(side, PAD, annotate=False) for side in zip(*pairs, strict=True))
    return Batch(source, target, None if rows is None else torch.tensor(rows))


def count_rarity(rows: Sequence[TokenRow]) -> Mapping[int, float]:
    """-log(n_w / n) of every token id w in the rows, in the order of the ids; special tokens are not counted.

    >>> count_rarity([TokenRow((7, 8, 7, 7), (False,) * 4, (0, 1, 2, 3))])[8] == math.log(4)
    True
    """
    counts = Counter(identity for row in rows for identity in row.text_ids)
    total = counts.total()
    return {identity: math.log(total / counts[identity]) for identity in sorted(counts)}


def _rarities(row: TokenRow, known: Mapping[int, float]) -> list[float]:
    try:
        special = row.special or (False,) * len(row)
        return [-math.inf if added else known[identity] for identity, added in zip(row.ids, special, strict=True)]
    except KeyError as missing:
        asked = f"rarity of token {missing}"
        raise UsageError(asked, "a token of the counted text", "another", "count rarity over all rows") from None


def cut_by_length(
    order: Iterable[int], lengths: Sequence[tuple[int, ...]], limit: int, size: Callable[[tuple[int, ...]], int]
) -> list[list[int]]:
    """Rows in this order, cut into batches of at most `limit` padded tokens, or of one row.

    lengths    the lengths of the sides of every row
    size       `sum` or `max`: the padded tokens of a row, from the largest length of each side in its batch
    """
    batches: list[list[int]] = []
    longest: tuple[int, ...] = ()
    for row in order:
        grown = tuple(map(max, longest, lengths[row])) if batches else lengths[row]
        if batches and size(grown) * (len(batches[-1]) + 1) <= limit:
            batches[-1].append(row)
            longest = grown
        else:
            batches.append([row])
            longest = lengths[row]
    return batches


def exam_batches(*sides: Sequence[TokenRow], batch_tokens: int) -> list[list[int]]:
    """Which rows make up each batch of an examination: all rows, from short to long, ties in their order.

    A batch ends where its padded size (number of rows times the longest row, summed over the sides) would exceed
    `batch_tokens`; it has at least one row. Sides, such as sources and targets, stay together.
    """
    integer("batch_tokens", batch_tokens, 1)
    if len({len(rows) for rows in sides}) > 1:
        got = " and ".join(str(len(rows)) for rows in sides)
        raise UsageError("batches of sides", "the same number of rows on each side", got, "add the missing rows")
    lengths = [tuple(map(len, rows)) for rows in zip(*sides, strict=True)]
    order = sorted(range(len(lengths)), key=lambda row: sum(lengths[row]))
    return cut_by_length(order, lengths, batch_tokens, sum)


def validation_batches(pairs: Sequence[RowPair], batch_tokens: int) -> list[list[int]]:
    """Which pairs make up each batch of validation: sorted by length, the larger padded side within `batch_tokens`."""
    lengths = [(len(target), len(source)) for source, target in pairs]
    return cut_by_length(sorted(range(len(pairs)), key=lengths.__getitem__), lengths, batch_tokens, max)


class BatchOrder:
    """Which pairs make up the batch of each training step.

    Pairs are sorted by length, with ties shuffled anew each epoch, and cut where the larger padded side of a batch
    would exceed `batch_tokens`. The cuts depend on lengths alone, so that every epoch has the same number of batches,
    and the batch of step s is computed from (seed, s) without going through the steps before.
    """

    def __init__(self, pairs: Sequence[RowPair], batch_tokens: int, seed: int) -> None:
        if not pairs:
            raise UsageError("batches", "at least one example", "none", "choose a corpus that has pairs")
        self.seed = seed
        self.lengths = np.array([(len(source.ids), len(target.ids)) for source, target in pairs])
        by_length = self.lengths[np.lexsort(self.lengths.T)].max(1).tolist()  # the larger side alone decides
        batches = cut_by_length(range(len(pairs)), [(length,) for length in by_length], batch_tokens, max)
        self.cuts = [(rows[0], rows[-1] + 1) for rows in batches]

    @property
    def per_epoch(self) -> int:
        return len(self.cuts)

    def rows(self, step: int) -> list[int]:
        """The pairs of the batch at `step`, counted from 0 over all epochs."""
        epoch, index = divmod(step, self.per_epoch)
        order, batches = _shuffled(self, epoch)
        start, end = self.cuts[batches[index]]
        return order[start:end].tolist()


@lru_cache(maxsize=4)
def _shuffled(order: BatchOrder, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs by length, ties shuffled, and the order of the batches."""
    random = np.random.Generator(np.random.PCG64([order.seed, epoch]))
    ties = random.permutation(len(order.lengths))
    return np.lexsort((ties, *order.lengths.T)), random.permutation(order.per_epoch)
