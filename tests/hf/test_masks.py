"""Masks as the implementations of transformers read them: by table, by row, and by causality alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.hf.masks import mask_of_call

LOWEST = torch.finfo(torch.float32).min
Q, K = torch.zeros(1, 2, 3, 5, dtype=torch.float64), torch.zeros(1, 2, 7, 5, dtype=torch.float64)
CAUSAL, BOTH_WAYS = SimpleNamespace(is_causal=True), SimpleNamespace(is_causal=False)


def mask_by(name: str, module: Any, given: Any, queries: Tensor = Q, **options: Any) -> Any:
    return mask_of_call(name, module, queries, K, given, options)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_tables(name: str) -> None:
    """Longer ones are cut to the keys, one row is for all queries; numbers but the smallest one are added to scores."""
    seen = torch.rand(1, 1, 3, 11, generator=torch.Generator().manual_seed(3)) < 0.5
    hiding = torch.zeros(1, 1, 3, 11).masked_fill(~seen, LOWEST)
    for given in (seen, hiding):
        mask = mask_by(name, CAUSAL, given)
        assert torch.equal(mask.dense, seen[..., :7]) and mask.real is None and not mask.causal
    one_row = mask_by(name, CAUSAL, seen[:, :, :1]).dense
    assert torch.equal(one_row, seen[:, :, :1, :7].expand(1, 1, 3, 7))
    added = torch.where(seen, 0.25, LOWEST).float()
    expected = torch.where(seen, 0.25, -torch.inf)[..., :7].double()
    assert torch.equal(mask_by(name, CAUSAL, added).dense, expected)
    bias = torch.full((1, 2, 3, 7), 0.5)
    assert torch.equal(mask_by(name, CAUSAL, seen, position_bias=bias).dense, (2 * expected).expand(1, 2, 3, 7))
    assert torch.equal(mask_by(name, CAUSAL, added, position_bias=bias).dense, (expected + 0.5).expand(1, 2, 3, 7))
    assert torch.equal(mask_by(name, CAUSAL, seen, position_bias=0 * bias).dense, seen[..., :7])


def test_without_a_table_sdpa_alone_is_causal() -> None:
    assert mask_by("sdpa", CAUSAL, None).causal and not mask_by("eager", CAUSAL, None).causal
    assert not mask_by("sdpa", BOTH_WAYS, None).causal and not mask_by("sdpa", CAUSAL, None, Q[:, :, :1]).causal
    assert mask_by("sdpa", BOTH_WAYS, None, is_causal=True).causal
    assert not mask_by("sdpa", CAUSAL, None, is_causal=False).causal
    assert torch.equal(
        mask_by("sdpa", CAUSAL, None, position_bias=torch.ones(1, 2, 3, 7)).dense, torch.ones(1, 2, 3, 7)
    )


def test_other_implementations_get_a_row_for_each_sentence() -> None:
    row = torch.tensor([[0, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1]])
    mask = mask_by("flash_attention_2", CAUSAL, row)
    assert mask.causal and mask.dense is None and mask.real.tolist() == [[True, False, True, True, False, True, True]]
    with pytest.raises(UsageError, match=r"got flex_attention; call model\.set_attn"):
        mask_by("flex_attention", CAUSAL, object())
