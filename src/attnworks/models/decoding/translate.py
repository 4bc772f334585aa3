"""Translate sentences of words: encode them, batch them by length and decode; empty sentences stay empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnworks.models import Observation, Recurrent, Transformer
from attnworks.models.decoding.beam import LENGTH_PENALTY, BeamStep, beam
from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.decoding.sample import greedy
from attnworks.models.modes import inference_mode
from attnworks.models.stepping import Writer
from attnworks.text.tokens import TokenRow, collate
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary

_T = TypeVar("_T")

TRACE_FORMAT = 2
"""Of files with what `trace_translation` returns. Format 1 had no SHA-256 at first."""

EMPTY_HYPOTHESIS = Hypothesis(tokens=(), logprob=0.0, score=0.0, finished=True)
"""The translation of a sentence without words."""


def max_target_tokens(source_length: int) -> int:
    """The limit of a translation that does not end: twice the tokens of the source and ten more."""
    return 2 * source_length + 10


def translations(
    model: Writer,
    source: Vocabulary,
    target: Vocabulary,
    sentences: Sequence[Sequence[str]],
    *,
    beams: int = 1,
    device: torch.device | str = "cpu",
) -> list[str]:
    """The text that the model writes for each sentence, by greedy decoding or beam search."""

    def decode(tokens: Tensor, real: Tensor | None, max_new_tokens: int) -> list[Hypothesis]:
        if beams == 1:
            return greedy(model, tokens, real, bos=BOS, eos=EOS, max_new_tokens=max_new_tokens)
        found = beam(model, tokens, real, bos=BOS, eos=EOS, max_new_tokens=max_new_tokens, beams=beams)
        return [hypotheses[0] for hypotheses in found]

    written = decode_sentences(decode, source, sentences, empty=EMPTY_HYPOTHESIS, device=device)
    return [target.text(hypothesis.tokens) for hypothesis in written]


def decode_sentences(
    decode: Callable[[Tensor, Tensor | None, int], Sequence[_T]],
    source: Vocabulary,
    sentences: Sequence[Sequence[str]],
    *,
    empty: _T,
    device: torch.device | str = "cpu",
    batch: int = 64,
) -> list[_T]:
    """What `decode(tokens, real, max_new_tokens)` gives for each sentence, in order; `empty` where there are no words.

    Sentences of similar length are decoded together.
    """
    ids = source.encode_all(sentences)
    results = [empty] * len(ids)
    order = sorted((index for index, sentence in enumerate(ids) if sentence), key=lambda index: len(ids[index]))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        read = collate([TokenRow((*ids[index], EOS)) for index in chosen], PAD, annotate=False).to(device)
        written = decode(read.ids, read.mask, max_target_tokens(read.ids.shape[1]))
        for index, result in zip(chosen, written, strict=True):
            results[index] = result
    return results


def trace_translation(
    model: Transformer | Recurrent,
    source: Vocabulary,
    target: Vocabulary,
    sentence: Sequence[str],
    hypothesis: Hypothesis,
    *,
    beams: int | None = 1,
    alpha: float = LENGTH_PENALTY,
) -> dict[str, Any]:
    """The data that a figure of one translation needs: tokens, attention of every layer and head, the beam tree.

    Without `beams`, for a hypothesis that no search found, the tree is empty. Rows of an attention map belong to
    `queries`, columns to `keys`: tokens that the decoder reads, tokens of the source.
    """
    device = next(model.parameters()).device
    rows = [*source.encode(sentence), EOS], [BOS, *hypothesis.tokens]
    ids, read = (torch.tensor([row], device=device) for row in rows)
    sides = {
        "encoder": [source.token(token) for token in rows[0]],
        "decoder": [target.token(token) for token in rows[1]],
    }
    maps: list[dict[str, Any]] = []
    steps: list[BeamStep] = []

    def keep(layer: Observation) -> None:
        kind = layer.slot.kind
        queries, keys = ("decoder", "encoder") if kind == "cross" else (kind, kind)
        maps.append(
            {"slot": str(layer.slot), "queries": sides[queries], "keys": sides[keys], "weights": layer.P[0].tolist()}
        )

    with inference_mode(model):
        model(ids, read, observe=keep)
        if beams is not None:
            cut = max_target_tokens(ids.shape[1])
            beam(model, ids, bos=BOS, eos=EOS, max_new_tokens=cut, beams=beams, alpha=alpha, observe=steps.append)
    return {
        "source": sides["encoder"],
        "read": sides["decoder"],
        "translation": target.text(hypothesis.tokens).split(),
        "attention": maps,
        "beam": [spelled_step(step, target) for step in steps],
    }


def spelled_step(step: BeamStep, target: Vocabulary) -> dict[str, Any]:
    """A step of a beam search with its tokens as text, as files and pages have it."""
    return {
        kind: [{"parent": c.parent, "token": target.token(c.token), "logprob": c.logprob} for c in candidates]
        for kind, candidates in (("kept", step.kept), ("ended", step.ended))
    }
