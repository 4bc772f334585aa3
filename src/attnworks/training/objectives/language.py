"""Cross-entropy of tokens: the next one of a decoder, the next one of a target, and hidden ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.models import Recurrent, Transformer
from attnworks.text.tokens import Batch, Tokens
from attnworks.training.objectives.contract import OBJECTIVES, Choices, Loss, Objective, Outputs

HIDDEN_SHARE = 0.15
LOGITS_AT_ONCE = 2**20
"""Computed at a time: enough rows for an efficient matrix product, few enough to stay in the processor's cache."""


@OBJECTIVES.register("lm")
class NextToken(Objective):
    """L = -1/(n - 1) sum_{t < n} log p(x_{t+1} | x_1, ..., x_t) of a sentence of n real tokens; 0 if n = 1.

    Source: Conti 2024, section 1.1 (S4.8), without a source sentence.
    Holds when: position t of the model sees no later token.
    """

    name = "lm"
    description = "how surprised the model is by each next token"
    chooses = True

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        return mean_cross_entropy(*self.choices(outputs, batch, rows))

    def choices(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Choices:
        """The next token of each but the last."""
        tokens = batch.source
        return Choices(logits_of(outputs)[:, :-1], tokens.ids[:, 1:], tokens.real[:, 1:])


@OBJECTIVES.register("seq2seq")
class NextTargetToken(Objective):
    """L = -1/n sum_t log p(y_{t+1} | y_1, ..., y_t, x) of a target of n real tokens, y_{n+1} being the end of sentence.

    end_id       the token that ends a sentence; if it is not known, or the target holds it, the sum is over t < n
    smoothing    of labels in `total`: share of the probability that is spread over the whole vocabulary
    Source: Conti 2024, section 1.1 (S4.5-S4.9).
    Departs: the sign of the document's last line, log p instead of -log p, is corrected.
    """

    name = "seq2seq"
    description = "how surprised the decoder is by each next token of the target"
    chooses = True

    def __init__(self, end_id: int | None = None, smoothing: float = 0.0) -> None:
        self.end_id, self.smoothing = end_id, smoothing

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        return mean_cross_entropy(*self.choices(outputs, batch, rows))

    def choices(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Choices:
        """The next token of each of the target."""
        if batch.target is None:
            raise UsageError("objective seq2seq", "a target to each source", "sources alone", "give pairs of sentences")
        return Choices(logits_of(outputs), *batch.labels(self.end_id))

    def total(self, model: nn.Module, batch: Batch) -> Loss:
        """The sum over all tokens of the batch. Padding is left out before the vocabulary is read.

        Holds when: `end_id` is known and no target holds it.
        """
        writer, source, target = cast(Transformer | Recurrent, model), batch.source, batch.target
        assert target is not None and self.end_id is not None
        X = writer.hidden(source.ids, target.ids, source.mask, target.mask)  # [b t e]
        gold, _ = batch.labels(self.end_id)
        real = slice(None) if target.mask is None else target.mask
        X, gold = X[real].flatten(0, -2), gold[real].flatten()
        output = writer.output
        return Loss(linear_cross_entropy(X, output.weight, output.bias, gold, self.smoothing), terms=gold.numel())


def mean_cross_entropy(
    logits: Float[Tensor, "b n w"], gold: Int[Tensor, "b n"], counted: Bool[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """-1/|C| sum_{t in C} log softmax(logits_t)[gold_t] of each sentence over its counted positions C; 0 without any.

    At least in float32. Positions that are not counted may hold any number, also NaN, and have gradient zero.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    sums = [
        F.cross_entropy(own[here].to(wide), wanted[here], reduction="sum")
        for own, wanted, here in zip(logits.unbind(), gold, counted, strict=True)
    ]
    return torch.stack(sums) / counted.sum(-1).clamp_min(1)


def logits_of(outputs: Outputs) -> Tensor:
    """The logits of the model's own output layer; an error if it did not run."""
    if outputs.logits is None:
        raise UsageError("a cross-entropy", "a model with logits", "hidden states alone", "use objective embedding")
    return outputs.logits


@OBJECTIVES.register("mlm")
class MaskedToken(Objective):
    """L = -1/|C| sum_{t in C} log p(x_t | x with all of C replaced by mask_id); 0 if C is empty.

    C is 15 % of the tokens of the text, one at least, without special tokens. The choice depends on the seed and the
    tokens of the sentence alone, so that it is the same in every batch, process and repetition.
    Source: Devlin et al. 2019 (BERT), section 3.1.
    Departs: hidden words are always replaced by mask_id; the source leaves or exchanges two in ten, to train.
    """

    name = "mlm"
    description = "how surprised the model is by hidden words, 15 % of each sentence"
    chooses = True

    def __init__(self, mask_id: int, seed: int = 0) -> None:
        self.mask_id, self.seed = mask_id, seed

    def prepare(self, batch: Batch) -> Batch:
        source = batch.source
        ids = source.ids.masked_fill(self.hidden(source), self.mask_id)
        return replace(batch, source=replace(source, ids=ids))

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        return mean_cross_entropy(*self.choices(outputs, batch, rows))

    def choices(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Choices:
        """The tokens of C."""
        return Choices(logits_of(outputs), batch.source.ids, self.hidden(batch.source))

    def hidden(self, tokens: Tokens) -> Bool[Tensor, "b i"]:
        """The tokens of C; a token of the text that already is mask_id is left alone."""
        assert tokens.special is not None
        of_text = (tokens.real & ~tokens.special & (tokens.ids != self.mask_id)).cpu()
        chosen = torch.zeros_like(of_text)
        for row, (ids, real, candidates) in enumerate(zip(tokens.ids.cpu(), tokens.real.cpu(), of_text, strict=True)):
            places = candidates.nonzero().squeeze(-1)
            draws = np.random.default_rng([self.seed, *ids[real].tolist()]).random(len(places))
            number = min(len(places), max(1, round(HIDDEN_SHARE * len(places))))
            chosen[row, places[torch.from_numpy(draws.argsort()[:number])]] = True
        return chosen.to(tokens.ids.device)


def linear_cross_entropy(
    X: Float[Tensor, "n e"],
    M: Float[Tensor, "w e"],
    bias: Float[Tensor, " w"] | None,
    target: Int[Tensor, " n"],
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """sum_n -q_n . log softmax(M x_n + bias), where q_n = (1 - smoothing) onehot(target_n) + smoothing / w.

    Source: Conti 2024, section 1.1 (S4.8); the sign that the document drops in its next line is kept (S4.9).
    The gradient by the logits, softmax - q, is known in the forward pass, so it is used there, some rows at a time, and
    the n x w table with its three copies in autograd is never stored: a third of the time of the last layer saved.
    """
    return _LinearCrossEntropy.apply(X, M, bias, target, smoothing)  # pyright: ignore[reportReturnType]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, M: Tensor, bias: Tensor | None, target: Tensor, smoothing: float) -> Tensor:
        wide = torch.promote_types(X.dtype, torch.float32)
        weight, offset = M.to(X.dtype), None if bias is None else bias.to(X.dtype)
        wanted = any(ctx.needs_input_grad)
        d_X, d_M = (torch.empty_like(X), torch.zeros_like(weight)) if wanted else (None, None)
        d_bias = torch.zeros_like(bias, dtype=wide) if wanted and bias is not None else None
        loss = torch.zeros((), dtype=wide, device=X.device)
        rows = max(1, LOGITS_AT_ONCE // M.shape[0])
        for start in range(0, X.shape[0], rows):
            part, gold = X[start : start + rows], target[start : start + rows, None]
            Z = F.linear(part, weight, offset).to(wide)
            loss -= (1 - smoothing) * Z.gather(1, gold).sum()
            if smoothing:
                loss -= smoothing * Z.mean(-1).sum()
            top = Z.amax(-1)
            P = torch.softmax(Z, -1, out=Z)
            loss += (top - P.amax(-1).log()).sum()  # log sum exp: the largest P is exp(top - log sum exp)
            if d_X is None or d_M is None:
                continue
            if smoothing:
                P -= smoothing / M.shape[0]
            P.scatter_add_(1, gold, torch.full_like(gold, smoothing - 1, dtype=wide))
            G = P.to(X.dtype)
            torch.mm(G, weight, out=d_X[start : start + rows])
            d_M.addmm_(G.T, part)
            if d_bias is not None:
                d_bias += P.sum(0)
        ctx.gradients = d_X, None if d_M is None else d_M.to(M.dtype), d_bias
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = grad_outputs
        scaled = (None if gradient is None else gradient * scale.to(gradient.dtype) for gradient in ctx.gradients)
        return (*scaled, None, None)
