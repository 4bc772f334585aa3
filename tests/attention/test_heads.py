"""Folding the products of a head and absorbing biases change nothing: identities to 1e-12."""

from __future__ import annotations

import torch
from torch import Tensor

from attnworks.attention.heads import fold_scores, fold_values
from attnworks.theory.claims.s3_heads import augment, augment_weight

H, N, M, E, F, K, V = 2, 3, 5, 7, 11, 13, 17


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_fold_scores_is_all_that_scores_depend_on() -> None:
    """(X W_Q)(Z W_K)^T = X W_QK Z^T (S0.17)."""
    X, Z, W_Q, W_K = normal(N, E), normal(M, F), normal(H, E, K), normal(H, F, K)
    W_QK = fold_scores(W_Q, W_K)
    assert W_QK.shape == (H, E, F)
    assert_same(X @ W_QK @ Z.mT, (X @ W_Q) @ (Z @ W_K).mT)


def test_folded_scores_have_the_rank_of_a_head() -> None:
    W_QK = fold_scores(normal(H, 11, 3), normal(H, 13, 3))
    assert torch.linalg.matrix_rank(W_QK).tolist() == [3, 3]


def test_fold_values_equals_concatenation() -> None:
    """Concat_h(P_h (Z W_V,h + 1 b_V,h^T)) W_O + 1 b_O^T = sum_h P_h Z W_h + 1 b^T (S0.5, S0.6, S4.44)."""
    P = normal(H, N, M).softmax(-1)
    Z, W_V, W_O, b_V, b_O = normal(M, F), normal(H, F, V), normal(H, V, E), normal(H, V), normal(E)
    heads = P @ (Z @ W_V + b_V[:, None])
    want = torch.cat(list(heads), -1) @ W_O.reshape(H * V, E) + b_O
    W, b = fold_values(W_V, W_O, b_V, b_O)
    assert W.shape == (H, F, E) and b.shape == (E,)
    assert_same((P @ Z @ W).sum(0) + b, want)


def test_folding_the_value_bias_needs_rows_that_sum_to_one() -> None:
    """The condition of S0.6: with other rows the folded bias is wrong."""
    P = 2 * normal(H, N, M).softmax(-1)
    Z, W_V, W_O, b_V = normal(M, F), normal(H, F, V), normal(H, V, E), normal(H, V)
    W, b = fold_values(W_V, W_O, b_V)
    want = ((P @ (Z @ W_V + b_V[:, None])) @ W_O).sum(0)
    assert ((P @ Z @ W).sum(0) + b - want).abs().max() > 0.1


def test_fold_values_with_some_or_no_biases() -> None:
    W_V, W_O, b_V, b_O = normal(H, F, V), normal(H, V, E), normal(H, V), normal(E)
    from_values = sum(b_V[h] @ W_O[h] for h in range(H))
    assert isinstance(from_values, Tensor)
    for biases, want in (
        ((None, None), torch.zeros(E, dtype=torch.float64)),
        ((b_V, None), from_values),
        ((None, b_O), b_O),
        ((b_V, b_O), from_values + b_O),
    ):
        W, b = fold_values(W_V, W_O, *biases)
        assert_same(b, want)
        assert_same(W, torch.stack([W_V[h] @ W_O[h] for h in range(H)]))


def test_augmenting_absorbs_a_bias() -> None:
    """[X | 1] [W; b^T] = X W + 1 b^T (S3.8)."""
    X, W, b = normal(2, N, E), normal(E, K), normal(K)
    assert augment(X).shape == (2, N, E + 1) and (augment(X)[..., -1] == 1).all()
    assert torch.equal(augment(X)[..., :-1], X)
    assert_same(augment(X) @ augment_weight(W, b), X @ W + b)


def test_augmenting_head_first_weights() -> None:
    X, W, b = normal(N, E), normal(H, E, K), normal(H, K)
    assert augment_weight(W, b).shape == (H, E + 1, K)
    assert_same(augment(X) @ augment_weight(W, b), X @ W + b[:, None])


def test_augmented_weights_fold_like_any_others() -> None:
    """With biases, W_QK of the augmented weights gives the scores of [X | 1]."""
    X, W_Q, W_K, b_Q, b_K = normal(N, E), normal(H, E, K), normal(H, E, K), normal(H, K), normal(H, K)
    W_QK = fold_scores(augment_weight(W_Q, b_Q), augment_weight(W_K, b_K))
    want = (X @ W_Q + b_Q[:, None]) @ (X @ W_K + b_K[:, None]).mT
    assert_same(augment(X) @ W_QK @ augment(X).mT, want)


def test_a_key_bias_never_changes_the_softmax_and_a_query_bias_does() -> None:
    X, W_Q, W_K, b = 0.1 * normal(N, E), normal(E, K), normal(E, K), normal(K)
    P = ((X @ W_Q) @ (X @ W_K).mT).softmax(-1)
    assert_same(((X @ W_Q) @ (X @ W_K + b).mT).softmax(-1), P)
    assert (((X @ W_Q + b) @ (X @ W_K).mT).softmax(-1) - P).abs().max() > 1e-3
