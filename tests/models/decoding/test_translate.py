"""Sentences of words in, results out: in order, batched by length, with empty ones left alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.models import AttentionConfig, TransformerConfig, build
from attnworks.models.decoding import Hypothesis, greedy
from attnworks.models.decoding.translate import EMPTY_HYPOTHESIS, decode_sentences, max_target_tokens
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary
from tests.model_helpers import filled

WORDS = list("abcdefgh")
VOCABULARY = Vocabulary.train("word", [WORDS])


class Echo:
    """Stands in for a model: gives back each source, and remembers how it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, tokens: Tensor, real: Tensor | None, longest: int) -> list[list[int]]:
        rows = tokens.tolist()
        lengths = [len(row) for row in rows] if real is None else real.sum(1).tolist()
        self.calls.append((lengths, longest))
        for row, length in zip(rows, lengths, strict=True):
            assert row[length - 1] == EOS and row[length:] == [PAD] * (len(row) - length)
        return [row[: length - 1] for row, length in zip(rows, lengths, strict=True)]


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=9), max_size=20), st.integers(1, 7))
def test_each_in_its_place(sentences: list[list[str]], batch: int) -> None:
    echo = Echo()
    results = decode_sentences(echo, VOCABULARY, sentences, empty=[], batch=batch)
    assert [VOCABULARY.decode(result) for result in results] == sentences
    sizes = [len(lengths) for lengths, _ in echo.calls]
    assert all(size <= batch for size in sizes) and sum(sizes) == sum(map(bool, sentences))
    asked = [length for lengths, _ in echo.calls for length in lengths]
    assert asked == sorted(asked), "sentences of like length go together"
    for lengths, longest in echo.calls:
        assert longest == max_target_tokens(max(lengths))


def test_only_empty_sentences_ask_nothing() -> None:
    echo = Echo()
    assert decode_sentences(echo, VOCABULARY, [[], []], empty=[7]) == [[7], [7]]
    assert decode_sentences(echo, VOCABULARY, [], empty=[7]) == []
    assert echo.calls == []


def test_unknown_words_are_words() -> None:
    assert decode_sentences(Echo(), VOCABULARY, [["zebra", "a"]], empty=[]) == [VOCABULARY.encode(["zebra", "a"])]


def test_too_few_results_are_noticed() -> None:
    with pytest.raises(ValueError, match="zip"):
        decode_sentences(lambda tokens, real, longest: [1], VOCABULARY, [["a"], ["b"]], empty=0)


def test_where_a_translation_is_cut() -> None:
    assert [max_target_tokens(n) for n in (1, 2, 10, 1000)] == [12, 14, 30, 2010]


def test_with_a_model_that_never_ends() -> None:
    """Defined: twice the source (<eos> counted) and ten more, unfinished, and the empty sentence is finished."""
    attention = AttentionConfig(heads=2, d_k=3, d_v=3)
    size = len(VOCABULARY)
    model = filled(
        build(
            TransformerConfig(vocabulary=size, d_e=6, d_ff=5, attention=attention, encoder_layers=1, decoder_layers=1)
        )
    )
    with torch.no_grad():
        model.get_parameter("output.weight")[EOS] *= 0
        model.get_parameter("decoder.0.mlp_residual.norm.beta").zero_()

    def decode(tokens: Tensor, real: Tensor | None, longest: int) -> list[Hypothesis]:
        return greedy(model, tokens, real, bos=BOS, eos=EOS, max_new_tokens=longest)

    ((first, nothing),) = [decode_sentences(decode, VOCABULARY, [["a", "b", "c"], []], empty=EMPTY_HYPOTHESIS)]
    assert nothing == Hypothesis((), 0.0, 0.0, True)
    assert not first.finished and len(first.tokens) == max_target_tokens(4)
