"""Families of Hugging Face: the residual stream recomposed from its parts, and weights against what the model does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from attnworks.core.notation import tolerance
from attnworks.hf.anatomy import hf_anatomy
from attnworks.models.anatomy import BlockAnatomy, Part
from tests.model_helpers import close, stream_errors, the
from tests.tiny_models import HEADS, LAYERS, TINY, inputs, shared

transformers: Any = pytest.importorskip("transformers")

NAME = "attnworks-test"
UNROTATED = [name for name, tiny in TINY.items() if not tiny.rotary]
ROTARY = [name for name, tiny in TINY.items() if tiny.rotary]


class Handed(NamedTuple):
    Q: Tensor
    K: Tensor
    V: Tensor
    P: Tensor
    scaling: float


class Seen(NamedTuple):
    """What an attention module read, what it handed over, and what its branch added to the stream."""

    X: Tensor
    Z: Tensor
    handed: Handed
    output: Tensor


@pytest.fixture
def handed() -> Iterator[dict[nn.Module, list[Handed]]]:
    """Every Q, K, V that the attention interface is given, by module."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen: dict[nn.Module, list[Handed]] = {}

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        position_bias: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        heads = query.shape[1] // key.shape[1]
        S = scaling * query @ key.repeat_interleave(heads, 1).mT
        if position_bias is not None:
            S = S + position_bias
        if attention_mask is None and getattr(module, "is_causal", False):
            attention_mask = torch.ones(S.shape[-2:], dtype=torch.bool).tril()
        if attention_mask is not None:
            S = S.masked_fill(~attention_mask, -torch.inf)
        P = S.softmax(-1)
        seen.setdefault(module, []).append(Handed(query, key, value, P, scaling))
        return (P @ value.repeat_interleave(heads, 1)).transpose(1, 2), None

    transformers.AttentionInterface.register(NAME, attend)
    transformers.AttentionMaskInterface.register(NAME, sdpa_mask)
    try:
        yield seen
    finally:
        ALL_ATTENTION_FUNCTIONS._global_mapping.pop(NAME)
        ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop(NAME)


@contextmanager
def reading(blocks: tuple[BlockAnatomy, ...]) -> Iterator[dict[tuple[str, nn.Module], list[Any]]]:
    """Inputs of attention modules, and outputs of branches, call by call."""
    calls: dict[tuple[str, nn.Module], list[Any]] = {}

    def read(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        X = args[0] if args else kwargs["hidden_states"]
        others = (kwargs.get("key_value_states"), kwargs.get("encoder_hidden_states"), X)
        Z = next(tensor for tensor in others if tensor is not None)
        calls.setdefault(("read", module), []).append((X, Z))

    def gave(module: nn.Module, _: Any, output: Any) -> None:
        calls.setdefault(("gave", module), []).append(output[0] if isinstance(output, tuple) else output)

    hooks: list[Any] = []
    for part in {part.branch: part for block in blocks for part in block.parts if part.attention}.values():
        hooks.append(the(part.attention).register_forward_hook(read, with_kwargs=True))
        hooks.append(part.branch.register_forward_hook(gave))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def attentions(name: str, handed: dict[nn.Module, list[Handed]]) -> list[tuple[Part, Seen]]:
    """Every attention layer of a tiny model with what was seen of it in one forward pass."""
    model = TINY[name].build()
    blocks = the(hf_anatomy(model))
    model.set_attn_implementation(NAME)
    with reading(blocks) as calls, torch.no_grad():
        model(**inputs(model))
    found: list[tuple[Part, Seen]] = []
    times: dict[nn.Module, int] = {}
    for block in blocks:
        for part in block.parts:
            if part.attention is not None:
                time = times[part.attention] = times.get(part.attention, -1) + 1
                X, Z = calls["read", part.attention][time]
                output = calls["gave", part.branch][time]
                found.append((part, Seen(X, Z, handed[part.attention][time], output)))
    assert sum(map(len, handed.values())) == len(found)
    return found


def project(X: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    Q = torch.einsum("bie,hek->bhik", X, W)
    return Q if b is None else Q + b[:, None]


def grouped(T: Tensor, heads: int) -> Tensor:
    """Keys or values as the model has them, one for each query head."""
    return T.repeat_interleave(heads // T.shape[1], 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", TINY)
def test_streams_are_sums_of_their_parts(name: str, dtype: torch.dtype) -> None:
    model = shared(name) if dtype == torch.float64 else TINY[name].build(dtype=dtype)
    read = {key: T.to(dtype) if T.is_floating_point() else T for key, T in inputs(model).items()}
    with torch.no_grad():
        errors = stream_errors(the(hf_anatomy(model)), lambda: model(**read))
    assert set(errors) == {(block.kind, block.layer) for block in the(hf_anatomy(model))}
    assert max(errors.values()) <= 10 * tolerance(dtype).atol


@pytest.mark.parametrize("name", TINY)
def test_a_wrong_anatomy_shows(name: str) -> None:
    """Leaving a part out, or its norm in the wrong place, takes the stream far from the sum."""
    model = shared(name)
    blocks = the(hf_anatomy(model))
    without_last = tuple(replace(block, parts=block.parts[:-1]) for block in blocks)
    without_first = tuple(replace(block, parts=block.parts[1:]) for block in blocks)
    other_order = tuple(replace(block, norm="post" if block.norm == "pre" else "pre") for block in blocks)
    for wrong in (without_last, without_first, other_order):
        with torch.no_grad():
            assert min(stream_errors(wrong, lambda: model(**inputs(model))).values()) > 1e-3


@pytest.mark.parametrize("name", UNROTATED)
def test_weights_give_queries_keys_values(name: str, handed: dict[nn.Module, list[Handed]]) -> None:
    for part, seen in attentions(name, handed):
        weights = the(part.weights)()
        already = the(weights.scale) / seen.handed.scaling  # OPT scales its queries before it hands them over
        close(already * project(seen.X, weights.W_Q, weights.b_Q), seen.handed.Q, scale=10)
        close(project(seen.Z, weights.W_K, weights.b_K), seen.handed.K, scale=10)
        close(project(seen.Z, weights.W_V, weights.b_V), seen.handed.V, scale=10)


@pytest.mark.parametrize("name", ROTARY)
def test_weights_give_values_and_the_unrotated_query(name: str, handed: dict[nn.Module, list[Handed]]) -> None:
    for part, seen in attentions(name, handed):
        weights, heads = the(part.weights)(), seen.handed.Q.shape[1]
        assert weights.groups == seen.handed.K.shape[1] and weights.scale == seen.handed.scaling
        close(project(seen.X, weights.W_V, weights.b_V), grouped(seen.handed.V, heads), scale=10)
        first = seen.X[:, :1]
        close(project(first, weights.W_Q, weights.b_Q), seen.handed.Q[:, :, :1], scale=10)
        close(project(first, weights.W_K, weights.b_K), grouped(seen.handed.K, heads)[:, :, :1], scale=10)


@pytest.mark.parametrize("name", TINY)
def test_heads_sum_to_the_branch(name: str, handed: dict[nn.Module, list[Handed]]) -> None:
    """sum_h P_h V_h W_O,h + b_O is what the part adds to the stream (S0.6)."""
    for part, seen in attentions(name, handed):
        weights, heads = the(part.weights)(), seen.handed.Q.shape[1]
        summed = torch.einsum("bhij,bhjv,hve->bie", seen.handed.P, grouped(seen.handed.V, heads), weights.W_O)
        close(summed if weights.b_O is None else summed + weights.b_O, seen.output, scale=10)


@pytest.mark.parametrize(
    ("name", "norm", "parallel"),
    [
        ("bert", "post", False),
        ("gpt2", "pre", False),
        ("gpt_neox", "pre", True),
        ("gpt_neox-serial", "pre", False),
        ("opt", "pre", False),
        ("opt-post", "post", False),
        ("t5", "pre", False),
        ("marian", "post", False),
        ("mbart", "pre", False),
    ],
)
def test_wiring(name: str, norm: str, parallel: bool) -> None:
    assert {(block.norm, block.parallel) for block in the(hf_anatomy(shared(name)))} == {(norm, parallel)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", {"encoder": (LAYERS, ("self", "mlp"))}),
        ("bert-decoder", {"decoder": (LAYERS, ("self", "cross", "mlp"))}),
        ("gpt2", {"decoder": (LAYERS, ("self", "mlp"))}),
        ("gpt2-cross", {"decoder": (LAYERS, ("self", "cross", "mlp"))}),
        ("t5", {"encoder": (LAYERS, ("self", "mlp")), "decoder": (LAYERS + 1, ("self", "cross", "mlp"))}),
        ("marian", {"encoder": (LAYERS, ("self", "mlp")), "decoder": (LAYERS + 1, ("self", "cross", "mlp"))}),
        ("albert", {"encoder": (5, ("self", "mlp"))}),
        ("albert-groups", {"encoder": (10, ("self", "mlp"))}),
    ],
)
def test_layers_and_roles(name: str, expected: dict[str, tuple[int, tuple[str, ...]]]) -> None:
    blocks = the(hf_anatomy(shared(name)))
    for kind, (layers, roles) in expected.items():
        own = [block for block in blocks if block.kind == kind]
        assert [block.layer for block in own] == list(range(layers))
        assert {tuple(part.role for part in block.parts) for block in own} == {roles}
    assert {block.kind for block in blocks} == set(expected)


def test_albert_repeats_its_modules() -> None:
    blocks = the(hf_anatomy(shared("albert")))
    assert len({id(block.module) for block in blocks}) == 1
    groups = the(hf_anatomy(shared("albert-groups")))
    numbers = [list(dict.fromkeys(block.module for block in groups)).index(block.module) for block in groups]
    assert numbers == [0, 1] * 3 + [2, 3] * 2


def test_weights_are_read_when_asked() -> None:
    """A change of the model after its anatomy was taken shows, and gradients reach the model."""
    model = TINY["gpt2"].build()
    part = the(hf_anatomy(model))[0].parts[0]
    before = the(part.weights)().W_O.clone()
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight.mul_(2)
    close(the(part.weights)().W_O, 2 * before)
    the(part.weights)().W_Q.sum().backward()
    gradient = model.transformer.h[0].attn.c_attn.weight.grad
    assert gradient[:, : gradient.shape[1] // 3].eq(1).all() and gradient[:, gradient.shape[1] // 3 :].eq(0).all()


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("bert", ("BertModel", "BertForSequenceClassification")),
        ("gpt2", ("GPT2Model", "GPT2ForSequenceClassification")),
        ("t5", ("T5Model", "T5EncoderModel", "T5ForSequenceClassification")),
        ("bart", ("BartModel", "BartForCausalLM")),
        ("opt", ("OPTModel",)),
        ("vit", ("ViTModel",)),
    ],
)
def test_any_head_will_do(name: str, classes: tuple[str, ...]) -> None:
    for other in classes:
        blocks = the(hf_anatomy(TINY[name]._replace(model=other).build()))
        assert len(blocks) >= LAYERS and all(the(block.parts[0].weights)().W_Q.shape[0] >= HEADS for block in blocks)


def test_decoder_without_anything_to_look_at() -> None:
    model = TINY["bart"]._replace(model="BartForCausalLM").build()
    words = inputs(model)["input_ids"]
    errors = stream_errors(the(hf_anatomy(model)), lambda: model(input_ids=words, use_cache=False))
    assert {kind for kind, _ in errors} == {"decoder"} and max(errors.values()) <= 1e-11


def test_models_without_blocks_are_none() -> None:
    """XLM has a list of attention layers and a list of MLPs, but no list of blocks."""
    config = transformers.XLMConfig(n_words=131, emb_dim=6, n_layers=1, n_heads=2, pad_index=1)
    assert hf_anatomy(transformers.XLMModel(config)) is None
