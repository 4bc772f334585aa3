"""One label for a whole sequence: an encoder, a place to read from, and a linear map."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.models.config import TransformerConfig
from attnworks.models.layers import Output
from attnworks.models.transformer import Transformer
from attnworks.studies.tasks.contract import Readout


class Classifier(nn.Module):
    """scores = M r + b, where r is the mean of the encoder's real positions ("mean") or its last real one ("last").

    Holds when: every sequence has a real token, and its real tokens come first.
    """

    def __init__(self, config: TransformerConfig, classes: int, readout: Readout = "mean") -> None:
        super().__init__()
        self.encoder = Transformer(config)
        self.readout = readout
        self.output = Output(classes, config.d_e, bias=True)

    def forward(
        self, tokens: Int[Tensor, "b n"], padding: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b classes"]:
        X = self.encoder.encode(tokens, padding)
        return self.output(last_real(X, padding) if self.readout == "last" else mean_real(X, padding))


def mean_real(X: Float[Tensor, "b n e"], padding: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b e"]:
    if padding is None:
        return X.mean(1)
    share = padding.to(X.dtype) / padding.sum(1, keepdim=True)
    return torch.einsum("bn,bne->be", share, X)


def last_real(X: Float[Tensor, "b n e"], padding: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b e"]:
    if padding is None:
        return X[:, -1]
    return X[torch.arange(len(X), device=X.device), padding.sum(1) - 1]
