"""Cross-entropy of tokens: the next one of a decoder, the next one of a target, and hidden ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.tokens import TextBatch, Tokens
from attnworks.training.objectives.contract import TEXT_OBJECTIVES, Outputs, TextObjective

HIDDEN_SHARE = 0.15


@TEXT_OBJECTIVES.register("lm")
class NextToken(TextObjective):
    """L = -1/(n - 1) sum_{t < n} log p(x_{t+1} | x_1, ..., x_t) of a sentence of n real tokens; 0 if n = 1.

    Source: Conti 2024, section 1.1 (S4.8), without a source sentence.
    Holds when: position t of the model sees no later token.
    """

    name = "lm"
    words = "how surprised the model is by each next token"

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        return _next_token(outputs, batch.source)


@TEXT_OBJECTIVES.register("seq2seq")
class NextTargetToken(TextObjective):
    """L = -1/n sum_t log p(y_{t+1} | y_1, ..., y_t, x) of a target of n real tokens, y_{n+1} being the end of sentence.

    end_id    the token that ends a sentence; if it is not known, or the target holds it, the sum is over t < n
    Source: Conti 2024, section 1.1 (S4.5-S4.9).
    """

    name = "seq2seq"
    words = "how surprised the decoder is by each next token of the target"

    def __init__(self, end_id: int | None = None) -> None:
        self.end_id = end_id

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        if batch.target is None:
            raise UsageError(
                asked="objective seq2seq",
                expected="a target to each source",
                got="sources alone",
                remedy="give pairs of sentences, one source and one target each",
            )
        if self.end_id is None:
            return _next_token(outputs, batch.target)
        return _to_the_end(outputs, batch.target, self.end_id)


def _next_token(outputs: Outputs, tokens: Tokens) -> Float[Tensor, " b"]:
    return mean_cross_entropy(scores_of(outputs)[:, :-1], tokens.ids[:, 1:], tokens.real[:, 1:])


def _to_the_end(outputs: Outputs, tokens: Tokens, end_id: int) -> Float[Tensor, " b"]:
    last = (tokens.lengths - 1).clamp_min(0)[:, None]
    ended = tokens.ids.gather(1, last) == end_id
    gold = F.pad(tokens.ids[:, 1:], (0, 1)).scatter(1, last, end_id)
    return mean_cross_entropy(scores_of(outputs), gold, tokens.real.scatter(1, last, ~ended))


def mean_cross_entropy(
    scores: Float[Tensor, "b n w"], gold: Int[Tensor, "b n"], counted: Bool[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """-1/|C| sum_{t in C} log softmax(scores_t)[gold_t] of each sentence over its counted positions C; 0 without any.

    At least in float32. What is not counted is never read: it may be anything, and has gradient zero.
    """
    wide = torch.promote_types(scores.dtype, torch.float32)
    sums = [
        F.cross_entropy(own[here].to(wide), wanted[here], reduction="sum")
        for own, wanted, here in zip(scores.unbind(), gold, counted, strict=True)
    ]
    return torch.stack(sums) / counted.sum(-1).clamp_min(1)


def scores_of(outputs: Outputs) -> Tensor:
    """The scores of the model's own head."""
    if outputs.scores is None:
        raise UsageError(
            asked="a cross-entropy",
            expected="a model with scores",
            got="hidden states alone",
            remedy="load the model with its head, or choose the objective embedding",
        )
    return outputs.scores


@TEXT_OBJECTIVES.register("mlm")
class MaskedToken(TextObjective):
    """L = -1/|C| sum_{t in C} log p(x_t | x with all of C replaced by mask_id); 0 if C is empty.

    C is 15 % of the tokens of the text, one at least, none of special tokens. Which ones depends on the
    seed and the tokens of the sentence alone, so that they are the same in every batch, process and repetition.
    Source: Devlin et al. 2019 (BERT), section 3.1.
    Departs: hidden words are always replaced by mask_id; the source leaves or exchanges two in ten, to train.
    """

    name = "mlm"
    words = "how surprised the model is by hidden words, 15 % of each sentence"

    def __init__(self, mask_id: int, seed: int = 0) -> None:
        self.mask_id, self.seed = mask_id, seed

    def prepare(self, batch: TextBatch) -> TextBatch:
        source = batch.source
        ids = source.ids.masked_fill(self.hidden(source), self.mask_id)
        return TextBatch(replace(source, ids=ids), batch.target)

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        return mean_cross_entropy(scores_of(outputs), batch.source.ids, self.hidden(batch.source))

    def hidden(self, tokens: Tokens) -> Bool[Tensor, "b i"]:
        """The tokens of C; a token of the text that already is mask_id is left alone."""
        of_text = (tokens.real & ~tokens.special & (tokens.ids != self.mask_id)).cpu()
        chosen = torch.zeros_like(of_text)
        for row, (ids, real, candidates) in enumerate(zip(tokens.ids.cpu(), tokens.real.cpu(), of_text, strict=True)):
            places = candidates.nonzero().squeeze(-1)
            draws = np.random.default_rng([self.seed, *ids[real].tolist()]).random(len(places))
            number = min(len(places), max(1, round(HIDDEN_SHARE * len(places))))
            chosen[row, places[torch.from_numpy(draws.argsort()[:number])]] = True
        return chosen.to(tokens.ids.device)
