"""Rows of tokens: padding, rarity, and batches within bounds."""

from __future__ import annotations

import math
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.text.tokens import TokenRow, collate, count_rarity, exam_batches

PAD_ID = 17
CLS, SEP = 101, 102


def bert_row(*ids: int, head: tuple[int, ...] | None = None) -> TokenRow:
    special = (True, *[False] * len(ids), True)
    return TokenRow((CLS, *ids, SEP), special, (-1, *range(len(ids)), -1), head)


def plain_rows(lengths: list[int]) -> list[TokenRow]:
    return [TokenRow((5,) * length, (False,) * length, tuple(range(length))) for length in lengths]


LONG, SHORT = bert_row(7, 8, 7, head=(-1, 2, -1, 2, -1)), bert_row(7)


def test_rows_are_padded_on_the_right() -> None:
    tokens = collate([LONG, SHORT], PAD_ID)
    assert tokens.ids.tolist() == [[CLS, 7, 8, 7, SEP], [CLS, 7, SEP, PAD_ID, PAD_ID]]
    assert tokens.real.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert tokens.special is not None and tokens.word is not None
    assert tokens.special.tolist() == [[True, False, False, False, True], [True, False, True, False, False]]
    assert tokens.word.tolist() == [[-1, 0, 1, 2, -1], [-1, 0, -1, -1, -1]]
    assert tokens.governor is not None
    assert tokens.governor.tolist() == [[-1, 2, -1, 2, -1], [-1] * 5]
    assert tokens.lengths.tolist() == [5, 3]
    assert tokens.ids.dtype == tokens.word.dtype == tokens.governor.dtype == torch.int64


def test_rarity_is_minus_log_of_the_share_of_the_text() -> None:
    tokens = collate([LONG, SHORT], PAD_ID)
    common, rare, none = -math.log(3 / 4), -math.log(1 / 4), -math.inf
    expected = torch.tensor([[none, common, rare, common, none], [none, common, none, none, none]])
    torch.testing.assert_close(
        tokens.rarity, expected, **dict(zip(("rtol", "atol"), tolerance(torch.float32), strict=True))
    )
    assert tokens.rarity is not None
    assert tokens.rarity.argmax(-1).tolist() == [2, 1]


def test_rarity_of_the_whole_text() -> None:
    rarity = count_rarity([bert_row(8, 8, 8), LONG, SHORT])
    assert list(rarity) == [7, 8]
    assert rarity[7] == pytest.approx(math.log(7 / 3)) and rarity[8] == pytest.approx(math.log(7 / 4))
    tokens = collate([SHORT], PAD_ID, rarity)
    assert tokens.rarity is not None
    assert tokens.rarity[0, 1].item() == pytest.approx(math.log(7 / 3))
    with pytest.raises(UsageError, match="rarity of token 9"):
        collate([bert_row(9)], PAD_ID, rarity)


def test_a_text_of_one_kind_is_not_rare() -> None:
    assert count_rarity(plain_rows([3])) == {5: 0.0}
    assert count_rarity([bert_row()]) == {}


def test_a_special_token_that_is_written_in_the_text_counts() -> None:
    assert count_rarity([bert_row(CLS, 7)]) == {7: math.log(2), CLS: math.log(2)}


def test_no_heads_anywhere_is_none() -> None:
    tokens = collate([SHORT, bert_row(7, 8)], PAD_ID)
    assert tokens.governor is None and tokens.to("cpu").governor is None


def test_rows_of_special_tokens_and_of_nothing() -> None:
    tokens = collate([bert_row(), TokenRow((), (), ())], PAD_ID)
    assert tokens.lengths.tolist() == [2, 0]
    assert tokens.rarity is not None
    assert tokens.rarity.eq(-math.inf).all()
    with pytest.raises(UsageError, match="at least one row"):
        collate([], PAD_ID)


def test_to_moves_every_tensor() -> None:
    tokens = collate([LONG, SHORT], PAD_ID).to("meta")
    assert tokens.governor is not None
    for tensor in (tokens.ids, tokens.real, tokens.special, tokens.word, tokens.governor, tokens.rarity):
        assert tensor is not None and tensor.device.type == "meta"


def test_batches_of_one_side() -> None:
    rows = plain_rows([5, 2, 3, 2, 11])
    assert exam_batches(rows, batch_tokens=7) == [[1, 3], [2], [0], [4]]
    assert exam_batches(rows, batch_tokens=9) == [[1, 3, 2], [0], [4]]
    assert exam_batches(rows, batch_tokens=1) == [[1], [3], [2], [0], [4]]
    assert exam_batches([], batch_tokens=7) == []


def test_sides_are_batched_by_the_sum_of_their_lengths() -> None:
    sources, targets = plain_rows([7, 1, 2]), plain_rows([1, 5, 3])
    assert exam_batches(sources, targets, batch_tokens=14) == [[2, 1], [0]]
    assert exam_batches(sources, targets, batch_tokens=13) == [[2], [1], [0]]
    sources, targets = plain_rows([5, 1, 3]), plain_rows([1, 5, 3])
    assert exam_batches(sources, targets, batch_tokens=30) == [[0, 1, 2]]
    assert exam_batches(sources, targets, batch_tokens=29) == [[0, 1], [2]]


@given(st.lists(st.tuples(st.integers(0, 23), st.integers(0, 23)), max_size=40), st.integers(1, 211))
def test_every_row_is_in_one_batch_within_bounds(lengths: list[tuple[int, int]], bound: int) -> None:
    sources, targets = (plain_rows([length[side] for length in lengths]) for side in (0, 1))
    batches = exam_batches(sources, targets, batch_tokens=bound)
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    sums = [sum(lengths[row]) for row in chain.from_iterable(batches)]
    assert sums == sorted(sums)
    for batch in batches:
        padded = sum(max(lengths[row][side] for row in batch) for side in (0, 1)) * len(batch)
        assert padded <= bound or len(batch) == 1


def test_batches_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="batch_tokens=0: expected a whole number from 1, got 0"):
        exam_batches(plain_rows([3]), batch_tokens=0)
    with pytest.raises(UsageError, match="got 1 and 2"):
        exam_batches(plain_rows([3]), plain_rows([3, 5]), batch_tokens=7)
