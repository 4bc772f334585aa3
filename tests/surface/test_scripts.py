"""Scripts as users of other tools write them: each runs from its first line to its last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attnworks
from tests.exam_helpers import LINES, save_tiny
from tests.tiny_models import LAYERS, ROTARY_WIDTH, WIDTH, transformers
from tests.training.training_helpers import write_pairs


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """The folder of a tiny GPT-2 with its tokenizer."""
    return save_tiny("gpt2", tmp_path / "gpt2")


def test_run_with_cache(gpt2: Path) -> None:
    """As HookedTransformer.run_with_cache: logits, patterns and the residual stream in one call."""
    model = attnworks.open(gpt2)
    cache = attnworks.trace(model, "the cat sees a bird .")
    logits = cache.logits
    pattern = cache["1.2"].weights
    assert logits is not None and logits.shape == (6, 53) and pattern.shape == (6, 6)
    assert cache.tokens == ("the", "cat", "sees", "a", "bird", ".")
    assert cache["1.2"].Q.shape == (6, WIDTH) and cache["1"].weights.shape == (3, 6, 6)
    assert len(cache.residual["decoder"]) == 1 + LAYERS
    normed = model.model.transformer.ln_f(cache.residual["decoder"][-1])
    torch.testing.assert_close(model.model.lm_head(normed), logits)
    frame = cache["1.2"].to_frame()
    assert frame.loc["5 .", "1 cat"] == pytest.approx(pattern[5, 1].item())


def test_auto_model_examine_and_group(gpt2: Path) -> None:
    """As with output_attentions and pandas."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt2)
    exam: Any = attnworks.examine(model, LINES, tokenizer=tokenizer, measures=["saturation", "sinks"])
    frame = exam.to_frame()
    assert len(frame) == LAYERS * 3
    by_layer = frame.groupby("layer")["saturation.entropy"].mean()
    assert list(by_layer.index) == [0, 1]
    expected = [torch.as_tensor(values).mean().item() for values in exam["saturation.entropy"].value]
    assert by_layer.tolist() == pytest.approx(expected)


def test_an_encoder_of_torch_with_other_attention() -> None:
    """nn.MultiheadAttention is replaced in a trained nn.TransformerEncoder, and nothing changes."""
    layer = nn.TransformerEncoderLayer(22, 2, 13, dropout=0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 3).eval()
    X, padding = torch.randn(5, 7, 22, dtype=torch.float64), torch.zeros(5, 7, dtype=torch.bool)
    padding[1, 5:] = True
    with torch.no_grad():
        expected = encoder(X, src_key_padding_mask=padding)[~padding]
    for block in encoder.layers:
        old: Any = block.self_attn
        block.self_attn = attnworks.nn.MultiheadAttention(22, 2, batch_first=True, dtype=torch.float64).eval()
        block.self_attn.load_state_dict(old.state_dict())
    with torch.no_grad():
        got = encoder(X, src_key_padding_mask=padding)[~padding]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    block = encoder.layers[0]
    block.self_attn = attnworks.nn.MultiheadAttention(
        22, 2, batch_first=True, dtype=torch.float64, mechanism="window:window=1"
    )
    assert encoder(X).isfinite().all()


def test_one_head_off(gpt2: Path) -> None:
    """As a hook that sets a head's output to zero: how far do the logits move, head by head?"""
    subject = attnworks.open(gpt2)
    text = "the cat sees a bird ."
    plain = subject.logits(text)
    moved = {}
    for head in ("0.0", "0.1", "1.2"):
        with subject.edit(off=head):
            moved[head] = (subject.logits(text) - plain).norm().item()
    assert min(moved.values()) > 0 and len(set(moved.values())) == 3
    assert torch.equal(subject.logits(text), plain)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    with torch.no_grad(), subject.edit(off="1.2"):
        direct = subject.model(**tokenizer(text, return_tensors="pt")).logits[0]
        torch.testing.assert_close(direct, subject.logits(text))


def test_prune_save_and_open_with_transformers(tmp_path: Path) -> None:
    """An evenly pruned Llama is an ordinary Llama with fewer heads: transformers opens it without attnworks."""
    llama = save_tiny("llama", tmp_path / "llama")
    pruned, receipt = attnworks.prune(llama, LINES * 3, keep=0.5, evenly=True, by="gradient")
    folder = pruned.save(tmp_path / "pruned")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, transformers.LlamaForCausalLM) and isinstance(receipt, attnworks.Receipt)
    before = transformers.AutoConfig.from_pretrained(llama)
    assert model.config.num_attention_heads == before.num_attention_heads // 2
    assert model.config.head_dim == ROTARY_WIDTH
    text = "the very tired child reads a book ."
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
    assert torch.equal(logits, pruned.logits(text))
    assert torch.equal(attnworks.open(folder).logits(text), logits)
    assert "attnworks" not in (folder / "config.json").read_text()


def test_train_and_translate(tmp_path: Path) -> None:
    corpus = write_pairs(tmp_path / "pairs.tsv")
    run = attnworks.train("tiny", corpus, steps=3, threads=1, out=tmp_path / "run")
    (translation,) = attnworks.translate(run, ["the cat eats bread ."])
    assert isinstance(translation, str) and translation.source == "the cat eats bread ."
    assert attnworks.translate(tmp_path / "run", ["the cat eats bread ."]) == [translation]
