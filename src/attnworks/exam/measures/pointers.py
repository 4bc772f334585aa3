"""Which keys a query may see, what even attention gives to them, and keys of interest such as the same token before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.text.tokens import NO_WORD, Tokens
from attnworks.traces.rows import LayerRows


class OffsetSight(NamedTuple):
    """For each offset o = key - query, about the queries with a choice that may see the key at that offset.

    number    their number
    chance    their mean of 1 / visible, the weight of even attention
    counts    whether they are at least half of the queries with a choice
    """

    number: Int[Tensor, "b o"]
    chance: Float[Tensor, "b o"]
    counts: Bool[Tensor, "b o"]


@dataclass(frozen=True, eq=False)
class Sight:
    """Which keys the queries of a batch may see, derived from their number.

    choice    queries that may see two keys or more; the others are ignored
    past      sentences whose queries see the last `visible` keys up to themselves; in the others they see all keys
    Holds when: attention is full or causal, with a window or without. Under other masks 1 / visible is still the weight
    that even attention gives to a key that is seen, but which keys are seen is not known.
    """

    queries: Tokens
    keys: Tokens
    visible: Int[Tensor, "b i"]
    choice: Bool[Tensor, "b i"]
    past: Bool[Tensor, "b 1"]

    @classmethod
    def of(cls, rows: LayerRows) -> Sight:
        position = torch.arange(rows.visible.shape[1], device=rows.visible.device)
        past = (rows.visible <= position + 1).all(-1, keepdim=True)
        if rows.slot.kind == "cross":
            past = torch.zeros_like(past)
        return cls(rows.queries, rows.keys, rows.visible, (rows.visible > 1) & rows.queries.real, past)

    def fits(self, rows: LayerRows) -> bool:
        """Whether the queries of another layer see the same keys."""
        same = self.queries is rows.queries and self.keys is rows.keys
        return same and torch.equal(self.visible, rows.visible)

    @property
    def position(self) -> Int[Tensor, " i"]:
        return torch.arange(self.visible.shape[1], device=self.visible.device)

    @property
    def even(self) -> Float[Tensor, "b i"]:
        """The weight of each visible key if all have the same; zero where there is no choice."""
        return self.choice.double() / self.visible.clamp_min(1)

    @property
    def window(self) -> Int[Tensor, "b 1"]:
        """The most keys that any query sees."""
        return self.visible.amax(-1, keepdim=True)

    def sees(self, key: Int[Tensor, "b i"]) -> Bool[Tensor, "b i"]:
        """Which queries have a choice and may see the given key."""
        there = (key >= 0) & (key < self.keys.lengths.unsqueeze(-1))
        recent = (key <= self.position) & (key > self.position - self.visible)
        return self.choice & there & (recent | ~self.past)

    def number_seen(self, marked: Bool[Tensor, "b j"]) -> Int[Tensor, "b i"]:
        """The number of marked keys that each query may see."""
        running = _running(marked.long())
        if not bool(self.past.any()):
            return running[:, -1:].expand_as(self.visible)
        end = (self.position + 1).expand_as(self.visible)
        recent = running.gather(-1, end) - running.gather(-1, (end - self.visible).clamp_min(0))
        return torch.where(self.past, recent, running[:, -1:])

    def mean_even(
        self, where: Bool[Tensor, "b i"], keys: Int[Tensor, "b i"] | None = None
    ) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        """The weight of one key, or of `keys` keys, under even attention: its mean over the queries `where`.

        The second tensor is False for sentences without such a query.
        """
        even = self.even if keys is None else self.even * keys
        number = where.sum(-1)
        return (even * where).sum(-1) / number.clamp_min(1), number > 0

    def largest_even(self) -> Float[Tensor, " b"]:
        """The largest mean attention of any one key under even attention."""
        running = _running(self.even)
        last = running.shape[1] - 1
        begin = self.position.expand_as(self.visible)
        recent = running.gather(-1, (begin + self.window).clamp_max(last)) - running.gather(-1, begin)
        largest = torch.where(self.past, recent.amax(-1, keepdim=True), running[:, -1:])
        return largest.squeeze(-1) / self.choice.sum(-1).clamp_min(1)

    def offsets(self, span: int) -> OffsetSight:
        """The queries that may see the key at an offset are consecutive, so that running sums count them."""
        offset = torch.arange(-span, span + 1, device=self.visible.device)
        queries, keys = self.queries.lengths.unsqueeze(-1), self.keys.lengths.unsqueeze(-1)
        last = self.visible.shape[1]
        begin = (-offset).clamp(0, last).expand(len(queries), -1)
        in_past = torch.where((offset <= 0) & (-offset < self.window), queries, 0)
        end = torch.where(self.past, in_past, torch.minimum(queries, keys - offset))
        end = torch.maximum(end, begin)
        number, even = (
            running.gather(-1, end) - running.gather(-1, begin)
            for running in (_running(self.choice.long()), _running(self.even))
        )
        counts = (2 * number >= self.choice.sum(-1, keepdim=True)) & (number > 0)
        return OffsetSight(number, even / number.clamp_min(1), counts)


def _running(values: Tensor) -> Tensor:
    """0, v_0, v_0 + v_1, ..."""
    return torch.cat([torch.zeros_like(values[:, :1]), values.cumsum(-1)], -1)


def forced(rows: LayerRows) -> Float[Tensor, "b h i"] | None:
    """The weight, at its argmax, of each query that may see one key only; None where every query has a choice."""
    alone = rows.visible == 1
    return rows.max_weight * alone.unsqueeze(1) if bool(alone.any()) else None


def rarest(keys: Tokens) -> Int[Tensor, " b"]:
    """The first of the rarest tokens of each sentence, -1 where all are special."""
    assert keys.rarity is not None
    return torch.where((keys.rarity > -torch.inf).any(-1), keys.rarity.argmax(-1), NO_WORD)


def same_before(tokens: Tokens) -> Int[Tensor, "b i"]:
    """Where each token of the text occurred last before, -1 if it did not; special tokens never."""
    return _neighbours(tokens)[0]


def same_nearest(tokens: Tokens) -> Int[Tensor, "b i"]:
    """The nearest other occurrence of each token of the text, of two as near the one before; -1 if it has none."""
    before, after = _neighbours(tokens)
    position = torch.arange(before.shape[1], device=before.device)
    ahead = (after >= 0) & ((before < 0) | (after - position < position - before))
    return torch.where(ahead, after, before)


def after_same(tokens: Tokens) -> Int[Tensor, "b i"]:
    """The token after the last occurrence before of each token of the text; -1 if there is none or it is itself."""
    before = same_before(tokens)
    position = torch.arange(before.shape[1], device=before.device)
    return torch.where((before >= 0) & (before + 1 < position), before + 1, NO_WORD)


def _neighbours(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """The last occurrence before and the first after each token. A stable sort by id puts equal tokens side by side."""
    position = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
    assert tokens.special is not None
    counted = tokens.real & ~tokens.special
    ids, order = torch.where(counted, tokens.ids, -1 - position).sort(dim=-1, stable=True)
    same = ids[:, 1:] == ids[:, :-1]
    none = torch.full_like(ids, NO_WORD)
    before = none.scatter(-1, order[:, 1:], torch.where(same, order[:, :-1], NO_WORD))
    after = none.scatter(-1, order[:, :-1], torch.where(same, order[:, 1:], NO_WORD))
    return before, after
