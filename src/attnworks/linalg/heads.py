"""Algebra of head-first weights: folding products of a head, and absorbing biases into weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def fold_scores(W_Q: Float[Tensor, "h e k"], W_K: Float[Tensor, "h f k"]) -> Float[Tensor, "h e f"]:
    """W_QK,h = W_Q,h W_K,h^T: all that the scores of a head without biases depend on.

    Source: Xie 2021, theorem 2.2 (S0.17).
    """
    return W_Q @ W_K.mT


def fold_values(
    W_V: Float[Tensor, "h f v"],
    W_O: Float[Tensor, "h v e"],
    b_V: Float[Tensor, "h v"] | None = None,
    b_O: Float[Tensor, " e"] | None = None,
) -> tuple[Float[Tensor, "h f e"], Float[Tensor, " e"]]:
    """W_h = W_V,h W_O,h and b^T = b_O^T + sum_h b_V,h^T W_O,h, so that SA(X) = sum_h P_h X W_h + 1 b^T.

    Source: Xie 2021, section 2 (S0.6, S0.8).
    Holds when: the rows of every P_h sum to one.
    Departs: the output bias b_O, missing in the document, is included.
    """
    bias = W_O.new_zeros(W_O.shape[-1])
    if b_O is not None:
        bias = bias + b_O
    if b_V is not None:
        bias = bias + torch.einsum("hv,hve->e", b_V, W_O)
    return W_V @ W_O, bias


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
