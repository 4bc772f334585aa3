"""Layers of a model besides attention: embedding, positions, output, layer norm, dropout, feed-forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.core.tensors import safe_sqrt, widened
from attnworks.models.config import NormKind, PositionKind

DROPOUT_LEVELS = 2**16
"""Probabilities are rounded to multiples of 1 / DROPOUT_LEVELS, and so is the scale: the mean is exact."""


def dropout(x: Float[Tensor, "*a"], p: float) -> Float[Tensor, "*a"]:
    """Zero each entry with probability p and divide the others by 1 - p.

    On a CPU, one Bernoulli number per entry takes an eighth of a training step of a small Transformer. Here one random
    64-bit integer decides four entries, by its four 16-bit parts.
    """
    if p == 0.0:
        return x
    dropped = round(p * DROPOUT_LEVELS)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < dropped < DROPOUT_LEVELS:
        return F.dropout(x, p)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    keep = bits[: x.numel()].view(x.shape) >= dropped - DROPOUT_LEVELS // 2
    return x * torch.where(keep, x.new_tensor(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped)), x.new_tensor(0.0))


class Embedding(nn.Module):
    """Rows of a table times sqrt(d), which brings entries of N(0, 1/d) to the scale of the position code.

    Source: Conti 2024, section 1.2 (S4.17, S4.18).
    """

    def __init__(self, vocabulary: int, d_e: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, d_e) * d_e**-0.5)

    def forward(self, tokens: Int[Tensor, "b i"]) -> Float[Tensor, "b i e"]:
        return F.embedding(tokens, self.weight) * self.weight.shape[-1] ** 0.5


class OutputLayer(nn.Module):
    """Logits of every token of the vocabulary, Y M^T; M may be the matrix of an embedding.

    Source: Conti 2024, section 1.2.5 (S4.60).
    """

    def __init__(self, size: int, d_e: int, *, tied_to: Embedding | None = None, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, d_e) * d_e**-0.5) if tied_to is None else tied_to.weight
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, Y: Float[Tensor, "*a e"]) -> Float[Tensor, "*a w"]:
        return F.linear(Y, self.weight, self.bias)


class LayerNorm(nn.Module):
    """gamma (z - mu) / D + beta over the embedding axis, with biased sigma^2.

    D = sqrt(sigma^2 + eps) for kind "standard", D = sigma + eps for kind "documented".
    Source: Conti 2024, eq. 2 (S4.35, S4.36).
    Departs: mu and sigma run over d, not k; the gradient of sigma on a constant row is taken as 0 (it is NaN).
    """

    def __init__(self, d_e: int, kind: NormKind = "standard", eps: float = 1e-5) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        self.gamma = nn.Parameter(torch.ones(d_e))
        self.beta = nn.Parameter(torch.zeros(d_e))

    def forward(self, z: Float[Tensor, "*a e"]) -> Float[Tensor, "*a e"]:
        if self.kind == "standard":
            return F.layer_norm(z, self.gamma.shape, self.gamma, self.beta, self.eps)
        wide = widened(z)
        centred = wide - wide.mean(-1, keepdim=True)
        scaled = centred / (safe_sqrt(centred.square().mean(-1, keepdim=True)) + self.eps)
        return self.gamma * scaled.to(z.dtype) + self.beta


class Dropout(nn.Module):
    """Zeroes entries with probability p while training."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
        return dropout(x, self.p) if self.training else x


class FeedForward(nn.Module):
    """z' = max(0, u W_1 + b_1) W_2 + b_2.

    Source: Conti 2024, section 1.2.4 (S4.34, S4.53); b_1 has m entries and b_2 has d.
    """

    def __init__(self, d_e: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.W_1 = nn.Parameter(torch.empty(d_ff, d_e).T)
        self.W_2 = nn.Parameter(torch.empty(d_e, d_ff).T)
        self.b_1 = nn.Parameter(torch.zeros(d_ff))
        self.b_2 = nn.Parameter(torch.zeros(d_e))
        self.dropout = Dropout(dropout)
        bound = (6 / (d_e + d_ff)) ** 0.5
        nn.init.uniform_(self.W_1, -bound, bound)
        nn.init.uniform_(self.W_2, -bound, bound)

    def forward(self, u: Float[Tensor, "*a e"]) -> Float[Tensor, "*a e"]:
        return F.linear(self.dropout(F.linear(u, self.W_1.T, self.b_1).relu()), self.W_2.T, self.b_2)


def frequencies(d: int, base: float = 10_000.0) -> Float[Tensor, " pairs"]:
    """omega_k = base^(-2k/d) for k = 0 .. d/2 - 1, in float64."""
    return base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def sinusoid(t: Int[Tensor, "*a"] | Float[Tensor, "*a"], d: int, base: float = 10_000.0) -> Float[Tensor, "*a d"]:
    """f(t)_{2k} = sin(omega_k t), f(t)_{2k+1} = cos(omega_k t), in float64.

    Source: Conti 2024, eq. 1 (S4.20).
    Holds when: d is even. Then ||f(t)||^2 = d/2 and f(t).f(s) = sum_k cos(omega_k (t - s)).
    """
    angles = position_angles(t, d, base)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def position_angles(t: Tensor, d: int, base: float) -> Float[Tensor, "*a k"]:
    return t.to(torch.float64).unsqueeze(-1) * frequencies(d, base).to(t.device)


class Positions(nn.Module):
    """Adds a code of each position to the embeddings.

    sinusoid            eq. 1, for any length
    learned             one trained row for each position up to `max_length`
    index               adds i: grows with the length (S4.19)
    normalised-index    adds i / n: the same position has another code in a sentence of another length (S4.19)
    none                adds nothing: self-attention then ignores the order of tokens (S4.30)
    """

    def __init__(self, kind: PositionKind, d_e: int, base: float, max_length: int) -> None:
        super().__init__()
        self.kind, self.d_e, self.base, self.max_length = kind, d_e, base, max_length
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(max_length, d_e) * 0.02)

    def forward(
        self, X: Float[Tensor, "b i e"], real: Bool[Tensor, "b i"] | None = None, start: int = 0
    ) -> Float[Tensor, "b i e"]:
        """`start` is the position of the first row, for decoding step by step."""
        end = start + X.shape[1]
        if self.kind == "none":
            return X
        if self.kind == "sinusoid":
            return X + sinusoid(torch.arange(start, end, device=X.device), self.d_e, self.base).to(X.dtype)
        if self.kind == "learned":
            if end > self.max_length:
                limit, remedy = (
                    f"at most {self.max_length} tokens",
                    "shorten the text, or build with a larger max_length",
                )
                raise UsageError("learned positions", limit, f"{end} tokens", remedy)
            return X + self.table[start:end]
        index = torch.arange(start, end, device=X.device, dtype=X.dtype)[None, :, None]
        if self.kind == "index":
            return X + index
        lengths = end if real is None else (start + real.sum(-1)).clamp_min(1)[:, None, None]
        return X + index / lengths
