"""Padding, and the order of batches as a pure function of (seed, step)."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UsageError
from attnworks.text.batches import BatchOrder, Example, collate, encode, pad
from attnworks.text.pair import Pair
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary


def lengths_to_examples(lengths: list[tuple[int, int]]) -> list[Example]:
    return [Example((7,) * source + (EOS,), (8,) * target) for source, target in lengths]


LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60)
VARIED = lengths_to_examples([(n % 5, n % 5) for n in range(83)])


def epoch_of(order: BatchOrder, epoch: int) -> list[list[int]]:
    return [order.rows(epoch * order.per_epoch + index) for index in range(order.per_epoch)]


def padded_sides(examples: list[Example], rows: list[int]) -> tuple[int, int]:
    source = max(len(examples[row].source) for row in rows)
    target = max(len(examples[row].target) + 1 for row in rows)
    return source * len(rows), target * len(rows)


def test_pad_on_the_right() -> None:
    tokens, padding = pad([[5, 6, 7], [8], []])
    assert tokens.tolist() == [[5, 6, 7], [8, PAD, PAD], [PAD, PAD, PAD]]
    assert padding is not None
    assert padding.tolist() == [[True, True, True], [True, False, False], [False, False, False]]


def test_nothing_padded_is_none() -> None:
    tokens, padding = pad([[5, 6], [7, 8]])
    assert tokens.tolist() == [[5, 6], [7, 8]] and padding is None
    assert tokens.dtype == torch.int64


def test_collate_shifts_by_one() -> None:
    batch = collate([Example((10, 11, EOS), (20, 21, 22)), Example((12, EOS), (23,))], rows=[4, 2])
    assert batch.source.tolist() == [[10, 11, EOS], [12, EOS, PAD]]
    assert batch.read.tolist() == [[BOS, 20, 21, 22], [BOS, 23, PAD, PAD]]
    assert batch.write.tolist() == [[20, 21, 22, EOS], [23, EOS, PAD, PAD]]
    assert batch.source_padding is not None and batch.target_padding is not None
    assert batch.source_padding.tolist() == [[True] * 3, [True, True, False]]
    assert batch.target_padding.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.rows == (4, 2)
    assert (batch.target_tokens, batch.tokens) == (6, 11)


def test_each_side_is_padded_on_its_own() -> None:
    batch = collate([Example((10, EOS), (20,)), Example((11, EOS), (21, 22))])
    assert batch.source_padding is None and batch.target_padding is not None
    assert (batch.target_tokens, batch.tokens) == (5, 9)
    whole = collate([Example((10, EOS), (20,))])
    assert whole.source_padding is None and whole.target_padding is None
    assert (whole.target_tokens, whole.tokens) == (2, 4)


def test_an_empty_target_still_ends() -> None:
    batch = collate([Example((10, EOS), ())])
    assert batch.read.tolist() == [[BOS]] and batch.write.tolist() == [[EOS]]


def test_moving_keeps_everything() -> None:
    batch = collate([Example((10, 11, EOS), (20,)), Example((12, EOS), (23,))], rows=[1, 0])
    moved = batch.to("meta")
    assert moved.source.is_meta and moved.read.is_meta and moved.write.is_meta
    assert moved.source_padding is not None and moved.source_padding.is_meta
    assert moved.target_padding is None and moved.rows == (1, 0)


def test_encode_ends_sources_only() -> None:
    english = Vocabulary.train("word", [["Luca", "sings"]])
    italian = Vocabulary.train("word", [["Luca", "canta"]])
    (example,) = encode([Pair(("Luca", "sings"), ("Luca", "canta", "ora"))], english, italian)
    assert example.source == (*english.encode(["Luca", "sings"]), EOS)
    assert example.target == (*italian.encode(["Luca", "canta"]), 1)


@given(LENGTHS, st.integers(1, 120), st.integers(0, 2**40), st.integers(0, 5))
def test_every_example_exactly_once_per_epoch_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, seed: int, epoch: int
) -> None:
    examples = lengths_to_examples(lengths)
    batches = epoch_of(BatchOrder(examples, tokens, seed), epoch)
    assert sorted(chain.from_iterable(batches)) == list(range(len(examples)))
    for rows in batches:
        assert len(rows) == 1 or max(padded_sides(examples, rows)) <= tokens


@given(LENGTHS, st.integers(1, 120), st.integers(0, 2**40), st.randoms(use_true_random=False))
def test_random_access_equals_reading_in_order(lengths: list[tuple[int, int]], tokens: int, seed: int, chance) -> None:
    examples = lengths_to_examples(lengths)
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
    examples = lengths_to_examples([(n % 41, n % 41) for n in range(2000)])
    order = BatchOrder(examples, 400, seed=0)
    real = sum(len(example.target) + 1 for example in examples)
    padded = sum(padded_sides(examples, rows)[1] for rows in epoch_of(order, 0))
    assert real > 0.9 * padded


def test_long_batches_are_spread_over_the_epoch() -> None:
    """The order of batches is not the order of lengths."""
    examples = lengths_to_examples([(n, n) for n in range(60)])
    longest = [padded_sides(examples, rows)[0] // len(rows) for rows in epoch_of(BatchOrder(examples, 60, 1), 0)]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


def test_sentences_longer_than_the_budget_come_alone() -> None:
    examples = lengths_to_examples([(50, 2), (2, 50), (1, 1), (1, 1)])
    batches = epoch_of(BatchOrder(examples, 10, seed=0), 0)
    assert [0] in batches and [1] in batches
    assert sorted(map(len, batches)) == [1, 1, 2]


def test_a_long_sentence_costs_only_its_own_batch() -> None:
    examples = lengths_to_examples([(50, 0)] + [(1, 1)] * 20)
    assert sorted(map(len, epoch_of(BatchOrder(examples, 20, seed=0), 0))) == [1, 10, 10]


def test_one_example() -> None:
    order = BatchOrder(lengths_to_examples([(3, 3)]), 1, seed=0)
    assert order.per_epoch == 1
    assert [order.rows(step) for step in (0, 1, 10**9)] == [[0]] * 3


def test_no_example_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one example"):
        BatchOrder([], 10, 0)
