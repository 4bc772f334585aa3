"""Wider heads and new heads in models of Hugging Face: what they compute, count and store, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import attnworks
from attnworks.attention.heads import HeadMatrices
from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.places import Slot
from attnworks.hf.head_modules import HeadsIn, HeadsOut
from attnworks.hf.heads import hf_layers
from attnworks.hf.open import open_model
from attnworks.hf.subject import HFSubject
from attnworks.models import build
from attnworks.models.anatomy import heads_of
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, weights_fingerprint
from attnworks.reshape.evaluate import attention_flops
from attnworks.reshape.surgery import layers_of, mechanisms_of, put_heads, refusal_to_grow, with_mechanisms
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.helpers import assert_close
from tests.model_helpers import (
    attention_config,
    change_config,
    filled,
    pure_config,
    randn,
    recurrent_config,
    the,
    transformer,
)
from tests.tiny_models import TINY, inputs
from tests.traces.trace_helpers import Keep, dense_map, random_batch

PLAIN = (
    *("bart", "bert", "bert-chunked", "bert-decoder", "camembert", "distilbert", "electra", "m2m_100", "marian"),
    *("mbart", "mt5", "opt", "opt-post", "roberta", "t5", "t5-gated", "vit", "xlm-roberta"),
)
SOME = ("bert-decoder", "distilbert", "bart", "t5", "opt")
KEYS, VALUES, NEW_K, NEW_V = 3, 2, 7, 4
LINFORMER = "linformer:length=19,rank=5"
BAND, WINDOW = "structured:members=-1..0/first,error=none", "window:window=2"

Drawn = Callable[..., Tensor]


def wider(heads: Sequence[HeadMatrices], draw: Drawn, *, silent: bool) -> list[HeadMatrices]:
    """Keys of head 0 by 3, values of head 1 by 2, and a new head of widths 7 and 4; silent: without any effect yet."""
    first, second, *others = heads
    e, f, zero = len(first.W_Q), len(first.W_K), 0.0 if silent else 1.0

    def bias(old: Tensor | None, *parts: Tensor | None) -> Tensor | None:
        return None if old is None else torch.cat([part for part in parts if part is not None])

    first = first._replace(
        W_Q=torch.cat([first.W_Q, draw(e, KEYS)], 1),
        W_K=torch.cat([first.W_K, zero * draw(f, KEYS)], 1),
        b_Q=bias(first.b_Q, first.b_Q, draw(KEYS)),
        b_K=bias(first.b_K, first.b_K, zero * draw(KEYS)),
    )
    second = second._replace(
        W_V=torch.cat([second.W_V, draw(f, VALUES)], 1),
        W_O=torch.cat([second.W_O, zero * draw(VALUES, e)]),
        b_V=bias(second.b_V, second.b_V, draw(VALUES)),
    )
    b_Q, b_K, b_V = (
        bias(old, draw(width)) for old, width in ((first.b_Q, NEW_K), (first.b_K, NEW_K), (first.b_V, NEW_V))
    )
    W = (draw(e, NEW_K), draw(f, NEW_K), draw(f, NEW_V), zero * draw(NEW_V, e))
    return [first, second, *others, HeadMatrices(*W, b_Q, b_K, b_V)]


def grow(model: Any, slots: Sequence[Slot] | None = None, *, silent: bool = False) -> dict[Slot, list[HeadMatrices]]:
    """All layers, or some, in place; the heads that they were given."""
    generator = torch.Generator().manual_seed(5)
    dtype = next(model.parameters()).dtype
    given: dict[Slot, list[HeadMatrices]] = {}

    def draw(*shape: int) -> Tensor:
        return 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    for slot in slots or layers_of(model):
        given[slot] = wider(heads_of(layers_of(model)[slot]), draw, silent=silent)
        put_heads(model, slot, given[slot])
    return given


def read(model: Any) -> Tensor:
    """What the model gives for the usual input."""
    with torch.no_grad():
        return model(**inputs(model))[0]


def assert_silent(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


def gradient_in(block: nn.Module, path: str) -> Tensor:
    weight = block.get_submodule(path).weight
    assert isinstance(weight, Tensor)
    return the(weight.grad)


def assert_equal_heads(model: Any, slot: Slot, heads: Sequence[HeadMatrices]) -> None:
    for found, expected in zip(heads_of(layers_of(model)[slot]), heads, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert (one is None and other is None) or torch.equal(the(one), the(other))


# Linear maps of heads ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2), st.booleans())
def test_maps_to_and_from_heads(widths: list[int], more: int, bias: bool) -> None:
    """Head by head X W_h + b_h, zeros behind it; and back sum_h Y_h W_h + b, whatever stands at the zeros' places."""
    widest, X = max(widths) + more, randn(2, 3, 11)
    out, back = (
        filled(make(11, widths, widest, bias=bias).double(), seed)
        for seed, make in enumerate((HeadsOut, HeadsIn))
    )  # fmt: skip
    Y = out(X).unflatten(-1, (len(widths), widest))
    noise = torch.randn_like(Y)
    Z, start = torch.zeros(2, 3, 11).double() + (0.0 if back.bias is None else back.bias), 0
    for head, width in enumerate(widths):
        columns = slice(start, start + width)
        expected = X @ out.weight[columns].T + (0.0 if out.bias is None else out.bias[columns])
        assert_close(Y[..., head, :width], expected)
        assert not Y[..., head, width:].any()
        noise[..., head, :width] = Y[..., head, :width]
        Z, start = Z + expected @ back.weight[:, columns].T, start + width
    assert_close(back(noise.flatten(-2)), Z)


# What is computed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_heads_are_the_same_model(name: str) -> None:
    model = TINY[name].build()
    before, expected = weights_fingerprint(model), read(model)
    for slot, part in layers_of(model).items():
        assert refusal_to_grow(model, slot) is None
        heads = heads_of(part)
        put_heads(model, slot, heads)
        assert_equal_heads(model, slot, heads)
    assert weights_fingerprint(model) == before and torch.equal(read(model), expected)


@pytest.mark.parametrize("name", PLAIN)
def test_growth_that_is_silent_at_first(name: str) -> None:
    """Scores and values are sums over columns: those with a zero in W_K, or in W_O, add nothing, but have gradients.

    dS/dW_K is not zero where W_Q is not, and dY/dW_O where W_V is not.
    """
    model = TINY[name].build()
    expected = read(model)
    widths = {slot: heads_of(part)[0].W_Q.shape[1] for slot, part in layers_of(model).items()}
    grow(model, silent=True)
    assert_silent(read(model), expected)
    model(**inputs(model))[0].square().sum().backward()
    for slot, part in hf_layers(model).items():
        layout = the(part.layout)
        k, (key, output) = widths[slot], (gradient_in(model, the(at).path) for at in (layout.key, layout.output))
        assert key[k : k + KEYS].any(1).all(), "W_K of the columns that are new in head 0"
        assert output[:, 2 * k : 2 * k + VALUES].any(0).all(), "W_O of those in head 1"
        assert output[:, -NEW_V:].any(0).all(), "W_O of the new head"


def by_hand(heads: Sequence[HeadMatrices], X: Tensor, Z: Tensor, scale: float, added: Tensor) -> Tensor:
    """sum_h softmax(scale (X W_Q + b_Q)(Z W_K + b_K)^T + added_h) (Z W_V + b_V) W_O, head by head, without padding."""

    def linear(inputs: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        return inputs @ W if b is None else inputs @ W + b

    U = torch.zeros_like(X)
    for head, plus in zip(heads, added, strict=True):
        S = scale * linear(X, head.W_Q, head.b_Q) @ linear(Z, head.W_K, head.b_K).mT
        U = U + (S + plus).softmax(-1) @ linear(Z, head.W_V, head.b_V) @ head.W_O
    return U


class Watched:
    """What the attention of a layer reads, and what its branch gives."""

    def __init__(self, model: Any, slot: Slot) -> None:
        part = layers_of(model)[slot]
        hooks = [
            the(part.attention).register_forward_pre_hook(self._reads, with_kwargs=True),
            part.branch.register_forward_hook(self._gives),
        ]
        with torch.no_grad():
            model(**inputs(model, padded=False))
        for hook in hooks:
            hook.remove()

    def _reads(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.X: Tensor = args[0] if args else kwargs["hidden_states"]
        others = [*args[1:2], *(kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states"))]
        self.Z = next((Z for Z in others if Z is not None and Z.dim() == 3), self.X)

    def _gives(self, _: nn.Module, __: Any, output: Any) -> None:
        self.U: Tensor = output[0] if isinstance(output, tuple) else output


def added_to_scores(model: Any, slot: Slot, heads: int, i: int, j: int) -> Tensor:
    """What T5 adds for positions, to the heads that it came with, and -inf for words to come; [h i j]."""
    added = torch.zeros(heads, i, j, dtype=torch.float64)
    if "t5" in model.config.model_type and not slot.crosses:
        first = model.base_model.get_submodule(f"{slot.kind}.block.0.layer.0.SelfAttention")
        added[: heads - 1] = first.compute_bias(i, j)[0].detach()
    future = torch.ones(i, j, dtype=torch.bool).triu(1)
    return added.masked_fill(future, -torch.inf) if slot.causal else added


@pytest.mark.parametrize("name", PLAIN)
def test_grown_layers_by_hand(name: str) -> None:
    """With the factor of the scores that the layer had before."""
    model = TINY[name].build()
    old = copy.deepcopy(model)
    scales = {slot: the(the(part.weights)().scale) for slot, part in layers_of(model).items()}
    for slot, heads in grow(model).items():
        W, seen = the(layers_of(model)[slot].weights)(), Watched(model, slot)
        added = added_to_scores(old, slot, len(heads), seen.X.shape[1], seen.Z.shape[1])
        expected = by_hand(heads, seen.X, seen.Z, scales[slot], added)
        assert_close(seen.U, expected if W.b_O is None else expected + W.b_O, message=str(slot))
        assert W.scale == scales[slot] and W.groups == len(heads)
        assert_equal_heads(model, slot, heads)
        assert W.key_widths == tuple(head.W_Q.shape[1] for head in heads)
        assert W.value_widths == tuple(head.W_V.shape[1] for head in heads)


@pytest.mark.parametrize("name", SOME)
def test_every_implementation_computes_the_same(name: str) -> None:
    model = TINY[name].build()
    grow(model)
    given = inputs(model, padded=False)
    wide = {slot: ["window:window=99"] * len(by_head) for slot, by_head in mechanisms_of(model).items()}
    own = with_mechanisms(model, wide)
    assert mechanisms_of(own) != mechanisms_of(model) and model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        expected = model(**given)[0]
        assert_close(own(**given)[0], expected)
        model.set_attn_implementation("eager")
        assert_close(model(**given)[0], expected, torch.float32)  # there some models compute the softmax in float32


@pytest.mark.parametrize("name", ["bart", "t5", "opt", "bert-decoder"])
def test_writing_with_a_cache(name: str) -> None:
    model = TINY[name].build()
    grow(model)
    given = inputs(model, padded=False)
    words = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    ids, others = given[words], {key: value for key, value in given.items() if key not in (words, "attention_mask")}
    with torch.no_grad():
        whole = model(**{**others, words: ids}, use_cache=False).logits
        cache, steps = None, []
        for place in range(ids.shape[1]):
            step = model(**{**others, words: ids[:, place : place + 1]}, past_key_values=cache, use_cache=True)
            cache, steps = step.past_key_values, [*steps, step.logits]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_growing_once_more(name: str) -> None:
    """Unequal layers: a second new head in every other one, and the first again in the others."""
    model = TINY[name].build()
    expected = read(model)
    grow(model, list(layers_of(model))[::2], silent=True)
    assert_silent(read(model), expected)
    grow(model, silent=True)
    assert all(len(module._forward_pre_hooks) <= 1 for module in model.modules())
    assert len({len(heads_of(part)) for part in layers_of(model).values()}) == 2
    assert_silent(read(model), expected)
    again = copy.deepcopy(model)
    assert torch.equal(read(again), read(model)) and weights_fingerprint(again) == weights_fingerprint(model)


# What is kept and counted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_no_padding_is_stored(name: str) -> None:
    """Head 0: 3 columns in W_Q and W_K; head 1: 2 in W_V and W_O; the new head: 7 and 7, 4 and 4; with their biases."""
    model = TINY[name].build()
    count = sum(parameter.numel() for parameter in model.parameters())
    for slot, part in layers_of(model).items():
        W = the(part.weights)()
        e, f = W.W_Q.shape[1], W.W_K.shape[1]
        count += (KEYS + NEW_K + VALUES + NEW_V) * (e + f)
        count += 0 if W.b_Q is None else 2 * (KEYS + NEW_K) + VALUES + NEW_V
        grow(model, [slot])
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_types_modes_and_frozen_weights_are_kept(training: bool, dtype: torch.dtype) -> None:
    model = with_mechanisms(TINY["bert"].build(dtype=dtype), {Slot.parse("enc.1"): (WINDOW, LINFORMER, "dense")}).train(
        training
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("attnworks" not in name)
    layer = model.bert.encoder.layer[0].attention
    for parameter in (layer.self.key.weight, layer.self.value.bias, layer.output.dense.weight):
        parameter.requires_grad_(False)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    grow(model)
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert {module.training for module in model.modules()} == {training}
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_flops_by_hand() -> None:
    """Projections by true columns; scores and values by those that are computed, padded ones too."""
    model, n = TINY["bert"].build(), 11
    grow(model, [Slot.parse("enc.0")])
    e, k, columns, values = 15, 8, 3 * 5 + KEYS + NEW_K, 3 * 5 + VALUES + NEW_V
    grown = 2 * n * e * 2 * (columns + values) + 2 * 4 * n * n * 2 * k
    plain = 2 * n * e * 2 * (15 + 15) + 2 * 3 * n * n * 2 * 5
    assert attention_flops(model, n) == grown + plain


# Folders -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = TINY[name].build()
    given = grow(model, list(layers_of(model))[1:])
    folder = HFSubject(model).save(tmp_path / "grown")
    opened: Any = open_model(str(folder), dtype="float64").model
    assert type(opened) is type(model) and opened.config._attn_implementation == "sdpa"
    assert weights_fingerprint(opened) == weights_fingerprint(model) and torch.equal(read(opened), read(model))
    for slot, heads in given.items():
        assert_equal_heads(opened, slot, heads)
    again = HFSubject(opened).save(tmp_path / "again")
    for file in (CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE):
        assert (again / file).read_bytes() == (folder / file).read_bytes(), file


@pytest.mark.parametrize("name", ["bert", "t5", "opt"])
def test_with_other_mechanisms_before_and_after(name: str, tmp_path: Path) -> None:
    """Heads with a window, then growth that is silent, then a head by position alone; the new heads are dense."""
    model = TINY[name].build()
    slot, *_ = slots = list(mechanisms_of(model))
    model = with_mechanisms(model, dict.fromkeys(slots, (WINDOW, "dense", WINDOW)))
    expected = read(model)
    grow(model, slots, silent=True)
    assert mechanisms_of(model)[slot] == (WINDOW, "dense", WINDOW, "dense")
    assert_silent(read(model), expected)
    model = with_mechanisms(model, {slot: (BAND, "dense", WINDOW, "dense")})
    opened: Any = open_model(str(HFSubject(model).save(tmp_path / "both")), dtype="float64").model
    assert mechanisms_of(opened) == mechanisms_of(model)
    assert weights_fingerprint(opened) == weights_fingerprint(model) and torch.equal(read(opened), read(model))
    expected = read(model)
    grow(model, [slot], silent=True)
    assert_silent(read(model), expected)


@pytest.mark.parametrize(
    ("widths", "told"),
    [
        ({}, "manifest.json"),
        ({"enc.0": {"keys": [8, 5, 5, 8], "values": [5, 7, 5, 4]}}, "manifest.json"),
        ({"enc.0": {"keys": [8, 5, 5, 7], "values": [5, 7, 5]}}, "4 widths, got 3"),
        ({"enc.0": {"keys": [8, 5, 5, 0], "values": [5, 7, 5, 4]}}, "d_k"),
        ({"enc.0": {"keys": [8, 5, 5, 10**15], "values": [5, 7, 5, 4]}}, "d_k"),
        ({"enc.0": {"keys": [8, 5, 5, 7]}}, "config.json"),
        ({"enc.0": 3}, "config.json"),
        ({"enc.7": {"keys": [5], "values": [5]}}, "no such layer"),
        ([1], "config.json"),
        (None, "config.json"),
    ],
    ids=str,
)
def test_other_widths_are_not_believed(widths: object, told: str, tmp_path: Path) -> None:
    model = TINY["bert"].build()
    grow(model, [Slot.parse("enc.0")])
    folder = HFSubject(model).save(tmp_path / "grown")
    change_config(folder, attnworks_widths=widths, attnworks_heads={})
    with pytest.raises(AttnworksError) as error:
        attnworks.open(folder)
    assert told in str(error.value) and "\n" not in str(error.value)


# Examined ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "bart", "t5", "opt"])
def test_what_a_spectator_sees(name: str) -> None:
    model = TINY[name].build()
    given = grow(model)
    batch = random_batch((7, 4), (11, 3) if model.config.is_encoder_decoder else None)
    keep, subject = Keep(), HFSubject(model)
    with torch.no_grad():
        assert torch.equal(subject.run(batch, keep).hidden, subject.run(batch).hidden)
        assert {trace.slot for trace in keep.traces} == set(given)
        for trace in keep.traces:
            real = trace.queries.real[:, None, :, None]
            assert trace.heads == len(given[trace.slot]) == len(the(trace.weights).W_Q)
            assert_close((dense_map(trace) @ trace.V) * real, trace.Y * real)
            assert trace.bilinear == (name != "t5" or trace.slot.kind == "cross")


def test_a_grown_model_is_examined() -> None:
    model = TINY["bart"].build()
    grow(model)
    exam = attnworks.examine(model, LINES[:3], tokenizer=tiny_tokenizer(model.config.model_type))
    assert exam.readings


# Refused -------------------------------------------------------------------------------------------------------------


def conv() -> Any:
    """A BERT one of whose projections is a layer of GPT-2's kind."""
    from transformers.pytorch_utils import Conv1D

    model = TINY["bert"].build()
    model.bert.encoder.layer[0].attention.self.query = Conv1D(15, 15).double()
    return model


def shrunken() -> Any:
    return with_mechanisms(TINY["bert"].build(), {Slot.parse("enc.0"): (BAND, "dense", "dense")})


def own(*mechanism: str) -> Any:
    return transformer(slots={"enc.0": attention_config(mechanism=mechanism)})


@pytest.mark.parametrize(
    ("make", "slot", "reason"),
    [
        (lambda: TINY["albert"].build(), Slot.parse("enc.0"), "weights that are used more than once in a forward pass"),
        (lambda: build(recurrent_config()), Slot.parse("enc.0"), "a recurrent model"),
        (lambda: build(pure_config()), Slot.parse("enc.0"), "PureAttention, whose layers are all alike"),
        (lambda: TINY["bert"].build(), Slot.parse("dec.0"), "no such layer among enc.0, enc.1"),
        (lambda: transformer(), Slot.parse("enc.9"), "no such layer among enc.0"),
        (
            lambda: with_mechanisms(TINY["bert"].build(), {Slot.parse("enc.0"): ("luong-dot", "dense", "dense")}),
            Slot.parse("enc.0"),
            "mechanisms that depend on the width of a head",
        ),
        (lambda: shrunken(), Slot.parse("enc.0"), "cannot be computed with added columns"),
    ],
)
def test_layers_that_cannot_grow(make: Callable[[], Any], slot: Slot, reason: str) -> None:
    model = make()
    assert reason in the(refusal_to_grow(model, slot))
    before = weights_fingerprint(model)
    with pytest.raises(UsageError, match=f"^wider or more heads in {slot}: expected dense heads") as error:
        put_heads(model, slot, [])
    assert f"got {refusal_to_grow(model, slot)}; choose" in str(error.value) and "\n" not in str(error.value)
    assert weights_fingerprint(model) == before


@pytest.mark.parametrize(
    ("mechanisms", "reason"),
    [
        (("dense",) * 3, None),
        ((BAND, "luong-dot", WINDOW), None),
        ((LINFORMER, "dense", "dense"), "linformer attention, whose weights are no distribution over keys"),
        (("luong-multiplicative", "dense", "dense"), "mechanisms that depend on the width of a head"),
        (("linear:feature=random", "dense", "dense"), "mechanisms that depend on the width of a head"),
        (("linear", "dense", "dense"), "mechanisms that depend on the width of a head"),
        (("longformer", "dense", "dense"), "global tokens with projections of their own"),
    ],
    ids=str,
)
def test_own_layers_that_cannot_grow(mechanisms: tuple[str, ...], reason: str | None) -> None:
    assert refusal_to_grow(own(*mechanisms), Slot.parse("enc.0")) == reason


def test_other_layers_of_a_reshaped_model_may_grow() -> None:
    model = shrunken()
    expected = read(model)
    assert [head.W_Q.shape for head in heads_of(layers_of(model)[Slot.parse("enc.0")])] == [
        (15, 0),
        (15, 5),
        (15, 5),
    ]
    assert refusal_to_grow(model, Slot.parse("enc.1")) is None
    grow(model, [Slot.parse("enc.1")], silent=True)
    assert_silent(read(model), expected)
