"""Parameters and FLOPs in closed form against those that are there and those that are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.exam.measure import MEASURES, MeasureContext
from attnworks.exam.measures.cost import CostMeasure, attention_cost, block_cost, measured_flops
from attnworks.reshape.surgery import anatomy_of
from tests.model_helpers import (
    BATCH,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    attention_config,
    the,
    tokens,
    transformer,
)

H, G, E, F, K, V, QUERIES, KEYS = 6, 2, 11, 13, 3, 5, 7, 17


def weights_of(groups: int = G, bias: bool = True) -> HeadWeights:
    shapes = ((H, E, K), (H, F, K), (H, F, V), (H, V, E))
    biases = [torch.zeros(shape) if bias else None for shape in ((H, K), (H, K), (H, V), (E,))]
    return HeadWeights(*(torch.zeros(shape) for shape in shapes), *biases, groups=groups, scale=1.0)


def test_attention_cost_by_counting() -> None:
    cost = attention_cost(weights_of(), QUERIES, KEYS)
    assert cost.parameters == H * K * (E + 1) + G * (K + V) * (F + 1) + H * V * E + E
    products = [
        (QUERIES, E, H * K),
        (KEYS, F, G * K),
        (KEYS, F, G * V),
        (H * QUERIES, K, KEYS),
        (H * QUERIES, KEYS, V),
        (QUERIES, H * V, E),
    ]
    assert cost.flops == sum(2 * m * n * p for m, n, p in products)
    results = (
        QUERIES * E
        + KEYS * F
        + QUERIES * H * K
        + KEYS * G * K
        + KEYS * G * V
        + 2 * H * QUERIES * KEYS
        + QUERIES * H * V
        + QUERIES * E
    )
    assert cost.bytes == 4 * (cost.parameters + results)
    assert attention_cost(weights_of(bias=False), QUERIES, KEYS).parameters == H * K * E + G * (K + V) * F + H * V * E


def test_measure() -> None:
    assert MEASURES["cost"] is CostMeasure and not CostMeasure.default
    measure = CostMeasure(MeasureContext(QUERIES))
    got, want = measure.weights(Slot("encoder", 0), weights_of()), attention_cost(weights_of(), QUERIES, QUERIES)
    assert set(got) == {declared.name for declared in measure.declares()}
    for name, total in want._asdict().items():
        assert got[f"cost.layer_{name}"].values.item() == total
        assert got[f"cost.{name}"].values.shape == (H,)
        assert got[f"cost.{name}"].values.sum().item() == pytest.approx(total)


def tiny_models() -> Any:
    pytest.importorskip("transformers")
    from tests import tiny_models

    return tiny_models


FAMILIES = (
    *("albert", "albert-groups", "bart", "bert", "bert-decoder", "distilbert", "gpt2", "gpt2-cross", "gpt_neox"),
    *("llama", "mistral", "opt", "qwen2", "t5-gated", "vit"),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_hold_all_parameters_of_a_block(name: str) -> None:
    """T5 keeps a table of position biases in the attention of its first block, which no product uses."""
    for block in the(anatomy_of(tiny_models().TINY[name].build())):
        if name == "t5-gated" and block.layer == 0:
            continue
        costs = block_cost(block, 7, 11)
        assert sum(cost.parameters for cost in costs.values()) == sum(p.numel() for p in block.module.parameters())
        assert set(costs) == {*(part.role for part in block.parts), "norm"}


def blocks_measured(model: nn.Module, counted: dict[str, int]) -> list[int]:
    names = {module: name for name, module in model.named_modules()}
    return [counted[names[block.module]] for block in the(anatomy_of(model))]


def predicted(model: nn.Module, own: int, source: int) -> list[int]:
    """FLOPs of every block for one sequence; an encoder reads `source` tokens, a decoder `own` ones."""
    blocks = the(anatomy_of(model))
    lengths = [source if block.kind == "encoder" else own for block in blocks]
    each = [block_cost(block, n, source) for block, n in zip(blocks, lengths, strict=True)]
    return [sum(cost.flops for cost in costs.values()) for costs in each]


def test_own_transformer_is_counted_as_predicted() -> None:
    """With keys as wide as values: fused attention fills the narrower of them up with zeros, which are counted."""
    model = transformer(attention=attention_config(d_v=5)).eval()
    source, target = tokens(VOCABULARY, BATCH, SOURCE), tokens(TARGET_VOCABULARY, BATCH, TARGET)
    found = measured_flops(model, lambda: model(source, target))
    assert found.modules[""] == found.total
    measured = blocks_measured(model, dict(found.modules))
    for got, want in zip(measured, predicted(model, TARGET, SOURCE), strict=True):
        assert got == pytest.approx(BATCH * want, rel=0.01)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "llama"])
def test_foreign_models_are_counted_as_predicted(name: str, attention: str) -> None:
    tiny = tiny_models()
    model: Any = tiny.TINY[name].build(attn_implementation=attention)
    read = tiny.inputs(model, padded=False)
    measured = blocks_measured(model, dict(measured_flops(model, lambda: model(**read)).modules))
    decoder = tiny.TARGET if "decoder_input_ids" in read else tiny.SOURCE
    for got, want in zip(measured, predicted(model, decoder, tiny.SOURCE), strict=True):
        assert got == pytest.approx(tiny.BATCH * want, rel=0.01)


def test_fused_attention_of_the_processor_is_counted() -> None:
    Q, K_, V_ = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 11, 8), torch.randn(2, 3, 11, 8)
    run = measured_flops(nn.Identity(), lambda: nn.functional.scaled_dot_product_attention(Q, K_, V_))
    assert run.total == 2 * 3 * 2 * (7 * 8 * 11 + 7 * 11 * 8)


def test_unknown_weights_are_refused() -> None:
    block = the(anatomy_of(transformer()))[0]
    parts = tuple(replace(part, weights=None) for part in block.parts)
    with pytest.raises(UsageError, match="the cost of encoder layer 0"):
        block_cost(replace(block, parts=parts), 7)
