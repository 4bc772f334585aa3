"""Tiny models of Hugging Face with random weights everywhere, in float64, and an input for each."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.model_helpers import filled, tokens

transformers: Any = pytest.importorskip("transformers")

WORDS, D_FF, HEADS, LAYERS, WIDTH, BATCH, SOURCE, TARGET, POSITIONS = 53, 23, 3, 2, 5, 2, 7, 11, 37
D_E = HEADS * WIDTH
ROTARY_HEADS, ROTARY_WIDTH = 3, 6

_BERT = {
    "vocab_size": WORDS,
    "hidden_size": D_E,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": D_FF,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 1,
}
_ROTARY = _BERT | {"hidden_size": ROTARY_HEADS * ROTARY_WIDTH, "num_attention_heads": ROTARY_HEADS}
_GROUPED = _ROTARY | {"hidden_size": 17, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": ROTARY_WIDTH}
_BART = {
    "vocab_size": WORDS,
    "d_model": 2 * HEADS * (HEADS + 2),
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS + 1,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS + 2,
    "encoder_ffn_dim": D_FF,
    "decoder_ffn_dim": D_FF + 6,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_T5 = {
    "vocab_size": WORDS,
    "d_model": 13,
    "d_kv": WIDTH,
    "d_ff": D_FF,
    "num_layers": LAYERS,
    "num_decoder_layers": LAYERS + 1,
    "num_heads": HEADS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
}
_OPT = {
    "vocab_size": WORDS,
    "hidden_size": D_E,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "ffn_dim": D_FF,
    "max_position_embeddings": POSITIONS,
    "word_embed_proj_dim": D_E,
}
_GPT2 = {
    "vocab_size": WORDS,
    "n_embd": D_E,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_inner": D_FF,
    "n_positions": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_VIT = {key: value for key, value in _BERT.items() if key not in ("vocab_size", "max_position_embeddings")}


class Tiny(NamedTuple):
    """The name of a class, its config class and settings. `rotary` models rotate queries and keys by position."""

    model: str
    config: str
    settings: dict[str, Any]
    rotary: bool = False

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
        config = getattr(transformers, self.config)(**(self.settings | changes))
        with torch.random.fork_rng():
            model = getattr(transformers, self.model)(config)
        return filled(model, seed, spread=0.3).to(dtype).eval()


TINY: dict[str, Tiny] = {
    "albert": Tiny("AlbertForMaskedLM", "AlbertConfig", _BERT | {"num_hidden_layers": 5, "embedding_size": 7}),
    "albert-groups": Tiny(
        "AlbertModel",
        "AlbertConfig",
        _BERT | {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2, "embedding_size": 7},
    ),
    "bart": Tiny("BartForConditionalGeneration", "BartConfig", _BART),
    "bert": Tiny("BertForMaskedLM", "BertConfig", _BERT),
    "bert-chunked": Tiny("BertModel", "BertConfig", _BERT | {"chunk_size_feed_forward": 1}),
    "bert-decoder": Tiny("BertLMHeadModel", "BertConfig", _BERT | {"is_decoder": True, "add_cross_attention": True}),
    "camembert": Tiny("CamembertModel", "CamembertConfig", _BERT),
    "distilbert": Tiny(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": WORDS,
            "dim": D_E,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": D_FF,
            "max_position_embeddings": POSITIONS,
        },
    ),
    "electra": Tiny("ElectraForPreTraining", "ElectraConfig", _BERT | {"embedding_size": 7}),
    "gpt2": Tiny("GPT2LMHeadModel", "GPT2Config", _GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2-cross": Tiny("GPT2LMHeadModel", "GPT2Config", _GPT2 | {"add_cross_attention": True}),
    "gpt_neox": Tiny("GPTNeoXForCausalLM", "GPTNeoXConfig", _ROTARY, rotary=True),
    "gpt_neox-serial": Tiny("GPTNeoXModel", "GPTNeoXConfig", _ROTARY | {"use_parallel_residual": False}, rotary=True),
    "llama": Tiny(
        "LlamaForCausalLM", "LlamaConfig", _GROUPED | {"hidden_size": 30, "attention_bias": True}, rotary=True
    ),
    "m2m_100": Tiny("M2M100ForConditionalGeneration", "M2M100Config", _BART),
    "marian": Tiny("MarianMTModel", "MarianConfig", _BART),
    "mbart": Tiny("MBartForConditionalGeneration", "MBartConfig", _BART),
    "mistral": Tiny("MistralForCausalLM", "MistralConfig", _GROUPED, rotary=True),
    "mt5": Tiny("MT5ForConditionalGeneration", "MT5Config", _T5),
    "opt": Tiny("OPTForCausalLM", "OPTConfig", _OPT),
    "opt-post": Tiny("OPTForCausalLM", "OPTConfig", _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 7}),
    "qwen2": Tiny("Qwen2ForCausalLM", "Qwen2Config", _GROUPED | {"hidden_size": 36}, rotary=True),
    "roberta": Tiny("RobertaForMaskedLM", "RobertaConfig", _BERT),
    "t5": Tiny("T5ForConditionalGeneration", "T5Config", _T5),
    "t5-gated": Tiny("T5Model", "T5Config", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "vit": Tiny("ViTForImageClassification", "ViTConfig", _VIT | {"image_size": 6, "patch_size": 3, "num_channels": 2}),
    "xlm-roberta": Tiny("XLMRobertaModel", "XLMRobertaConfig", _BERT),
}
"""Families whose layouts are known by heart; variants are named `family-variant`."""


@cache
def shared(name: str) -> Any:
    """TINY[name].build(), built once. Do not change it."""
    return TINY[name].build()


def unknown_causal(name: str) -> Any:
    """A model of Qwen3 (`name` is its class), which is causal and norms its queries and keys."""
    with torch.random.fork_rng():
        model = getattr(transformers, name)(transformers.Qwen3Config(**_GROUPED))
    return filled(model, spread=0.3).eval()


def inputs(model: Any, *, padded: bool = True) -> dict[str, Tensor]:
    """What the model reads: words with some padding at the end, or pixels, and a target where it writes one."""
    config = model.config
    if config.model_type == "vit":
        shape = (BATCH, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}
    words = tokens(WORDS - 3, BATCH, SOURCE) + 3
    read = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    if padded:
        read["attention_mask"][1, SOURCE - 2 :] = 0
    if getattr(config, "is_encoder_decoder", False):
        read["decoder_input_ids"] = tokens(WORDS - 3, BATCH, TARGET, seed=1) + 3
    elif getattr(config, "add_cross_attention", False):
        generator = torch.Generator().manual_seed(2)
        shape = (BATCH, TARGET, config.hidden_size)
        read["encoder_hidden_states"] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return read
