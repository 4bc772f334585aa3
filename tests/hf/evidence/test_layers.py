"""Layouts of attention layers, against what the attention interface is given and what output projections read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.hf.anatomy import HFPart, forget_layout, hf_layers, layout_of
from attnworks.hf.observe import attention_hook, observe_interface
from attnworks.hf.tiny import tiny_model
from attnworks.models.modes import eval_mode
from tests.model_helpers import the
from tests.tiny_models import TINY, inputs, shared

VARIOUS = (
    *(
        "chameleon",
        "cohere",
        "dbrx",
        "falcon_h1",
        "gemma2",
        "glm",
        "gpt_bigcode",
        "gpt_oss",
        "granite",
        "jamba",
        "minimax",
    ),
    *("modernbert", "nemotron", "olmo", "persimmon", "phi", "phi3", "qwen3", "qwen3_next", "stablelm", "starcoder2"),
)
"""Fused, woven and grouped projections, norms of queries and keys, gates, sinks, mixed blocks."""


@contextmanager
def attention_calls(
    model: nn.Module,
) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]]]:
    """Q, K, V, Y and the options of the last call of each attention module."""
    seen: dict[nn.Module, tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]] = {}

    def keep(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, _: Any, Y: Tensor, options: dict[str, Any]) -> None:
        seen[module] = Q, K, V, Y, options

    with observe_interface(model), attention_hook(keep), torch.no_grad(), eval_mode(model):
        yield seen


@contextmanager
def module_inputs(modules: list[nn.Module]) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """The last input and output of each of these modules."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = args[0], output

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def by_head(X: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    Y = torch.einsum("bie,hek->bhik", X.reshape(-1, X.shape[-2], X.shape[-1]), W)
    return Y if b is None else Y + b[:, None]


def check_layer(model: nn.Module, part: HFPart, calls: Any, read: Any) -> None:
    """V is Z W_V + b_V, the output projection gives sum_h Y_h W_O,h + b_O, and S = factor (X W_Q + b)(Z W_K + b)^T."""
    _, layout, attention = part.place()
    Q, K, V, Y, options = calls[attention]
    assert layout.heads == Y.shape[1] and (Q.shape[-1], V.shape[-1]) == layout.widths
    if part.weights is None:
        assert layout.problems
        return
    W = part.weights()
    query, value, output = (model.get_submodule(the(at).path) for at in (layout.query, layout.value, layout.output))
    close(by_head(read[value][0], W.W_V, W.b_V), V[:, list(layout.key_of)])
    if "gate" not in layout.problems:
        U = torch.einsum("bhiv,hve->bie", Y, W.W_O) + (0.0 if W.b_O is None else W.b_O)
        close(read[output][1].reshape(U.shape), U)
    if layout.factor is not None:
        key = model.get_submodule(the(layout.key).path)
        projected = by_head(read[query][0], W.W_Q, W.b_Q) @ by_head(read[key][0], W.W_K, W.b_K).mT
        S = Q @ K[:, list(layout.key_of)].mT * the(options.get("scaling", Q.shape[-1] ** -0.5))
        if layout.turned:  # a query and a key at the same position are turned by the same angle
            S, projected = (scores.diagonal(dim1=-2, dim2=-1) for scores in (S, projected))
        close(layout.factor * projected, S)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


def check(model: nn.Module, given: dict[str, Any]) -> None:
    layers = hf_layers(model)
    assert layers
    projections = [
        model.get_submodule(columns.path)
        for part in layers.values()
        for columns in (the(part.layout).query, the(part.layout).key, the(part.layout).value, the(part.layout).output)
        if columns is not None
    ]
    with attention_calls(model) as calls, module_inputs(projections) as read:
        model(**given)
    assert {*calls} == {part.attention for part in layers.values()}
    for slot, part in layers.items():
        if slot == the(part.layout).slots[-1]:  # the last call of a module that several layers share
            check_layer(model, part, calls, read)


@pytest.mark.parametrize("name", TINY)
def test_known_families(name: str) -> None:
    check(shared(name), inputs(shared(name)))


@pytest.mark.parametrize("model_type", VARIOUS)
def test_various_layouts(model_type: str) -> None:
    tiny = tiny_model(model_type)
    assert tiny.model is not None, tiny.reason
    check(tiny.model, tiny.inputs)


@pytest.mark.parametrize(
    ("name", "shares", "key_of", "turned"),
    [
        ("bert", ((0,), (1,), (2,)), (0, 1, 2), False),
        ("llama", ((0, 1, 2), (3, 4, 5)), (0, 0, 0, 1, 1, 1), True),
        ("gpt_neox", ((0,), (1,), (2,)), (0, 1, 2), True),
    ],
)
def test_shared_keys_and_rotation(name: str, shares: Any, key_of: Any, turned: bool) -> None:
    for layer in layout_of(shared(name)).layers:
        assert (layer.shares, layer.key_of, layer.turned) == (shares, key_of, turned)


def test_woven_columns() -> None:
    """GPT-NeoX stores [Q_1 K_1 V_1 | Q_2 K_2 V_2 | ..], GPT-2 [Q_1 Q_2 .. | K_1 .. | V_1 ..]."""
    woven, joined = (layout_of(shared(name)).layers[0] for name in ("gpt_neox", "gpt2"))
    heads, k = 3, 6
    for place, columns in enumerate((woven.query, woven.key, woven.value)):
        assert torch.equal(the(columns).index, torch.arange(heads * 3 * k).view(heads, 3, k)[:, place])
    for place, columns in enumerate((joined.query, joined.key, joined.value)):
        assert torch.equal(the(columns).index, torch.arange(3 * heads * 5).view(3, heads, 5)[place])


def test_layers_that_share_their_weights_have_several_slots() -> None:
    (layer,) = layout_of(shared("albert")).layers
    assert [str(slot) for slot in layer.slots] == [f"enc.{number}" for number in range(5)]


def test_an_output_projection_of_more_than_what_is_observed() -> None:
    """ProphetNet's decoder also attends from places of later tokens, with the same projections."""
    layers = layout_of(tiny_model("prophetnet").model).layers
    known = {layer.slots[0].kind: layer.output_path is not None for layer in layers}
    assert known == {"encoder": True, "decoder": False, "cross": True}
    assert {layer.problems.get("output") for layer in layers if layer.slots[0].kind == "decoder"} == {
        "an output projection that reads attention which is not observed, too"
    }


def test_layers_that_run_first_without_gradients() -> None:
    """HRM runs two stacks in turns, the earlier runs of which autograd does not record."""
    low, _, high, _ = layout_of(tiny_model("hrm_text").model).layers
    assert [slot.layer for slot in low.slots] == [0, 2, 4, 8, 10, 12] and [slot.layer for slot in high.slots] == [6, 14]
    assert low.output is not None and {source.path for source in low.sources} == {
        source.path.replace("H_module", "L_module") for source in high.sources
    }


@pytest.mark.parametrize(("model_type", "slots"), [("jamba", "dec.1"), ("qwen3_next", "dec.1")])
def test_layers_of_hybrids_have_the_number_of_their_block(model_type: str, slots: str) -> None:
    (layer,) = layout_of(tiny_model(model_type).model).layers
    assert ",".join(map(str, layer.slots)) == slots


def test_parameters_are_left_as_they_were() -> None:
    model = TINY["llama"].build()
    frozen = [name for name, parameter in model.named_parameters() if "q_proj" in name]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    with torch.inference_mode():
        layout = layout_of(model)
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == frozen
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert layout_of(model) is layout
    forget_layout(model)
    assert layout_of(model) is not layout


def test_half_precision() -> None:
    wide, half = TINY["gpt_neox"].build(), TINY["gpt_neox"].build(dtype=torch.bfloat16)
    for one, other in zip(layout_of(wide).layers, layout_of(half).layers, strict=True):
        for columns in ("query", "key", "value", "output"):
            assert torch.equal(the(getattr(one, columns)).index, the(getattr(other, columns)).index)


def test_a_model_without_a_text_input_says_so() -> None:
    model = tiny_model("bert").model
    model.base_model.forward = lambda **_: 1 / 0
    forget_layout(model)
    found = layout_of(model)
    assert not found.layers and "does not run" in the(found.problem)
