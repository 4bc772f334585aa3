"""Sentences of words in, hypotheses out: encoding, batching by length, and what an empty sentence means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from attnworks.models.decoding.beam import beam
from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.decoding.sample import greedy
from attnworks.models.stepping import Writer
from attnworks.text.batches import pad
from attnworks.text.vocabulary import BOS, EOS, Vocabulary

T = TypeVar("T")

NOTHING = Hypothesis(tokens=(), logprob=0.0, score=0.0, finished=True)
"""The translation of a sentence without words."""


def longest_target(source_length: int) -> int:
    """Where to cut a translation that never ends: twice the source and ten more."""
    return 2 * source_length + 10


def translations(
    model: Writer,
    source: Vocabulary,
    target: Vocabulary,
    sentences: Sequence[Sequence[str]],
    *,
    beams: int = 1,
    device: str = "cpu",
) -> list[list[str]]:
    """What the model writes for each sentence, in words: greedily, or the best of a beam search."""

    def decode(tokens: Tensor, padding: Tensor | None, longest: int) -> list[Hypothesis]:
        if beams == 1:
            return greedy(model, tokens, padding, bos=BOS, eos=EOS, longest=longest)
        found = beam(model, tokens, padding, bos=BOS, eos=EOS, longest=longest, beams=beams)
        return [hypotheses[0] for hypotheses in found]

    written = decode_sentences(decode, source, sentences, empty=NOTHING, device=device)
    return [target.decode(hypothesis.tokens) for hypothesis in written]


def decode_sentences(
    decode: Callable[[Tensor, Tensor | None, int], Sequence[T]],
    source: Vocabulary,
    sentences: Sequence[Sequence[str]],
    *,
    empty: T,
    device: str = "cpu",
    batch: int = 64,
) -> list[T]:
    """What `decode(tokens, padding, longest)` gives for each sentence, in their order; `empty` for those without words.

    Sentences of like length are decoded together.
    """
    ids = source.encode_all(sentences)
    results = [empty] * len(ids)
    order = sorted((index for index, sentence in enumerate(ids) if sentence), key=lambda index: len(ids[index]))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        tokens, padding = pad([(*ids[index], EOS) for index in chosen])
        padding = None if padding is None else padding.to(device)
        written = decode(tokens.to(device), padding, longest_target(tokens.shape[1]))
        for index, result in zip(chosen, written, strict=True):
            results[index] = result
    return results
