"""The parts of a model besides attention: embedding, output, layer norm, dropout, feed-forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.core.tensors import safe_sqrt, widened
from attnworks.models.config import NormKind
from attnworks.models.dropout import dropout


class Embedding(nn.Module):
    """Row lookup times sqrt(d), which brings N(0, 1/d) entries to the scale of the position code.

    Source: Conti 2024, section 1.2 (S4.17, S4.18).
    """

    def __init__(self, vocabulary: int, d_e: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, d_e) * d_e**-0.5)

    def forward(self, tokens: Int[Tensor, "b i"]) -> Float[Tensor, "b i e"]:
        return F.embedding(tokens, self.weight) * self.weight.shape[-1] ** 0.5


class Output(nn.Module):
    """Scores of every token kind, Y M^T; the rows of M may be those of an embedding.

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
