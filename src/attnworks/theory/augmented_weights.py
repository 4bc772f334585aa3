"""Algebra of head-first weights: folding products of a head, and absorbing biases into weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def augment(X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a e1"]:
    """X' = [X | 1], which turns an affine map into a linear one.

    Source: Burgund, remark 1.2.2 (S3.8).
    """
    return F.pad(X, (0, 1), value=1.0)


def augment_weight(W: Float[Tensor, "*a e k"], b: Float[Tensor, "*a k"]) -> Float[Tensor, "*a e1 k"]:
    """W' = [W; b^T], so that [X | 1] W' = X W + 1 b^T.

    Source: Burgund, remark 1.2.2 (S3.8). A key bias never changes the softmax; a value bias adds a constant row.
    """
    return torch.cat([W, b.unsqueeze(-2)], -2)
