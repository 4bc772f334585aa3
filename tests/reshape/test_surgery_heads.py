"""Own layers whose heads have widths of their own: what they compute and count, and how they are put together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.heads import HeadMatrices, HeadWidths
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig, MultiHead, Transformer
from attnworks.models.anatomy import heads_of
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.growth.apply import stretched, stretched_state
from attnworks.reshape.surgery import layers_of, mechanisms_of, put_heads, refusal_to_grow, with_mechanisms
from tests.model_helpers import D_E, attention_config, close, filled, randn, the, tokens, transformer
from tests.reshape.reshape_helpers import load, save

K_WIDTHS, V_WIDTHS = (5, 2, 3), (1, 7, 4)
B, N, J = 2, 5, 7
PADDING = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])
SOURCE, TARGET = tokens(17, 2, 7), tokens(19, 2, 5, seed=1)
TARGET_PADDING = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
UNEQUAL = AttentionConfig(heads=3, d_k=K_WIDTHS, d_v=V_WIDTHS)


# Columns of heads ----------------------------------------------------------------------------------------------------

widths_of_heads = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(widths_of_heads, st.integers(0, 2))
def test_columns_are_cut_and_joined(widths: list[int], more: int) -> None:
    """Head by head, zeros beyond the width of a head; what stands there on the way back is not looked at."""
    widest = max(widths) + more
    own = HeadWidths(len(widths), widths, widest)
    joined = randn(2, 3, sum(widths))
    heads = own.cut(joined)
    assert heads.shape == (2, 3, len(widths), widest)
    start = 0
    for head, width in enumerate(widths):
        assert torch.equal(heads[..., head, :width], joined[..., start : start + width])
        assert not heads[..., head, width:].any()
        start += width
    assert torch.equal(own.join(heads), joined)
    noise = torch.where(own.cut(torch.ones_like(joined)) > 0, heads, 7.0)
    assert torch.equal(own.join(noise), joined)


@given(widths_of_heads)
def test_parameters_are_split_and_filled(widths: list[int]) -> None:
    own = HeadWidths(len(widths), widths, max(widths))
    equal = len({*widths}) == 1
    assert own.shape == ((len(widths), widths[0]) if equal else (sum(widths),))
    for shape, axis in (((11, sum(widths)), -1), ((sum(widths), 11), 0), ((sum(widths),), -1)):
        parts = [part.clone() for part in randn(*shape).split(widths, axis)]
        W = torch.stack(parts) if equal else torch.zeros(shape, dtype=torch.float64)
        own.fill(W, parts, axis)
        assert all(torch.equal(one, other) for one, other in zip(own.split(W, axis), parts, strict=True))


def test_equal_widths_are_one_number() -> None:
    config = AttentionConfig(heads=3, d_k=(5, 5, 5), d_v=(2, 2, 2))
    assert config == AttentionConfig(heads=3, d_k=5, d_v=2)
    assert UNEQUAL.key_widths == K_WIDTHS and UNEQUAL.geometry == (3, 5, 7)
    assert config.key_widths == (5, 5, 5) and config.value_widths == (2, 2, 2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"d_k": (5, 2)}, "d_k for each head: expected 3 widths, got 2"),
        ({"d_v": (5, 2, 3, 4)}, "d_v for each head: expected 3 widths, got 4"),
        ({"d_k": (5, 0, 2)}, "d_k=0"),
        ({"d_k": (5, -1, 2)}, "d_k=-1"),
        ({"d_v": (5, 2**30, 2)}, "d_v="),
        ({"d_v": ()}, "d_v for each head"),
    ],
    ids=str,
)
def test_widths_that_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        attention_config(**changes)
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("mechanism", ["linear", "bahdanau-additive", ("dense", "linear", "dense")])
@pytest.mark.parametrize("changes", [{"d_k": K_WIDTHS}, {"d_v": V_WIDTHS}], ids=str)
def test_mechanisms_that_see_columns_of_zeros(mechanism: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="that columns of zeros do not change"):
        MultiHead(D_E, attention_config(mechanism=mechanism, **changes))
    MultiHead(D_E, attention_config(mechanism=mechanism))


# What is computed ----------------------------------------------------------------------------------------------------


def by_hand(
    heads: Sequence[HeadMatrices], b_O: Tensor | None, X: Tensor, Z: Tensor, scale: float, seen: Tensor
) -> Tensor:
    """sum_h softmax(scale (X W_Q + b_Q)(Z W_K + b_K)^T) (Z W_V + b_V) W_O + b_O, where `seen`."""

    def linear(states: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        return states @ W if b is None else states @ W + b

    U = torch.zeros_like(X)
    for head in heads:
        S = scale * linear(X, head.W_Q, head.b_Q) @ linear(Z, head.W_K, head.b_K).mT
        U = U + S.masked_fill(~seen, -torch.inf).softmax(-1) @ linear(Z, head.W_V, head.b_V) @ head.W_O
    return U if b_O is None else U + b_O


def parts_of(layer: MultiHead) -> list[HeadMatrices]:
    """Cut by hand out of matrices in which heads lie side by side."""

    def columns(W: Tensor | None, widths: Sequence[int], axis: int = -1) -> Sequence[Tensor | None]:
        return [None] * len(widths) if W is None else W.split(list(widths), axis)

    named = [
        columns(layer.W_Q, K_WIDTHS), columns(layer.W_K, K_WIDTHS), columns(layer.W_V, V_WIDTHS),
        columns(layer.W_O, V_WIDTHS, 0), columns(layer.b_Q, K_WIDTHS), columns(layer.b_K, K_WIDTHS),
        columns(layer.b_V, V_WIDTHS),
    ]  # fmt: skip
    return [HeadMatrices(*parts) for parts in zip(*named, strict=True)]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", ["self", "cross", "causal", "padding", "cross padding", "causal padding"])
def test_unequal_heads_one_by_one(case: str, bias: bool) -> None:
    """Forward, and the gradient of every parameter and input. The factor is 1/sqrt(k) of the widest head."""
    layer = filled(MultiHead(D_E, AttentionConfig(heads=3, d_k=K_WIDTHS, d_v=V_WIDTHS, bias=bias))).double()
    real = PADDING if "padding" in case else None
    X = randn(B, N if "cross" in case else J, D_E).requires_grad_()
    Z = randn(B, J, D_E, seed=1).requires_grad_() if "cross" in case else X
    seen = torch.ones(B, X.shape[1], J, dtype=torch.bool) if real is None else real[:, None].expand(B, X.shape[1], J)
    seen = seen.tril() if "causal" in case else seen
    got = layer(X, Z, Mask(real, "causal" in case))
    expected = by_hand(parts_of(layer), layer.b_O, X, Z, max(K_WIDTHS) ** -0.5, seen)
    close(got, expected, scale=10)
    G = randn(*got.shape, seed=2)
    inputs = [*([X] if Z is X else [X, Z]), *layer.parameters()]
    for one, other in zip(
        torch.autograd.grad((got * G).sum(), inputs),
        torch.autograd.grad((expected * G).sum(), inputs),
        strict=True,
    ):
        close(one, other, scale=30)
    found = heads_of_layer(layer)
    for head, parts in zip(found, parts_of(layer), strict=True):
        assert all(
            (one is None and other is None) or torch.equal(the(one), the(other))
            for one, other in zip(head, parts, strict=True)
        )


def heads_of_layer(layer: MultiHead) -> list[HeadMatrices]:
    model = transformer(attention=layer.config)
    part = layers_of(model)[Slot.parse("enc.0")]
    assert isinstance(part.attention, MultiHead)
    part.attention.load_state_dict(layer.state_dict())
    return heads_of(part)


@pytest.mark.parametrize("bias", [True, False])
def test_no_padding_is_counted(bias: bool) -> None:
    layer = MultiHead(D_E, AttentionConfig(heads=3, d_k=K_WIDTHS, d_v=V_WIDTHS, bias=bias))
    k, v = sum(K_WIDTHS), sum(V_WIDTHS)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 2 * D_E * (k + v) + bias * (2 * k + v + D_E)


# Putting heads together ----------------------------------------------------------------------------------------------


def scores(model: Transformer) -> Tensor:
    with torch.no_grad():
        return model(SOURCE, TARGET, PADDING, TARGET_PADDING)


@pytest.mark.parametrize("attention", [attention_config(), UNEQUAL, attention_config(bias=False)], ids=str)
def test_the_same_heads_are_the_same_model(attention: AttentionConfig) -> None:
    model = transformer(attention=attention)
    before, expected = weights_fingerprint(model), scores(model)
    for slot, part in layers_of(model).items():
        put_heads(model, slot, [head.each(torch.clone) for head in heads_of(part)])
        assert model.config.slot(slot) == attention
    assert weights_fingerprint(model) == before and torch.equal(scores(model), expected)


def wider(head: HeadMatrices, keys: int, values: int, seed: int) -> HeadMatrices:
    """Columns that change nothing: random queries and values, zero keys and outputs."""
    e, f = len(head.W_Q), len(head.W_K)

    def beside(old: Tensor | None, new: Tensor, axis: int = -1) -> Tensor | None:
        return None if old is None else torch.cat([old, new], axis)

    return head._replace(
        W_Q=the(beside(head.W_Q, randn(e, keys, seed=seed))),
        W_K=the(beside(head.W_K, torch.zeros(f, keys).double())),
        W_V=the(beside(head.W_V, randn(f, values, seed=seed + 1))),
        W_O=the(beside(head.W_O, torch.zeros(values, e).double(), 0)),
        b_Q=beside(head.b_Q, randn(keys, seed=seed + 2)),
        b_K=beside(head.b_K, torch.zeros(keys).double()),
        b_V=beside(head.b_V, randn(values, seed=seed + 3)),
    )


def widened(model: Transformer) -> Transformer:
    """Every layer with a wider first head, a second one with other values, and a new one whose outputs are zero."""
    new = copy.deepcopy(model)
    for number, (slot, part) in enumerate(layers_of(new).items()):
        first, second, *others = heads_of(part)
        fresh = second.each(torch.clone)._replace(W_O=torch.zeros_like(second.W_O))
        put_heads(new, slot, [wider(first, 3, 0, number), wider(second, 0, 2, number + 50), *others, fresh])
    return new


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"attention": UNEQUAL}, {"encoder_layers": 0}], ids=str)
def test_columns_of_zeros_change_nothing(changes: dict[str, Any]) -> None:
    model = transformer(**changes)
    new = widened(model)

    def read(model: Transformer) -> Tensor:
        with torch.no_grad():
            return model(None, TARGET, None, TARGET_PADDING) if "encoder_layers" in changes else scores(model)

    expected = read(model)
    assert (read(new) - expected).abs().max() <= 1e-12 * expected.abs().max()
    config = new.config.slot(Slot.parse("dec.1"))
    assert config.heads == 4 and config.key_widths[0] == model.config.attention.key_widths[0] + 3
    if "encoder_layers" in changes:
        return
    states: list[Any] = [one.start(SOURCE, PADDING) for one in (model, new)]
    for place in range(TARGET.shape[1]):
        word = TARGET[:, place : place + 1]
        (one, states[0]), (other, states[1]) = model.step(word, states[0]), new.step(word, states[1])
        assert (one - other).abs().max() <= 1e-12 * one.abs().max()


@pytest.mark.parametrize("attention", [attention_config(), UNEQUAL], ids=["equal", "unequal"])
def test_saved_and_loaded(attention: AttentionConfig, tmp_path: Path) -> None:
    model = widened(transformer(attention=attention))
    opened = load(save(model, tmp_path / "grown"))
    assert isinstance(opened, Transformer) and opened.config == model.config
    assert weights_fingerprint(opened) == weights_fingerprint(model) and torch.equal(
        scores(opened.double()), scores(model)
    )


def test_heads_of_grown_layers_get_other_mechanisms() -> None:
    """A head by position alone has no queries and keys; the others stay as they were."""
    model = widened(transformer())
    form = "structured:members=-1/first,error=none"
    new = with_mechanisms(model, {Slot.parse("enc.0"): (form, "dense", "dense", "dense")})
    assert mechanisms_of(new)[Slot.parse("enc.0")][0].startswith("structured")
    before, after = (heads_of(layers_of(of)[Slot.parse("enc.0")]) for of in (model, new))
    for one, other in zip(before[1:], after[1:], strict=True):
        assert torch.equal(one.W_Q, other.W_Q) and torch.equal(one.W_O, other.W_O)
    count = [sum(parameter.numel() for parameter in of.parameters()) for of in (model, new)]
    assert count[0] - count[1] == 2 * (D_E + 1) * 8 - 2, "W_Q, W_K and biases of 8 columns, for a mix of two"
    assert scores(new).isfinite().all()
    grown = copy.deepcopy(new)
    heads = heads_of(layers_of(grown)[Slot.parse("enc.0")])
    put_heads(grown, Slot.parse("enc.0"), heads)
    assert torch.equal(scores(grown), scores(new))


@pytest.mark.parametrize("mechanism", ["linear", "bahdanau-additive"])
def test_layers_that_cannot_grow(mechanism: str) -> None:
    model = transformer(slots={"enc.0": attention_config(mechanism=mechanism)})
    assert refusal_to_grow(model, Slot.parse("enc.0")) == "mechanisms that depend on the width of a head"
    before = weights_fingerprint(model)
    heads = heads_of(layers_of(model)[Slot.parse("enc.0")])
    with pytest.raises(UsageError) as error:
        put_heads(model, Slot.parse("enc.0"), [wider(heads[0], 2, 0, 0), *heads[1:]])
    assert weights_fingerprint(model) == before and "\n" not in str(error.value)


# What an optimizer remembers -----------------------------------------------------------------------------------------


def test_moments_are_padded_with_zeros() -> None:
    model = transformer()
    new = widened(model)
    padded = stretched(model, new)
    assert [(name, p.shape) for name, p in padded.named_parameters()] == [
        (name, p.shape) for name, p in new.named_parameters()
    ]
    for slot, part in layers_of(model).items():
        old, wide = heads_of(part), heads_of(layers_of(padded)[slot])
        assert not any(tensor.any() for tensor in wide[3] if tensor is not None), "the new head"
        for one, other in zip(old, wide[:3], strict=True):
            for before, after in zip(one, other, strict=True):
                if before is None:
                    assert after is None
                    continue
                corner = the(after)[tuple(slice(size) for size in before.shape)]
                assert torch.equal(corner, before)
                assert the(after).count_nonzero() == before.count_nonzero()


def test_the_state_of_an_optimizer_is_stretched() -> None:
    model = transformer()
    new = widened(model)
    names = [name for name, _ in model.named_parameters()]
    state = {f"{name}/step": torch.tensor(3.0) for name in names}
    for name, parameter in model.named_parameters():
        state |= {f"{name}/exp_avg": parameter.detach() + 1, f"{name}/exp_avg_sq": parameter.detach() - 1}
    del state[f"{names[0]}/exp_avg"]
    found = stretched_state(state, model, new)
    assert found.keys() == state.keys()
    shapes = {name: parameter.shape for name, parameter in new.named_parameters()}
    for key, value in found.items():
        name, _, what = key.rpartition("/")
        assert torch.equal(value, state[key]) if what == "step" else value.shape == shapes[name]
    same = next(name for name, p in model.named_parameters() if p.shape == shapes[name] and name != names[0])
    assert torch.equal(found[f"{same}/exp_avg"], state[f"{same}/exp_avg"])
    changed = next(name for name in names if name.endswith("W_K") and "encoder" in name)
    moment, old = found[f"{changed}/exp_avg"], state[f"{changed}/exp_avg"]
    assert torch.equal(moment[:, :5], old[0]) and not moment[:, 5:8].any() and torch.equal(moment[:, 8:13], old[1])
