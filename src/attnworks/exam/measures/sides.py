"""The measure `sides`: attention between two texts in one sequence, and how far it pairs their tokens one to one."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import BY_HEAD, BY_LAYER, MEASURES, Measure, MeasureContext, ReadingSpec, Sample, Samples
from attnworks.exam.reading import Readings
from attnworks.text.tokens import NO_SIDE, NO_WORD, Tokens
from attnworks.traces.maps import Maps
from attnworks.traces.rows import LayerRows

MATCHED_MAX_TOKENS = 128
"""Pairs with a longer text are not matched: the time of an assignment grows with the cube of the length."""
MIN_ROW_SUM = 1e-6
"""A query that gives less attention than this to some keys has no shares among them, which would be rounding errors."""
VIG, CLARK, KOBAYASHI, D12 = "Vig and Belinkov 2019", "Clark et al. 2019", "Kobayashi et al. 2020", "D12 (ii)"


class TextPairs(NamedTuple):
    """Which queries of a batch see which keys of the two texts, by the tokens and the number of visible keys.

    side      0 or 1 at tokens of a text, -1 elsewhere; also at the first token, where sinks are
    seen      keys that each query may see
    texts     keys of both texts that a query of a text may see
    other     those of them that are of the other text
    equal     those of the other text that are the same token
    gold      those of the other text that it is a translation of; None where no alignment is known
    """

    ids: Int[Tensor, "b i"]
    side: Int[Tensor, "b i"]
    seen: Bool[Tensor, "b i i"]
    texts: Bool[Tensor, "b i i"]
    other: Bool[Tensor, "b i i"]
    equal: Bool[Tensor, "b i i"]
    gold: Bool[Tensor, "b i i"] | None

    @classmethod
    def of(cls, tokens: Tokens, visible: Int[Tensor, "b i"]) -> TextPairs | None:
        """None if no sequence has two texts. Holds when: attention is full or causal, with a window or without."""
        if tokens.side is None:
            return None
        side = tokens.side.clone()
        side[:, 0] = NO_SIDE
        position = torch.arange(side.shape[1], device=side.device)
        past = (visible <= position + 1).all(-1)[:, None, None]
        recent = (position <= position[:, None]) & (position > (position - visible).unsqueeze(-1))
        seen = (recent | ~past) & tokens.real.unsqueeze(1) & tokens.real.unsqueeze(-1)
        text = side != NO_SIDE
        texts = seen & text.unsqueeze(1) & text.unsqueeze(-1)
        other = texts & (side.unsqueeze(1) != side.unsqueeze(-1))
        equal = other & (tokens.ids.unsqueeze(1) == tokens.ids.unsqueeze(-1))
        gold = None
        if tokens.aligned is not None:
            n = side.shape[1]
            at = torch.where((tokens.aligned == NO_WORD) | (tokens.aligned >= n), n, tokens.aligned)
            gold = other & other.new_zeros(*side.shape, n + 1).scatter(-1, at, True)[..., :n]
        return cls(tokens.ids, side, seen, texts, other, equal, gold)

    @property
    def even(self) -> Float[Tensor, "b 1 i i"]:
        """The attention of a head that spreads it evenly over the visible keys."""
        return (self.seen / self.seen.sum(-1, keepdim=True).clamp_min(1).double()).unsqueeze(1)

    @property
    def lengths(self) -> Int[Tensor, "two b"]:
        return torch.stack([(self.side == side).sum(-1) for side in (0, 1)])

    @property
    def matched(self) -> Bool[Tensor, " b"]:
        """Sequences whose texts both have two tokens or more, and neither too many, and of which one sees the other."""
        fits = (self.lengths >= 2) & (self.lengths <= MATCHED_MAX_TOKENS)
        return fits.all(0) & self.other.flatten(1).any(-1)

    def blocks(self, sentence: int) -> Iterator[tuple[Int[Tensor, " m"], Int[Tensor, " n"]]]:
        """The queries of one text and the keys of the other, in each direction in which any key is seen."""
        first, second = ((self.side[sentence] == side).nonzero().squeeze(-1) for side in (0, 1))
        for queries, keys in ((first, second), (second, first)):
            if bool(self.other[sentence, queries].any()):
                yield queries, keys


@MEASURES.register("sides")
class TwoTexts(Measure):
    """Attention between the two texts A (first) and B (second) of one sequence, as `--join-pairs` reads pairs.

    to_second     1/|A| sum_{i in A} sum_{j in B} P_ij, over the queries that see a key of B; to_first likewise
    sharpness     mean over the queries of both texts of max_j G_ij, where G is P on the visible keys of the other text
                  alone, each row divided by its sum
    permutation   max_pi sum_{(i, j) in pi} G_ij / min(|A|, |B|), over the partial permutations pi between the texts;
                  mean of both directions. 1: a permutation, or one of some queries or keys where lengths differ
    equal         sum of P_ij over equal tokens i, j of different texts, divided by that over all tokens of different
                  texts; a sentence counts if the texts have a token in common
    aligned       as permutation, of F instead of G: P on the visible keys of both texts, each row divided by its sum.
                  Sinks and delimiters do not count, and attention within a text counts against it
    gold          mean of sum_j F_ij over the tokens j that the known alignment of the words joins with i, over the
                  queries i that have such a token
    _chance       the same of even attention over the visible keys; but of permutation and aligned, by head: the same
                  of maps whose rows have the keys of the other text in random orders, each row in its own. Such a head
                  is as sharp, and its queries choose their keys independently

    Source: Clark et al. 2019 (attention by classes of tokens); Vig and Belinkov 2019 (the share of the attention that
    joins tokens with a property); D12 (ii), the nearest permutation by linear assignment; Kobayashi et al. 2020 (gold
    alignments of words).
    Holds when: attention is full or causal, with a window or without. In causal attention B alone sees the other text.
    Departs: Vig and Belinkov sum over a whole corpus, and this is a mean over sentences. Kobayashi et al. count errors
    of the largest weight of each row. The first token of the sequence belongs to neither text, because sinks are there.
    A query that gives less than 1e-6 to the keys in question is left out of sharpness and counts as zero in F and G.
    Texts of one token, or of more than 128, have neither permutation nor aligned.
    """

    name = "sides"
    description = "attention between two texts in one sequence: how much, how sharp, one to one, on equal tokens"
    cost = "some sums per layer and eight small assignments per map; nothing for single texts"
    default = True
    needs_pairs = True

    def __init__(self, context: MeasureContext) -> None:
        super().__init__(context)
        self.refusal = "no sequence has two texts; give pairs and --join-pairs"
        self._known: dict[Kind, tuple[Tokens, Tensor, Samples]] = {}

    def declares(self) -> tuple[ReadingSpec, ...]:
        readings = {
            "to_first": ("mean attention of tokens of the second text to the first", CLARK),
            "to_second": ("mean attention of tokens of the first text to the second", CLARK),
            "sharpness": ("mean largest weight among tokens of the other text; 1: each query has one key", VIG),
            "equal": ("share of the attention between the two texts that joins equal tokens", VIG),
            "gold": ("mean attention, of that to both texts, to tokens that the known alignment joins", KOBAYASHI),
        }
        matched = {
            "permutation": ("closeness of the attention between the two texts to a partial permutation; 1 is one", D12),
            "aligned": ("mean attention, of that to both texts, to one partner in the other, each token's own", D12),
        }
        found = [ReadingSpec(f"sides.{name}", BY_HEAD, *about) for name, about in (readings | matched).items()]
        even = [
            ReadingSpec(f"sides.{name}_chance", BY_LAYER, f"{words}, if attention were even", source)
            for name, (words, source) in readings.items()
        ]
        shuffled = [
            ReadingSpec(f"sides.{name}_chance", BY_HEAD, f"{words}; with keys in random order in each row", source)
            for name, (words, source) in matched.items()
        ]
        return (*found, *even, *shuffled)

    def rows(self, rows: LayerRows) -> Samples:
        """The readings of even attention, which are the same in all layers with the same visible keys."""
        if rows.slot.kind == "cross":
            return {}
        known = self._known.get(rows.slot.kind)
        if known is None or known[0] is not rows.queries or not torch.equal(known[1], rows.visible):
            pairs = TextPairs.of(rows.queries, rows.visible)
            samples = {} if pairs is None else _even_samples(pairs)
            known = self._known[rows.slot.kind] = rows.queries, rows.visible, samples
        return known[2]

    def maps(self, maps: Maps) -> Samples:
        pairs = None if maps.slot.kind == "cross" else TextPairs.of(maps.queries, maps.visible)
        if pairs is None:
            return {}
        P = maps.P.detach()
        found = shares_between(P, pairs) | matches_between(P, pairs, self.context.seed)
        return {f"sides.{name}": sample for name, sample in found.items()}

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        what = name.removesuffix("_chance")
        if what == "sides.gold" or (what == "sides.to_second" and all(slot.causal for slot in slots)):
            return ""  # most texts have no known alignment, and no decoder sees what follows
        if what == "sides.equal":
            return "no pair of texts has a token in common"
        if what in ("sides.permutation", "sides.aligned"):
            return f"no pair has two texts of 2 to {MATCHED_MAX_TOKENS} tokens"
        return None


def shares_between(P: Float[Tensor, "b h i i"], pairs: TextPairs) -> dict[str, Sample]:
    """The readings of `TwoTexts` that need no matching, by name."""
    found: dict[str, Sample] = {}
    between, asking = P * pairs.other.unsqueeze(1), pairs.other.any(-1)
    by_query = between.sum(-1)
    for side, name in enumerate(("to_second", "to_first")):
        found[name] = Sample(*_mean(by_query, (asking & (pairs.side == side)).unsqueeze(1)))
    giving = asking.unsqueeze(1) & (by_query > MIN_ROW_SUM)
    largest = between.amax(-1) / by_query.clamp_min(MIN_ROW_SUM)
    found["sharpness"] = Sample(*_mean(largest, giving))
    equal = (between * pairs.equal.unsqueeze(1)).sum((-2, -1))
    in_common = pairs.equal.flatten(1).any(-1, keepdim=True)
    found["equal"] = Sample(equal / by_query.sum(-1).clamp_min(MIN_ROW_SUM), in_common & giving.any(-1))
    if pairs.gold is not None:
        on_gold = (_divided(P * pairs.texts.unsqueeze(1)) * pairs.gold.unsqueeze(1)).sum(-1)
        found["gold"] = Sample(*_mean(on_gold, pairs.gold.any(-1).unsqueeze(1)))
    return found


def matches_between(P: Float[Tensor, "b h i i"], pairs: TextPairs, seed: int) -> dict[str, Sample]:
    """`permutation` and `aligned`, with their chance levels.

    The random orders depend on the seed and the tokens of a sentence alone, so that they are the same in any batch.
    """
    counted = pairs.matched
    among = {"permutation": pairs.other, "aligned": pairs.texts}
    tables = {name: _divided(P * where.unsqueeze(1)) for name, where in among.items()}
    sums = {name: P.new_zeros(P.shape[:2], dtype=torch.float64) for name in (*tables, *(f"{n}_chance" for n in tables))}
    for sentence in counted.nonzero().squeeze(-1).tolist():
        blocks = list(pairs.blocks(sentence))
        random = np.random.default_rng([seed, zlib.crc32(str(pairs.ids[sentence].tolist()).encode())])
        for queries, keys in blocks:
            order = random.permuted(np.tile(np.arange(len(keys)), (len(queries), 1)), axis=1)
            for name, table in tables.items():
                block = table[sentence][:, queries][..., keys].double().cpu().numpy()
                shuffled = np.take_along_axis(block, np.broadcast_to(order, block.shape), -1)
                for what, maps in ((name, block), (f"{name}_chance", shuffled)):
                    sums[what][sentence] += _best_matchings(maps).to(P.device) / len(blocks)
    return {name: Sample(values, counted.unsqueeze(-1)) for name, values in sums.items()}


def _even_samples(pairs: TextPairs) -> Samples:
    return {
        f"sides.{name}_chance": Sample(values[:, 0], None if valid is None else valid.squeeze(-1))
        for name, (values, valid) in shares_between(pairs.even, pairs).items()
    }


def _mean(values: Float[Tensor, "b h i"], where: Bool[Tensor, "b _ i"]) -> tuple[Tensor, Tensor]:
    """The mean over some queries, and whether there are any."""
    number = where.sum(-1)
    return (values * where).sum(-1) / number.clamp_min(1), number > 0


def _divided(P: Float[Tensor, "b h i i"]) -> Float[Tensor, "b h i i"]:
    """Each row divided by its sum; zero where that is too small."""
    sums = P.sum(-1, keepdim=True)
    return P / sums.clamp_min(MIN_ROW_SUM) * (sums > MIN_ROW_SUM)


def _best_matchings(blocks: np.ndarray) -> Float[Tensor, " h"]:
    """max_pi sum_{(i, j) in pi} of each block [m, n], divided by the number of pairs, min(m, n)."""
    number = min(blocks.shape[1:])
    best = [block[linear_sum_assignment(block, maximize=True)].sum() / number for block in blocks]
    return torch.tensor(best, dtype=torch.float64)
