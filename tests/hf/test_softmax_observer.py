"""Attention in a model's own code: recognised in any layout, as the model computes it, and not a bit changed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.hf.attention_hook import attention_hook, softmax_unobserved
from attnworks.hf.softmax_observer import observe_softmax
from tests.helpers import assert_close

B, H, QUERIES, KEYS, D_K, D_V = 2, 3, 5, 7, 11, 13
FACTOR = 0.37


class Seen(NamedTuple):
    module: nn.Module
    Q: Tensor
    K: Tensor
    V: Tensor
    mask: Mask
    Y: Tensor
    options: dict[str, Any]


class Attends(nn.Module):
    """Runs a function of queries, keys and values, inside a helper without parameters."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.attend = Calls(attend)

    def forward(self, sentences: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return self.attend(Q, K, V)


class Calls(nn.Module):
    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return self.attend(Q, K, V)


def by_head(seed: int = 0, groups: int = H) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, QUERIES, D_K), (B, groups, KEYS, D_K), (B, groups, KEYS, D_V))
    Q, K, V = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return Q, K, V


def observed(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], Q: Tensor, K: Tensor, V: Tensor, new: Tensor | None = None
) -> tuple[list[Seen], Tensor, nn.Module]:
    """What a hook is shown of `attend`, and its output; the hook returns `new`."""
    model, seen = Attends(attend), list[Seen]()

    def hook(*given: Any) -> Tensor | None:
        seen.append(Seen(*given))
        return new

    with observe_softmax(model), attention_hook(hook):
        out = model(torch.zeros(B, QUERIES), Q, K, V)
    return seen, out, model


def joined(T: Tensor) -> Tensor:
    return T.flatten(0, 1)


def positions_first(T: Tensor) -> Tensor:
    return T.permute(2, 0, 1, 3)


def with_matmul(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return torch.matmul((Q @ K.transpose(-1, -2) * FACTOR).softmax(-1), V)


def with_scaled_queries(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return F.dropout(F.softmax(torch.matmul(Q * FACTOR, K.mT), dim=-1), 0.5, training=False) @ V


def with_bmm(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    S = torch.bmm(joined(Q), joined(K).transpose(1, 2)) / (1 / FACTOR)
    return torch.bmm(torch.softmax(S, -1, dtype=torch.float64), joined(V))


def with_baddbmm(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    S = torch.zeros(B * H, 1, KEYS, dtype=Q.dtype).baddbmm(batch1=joined(Q), batch2=joined(K).mT, alpha=FACTOR)
    return torch.bmm(S.view(B, H, QUERIES, KEYS).softmax(dim=-1).view(B * H, QUERIES, KEYS), joined(V))


def with_einsum(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """Positions before sentences, as in XLNet."""
    S = torch.einsum("ibnd,jbnd->bnij", positions_first(Q), positions_first(K)) * FACTOR
    return torch.einsum("bnij,jbnd->ibnd", S.softmax(dim=3), positions_first(V))


def with_values_first(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    S = torch.einsum("bhjk, bhik -> bhij", K, Q) * FACTOR
    return torch.einsum("bhjv,bhij->bhiv", [V, S.softmax(-1)])


def with_fused_function(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(Q, K, V, scale=FACTOR)


LAYOUTS: dict[Any, Callable[[Tensor], Tensor]] = {
    with_matmul: lambda Y: Y,
    with_scaled_queries: lambda Y: Y,
    with_bmm: joined,
    with_baddbmm: joined,
    with_einsum: positions_first,
    with_values_first: lambda Y: Y,
    with_fused_function: lambda Y: Y,
}
"""Ways to compute attention, and the layout of their outputs."""


@pytest.mark.parametrize("attend", LAYOUTS, ids=lambda attend: attend.__name__)
def test_every_layout_is_shown_by_head(attend: Any) -> None:
    Q, K, V = by_head()
    seen, out, model = observed(attend, Q, K, V)
    assert torch.equal(out, attend(Q, K, V))
    ((module, shown_Q, shown_K, shown_V, mask, Y, options),) = seen
    factor = options["scaling"]
    P = (FACTOR * Q @ K.mT).softmax(-1)
    assert module is model, "the innermost module with parameters"
    assert_close(factor * shown_Q @ shown_K.mT, FACTOR * Q @ K.mT)
    assert torch.equal(shown_V, V) and mask.dense is None and not mask.causal
    assert_close(Y, P @ V)
    assert_close(LAYOUTS[attend](Y), out)
    if attend is not with_fused_function:
        assert_close(options["weights"], P)


@pytest.mark.parametrize("attend", LAYOUTS, ids=lambda attend: attend.__name__)
def test_a_returned_tensor_takes_the_place_of_the_output(attend: Any) -> None:
    Q, K, V = by_head()
    new = torch.arange(B * H * QUERIES * D_V, dtype=torch.float64).view(B, H, QUERIES, D_V)
    _, out, _ = observed(attend, Q, K, V, new)
    assert torch.equal(out, LAYOUTS[attend](new))


@pytest.mark.parametrize("attend", LAYOUTS, ids=lambda attend: attend.__name__)
def test_outputs_depend_on_the_values_that_are_shown(attend: Any) -> None:
    Q, K, V = (T.requires_grad_() for T in by_head())
    ((_, _, _, shown, _, Y, _),), *_ = observed(attend, Q, K, V)
    (gradient,) = torch.autograd.grad(Y.sum(), shown)
    assert gradient.abs().min() > 0


def causal() -> Tensor:
    return torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)


def masked_by_where(S: Tensor) -> Tensor:
    return torch.where(causal(), S, torch.finfo(S.dtype).min)


def masked_by_product(S: Tensor) -> Tensor:
    """As in the first GPT."""
    visible = causal().to(S.dtype)
    return S * visible + -1e4 * (1 - visible)


def masked_by_fill(S: Tensor) -> Tensor:
    return S.masked_fill(~causal(), -torch.inf)


def masked_by_sum(S: Tensor) -> Tensor:
    return S + torch.zeros(QUERIES, KEYS, dtype=S.dtype).masked_fill(~causal(), torch.finfo(S.dtype).min)


@pytest.mark.parametrize("masked", [masked_by_where, masked_by_product, masked_by_fill, masked_by_sum])
def test_hidden_keys_are_in_the_mask(masked: Callable[[Tensor], Tensor]) -> None:
    Q, K, V = by_head(groups=1)
    seen, _, _ = observed(lambda Q, K, V: masked(Q @ K.mT * FACTOR).softmax(-1) @ V, Q, K, V)
    options, mask = seen[0].options, seen[0].mask
    assert options["scaling"] == FACTOR and mask.dense is not None and mask.dense.dtype == torch.bool
    assert bool((mask.dense == causal()).all())


def test_what_is_added_for_positions_is_in_the_mask() -> None:
    Q, K, V = by_head()
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64).view(H, 1, 1) * torch.arange(KEYS)

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return masked_by_fill(Q @ K.mT * FACTOR + slopes).softmax(-1) @ V

    ((*_, mask, _, options),), *_ = observed(attend, Q, K, V)
    assert options["scaling"] == FACTOR and mask.dense is not None
    assert_close(mask.dense.masked_fill(~causal(), 0.0), slopes.masked_fill(~causal(), 0.0).expand(B, H, QUERIES, KEYS))
    assert bool((mask.dense == -torch.inf).eq(~causal()).all())


def relative(Q: Tensor, K: Tensor) -> Tensor:
    """Scores by content and by a product of queries with positions, as in DeBERTa."""
    keys = torch.randn(B, H, KEYS, D_K, generator=torch.Generator().manual_seed(9), dtype=Q.dtype)
    return Q @ K.mT * FACTOR + (Q @ keys.mT).flip(-1)


SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relative": relative,
    "capped": lambda Q, K: 3 * torch.tanh(Q @ K.mT / 3),
    "by entry": lambda Q, K: Q @ K.mT * torch.linspace(0.5, 2, KEYS, dtype=Q.dtype),
    "subtracted": lambda Q, K: 1 - Q @ K.mT,
}


@pytest.mark.parametrize("name", SCORES)
def test_other_scores_have_no_factor_but_weights(name: str) -> None:
    Q, K, V = by_head()
    ((*_, mask, _, options),), *_ = observed(lambda Q, K, V: SCORES[name](Q, K).softmax(-1) @ V, Q, K, V)
    assert options["scaling"] is None and mask.dense is None
    assert_close(options["weights"], SCORES[name](Q, K).softmax(-1))


def test_weights_that_are_changed_after_the_softmax_are_those_that_count() -> None:
    Q, K, V = by_head()
    ((*_, options),), *_ = observed(lambda Q, K, V: ((Q @ K.mT).softmax(-1) * FACTOR) @ V, Q, K, V)
    assert options["scaling"] is None
    assert_close(options["weights"], (Q @ K.mT).softmax(-1) * FACTOR)


ROUTER = nn.Parameter(torch.randn(B, H, D_K, KEYS, dtype=torch.float64))
OTHERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a parameter as a factor": lambda Q, K, V: (Q @ ROUTER).softmax(-1) @ V,
    "softmax over queries": lambda Q, K, V: (Q @ K.mT).softmax(-2) @ V,
    "no product": lambda Q, K, V: torch.zeros(B, H, QUERIES, KEYS, dtype=V.dtype).softmax(-1) @ V,
    "no softmax": lambda Q, K, V: (Q @ K.mT) @ V,
    "a linear map after it": lambda Q, K, V: (
        F.linear((Q @ K.mT).softmax(-1), torch.ones(KEYS, KEYS, dtype=V.dtype)) @ V
    ),
    "other rows": lambda Q, K, V: (Q @ K.mT).softmax(-1)[:, :, :2] @ V,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_attention_is_not_shown(name: str) -> None:
    Q, K, V = by_head()
    seen, out, _ = observed(OTHERS[name], Q, K, V)
    assert not seen and torch.equal(out, OTHERS[name](Q, K, V))


def test_other_threads_and_other_code_are_not_observed() -> None:
    Q, K, V = by_head()
    model, seen = Attends(with_matmul), list[Seen]()

    def run() -> None:
        model(torch.zeros(B, QUERIES), Q, K, V)

    with observe_softmax(model), attention_hook(lambda *given: seen.append(Seen(*given))):
        with_matmul(Q, K, V)  # outside of the model
        thread = Thread(target=run)
        thread.start()
        thread.join()
        with softmax_unobserved():
            run()
        assert not seen
        run()
    assert len(seen) == 1
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
