"""Which keys a query may see, what even attention gives to them, and keys of interest such as the same token before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.text.tokens import NO_WORD, Tokens
from attnworks.traces.rows import LayerRows, sink_keys


class OffsetSight(NamedTuple):
    """For each offset o = key - query, about the queries with a choice that may see the key at that offset.

    seen      which queries these are
    number    their number
    counts    whether they are at least half of the queries with a choice
    """

    seen: Bool[Tensor, "b i o"]
    number: Int[Tensor, "b o"]
    counts: Bool[Tensor, "b o"]


@dataclass(frozen=True, eq=False)
class Sight:
    """Which keys the queries of a batch may see, derived from their number.

    all_visible  keys that each query may see
    among        the keys that are considered
    visible      keys among these that each query may see
    choice       queries that may see two of these keys or more; the others are ignored
    past         sentences whose queries see the last `all_visible` keys up to themselves; in the others they see all
    Holds when: attention is full or causal, with a window or without. Under other masks 1 / visible is still the weight
    that even attention gives to a key that is seen, but which keys are seen is not known.
    """

    queries: Tokens
    keys: Tokens
    all_visible: Int[Tensor, "b i"]
    among: Bool[Tensor, "b j"]
    visible: Int[Tensor, "b i"]
    choice: Bool[Tensor, "b i"]
    past: Bool[Tensor, "b 1"]

    @classmethod
    def of(cls, rows: LayerRows, among: Bool[Tensor, "b j"] | None = None) -> Sight:
        """Of all keys, or of those among some."""
        position = torch.arange(rows.visible.shape[1], device=rows.visible.device)
        past = (rows.visible <= position + 1).all(-1, keepdim=True)
        if rows.slot.kind == "cross":
            past = torch.zeros_like(past)
        keys = rows.keys.real if among is None else among
        visible = rows.visible if among is None else _number_seen(rows.visible, past, among)
        return cls(rows.queries, rows.keys, rows.visible, keys, visible, (visible > 1) & rows.queries.real, past)

    def fits(self, rows: LayerRows) -> bool:
        """Whether the queries of another layer see the same keys."""
        same = self.queries is rows.queries and self.keys is rows.keys
        return same and torch.equal(self.all_visible, rows.visible)

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
        return self.all_visible.amax(-1, keepdim=True)

    def sees(self, key: Int[Tensor, "b i k"]) -> Bool[Tensor, "b i k"]:
        """Which of these keys each query with a choice may see; a negative number is no key."""
        last = self.among.shape[1] - 1
        flat = key.clamp(0, last).flatten(1)
        there = self.among.gather(-1, flat).view(key.shape) & (key >= 0) & (key <= last)
        position = self.position[:, None]
        recent = (key <= position) & (key > position - self.all_visible.unsqueeze(-1))
        return self.choice.unsqueeze(-1) & there & (recent | ~self.past.unsqueeze(-1))

    def number_seen(self, marked: Bool[Tensor, "b j"]) -> Int[Tensor, "b i"]:
        """The number of marked keys that each query may see."""
        return _number_seen(self.all_visible, self.past, marked)

    def mean_even(
        self, where: Bool[Tensor, "b i"], keys: Int[Tensor, "b i"] | None = None
    ) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        """The weight of one key, or of `keys` keys, under even attention: its mean over the queries `where`.

        The second tensor is False for sentences without such a query.
        """
        even = self.even if keys is None else self.even * keys
        number = where.sum(-1)
        return (even * where).sum(-1) / number.clamp_min(1), number > 0

    def received_evenly(self, *, without_choice: bool = False) -> Float[Tensor, "b j"]:
        """What each considered key receives under even attention, summed over queries; zero at other keys.

        without_choice    also count queries that see one key only
        """
        counted = (self.visible > 0) & self.queries.real if without_choice else self.choice
        running = _running(counted.double() / self.visible.clamp_min(1))
        last = running.shape[1] - 1
        begin = torch.arange(self.among.shape[1], device=self.among.device).clamp_max(last).expand_as(self.among)
        recent = running.gather(-1, (begin + self.window).clamp_max(last)) - running.gather(-1, begin)
        return torch.where(self.past, recent, running[:, -1:]) * self.among

    def largest_even(self) -> Float[Tensor, " b"]:
        """The largest mean attention of any one key under even attention, if all keys are considered."""
        return self.received_evenly().amax(-1) / self.choice.sum(-1).clamp_min(1)

    def offsets(self, span: int) -> OffsetSight:
        seen = self.sees(near_keys(self.visible, span))
        number = seen.sum(1)
        return OffsetSight(seen, number, (2 * number >= self.choice.sum(-1, keepdim=True)) & (number > 0))

    def only_key(self) -> Int[Tensor, "b i"]:
        """The key that a query without a choice may see, among those considered; -1 where it sees none."""
        place = torch.arange(self.among.shape[1], device=self.among.device)
        latest = torch.where(self.among, place, NO_WORD).cummax(-1)[0]
        last = latest[:, -1:].expand_as(self.visible)
        if bool(self.past.any()):
            last = torch.where(self.past, latest[:, : self.visible.shape[1]], last)
        return torch.where((self.visible == 1) & self.queries.real, last, NO_WORD)


def near_keys(queries: Int[Tensor, "b i"], span: int) -> Int[Tensor, "b i o"]:
    """The keys at every offset from -span to span of each query; -1 where one would lie before the first key."""
    b, i = queries.shape
    offset = torch.arange(-span, span + 1, device=queries.device)
    return (torch.arange(i, device=queries.device)[:, None] + offset).clamp_min(NO_WORD).expand(b, -1, -1)


def _number_seen(
    visible: Int[Tensor, "b i"], past: Bool[Tensor, "b 1"], marked: Bool[Tensor, "b j"]
) -> Int[Tensor, "b i"]:
    """The number of marked keys that each query may see."""
    running = _running(marked.long())
    if not bool(past.any()):
        return running[:, -1:].expand_as(visible)
    end = torch.arange(1, visible.shape[1] + 1, device=visible.device).expand_as(visible)
    end = end.clamp_max(running.shape[1] - 1)
    recent = running.gather(-1, end) - running.gather(-1, (end - visible).clamp_min(0))
    return torch.where(past, recent, running[:, -1:])


def _running(values: Tensor) -> Tensor:
    """0, v_0, v_0 + v_1, ..."""
    return torch.cat([torch.zeros_like(values[:, :1]), values.cumsum(-1)], -1)


def forced(rows: LayerRows) -> Float[Tensor, "b h i"] | None:
    """The weight, at its argmax, of each query that may see one key only; None where every query has a choice."""
    alone = rows.visible == 1
    return rows.max_weight * alone.unsqueeze(1) if bool(alone.any()) else None


def rarest(keys: Tokens) -> Int[Tensor, " b"]:
    """The first of the rarest tokens outside the sinks of each sentence, -1 where it has none."""
    assert keys.rarity is not None
    rarity = keys.rarity.masked_fill(sink_keys(keys), -torch.inf)
    return torch.where((rarity > -torch.inf).any(-1), rarity.argmax(-1), NO_WORD)


def same_tokens(tokens: Tokens, *, before: bool) -> Int[Tensor, "b i k"]:
    """Every other occurrence of each token of the text, or every one `before` it, in order; special tokens have none.

    k is the largest number of them; -1 fills the places of tokens that have fewer.
    """
    assert tokens.special is not None
    counted = tokens.real & ~tokens.special
    same = (tokens.ids.unsqueeze(-1) == tokens.ids.unsqueeze(-2)) & counted.unsqueeze(-1) & counted.unsqueeze(-2)
    same = same.tril(-1) if before else same & ~torch.eye(same.shape[-1], dtype=torch.bool, device=same.device)
    sentence, query, key = same.nonzero(as_tuple=True)
    number = same.sum(-1).flatten()
    begin = number.cumsum(0) - number  # where the keys of each query begin among all that were found
    rank = torch.arange(len(key), device=key.device) - begin[sentence * same.shape[1] + query]
    keys = torch.full((*tokens.ids.shape, max(1, int(number.max()))), NO_WORD, device=tokens.ids.device)
    keys[sentence, query, rank] = key
    return keys


def after_same(tokens: Tokens) -> Int[Tensor, "b i k"]:
    """The token after every earlier occurrence of each token of the text, unless that is the token itself."""
    before = same_tokens(tokens, before=True)
    position = torch.arange(before.shape[1], device=before.device)[:, None]
    return torch.where((before >= 0) & (before + 1 < position), before + 1, NO_WORD)
