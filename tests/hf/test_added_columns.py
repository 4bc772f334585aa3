"""Columns and heads beside the projections of attention layers: what they compute in all layouts, what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadGroups, HeadWeights, grouped
from attnworks.core.errors import UsageError
from attnworks.hf.added_columns import (
    add_columns,
    added_to,
    describe,
    refusal_to_add,
    remove_columns,
    restore,
    with_added_columns,
    without_added_columns,
)
from attnworks.hf.added_maps import ROLES
from attnworks.hf.cut.stored import KEPT_HEADS
from attnworks.hf.layer_implementation import LayerImplementation
from attnworks.hf.observe import attention_hook, observe_interface
from attnworks.hf.swapped_attention import set_groups
from tests.helpers import assert_close
from tests.hf.added_helpers import (
    KEYS,
    LAYOUTS,
    NEW_K,
    NEW_V,
    VALUES,
    Grown,
    applied,
    grown,
    reads,
)
from tests.model_helpers import the

transformers: Any = pytest.importorskip("transformers")

KINDS = [*((name, "") for name in LAYOUTS), ("t5", "encoder"), ("t5", "decoder"), ("bart", "decoder")]
GATED = ("qwen3_next", "gemma3n_text", "doge")
"""Types whose values pass a gate or a norm, which added columns do not, or change the scores."""
ROUNDING = 1e-5
"""Of the effect of a change; the code of some types computes in single precision."""


def assert_changed(found: Tensor, expected: Tensor, before: Tensor) -> None:
    """The two are equal, compared with the effect of the change."""
    effect = (expected - before).abs().max()
    assert effect > 1e-3
    assert (found - expected).abs().max() <= ROUNDING * effect


# What is computed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_columns_that_are_zero_change_nothing(name: str, kind: str) -> None:
    some = grown(name, kind)
    before = some.run()
    some.add([head._replace(W_K=0 * head.W_K, b_K=0 * the(head.b_K), W_O=0 * head.W_O) for head in some.some()])
    assert (some.run() - before).abs().max() <= ROUNDING * before.abs().max()
    with without_added_columns(some.model):
        assert torch.equal(some.run(), before)
    remove_columns(some.model, some.attention)
    assert torch.equal(some.run(), before)


@pytest.mark.parametrize(("name", "kind"), [pair for pair in KINDS if pair[0] not in GATED])
def test_a_value_channel_moves_beside_the_layer(name: str, kind: str) -> None:
    """Its column is set to zero in the layer, and added to all heads that share it."""
    some = grown(name, kind)
    before, index, rows = some.run(), the(some.layout.value).index, the(some.layout.output).index
    V, output = some.maps()[2:]
    channel, column = 1, int(index[0, 1])
    held = [head for head in range(some.layout.heads) if int(index[head, channel]) == column]
    none, bias = [0] * some.layout.heads, V.bias is not None
    heads = some.heads(none, [int(head in held) for head in range(some.layout.heads)], bias=bias)
    with torch.no_grad():
        for head in held:
            heads[head] = heads[head]._replace(
                W_V=V.weight[:, [column]].clone(), W_O=output.weight[[int(rows[head, channel])]].clone()
            )
            if V.bias is not None:
                heads[head] = heads[head]._replace(b_V=V.bias[[column]].clone())
        V.weight[:, column] = 0
        if V.bias is not None:
            V.bias[column] = 0
    without = some.run()
    some.add(heads, bias=bias)
    assert_changed(some.run(), before, without)


def by_hand(scaling: float, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, E: Tensor, given: Any) -> Tensor:
    """softmax(capped(scaling Q K^T + E) + mask) V with sink logits, and V of groups of heads: [b i h v]."""
    K, V = (T.repeat_interleave(Q.shape[1] // T.shape[1], 1) for T in (K, V))
    S = scaling * (Q @ K.mT) + E
    if (cap := given.get("softcap")) is not None:
        S = cap * torch.tanh(S / cap)
    for added in (mask, given.get("position_bias")):
        S = S if added is None else S + added
    if (sink := given.get("s_aux")) is not None:
        S = torch.cat([S, sink.view(1, -1, 1, 1).expand(*S.shape[:3], 1)], -1)
    return (S.softmax(-1)[..., : K.shape[2]] @ V).transpose(1, 2)


@contextmanager
def attention_by_hand(some: Grown, scores: Callable[[float], Tensor], seen: dict[str, Any]) -> Iterator[None]:
    """All layers attend by the formula above; the scores of the layer to grow get `scores(scaling)` besides."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    def attend(
        module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, /, attention_mask: Tensor | None, **given: Any
    ) -> Any:
        mask = attention_mask
        scaling = given.get("scaling")
        scaling, E = Q.shape[-1] ** -0.5 if scaling is None else scaling, Q.new_zeros(())
        if module is some.attention:
            factor = scaling if some.layout.factor is None else some.layout.factor
            E = scores(factor)
            seen.update(factor=factor, hidden=None if mask is None else (mask < -1e9).all(1), cap=given.get("softcap"))
        return by_hand(scaling, Q, K, V, mask, E, given), None

    before = some.model.config._attn_implementation
    AttentionInterface.register("tests-by-hand", attend)
    AttentionMaskInterface.register("tests-by-hand", eager_mask)
    some.model.set_attn_implementation("tests-by-hand")
    yield
    some.model.set_attn_implementation(before)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_added_keys_add_their_products_to_the_scores(name: str, kind: str) -> None:
    some = grown(name, kind)
    before, n = some.run(), some.layout.heads
    heads = some.heads([KEYS, *range(n - 1)], [0] * n)
    some.add(heads)
    found = some.run()
    remove_columns(some.model, some.attention)
    query, key, *_ = some.projections()
    X, hooks = reads(some.model, (query, key))

    def scores(factor: float) -> Tensor:
        Q, K = ([applied(X[at], the(head[i]), head[i + 4]) for head in heads] for at, i in ((query, 0), (key, 1)))
        return torch.stack([factor * q @ k.mT for q, k in zip(Q, K, strict=True)], 1)

    with attention_by_hand(some, scores, {}):
        expected = some.run()
    for hook in hooks:
        hook.remove()
    assert_changed(found, expected, before)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_new_head_by_hand(name: str, kind: str) -> None:
    """softmax(S) V W_O is added to the output of the layer, with nothing added to S for positions, and no sink."""
    some = grown(name, kind)
    before, zero = some.run(), [0] * some.layout.heads
    *_, head = heads = some.heads([*zero, NEW_K], [*zero, NEW_V])
    some.add(heads)
    found = some.run()
    remove_columns(some.model, some.attention)
    query, key, value, output = some.projections()
    X, hooks = reads(some.model, (query, key, value))
    seen: dict[str, Any] = {}

    def more(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        S = seen["factor"] * applied(X[query], head.W_Q, head.b_Q) @ applied(X[key], head.W_K, head.b_K).mT
        S = S if seen["cap"] is None else seen["cap"] * torch.tanh(S / seen["cap"])
        S = S if seen["hidden"] is None else S.masked_fill(seen["hidden"], -torch.inf)
        return out + S.softmax(-1) @ applied(X[value], head.W_V, head.b_V) @ head.W_O

    hooks.append(some.model.get_submodule(output).register_forward_hook(more))
    with attention_by_hand(some, lambda _: torch.zeros(()), seen):
        expected = some.run()
    for hook in hooks:
        hook.remove()
    assert_changed(found, expected, before)


def test_new_heads_have_no_sink_and_no_bias_for_positions() -> None:
    """With values and outputs of ones it gives the sum of its weights, 1, where heads with a sink give less."""
    some = grown("gpt_oss")
    zero = [0] * some.layout.heads
    heads = some.heads([*zero, NEW_K], [*zero, 1], bias=True)
    heads[-1] = heads[-1]._replace(
        W_V=0 * heads[-1].W_V, b_V=torch.ones(1).double(), W_O=torch.ones_like(heads[-1].W_O)
    )
    outputs: list[Tensor] = []
    projection = some.model.get_submodule(the(some.layout.output_path))
    hook = projection.register_forward_hook(lambda _, __, out: outputs.append(out))
    some.run()
    some.add(heads)
    hook.remove()
    projection.register_forward_hook(lambda _, __, out: outputs.append(out))
    some.run()
    assert_close(outputs[1] - outputs[0], torch.ones_like(outputs[0]))


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "gpt2"])
def test_eager_attention_computes_the_same(name: str) -> None:
    some = grown(name)
    some.add(some.some())
    assert some.model.config._attn_implementation == "sdpa"
    expected = some.run()
    some.model.set_attn_implementation("eager")
    assert (some.run() - expected).abs().max() <= ROUNDING * expected.abs().max()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "gpt_oss"])
def test_layers_with_mechanisms_of_their_own(name: str, first: bool) -> None:
    """With dense heads in all places the model is the same, whichever came first: the columns or the mechanisms."""
    some, wider = grown(name), grown(name)
    wider.add(wider.some())
    widths = tuple(width + KEYS + NEW_K for width in some.layout.widths)
    groups = HeadGroups(grouped(["dense"] * (some.layout.heads + 1)), *widths)
    if first:
        some.add(some.some())
    set_groups(some.attention, groups)
    if not first:
        some.add(some.some())
    expected = wider.run()
    assert (some.run() - expected).abs().max() <= ROUNDING * expected.abs().max()


def test_other_layers_keep_their_implementation() -> None:
    some = grown("llama")
    some.add(some.some())
    configs = [module.config for module in some.model.modules() if type(module) is type(some.attention)]
    own = [isinstance(config._attn_implementation, LayerImplementation) for config in configs]
    assert own == [False] * (len(own) - 1) + [True]
    assert all(config is some.model.config for config in configs[:-1])


def test_columns_that_turn_with_the_distance() -> None:
    """With z = x + iy of each pair, S gains factor Re(q conj(k) e^(i angle (n - m))); other columns are plain."""
    some = grown("llama")
    angle, n = 0.7, some.layout.heads
    heads = some.heads([5, *[0] * (n - 1)], [0] * n)
    turns = torch.tensor([angle, angle, 0.0, angle / 2, angle / 2], dtype=torch.float64)
    heads[0] = heads[0]._replace(turns=turns)
    before = some.run()
    some.add(heads)
    found = some.run()
    remove_columns(some.model, some.attention)
    query, key, *_ = some.projections()
    X, hooks = reads(some.model, (query, key))

    def scores(factor: float) -> Tensor:
        Q, K = (applied(X[at], the(heads[0][i]), heads[0][i + 4]) for at, i in ((query, 0), (key, 1)))
        i = torch.arange(Q.shape[1]).double()
        S = Q[..., 2:3] @ K[..., 2:3].mT
        for at, turn in ((0, angle), (3, angle / 2)):
            q, k = (torch.complex(T[..., at], T[..., at + 1]) for T in (Q, K))
            S = S + (q[:, :, None] * k[:, None].conj() * torch.exp(1j * turn * (i[:, None] - i))).real
        return torch.cat([factor * S[:, None], S.new_zeros(len(S), n - 1, *S.shape[1:])], 1)

    with attention_by_hand(some, scores, {}):
        expected = some.run()
    for hook in hooks:
        hook.remove()
    assert_changed(found, expected, before)


# What is kept --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3_next", "deepseek_v3"])
def test_gradients_reach_all_added_weights(name: str) -> None:
    some = grown(name)
    some.add(some.some())
    some.model(**some.inputs)[0].square().sum().backward()
    added = dict(the(added_to(some.attention)).named_parameters())
    assert {*added} == {f"{role}.{name}" for role in ROLES for name in ("weight", "bias")} | {"output.weight"}
    del added["key.bias"]  # it adds the same number to all scores of a query
    assert all(the(parameter.grad).abs().sum() > 1e-6 for parameter in added.values())
    assert {*some.model.state_dict()} >= {f"{some.layout.path}.attnworks_added.{name}" for name in added}


def test_only_true_columns_are_stored() -> None:
    some = grown("llama")
    before = sum(parameter.numel() for parameter in some.model.parameters())
    some.add(some.some())
    (e, f, g), d = [linear.weight.shape[0] for linear in some.maps()[:3]], some.maps()[3].weight.shape[1]
    w_k, w_v = KEYS + NEW_K, VALUES + NEW_V
    more = w_k * (e + f + 2) + w_v * (g + 1 + d)
    assert sum(parameter.numel() for parameter in some.model.parameters()) == before + more


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_a_copy_is_a_model_of_its_own(name: str) -> None:
    some = grown(name)
    some.add(some.some())
    expected = some.run()
    other = some._replace(model=copy.deepcopy(some.model))
    with torch.no_grad():
        for parameter in the(added_to(some.attention)).parameters():
            parameter.zero_()
    assert torch.equal(other.run(), expected) and not torch.equal(some.run(), expected)
    other.model.set_attn_implementation("eager")
    assert other.attention.config._attn_implementation == "eager"
    assert some.model.config._attn_implementation == some.attention.config._attn_implementation


def test_half_precision() -> None:
    some = grown("llama")
    some.add(some.some())
    expected = some.run()
    some.model.to(torch.bfloat16)
    assert {parameter.dtype for parameter in some.model.parameters()} == {torch.bfloat16}
    assert (some.run() - expected).abs().mean() <= 0.05 * expected.abs().mean()


@pytest.mark.parametrize(("name", "kind"), [("gpt2", ""), ("bart", "cross"), ("deepseek_v3", "")])
def test_built_again_from_a_description(name: str, kind: str) -> None:
    some = grown(name, kind)
    some.add(some.some())
    entry = describe(the(added_to(some.attention)))
    other = grown(name, kind)
    restore(other.model, entry)
    other.model.load_state_dict(some.model.state_dict())
    assert torch.equal(other.run(), some.run())
    assert describe(the(added_to(other.attention))) == entry


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": [1]},
        {"keys": "1"},
        {"values": [-1] * 16},
        {"heads": 0},
        {"heads": 17},
        {"turns": [0.5]},
        {"query": "nowhere"},
        {"more": 1},
    ],
    ids=str,
)
def test_other_descriptions_are_not_believed(changes: dict[str, Any]) -> None:
    some = grown("gpt2")
    some.add(some.some())
    entry = describe(the(added_to(some.attention)))
    with pytest.raises((ValueError, TypeError, AttributeError)):
        restore(grown("gpt2").model, entry | changes)


def test_growing_once_more() -> None:
    """What was added before is given as part of the heads, and may change; hooks are not doubled."""
    some = grown("llama")
    first, second = some.some(), some.some()
    some.add(first)
    second[0] = second[0]._replace(W_Q=-second[0].W_Q)
    add_columns(some.model, some.layout, some.layout.slots[0], second, first)
    found = some.run()
    alone = grown("llama")
    alone.add(second)
    assert torch.equal(found, alone.run())
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in some.model.modules()]
    assert sum(hooks) == 1 + 3 + 1


# What is observed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_oss"])
def test_observed_layers_have_their_added_columns(name: str) -> None:
    """Once per layer; outputs are those of the model, bit for bit, and the edited output of added columns counts."""
    some = grown(name)
    some.add(some.some())
    expected, shapes = some.run(), []

    def watch(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Any, Y: Tensor, options: Any) -> None:
        shapes.append((module, *(T.shape[1::2] for T in (Q, K, V, Y))))

    with observe_interface(some.model), attention_hook(watch):
        assert torch.equal(some.run(), expected)
    own = [shape for module, *shape in shapes if module is some.attention]
    k, v, n = *some.layout.widths, some.layout.heads + 1
    keys, values = (n, max(k + KEYS, NEW_K)), (n, max(v + VALUES, NEW_V))
    assert own == [[keys, keys, values, values]]
    assert len(shapes) == len({module for module, *_ in shapes})

    def silence(
        module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Any, Y: Tensor, options: Any
    ) -> Tensor | None:
        return Y.index_fill(1, torch.arange(some.layout.heads, n), 0.0) if module is some.attention else None

    with observe_interface(some.model), attention_hook(silence):
        silent = some.run()
    output = the(the(added_to(some.attention)).output)
    with torch.no_grad():
        output.weight[:, VALUES:] = 0.0
    assert_close(silent, some.run())


def test_weights_with_added_columns() -> None:
    """Head by head the own columns, then the added ones; true widths; biases of zeros where there were none."""
    some = grown("llama")
    heads = some.some()
    some.add(heads)
    n, (k, v) = some.layout.heads, some.layout.widths
    own = some.heads([k] * n, [v] * n, bias=False)
    W_Q, W_K, W_V, W_O = (torch.stack([the(head[i]) for head in own]) for i in range(4))
    weights = HeadWeights(W_Q, W_K, W_V, W_O, None, None, None, None, 3, 0.5)
    W = with_added_columns(weights, the(added_to(some.attention)))
    assert W.key_widths == (k + KEYS, *[k] * (n - 1), NEW_K) and W.value_widths == (
        v,
        v + VALUES,
        *[v] * (n - 2),
        NEW_V,
    )
    assert (W.groups, W.scale) == (n + 1, 0.5)
    b = the(W.b_Q), the(W.b_V)
    assert torch.equal(W.W_Q[0, :, : k + KEYS], torch.cat([own[0].W_Q, heads[0].W_Q], 1))
    assert torch.equal(W.W_K[n, :, :NEW_K], heads[n].W_K) and torch.equal(b[0][n, :NEW_K], the(heads[n].b_Q))
    assert torch.equal(W.W_O[1, : v + VALUES], torch.cat([own[1].W_O, heads[1].W_O]))
    assert torch.equal(W.W_V[n, :, :NEW_V], heads[n].W_V) and torch.equal(W.W_O[n, :NEW_V], heads[n].W_O)
    assert torch.equal(b[1][1, : v + VALUES], torch.cat([torch.zeros(v), the(heads[1].b_V)]))
    assert not W.W_Q[1, :, k:].any() and not W.W_V[n, :, NEW_V:].any() and not W.W_O[n, NEW_V:].any()


# What is refused -----------------------------------------------------------------------------------------------------


def test_own_columns_must_stay() -> None:
    some = grown("bert")
    own = some.heads([2] * some.layout.heads, [3] * some.layout.heads)
    other = [head._replace(W_V=2 * head.W_V) for head in own]
    for heads, reason in (
        (other, "other weights in the own columns of head enc.1.0"),
        (own[1:], "cannot be taken away"),
    ):
        with pytest.raises(UsageError, match=reason) as error:
            add_columns(some.model, some.layout, some.layout.slots[0], heads, own)
        assert "\n" not in str(error.value)
    assert added_to(some.attention) is None


def test_matrices_for_other_inputs() -> None:
    some = grown("bert")
    heads = [head._replace(W_K=head.W_K[1:]) for head in some.some()]
    with pytest.raises(UsageError, match="projections of keys with"):
        some.add(heads)


def test_layers_that_nothing_can_be_added_to() -> None:
    some = grown("bert")
    outside, unknown = replace(some.layout, interface=False), replace(some.layout, query=None, sources=())
    assert "interface" in the(refusal_to_add(some.model, outside))
    assert refusal_to_add(some.model, unknown) == "query columns that do not come from one linear projection"
    assert refusal_to_add(some.model, replace(some.layout, output_path=None)) == "no linear output projection"
    setattr(some.attention, KEPT_HEADS, [0])
    assert "heads that were removed" in the(refusal_to_add(some.model, some.layout))
    with pytest.raises(UsageError, match=r"^wider or more heads in enc\.1"):
        add_columns(some.model, outside, some.layout.slots[0], some.some(), some.nothing())


def test_implementations_whose_masks_are_not_known() -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    some = grown("llama")
    some.add(some.some())
    AttentionInterface.register("tests-other", sdpa_attention_forward)
    some.model.set_attn_implementation("tests-other")
    with pytest.raises(UsageError, match="expected the implementation sdpa or eager, got tests-other"):
        some.run()


def test_attention_that_passes_by_the_interface() -> None:
    """GPT-2 computes it in its own code if it is told to reorder it."""
    some = grown("gpt2")
    some.model.float()
    some.add(some.some())
    some.model.set_attn_implementation("eager")
    some.attention.reorder_and_upcast_attn = True
    with pytest.raises(UsageError, match="attention computed in another way"):
        some.run()
