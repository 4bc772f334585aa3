"""Padding, and the order of batches as a pure function of (seed, step)."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UsageError
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import read_pairs
from attnworks.text.tokens import BatchOrder, RowPair, TokenRow, collate, collate_pairs
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary


def pair(source: tuple[int, ...], target: tuple[int, ...]) -> RowPair:
    return TokenRow((*source, EOS)), TokenRow((BOS, *target))


def pairs_of(lengths: list[tuple[int, int]]) -> list[RowPair]:
    return [pair((7,) * source, (8,) * target) for source, target in lengths]


LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60)
VARIED = pairs_of([(n % 5, n % 5) for n in range(83)])


def epoch_of(order: BatchOrder, epoch: int) -> list[list[int]]:
    return [order.rows(epoch * order.per_epoch + index) for index in range(order.per_epoch)]


def padded_sides(pairs: list[RowPair], rows: list[int]) -> tuple[int, int]:
    source, target = (max(len(pairs[row][side]) for row in rows) for side in (0, 1))
    return source * len(rows), target * len(rows)


def test_nothing_padded_has_no_mask() -> None:
    whole = collate([TokenRow((5, 6)), TokenRow((7, 8))], PAD, annotate=False)
    assert whole.ids.tolist() == [[5, 6], [7, 8]] and whole.mask is None and whole.real.all()
    assert whole.special is whole.word is whole.rarity is whole.governor is None
    padded = collate([TokenRow((5, 6)), TokenRow((7,))], PAD, annotate=False)
    assert padded.mask is padded.real


def test_labels_are_shifted_by_one_and_end() -> None:
    batch = collate_pairs([pair((10, 11), (20, 21, 22)), pair((12,), (23,))], rows=[4, 2])
    assert batch.target is not None and batch.rows is not None
    assert batch.source.ids.tolist() == [[10, 11, EOS], [12, EOS, PAD]]
    assert batch.target.ids.tolist() == [[BOS, 20, 21, 22], [BOS, 23, PAD, PAD]]
    labels, counted = batch.labels(EOS)
    assert labels.tolist() == [[20, 21, 22, EOS], [23, EOS, PAD, PAD]]
    assert counted.tolist() == batch.target.real.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.source.real.tolist() == [[True] * 3, [True, True, False]]
    assert batch.rows.tolist() == [4, 2]


def test_a_target_that_has_ended_or_has_no_end_is_not_continued() -> None:
    ended = collate_pairs([pair((10,), (20, EOS)), pair((10,), (21,))])
    assert ended.labels(EOS)[1].tolist() == [[True, True, False], [True, True, False]]
    assert ended.labels(None)[1].tolist() == [[True, True, False], [True, False, False]]


def test_each_side_is_padded_on_its_own() -> None:
    batch = collate_pairs([pair((10,), (20,)), pair((11,), (21, 22))])
    assert batch.target is not None
    assert batch.source.mask is None and batch.target.mask is not None


def test_an_empty_target_still_ends() -> None:
    batch = collate_pairs([pair((10,), ())])
    assert batch.target is not None
    assert batch.target.ids.tolist() == [[BOS]] and batch.labels(EOS)[0].tolist() == [[EOS]]


def test_moving_keeps_everything() -> None:
    moved = collate_pairs([pair((10, 11), (20,)), pair((12,), (23,))], rows=[1, 0]).to("meta")
    assert moved.target is not None and moved.rows is not None
    assert moved.source.ids.is_meta and moved.target.ids.is_meta and moved.source.real.is_meta
    assert moved.source.padded and moved.target.mask is None and moved.rows.tolist() == [1, 0]


def test_sources_end_and_targets_begin() -> None:
    english = Vocabulary.train("word", [["Luca", "sings"]])
    italian = Vocabulary.train("word", [["Luca", "canta"]])
    ((source, target),) = read_pairs([Passage.of_words(("Luca", "sings"), ("Luca", "canta", "ora"))], english, italian)
    assert source.ids == (*english.encode(["Luca", "sings"]), EOS)
    assert target.ids == (BOS, *italian.encode(["Luca", "canta"]), 1)


@given(LENGTHS, st.integers(1, 120), st.integers(0, 2**40), st.integers(0, 5))
def test_every_example_exactly_once_per_epoch_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, seed: int, epoch: int
) -> None:
    examples = pairs_of(lengths)
    batches = epoch_of(BatchOrder(examples, tokens, seed), epoch)
    assert sorted(chain.from_iterable(batches)) == list(range(len(examples)))
    for rows in batches:
        assert len(rows) == 1 or max(padded_sides(examples, rows)) <= tokens


@given(LENGTHS, st.integers(1, 120), st.integers(0, 2**40), st.randoms(use_true_random=False))
def test_random_access_equals_reading_in_order(lengths: list[tuple[int, int]], tokens: int, seed: int, chance) -> None:
    examples = pairs_of(lengths)
    order = BatchOrder(examples, tokens, seed)
    straight = [order.rows(step) for step in range(7 * order.per_epoch)]
    steps = list(range(len(straight)))
    chance.shuffle(steps)
    fresh = BatchOrder(examples, tokens, seed)
    for step in steps[:50]:
        assert fresh.rows(step) == straight[step]


def test_epochs_differ_and_have_as_many_batches() -> None:
    order = BatchOrder(VARIED, 40, seed=5)
    first, second = epoch_of(order, 0), epoch_of(order, 1)
    assert len(first) == len(second) == order.per_epoch > 5
    assert first != second
    assert sorted(map(sorted, first)) != sorted(map(sorted, second)), "examples of equal length never change places"


def test_seeds_differ() -> None:
    first, second = (epoch_of(BatchOrder(VARIED, 40, seed), 0) for seed in (5, 6))
    assert first != second
    far = [epoch_of(BatchOrder(VARIED, 40, seed), 0) for seed in (2**32, 2**32 + 5, 0)]
    assert far[0] != far[1] and far[0] != far[2]


def test_a_seed_and_an_epoch_are_not_mixed_up() -> None:
    orders = {
        (seed, epoch): str(epoch_of(BatchOrder(VARIED, 40, seed), epoch)) for seed in range(4) for epoch in range(4)
    }
    assert len(set(orders.values())) == 16


def test_batches_hold_sentences_of_like_length() -> None:
    """Padding stays below a tenth on a corpus of many lengths; taken at random it would be about half."""
    examples = pairs_of([(n % 41, n % 41) for n in range(2000)])
    order = BatchOrder(examples, 400, seed=0)
    real = sum(len(target) for _, target in examples)
    padded = sum(padded_sides(examples, rows)[1] for rows in epoch_of(order, 0))
    assert real > 0.9 * padded


def test_long_batches_are_spread_over_the_epoch() -> None:
    """The order of batches is not the order of lengths."""
    examples = pairs_of([(n, n) for n in range(60)])
    longest = [padded_sides(examples, rows)[0] // len(rows) for rows in epoch_of(BatchOrder(examples, 60, 1), 0)]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


def test_sentences_longer_than_the_budget_come_alone() -> None:
    examples = pairs_of([(50, 2), (2, 50), (1, 1), (1, 1)])
    batches = epoch_of(BatchOrder(examples, 10, seed=0), 0)
    assert [0] in batches and [1] in batches
    assert sorted(map(len, batches)) == [1, 1, 2]


def test_a_long_sentence_costs_only_its_own_batch() -> None:
    examples = pairs_of([(50, 0)] + [(1, 1)] * 20)
    assert sorted(map(len, epoch_of(BatchOrder(examples, 20, seed=0), 0))) == [1, 10, 10]


def test_one_example() -> None:
    order = BatchOrder(pairs_of([(3, 3)]), 1, seed=0)
    assert order.per_epoch == 1
    assert [order.rows(step) for step in (0, 1, 10**9)] == [[0]] * 3


def test_no_example_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one example"):
        BatchOrder([], 10, 0)
