"""Paths through tiny models of Hugging Face whose blocks are built in different ways: they sum to the exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnworks.core.errors import UsageError
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.paths import Paths, Rollout
from attnworks.hf.subject import HFSubject
from attnworks.hf.tiny import tiny_model
from attnworks.hf.tiny_text import TEXTS, tiny_tokenizer
from attnworks.models.modes import inference_mode
from attnworks.text.passages import from_texts
from attnworks.traces.forward import ForwardTrace, record_forward

pytest.importorskip("transformers")

ROUNDING = 1e-6
"""Of norms that compute in float32."""
SUMS = (
    *(
        "bert",
        "cohere",
        "falcon",
        "falcon_h1",
        "gemma2",
        "gpt_neox_japanese",
        "granite",
        "granitemoehybrid",
        "jamba",
        "olmo2",
    ),
    *("qwen3", "starcoder2", "t5"),
)
REFUSED = {
    "deepseek_v3": "needs values that are a linear map of the stream or its norm",
    "funnel": "needs a stream",
    "qwen3_next": "needs a layer that adds its heads times W_O, or a norm of that",
    "zamba": "needs a layer that adds its heads times W_O, or a norm of that",
}


def forwards(name: str, change: Callable[[Any], None] | None = None) -> list[ForwardTrace]:
    model = tiny_model(name).model
    if change is not None:
        change(model)
    subject = HFSubject(model, name, tiny_tokenizer(model))
    with inference_mode(model):
        batch, _ = subject.read(from_texts(TEXTS[:3])[0], batch_tokens=1000).batch(0)
        traces, errors = record_forward(subject, batch)
    assert traces and max(errors.values()) <= ROUNDING
    return traces


def check_sums(forward: ForwardTrace) -> None:
    with torch.inference_mode():
        placed = Paths(MeasureContext(7)).forward(forward)
        Rollout(MeasureContext(7)).forward(forward)
    values = {name: [one.sample.values for one in placed if one.reading == f"paths.{name}"] for name in SHARES}
    (error,), (by_length,) = values["error"], values["share"]
    assert error.max() <= ROUNDING
    torch.testing.assert_close(by_length.sum(-1), torch.ones_like(error), rtol=0, atol=ROUNDING)
    parts = [T if T.dim() == 1 else T.sum(-1) for name in ("head", "mlp", "embedding", "bias") for T in values[name]]
    torch.testing.assert_close(torch.stack(parts).sum(0), torch.ones_like(error), rtol=0, atol=ROUNDING)


SHARES = ("error", "share", "head", "mlp", "embedding", "bias")


@pytest.mark.parametrize("name", SUMS)
def test_paths_sum_to_the_exit(name: str) -> None:
    for forward in forwards(name):
        check_sums(forward)


def test_factors() -> None:
    """Granite multiplies what a part computes before it adds it."""

    def change(model: Any) -> None:
        for layer in model.model.layers:
            layer.residual_multiplier = 0.22

    (forward,) = forwards("granite", change)
    assert {part.part.factor for block in forward.blocks for part in block.parts} == {0.22}
    check_sums(forward)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    traces = forwards(name)
    with pytest.raises(UsageError) as caught:
        for forward in traces:
            Paths(MeasureContext(7)).forward(forward)
    assert REFUSED[name] in f"{caught.value.asked} needs {caught.value.expected}"


def test_layers_of_a_block_with_two_attention_layers() -> None:
    (forward,) = forwards("longcat_flash")
    names = [str(part.attention.slot) for block in forward.blocks for part in block.parts if part.attention]
    assert names == ["dec.0", "dec.1", "dec.2", "dec.3"]
