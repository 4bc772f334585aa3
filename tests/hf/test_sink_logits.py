"""Learned sink logits, windows of layers, chosen keys and capped scores, against eager attention of transformers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.special import entr

from attnworks.attention import Mask
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.redundancy import Redundancy
from attnworks.exam.measures.roles import Roles
from attnworks.exam.measures.sinks import Sinks
from attnworks.hf.subject import HFSubject
from attnworks.text.tokens import Batch
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import rows_of
from tests.model_helpers import filled
from tests.tiny_models import TINY
from tests.traces.trace_helpers import Keep, dense_map, random_batch, random_tokens

transformers: Any = pytest.importorskip("transformers")

LENGTHS, WINDOW, CHOSEN = (11, 11, 7, 3), 4, 5
_SMALL = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "experts_implementation": "eager",
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_LATENT = {
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "gated_norm_rank": 4,
    "index_topk": CHOSEN,
    "index_head_dim": 8,
    "index_n_heads": 16,  # with few, keys tie at zero after ReLU, and which of them are chosen depends on the padding
}
_BOTTLENECK = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 24,
    "intra_bottleneck_size": 12,
    "embedding_size": 8,
    "max_position_embeddings": 64,
}
_MIMO = {"num_attention_heads": 8, "v_head_dim": 4, "head_dim": 12}


class Type(NamedTuple):
    """A type of model: the first part of its classes' names, its settings, and what is special about it.

    sinks       which of its layers have a sink logit
    sliding     which of its layers have a window
    rescaled    eager attention returns weights from before the sink and multiplies the output by what the sink leaves
    """

    classes: str
    settings: dict[str, Any]
    sinks: tuple[int, ...] = (0, 1, 2)
    sliding: tuple[int, ...] = ()
    rescaled: bool = False


TYPES = {
    "gpt_oss": Type("GptOss", _SMALL | _EXPERTS | {"sliding_window": WINDOW}, sliding=(0, 2)),
    "flint": Type(
        "Flint",
        _SMALL | {"sliding_window": WINDOW, "layer_types": ["full_attention"] * 2 + ["sliding_attention"]},
        sliding=(2,),
    ),
    "openai_privacy_filter": Type("OpenAIPrivacyFilter", _SMALL | _EXPERTS | {"sliding_window": 2}, sliding=(0, 1, 2)),
    "mimo_v2_flash": Type(
        "MiMoV2Flash", _SMALL | _ROUTED | _MIMO | {"sliding_window": WINDOW}, sinks=(1, 2), sliding=(1, 2)
    ),
    "axk2": Type("AXK2", _SMALL | _ROUTED | _LATENT | {"num_key_value_heads": 6}, sinks=()),
    "granite_swa": Type("GraniteSWA", _SMALL | {"sliding_window": WINDOW}, sliding=(1, 2), rescaled=True),
    "granitemoe_swa": Type("GraniteMoeSWA", _SMALL | {"sliding_window": WINDOW}, sliding=(1, 2), rescaled=True),
    "mobilebert": Type("MobileBert", _BOTTLENECK, sinks=()),
    "gemma2": Type("Gemma2", _SMALL | {"attn_logit_softcapping": 0.5, "sliding_window": WINDOW}, (), (0, 2)),
}
"""The types whose entropy once differed from eager attention, and one that caps its scores."""

WITH_SINKS = [name for name, kind in TYPES.items() if kind.sinks]
each_type = pytest.mark.parametrize("name", TYPES)


class Seen(NamedTuple):
    """One batch, plain and under examination, and what eager attention says of every sentence alone.

    weights    layer -> sentence -> P [h i j] of eager attention
    outputs    layer -> sentence -> what W_O reads there, [i d]
    """

    batch: Batch
    plain: Tensor
    hidden: Tensor
    traces: list[LayerTrace]
    weights: list[list[Tensor]]
    outputs: list[list[Tensor]]


def build(name: str) -> Any:
    kind = TYPES[name]
    if not hasattr(transformers, f"{kind.classes}Config"):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config = getattr(transformers, f"{kind.classes}Config")(**kind.settings)
    with torch.random.fork_rng():
        model = getattr(transformers, f"{kind.classes}Model")(config)
    return filled(model, 0, spread=0.3).float().eval()


@cache
@torch.no_grad()
def seen(name: str) -> Seen:
    model, batch, keep = build(name), random_batch(LENGTHS), Keep()
    subject = HFSubject(model, name)
    plain, shown = subject.run(batch), subject.run(batch, keep)
    weights, outputs = eager_alone(model, batch, keep.traces)
    return Seen(batch, plain.hidden, shown.hidden, keep.traces, weights, outputs)


def eager_alone(model: Any, batch: Batch, traces: list[LayerTrace]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    model.set_attn_implementation("eager")
    layers = len(traces)
    weights: list[list[Tensor]] = [[] for _ in range(layers)]
    outputs: list[list[Tensor]] = [[] for _ in range(layers)]
    read: list[Tensor] = []
    hooks = [part.register_forward_pre_hook(lambda _, args: read.append(args[0])) for part in last_projections(model)]
    cache_off = {} if model.config.model_type == "mobilebert" else {"use_cache": False}
    for ids, length in zip(batch.source.ids, LENGTHS, strict=True):
        read.clear()
        found = model(input_ids=ids[None, :length], output_attentions=True, **cache_off)
        for layer in range(layers):
            weights[layer].append(found.attentions[layer][0])
            if read:
                outputs[layer].append(read[layer][0])
    for hook in hooks:
        hook.remove()
    return weights, outputs


def last_projections(model: nn.Module) -> list[nn.Module]:
    """W_O of each layer, where it reads the outputs of heads and nothing else; A.X-K2 puts a gate before it."""
    if "AXK2" in type(model).__name__:
        return []
    ends = ("self_attn.o_proj", "attention.output.dense")
    return [part for name, part in model.named_modules() if name.endswith(ends)]


@each_type
def test_observing_changes_no_bit(name: str) -> None:
    found = seen(name)
    assert torch.equal(found.plain, found.hidden)
    assert len(found.traces) == 3


@each_type
def test_weights_of_every_head_are_those_of_eager_attention(name: str) -> None:
    """Padding has no influence: each sentence of the batch is compared with itself alone."""
    found = seen(name)
    for layer, trace in enumerate(found.traces):
        P = dense_map(trace)
        for sentence, (A, length) in enumerate(zip(found.weights[layer], LENGTHS, strict=True)):
            own = P[sentence, :, :length, :length]
            if TYPES[name].rescaled:
                own = own / own.sum(-1, keepdim=True)
            assert (own - A).abs().max() < 1e-5 and not P[sentence, :, :, length:].any()


@each_type
def test_weights_times_values_are_what_the_model_passes_to_its_last_projection(name: str) -> None:
    """The check that tells what a sink leaves where eager attention returns weights without it."""
    found = seen(name)
    for layer, trace in enumerate(found.traces):
        Y = (dense_map(trace) @ trace.shared(trace.V, slice(None))).transpose(1, 2).flatten(2)
        for sentence, outputs in enumerate(found.outputs[layer]):
            torch.testing.assert_close(Y[sentence, : LENGTHS[sentence]], outputs, rtol=1e-5, atol=1e-5)
        real = trace.queries.real[:, None, :, None]
        torch.testing.assert_close(
            Y * real[:, 0], trace.Y.transpose(1, 2).flatten(2) * real[:, 0], rtol=1e-5, atol=1e-5
        )


@each_type
def test_entropy_is_that_of_the_whole_softmax(name: str) -> None:
    found = seen(name)
    for layer, trace in enumerate(found.traces):
        rows = rows_of(trace, 0)
        for sentence, (A, length) in enumerate(zip(found.weights[layer], LENGTHS, strict=True)):
            if TYPES[name].rescaled:
                A = A * dense_map(trace)[sentence, :, :length].sum(-1, keepdim=True)
            left = (1 - A.double().sum(-1)).clamp_min(0)
            whole = entr(A.double()).sum(-1) + (entr(left) if layer in TYPES[name].sinks else 0)
            torch.testing.assert_close(rows.entropy[sentence, :, :length].double(), whole, rtol=0, atol=2e-5)
            own = A.double() / A.double().sum(-1, keepdim=True)
            keys = entr(own).sum(-1)
            torch.testing.assert_close(rows.key_entropy[sentence, :, :length].double(), keys, rtol=0, atol=2e-5)
            top = A.amax(-1)
            torch.testing.assert_close(rows.max_weight[sentence, :, :length], top, rtol=0, atol=1e-5)


@each_type
def test_windows_and_chosen_keys_are_in_the_mask(name: str) -> None:
    found = seen(name)
    for layer, trace in enumerate(found.traces):
        visible = rows_of(trace, 0).visible[0]
        reach = 2 * 2 + 1 if name == "openai_privacy_filter" else WINDOW
        most = CHOSEN if name == "axk2" else reach if layer in TYPES[name].sliding else LENGTHS[0]
        assert visible.amax() == most, (name, layer)


@pytest.mark.parametrize("name", WITH_SINKS)
def test_the_share_of_the_sink_is_a_reading_of_its_own(name: str) -> None:
    found = seen(name)
    for layer, trace in enumerate(found.traces):
        sample = Sinks(MeasureContext(LENGTHS[0])).rows(rows_of(trace, 0))["sinks.learned"]
        assert sample.valid is not None
        assert sample.valid.expand(sample.values.shape).all() == (layer in TYPES[name].sinks)
        if layer in TYPES[name].sinks:
            left = [1 - dense_map(trace)[s, :, :length].sum(-1).mean(-1) for s, length in enumerate(LENGTHS)]
            torch.testing.assert_close(sample.values, torch.stack(left), rtol=0, atol=1e-6)
            assert sample.values.min() > 0.05 and sample.values.max() < 0.95


@torch.no_grad()
def test_without_a_sink_no_sentence_counts() -> None:
    keep = Keep()
    HFSubject(TINY["bert"].build()).run(random_batch(LENGTHS), keep)
    for trace in keep.traces:
        rows = rows_of(trace, 0)
        sample = Sinks(MeasureContext(LENGTHS[0])).rows(rows)["sinks.learned"]
        assert sample.valid is not None and not sample.valid.any()
        assert not rows.sink_weight.any() and torch.equal(rows.key_entropy, rows.entropy)


def test_heads_that_differ_by_their_sink_alone_are_not_the_same() -> None:
    """Redundancy takes the sink as one more key: JS of (1 - s) p and (1 - t) p is JS of (1 - s, s) and (1 - t, t)."""
    trace = seen("gpt_oss").traces[1]
    Q, K, V, Y = (T[:, :1].repeat(1, 2, 1, 1) for T in (trace.Q, trace.K, trace.V, trace.Y))
    logits = torch.tensor([-1.0, 2.0])
    pair = LayerTrace(trace.slot, Q, K, V, Y, trace.mask, trace.scale, trace.queries, trace.keys, sink=logits)
    shares = rows_of(pair, 0).sink_weight.double()
    p, q = (torch.stack([s, 1 - s], -1) for s in shares.unbind(1))
    middle = entr((p + q) / 2).sum(-1) - (entr(p) + entr(q)).sum(-1) / 2
    real = trace.queries.real
    expected = ((middle * real).sum(-1) / real.sum(-1) / torch.tensor(2.0).log()).sqrt()
    found = Redundancy(MeasureContext(LENGTHS[0])).layer(pair)["redundancy.distance"].values
    torch.testing.assert_close(found[:, 0, 1].double(), expected, rtol=1e-4, atol=1e-5)


def test_a_head_that_gives_most_to_its_sink_is_not_even() -> None:
    """Even keys beside a sink of weight w: 1 - w is read, and 1 without a sink."""
    trace = seen("openai_privacy_filter").traces[1]
    logits = torch.linspace(-40.0, 5.0, trace.heads)
    even = replace(trace, Q=torch.zeros_like(trace.Q), mask=Mask(), sink=logits, read_weights=None)
    roles = Roles(MeasureContext(LENGTHS[0]))
    rows = rows_of(even, LENGTHS[0] - 1, roles.pointers(even.slot, even.queries, even.keys))
    number = torch.tensor(LENGTHS)[:, None]
    found = roles.rows(rows)["roles.evenness"].values
    torch.testing.assert_close(found, number / (number + logits.exp()), rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_model_keeps_its_own_implementation(implementation: str) -> None:
    model = TINY["bert"].build()
    model.set_attn_implementation(implementation)
    subject, keep = HFSubject(model), Keep()
    plain, shown = subject.run(random_batch(LENGTHS)), subject.run(random_batch(LENGTHS), keep)
    assert torch.equal(plain.hidden, shown.hidden) and model.config._attn_implementation == implementation
    for trace in keep.traces:
        assert trace.mask.dense is not None and trace.mask.dense.dtype == torch.bool


@torch.no_grad()
def test_eager_masks_of_half_precision_hide_keys() -> None:
    """The least number of float16 is not below every score that is hidden elsewhere."""
    model, keep = TINY["bert"].build().half(), Keep()
    model.set_attn_implementation("eager")
    HFSubject(model).run(Batch(random_tokens(LENGTHS)), keep)
    for trace in keep.traces:
        assert trace.mask.dense is not None and trace.mask.dense.dtype == torch.bool
        assert rows_of(trace, 0).visible[3].tolist() == [3, 3, 3, *[0] * 8]
