"""How well a query and a key fit: the scores of the documents, for all pairs at once."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


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
    Departs: Bahdanau scores the previous decoder state; the document, and we, the current one.
    """
    from_queries, from_keys = Q @ W_q, K @ W_k
    hidden = torch.tanh(from_queries.unsqueeze(3) + from_keys.unsqueeze(2))
    return torch.einsum("bhija,ha->bhij", hidden, v_a)
