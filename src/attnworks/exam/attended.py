"""Which tokens get the attention of each head over the examined text, and three short sentences that show it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.places import HeadId, Kind, Slot
from attnworks.exam.pointers import Sight
from attnworks.text.tokens import Tokens
from attnworks.traces.rows import LayerRows, sink_keys
from attnworks.traces.subject import Side, Subject
from attnworks.traces.text import TokenizedText

Checked = TypeVar("Checked", str, int, float)

TOKENS_SHOWN, EXAMPLES_SHOWN = 8, 3
MAX_TOKEN_TYPES = 4096
"""The most frequent tokens of a text, whose attention is added up; rarer ones cannot get much of it."""
MAX_EXAMPLES, MIN_EXAMPLE_TOKENS, MAX_EXAMPLE_TOKENS = 64, 4, 24
"""Examples are taken from 64 sentences of 4 to 24 tokens, chosen by a checksum: the same for any order of batches."""
LEAST_SHARE = 1e-4
"""A sentence counts for a head that gives more than this share of its attention to keys outside the sinks."""
FIXED_POINT = 2**40
"""Shares are added as whole numbers of 2^-40, so that sums of any order are the same."""


class AttendedToken(NamedTuple):
    """A token, its share of the attention outside the sinks, what even attention gives it, and how often it is."""

    text: str
    share: float
    even: float
    occurrences: int


class AttendedExample(NamedTuple):
    """A sentence by its number, and the share of each of its tokens in whole percent."""

    sentence: int
    percent: tuple[int, ...]


@dataclass(frozen=True)
class AttendedTokens:
    """What each head looks at, outside the sinks.

    sentences    tokens of the sentences that are examples
    tokens       head -> tokens with more of its attention than even attention gives them, the largest surplus first
    examples     head -> sentences in which it gives most of its attention to one token
    """

    sentences: tuple[tuple[str, ...], ...] = ()
    tokens: Mapping[HeadId, tuple[AttendedToken, ...]] = field(default_factory=dict)
    examples: Mapping[HeadId, tuple[AttendedExample, ...]] = field(default_factory=dict)


def attended_to_json(attended: AttendedTokens) -> dict[str, Any]:
    """Lists; shares with four digits."""
    return {
        "sentences": [list(tokens) for tokens in attended.sentences],
        "heads": {
            str(head): {
                "tokens": [[text, _short(share), _short(even), count] for text, share, even, count in tokens],
                "examples": [[number, list(percent)] for number, percent in attended.examples.get(head, ())],
            }
            for head, tokens in attended.tokens.items()
        },
    }


def _short(share: float) -> float:
    return float(f"{share:.4g}")


def attended_from_json(made: Any) -> AttendedTokens:
    """TypeError, ValueError or KeyError for anything that `attended_to_json` does not write."""
    sentences = tuple(tuple(_checked(token, str) for token in tokens) for tokens in made["sentences"])
    tokens: dict[HeadId, tuple[AttendedToken, ...]] = {}
    examples: dict[HeadId, tuple[AttendedExample, ...]] = {}
    for name, found in made["heads"].items():
        head = HeadId.parse(name)
        tokens[head] = tuple(
            AttendedToken(_checked(text, str), _share(share), _share(even), _checked(count, int))
            for text, share, even, count in found["tokens"]
        )
        examples[head] = tuple(
            AttendedExample(_checked(number, int), tuple(_checked(one, int) for one in percent))
            for number, percent in found["examples"]
        )
        for number, percent in examples[head]:
            if not 0 <= number < len(sentences) or len(percent) != len(sentences[number]):
                raise ValueError(f"example {number} of {name}")
    return AttendedTokens(sentences, tokens, examples)


def _checked(value: Any, kind: type[Checked]) -> Checked:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"not of type {kind.__name__}")
    return value


def _share(value: Any) -> float:
    share = float(value) if isinstance(value, int) else _checked(value, float)
    if not 0 <= share <= 1:
        raise ValueError(f"share {share}")
    return share


class _Sums:
    """Sums of one layer, as whole numbers: shares [h t] and sentences [h]; examples: number -> percent [h j]."""

    def __init__(self, heads: int, types: int) -> None:
        self.shares = torch.zeros(heads, types, dtype=torch.int64)
        self.even = torch.zeros(heads, types, dtype=torch.int64)
        self.sentences = torch.zeros(heads, dtype=torch.int64)
        self.examples: dict[int, Float[Tensor, "h j"]] = {}


class _Keys(NamedTuple):
    """What follows from the keys of a batch alone.

    types      place of each key among the types that are counted; the last place is for all others
    outside     keys outside the sinks
    even       share of each key if every query spread its attention evenly over the keys outside the sinks it may see
    examples   place in the batch -> number of the example
    """

    types: Int[Tensor, "b j"]
    outside: Bool[Tensor, "b j"]
    even: Float[Tensor, "b j"]
    examples: Mapping[int, int]


class AttendedSums:
    """Adds up, batch by batch, the attention that tokens receive outside the sinks.

    With r_j = sum over the queries i of P[i, j] for keys j outside the sinks, the share of a token w in a sentence is
    sum of r_j over its occurrences / sum of r_j over all keys; shares are averaged over sentences. `merge` adds the
    sums of another process; the result does not depend on the order.

    Source: exBERT (Hoover et al. 2020) for tokens that are attended to over a corpus.
    Departs: shares of sentences rather than counts of maxima.
    """

    def __init__(self, text: TokenizedText) -> None:
        self.text = text
        self.layers: dict[Slot, _Sums] = {}
        self._known: dict[Kind, tuple[Sight, _Keys]] = {}
        self._counts = [Counter(id for row in rows for id in row.ids) for rows in text.sides]
        self.types = [
            sorted(sorted(counts), key=lambda id, of=counts: -of[id])[:MAX_TOKEN_TYPES] for counts in self._counts
        ]
        self._places = [{id: place for place, id in enumerate(types)} for types in self.types]
        self.examples = _example_rows(text)
        self._examples = {self._ids_of(row): number for number, row in enumerate(self.examples)}

    def _ids_of(self, row: int) -> tuple[tuple[int, ...], ...]:
        return tuple(rows[row].ids for rows in self.text.sides)

    def side_of_keys(self, kind: Kind) -> int:
        return len(self.text.sides) - 1 if kind == "decoder" else 0

    def add(self, rows: LayerRows) -> None:
        """A batch of one layer."""
        slot, known = rows.slot, self._keys(rows)
        b, h, _ = rows.received.shape
        side = self.side_of_keys(slot.kind)
        sums = self.layers.setdefault(slot, _Sums(h, len(self.types[side]) + 1))
        queries = rows.queries.lengths[:, None, None]
        received = rows.received.double() * queries * known.outside.unsqueeze(1)  # [b h j]
        total = received.sum(-1, keepdim=True)
        counted = total > LEAST_SHARE * queries  # [b h 1]
        shares = (received / total.clamp_min(torch.finfo(torch.float64).tiny)).where(counted, 0.0)
        places = known.types.unsqueeze(1).expand(b, h, -1).transpose(0, 1).reshape(h, -1).cpu()
        even = known.even.unsqueeze(1).double() * counted
        for total_of, values in ((sums.shares, shares), (sums.even, even)):
            whole = (values * FIXED_POINT).round().long().transpose(0, 1).reshape(h, -1).cpu()
            total_of.scatter_add_(1, places, whole)
        sums.sentences += counted[..., 0].sum(0).cpu()
        for place, number in known.examples.items():
            length = int(rows.keys.lengths[place])
            sums.examples[number] = shares[place, :, :length].float().cpu()

    def _keys(self, rows: LayerRows) -> _Keys:
        known = self._known.get(rows.slot.kind)
        if known is not None and known[0].fits(rows):
            return known[1]
        keys = rows.keys
        table, rest = (
            self._places[self.side_of_keys(rows.slot.kind)],
            len(self.types[self.side_of_keys(rows.slot.kind)]),
        )
        types = [[table.get(id, rest) for id in ids] for ids in keys.ids.tolist()]
        outside = keys.real & ~sink_keys(keys)
        sight = Sight.of(rows, outside)
        received = sight.received_evenly(without_choice=True)
        even = received / received.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        found = _Keys(torch.tensor(types, device=even.device), outside, even, self._examples_in(rows))
        self._known[rows.slot.kind] = sight, found
        return found

    def _examples_in(self, rows: LayerRows) -> dict[int, int]:
        """Examples in a batch, which are recognized by their ids."""
        if rows.slot.kind == "cross":
            ids = zip(_rows_of(rows.keys), _rows_of(rows.queries), strict=True)
            return {at: self._examples[pair] for at, pair in enumerate(ids) if pair in self._examples}
        side = self.side_of_keys(rows.slot.kind)
        numbers = {pair[side]: number for pair, number in self._examples.items()}
        return {at: numbers[own] for at, own in enumerate(_rows_of(rows.keys)) if own in numbers}

    def state(self) -> dict[Slot, _Sums]:
        return self.layers

    def merge(self, other: Mapping[Slot, _Sums]) -> None:
        for slot, sums in other.items():
            own = self.layers.setdefault(slot, _Sums(*sums.shares.shape))
            own.shares = own.shares + sums.shares
            own.even = own.even + sums.even
            own.sentences = own.sentences + sums.sentences
            own.examples |= sums.examples

    def result(self, subject: Subject) -> AttendedTokens | None:
        """The tokens and examples of every head; None if nothing was added, or if the subject names no tokens."""
        if subject.source is None:
            return None
        tokens: dict[HeadId, tuple[AttendedToken, ...]] = {}
        examples: dict[HeadId, tuple[AttendedExample, ...]] = {}
        sentences: dict[tuple[int, int], int] = {}
        for slot, sums in sorted(self.layers.items()):
            side = self.side_of_keys(slot.kind)
            name: Side = "target" if side else "source"
            for head in range(len(sums.shares)):
                number = max(int(sums.sentences[head]), 1) * FIXED_POINT
                shares, even = (values[head, :-1].double() / number for values in (sums.shares, sums.even))
                surplus = shares - even
                largest = torch.sort(surplus, descending=True, stable=True)[1][:TOKENS_SHOWN].tolist()
                tokens[HeadId(slot, head)] = tuple(
                    AttendedToken(subject.token(id, name), float(shares[at]), float(even[at]), self._counts[side][id])
                    for at, id in ((at, self.types[side][at]) for at in largest if surplus[at] > 0)
                )
                own = sorted(sums.examples, key=lambda number: (-float(sums.examples[number][head].max()), number))
                examples[HeadId(slot, head)] = tuple(
                    AttendedExample(
                        sentences.setdefault((side, number), len(sentences)),
                        tuple((sums.examples[number][head] * 100).round().int().tolist()),
                    )
                    for number in own[:EXAMPLES_SHOWN]
                )
        if not self.layers:
            return None
        texts = tuple(
            tuple(subject.token(id, "target" if side else "source") for id in self.text.sides[side][row].ids)
            for side, row in ((side, self.examples[number]) for side, number in sentences)
        )
        return AttendedTokens(texts, tokens, examples)


def _rows_of(tokens: Tokens) -> list[tuple[int, ...]]:
    lengths = tokens.lengths.tolist()
    return [tuple(ids[:length]) for ids, length in zip(tokens.ids.tolist(), lengths, strict=True)]


def _example_rows(text: TokenizedText) -> Sequence[int]:
    """The rows with the smallest checksums among the short ones; of equal texts the first."""
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    for row, sides in enumerate(zip(*text.sides, strict=True)):
        if all(MIN_EXAMPLE_TOKENS <= len(side) <= MAX_EXAMPLE_TOKENS for side in sides):
            first.setdefault(tuple(side.ids for side in sides), row)
    chosen = sorted(first, key=lambda ids: (zlib.crc32(str(ids).encode()), ids))[:MAX_EXAMPLES]
    return sorted(first[ids] for ids in chosen)
