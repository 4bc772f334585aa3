"""The k largest, their log-probabilities, and the order of equals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.models.decoding.candidates import FOLD_ABOVE_RATIO, k_largest, logprobs


def sorted_out(x: torch.Tensor, k: int) -> tuple[list[object], list[object]]:
    values, places = torch.sort(x, stable=True, descending=True, dim=-1)
    return values[..., :k].tolist(), places[..., :k].tolist()


@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([1, 2, 11, 97, 3001]), st.sampled_from([3, 1000]))
def test_equals_a_stable_sort(seed: int, k: int, n: int, kinds: int) -> None:
    """With many equals (3 kinds of values) and with few; short rows and rows long enough to be folded."""
    x = torch.randint(kinds, (2, 3, n), generator=torch.Generator().manual_seed(seed)).double()
    x[0, 0, : n // 2] = -torch.inf
    before, k = x.clone(), min(k, n)
    values, places = k_largest(x, k)
    assert (values.tolist(), places.tolist()) == sorted_out(x, k)
    assert torch.equal(x, before)


@pytest.mark.parametrize("n", [7 * FOLD_ABOVE_RATIO + left_over for left_over in range(1, 9)])
def test_the_largest_may_stand_anywhere(n: int) -> None:
    x = torch.zeros(n, n).fill_diagonal_(1.0) + torch.arange(n) * 1e-6
    _, places = k_largest(x, 7)
    assert places[:, 0].tolist() == list(range(n))
    assert places.tolist() == sorted_out(x, 7)[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 13, 20_011])
def test_logprobs_of_a_few(vocabulary: int, dtype: torch.dtype) -> None:
    scores = (300 + 20 * torch.randn(3, 5, vocabulary, dtype=torch.float64)).to(dtype)
    before = scores.clone()
    highest, token = k_largest(scores, min(2, vocabulary))
    expected = scores.double().log_softmax(-1).gather(-1, token)
    got = logprobs(highest, scores, highest[..., :1])
    assert got.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    rtol, atol = tolerance(got.dtype) if dtype != torch.bfloat16 else tolerance(dtype)
    torch.testing.assert_close(got.double(), expected, rtol=rtol, atol=atol)
    assert (got <= 0).all()
    assert torch.equal(scores, before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_no_scores(bad: float) -> None:
    scores = torch.zeros(2, 3)
    scores[1] = bad
    with pytest.raises(UsageError, match="expected finite logits"):
        logprobs(scores[:, :1], scores, scores.amax(-1, keepdim=True))
