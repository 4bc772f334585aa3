"""Scores of queries and keys, and softmax over the keys of each query: masked, differentiated, near saturation."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.core.tensors import safe_sqrt


def masked_softmax(
    S: Float[Tensor, "*a i j"], allowed: Bool[Tensor, "*#a #i #j"] | None = None
) -> Float[Tensor, "*a i j"]:
    """P_ij = exp(S_ij) / sum_{j' allowed} exp(S_ij') on the allowed keys, 0 elsewhere.

    Source: Conti 2024, eq. 8 and 10 (S4.54-S4.57).
    Departs: a row without any allowed key is zero, with zero gradient; the formula would give NaN.
    """
    if allowed is None:
        return S.softmax(-1)
    blind = ~allowed.any(-1, keepdim=True)
    return S.masked_fill(~allowed, -torch.inf).masked_fill(blind, 0.0).softmax(-1).masked_fill(~allowed, 0.0)


def softmax_jacobian(s: Float[Tensor, "*a j"]) -> Float[Tensor, "*a j j"]:
    """J = diag(s) - s s^T, the derivative of softmax at the point where its value is s.

    Source: Conti 2024, section 1.2.3 (S4.46, S4.47).
    Holds when: s is a probability vector; then J is symmetric, positive semidefinite, J 1 = 0 and ||J||_2 <= 1/2.
    Departs: every diagonal entry is +s_i (1 - s_i); the document prints minus signs from the second one on.
    """
    return torch.diag_embed(s) - s.unsqueeze(-1) * s.unsqueeze(-2)


def jacobian_norm(s: Float[Tensor, "*a j"]) -> Float[Tensor, "*a"]:
    """||diag(s) - s s^T||_F = sqrt(m^2 (sum r)^2 + 2 m^2 sum r^2 + sum r^2 (1 - 2 r) + (sum r^2)^2),
    without forming the matrix; m is the largest entry of s, and r runs over the others.

    Source: expanded from S4.47. It is zero exactly at the unit vectors (S4.48), to which large scores drive rows
    (S4.49, S4.50), and at s = 0 (a fully masked row).
    Holds when: s is a probability vector or zero. No term is negative, so rows near a unit vector keep their digits.
    """
    top, where = s.max(-1, keepdim=True)
    rest, m = s.scatter(-1, where, 0.0), top.squeeze(-1)
    squares = rest.square()
    second = squares.sum(-1)
    among_rest = (squares * (1 - 2 * rest)).sum(-1) + second.square()
    return safe_sqrt((m * rest.sum(-1)).square() + 2 * m.square() * second + among_rest)


def entropy(P: Float[Tensor, "*a j"]) -> Float[Tensor, "*a"]:
    """H = -sum_j P_j ln P_j in nats, with 0 ln 0 = 0."""
    return torch.special.entr(P).sum(-1)


def score_range(S: Float[Tensor, "*a i j"], allowed: Bool[Tensor, "*#a #i #j"] | None = None) -> Float[Tensor, "*a i"]:
    """max_j S_ij - min_j S_ij over the allowed keys; 0 for a row with none.

    Source: D_ii of Xie 2021, lemma A.3 (S0.34): the row's attention is within tanh(range / 4) of uniform, in total
    variation.
    """
    if allowed is None:
        return S.amax(-1) - S.amin(-1)
    highest = S.masked_fill(~allowed, -torch.inf).amax(-1)
    lowest = S.masked_fill(~allowed, torch.inf).amin(-1)
    return (highest - lowest).clamp_min(0.0)


def scaled_dot(Q: Float[Tensor, "*a i k"], K: Float[Tensor, "*a j k"], scale: float) -> Float[Tensor, "*a i j"]:
    """S = scale Q K^T; scale is 1/sqrt(k) in a Transformer and 1 for Luong's dot score.

    Source: Conti 2024, block definition and eq. 10 (S4.31, S4.57); score h^T s (S4.14).
    Departs: eq. 5, 6 and 17 of the document print 1/k, which makes attention nearly uniform (S4.42, S4.117).
    """
    return scale * Q @ K.mT


def bahdanau_additive(
    Q: Float[Tensor, "b h i q"],
    K: Float[Tensor, "b h j k"],
    W_q: Float[Tensor, "h q a"],
    W_k: Float[Tensor, "h k a"],
    v_a: Float[Tensor, "h a"],
) -> Float[Tensor, "b h i j"]:
    """S_ij = v_a^T tanh(W_a [q_i; k_j]), with W_a split in its query and key parts: q_i W_q + k_j W_k.

    Source: Conti 2024, section 1.1.1 (S4.14), where the brackets around the argument of tanh are missing.
    Departs: Bahdanau scores the previous decoder state; the document and this function score the current one.
    """
    from_queries, from_keys = Q @ W_q, K @ W_k
    hidden = torch.tanh(from_queries.unsqueeze(3) + from_keys.unsqueeze(2))
    return torch.einsum("bhija,ha->bhij", hidden, v_a)
