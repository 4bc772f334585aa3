"""Cross-entropy of the next target token, without keeping the logits of the whole vocabulary."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.models.layers import Output
from attnworks.text.batches import Batch
from attnworks.training.objectives.contract import OBJECTIVES, Loss

CHUNK_SCORES = 2**20
"""Scores computed at a time: enough rows for an efficient matrix product, few enough to stay near the processor."""


def linear_cross_entropy(
    X: Float[Tensor, "n e"],
    M: Float[Tensor, "w e"],
    bias: Float[Tensor, " w"] | None,
    target: Int[Tensor, " n"],
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """sum_n -q_n . log softmax(M x_n + bias), where q_n = (1 - smoothing) onehot(target_n) + smoothing / w.

    Source: Conti 2024, section 1.1 (S4.8); the sign that the document drops in its next line is kept (S4.9).
    The gradient by the scores, softmax - q, is known in the forward pass, so it is used there, some rows at a time, and
    the n x w table with its three copies in autograd is never stored: a third of the time of the last layer saved.
    """
    return _LinearCrossEntropy.apply(X, M, bias, target, smoothing)  # pyright: ignore[reportReturnType]


def reference(X: Tensor, M: Tensor, bias: Tensor | None, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """The same by torch, which stores everything."""
    return F.cross_entropy(F.linear(X, M, bias), target, reduction="sum", label_smoothing=smoothing)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, M: Tensor, bias: Tensor | None, target: Tensor, smoothing: float) -> Tensor:
        wide = torch.promote_types(X.dtype, torch.float32)
        weight, offset = M.to(X.dtype), None if bias is None else bias.to(X.dtype)
        wanted = any(ctx.needs_input_grad)
        d_X, d_M = (torch.empty_like(X), torch.zeros_like(weight)) if wanted else (None, None)
        d_bias = torch.zeros_like(bias, dtype=wide) if wanted and bias is not None else None
        loss = torch.zeros((), dtype=wide, device=X.device)
        rows = max(1, CHUNK_SCORES // M.shape[0])
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


class ReadsAndWrites(Protocol):
    """What this objective asks of a model."""

    output: Output

    def hidden(
        self,
        source: Int[Tensor, "b i"],
        target: Int[Tensor, "b t"],
        source_padding: Bool[Tensor, "b i"] | None = None,
        target_padding: Bool[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t e"]: ...


@OBJECTIVES.register("seq2seq")
class Seq2Seq:
    """-sum_t log p(y_t | y_<t, x), smoothed if asked for; padding is left out before the vocabulary is read.

    Source: Conti 2024, section 1.1 (S4.5-S4.9).
    Departs: the sign of the document's last line, log p instead of -log p, is corrected.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        writer = cast(ReadsAndWrites, model)
        X = writer.hidden(batch.source, batch.read, batch.source_padding, batch.target_padding)
        gold = batch.write
        real = slice(None) if batch.target_padding is None else batch.target_padding
        X, gold = X[real].flatten(0, -2), gold[real].flatten()
        total = linear_cross_entropy(X, writer.output.weight, writer.output.bias, gold, self.smoothing)
        return Loss(total, terms=gold.numel())
