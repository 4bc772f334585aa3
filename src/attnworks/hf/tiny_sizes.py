"""The sizes of tiny models: names of config attributes by what they count, and exceptions of single model types.

No two sizes of an attention layer are equal, so that the value of an attribute says what it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """What the attributes of a config are set to.

    hidden    hidden size where the width of a head is an attribute of its own
    joined    hidden size where heads times width must give it
    """

    heads: int
    groups: int
    width: int
    hidden: int
    layers: int
    feed_forward: int
    expert_feed_forward: int
    vocabulary: int
    positions: int
    window: int
    experts: int
    experts_per_token: int
    query_rank: int
    key_value_rank: int
    output_rank: int
    unrotated_width: int
    rotary_width: int
    value_width: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_width: int
    linear_value_width: int
    state: int
    state_head_width: int
    index_heads: int
    index_width: int
    index_keys: int
    layer_embedding: int
    encoder_tokens: int
    decoder_tokens: int

    @property
    def joined(self) -> int:
        return self.heads * self.width


SIZES = {
    "first": Sizes(
        heads=15, groups=5, width=8, hidden=180, layers=2, feed_forward=88, expert_feed_forward=56, vocabulary=149,
        positions=71, window=13, experts=7, experts_per_token=2, query_rank=28, key_value_rank=22, output_rank=34,
        unrotated_width=12, rotary_width=4, value_width=10, linear_key_heads=3, linear_value_heads=6,
        linear_key_width=18, linear_value_width=14, state=9, state_head_width=20, index_heads=6, index_width=32,
        index_keys=3, layer_embedding=26, encoder_tokens=11, decoder_tokens=7,
    ),
    "second": Sizes(
        heads=14, groups=2, width=12, hidden=252, layers=3, feed_forward=104, expert_feed_forward=64, vocabulary=163,
        positions=83, window=11, experts=9, experts_per_token=4, query_rank=30, key_value_rank=20, output_rank=38,
        unrotated_width=16, rotary_width=8, value_width=10, linear_key_heads=5, linear_value_heads=10,
        linear_key_width=18, linear_value_width=22, state=13, state_head_width=28, index_heads=6, index_width=32,
        index_keys=5, layer_embedding=34, encoder_tokens=19, decoder_tokens=16,
    ),
}  # fmt: skip

ATTRIBUTES = {
    "hidden": "hidden_size d_model n_embd dim embed_dim hidden_dim embedding_size word_embed_proj_dim projection_dim "
    "encoder_hidden_size decoder_hidden_size emb_dim embedding_dim output_dim backbone_hidden_size out_hidden_size "
    "text_hidden_size hidden_size_global attention_hidden_size cross_attention_hidden_size embed_size lru_width width "
    "text_embed_dim",
    "heads": "num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads "
    "num_decoder_attention_heads num_encoder_attention_heads attention_heads num_query_heads "
    "encoder_num_attention_heads decoder_num_attention_heads num_self_attention_heads num_cross_attention_heads "
    "swa_num_attention_heads num_sliding_attention_heads",
    "groups": "num_key_value_heads n_kv_heads num_kv_heads decoder_num_key_value_heads encoder_num_key_value_heads "
    "multi_query_group_num num_global_key_value_heads swa_num_key_value_heads",
    "width": "head_dim d_kv d_head dim_head kv_channels attention_head_dim global_head_dim swa_head_dim "
    "attention_head_size key_length decoder_head_dim",
    "layers": "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_decoder_layers "
    "num_encoder_layers decoder_num_hidden_layers encoder_num_hidden_layers depth layers",
    "feed_forward": "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim d_inner ffn_hidden_size "
    "mlp_dim dim_feedforward intermediate_size_mlp decoder_intermediate_size encoder_intermediate_size dff "
    "mlp_hidden_size dense_intermediate_size dim_ff",
    "expert_feed_forward": "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
    "expert_ffn_hidden_size",
    "vocabulary": "vocab_size vocab_size_per_layer_input entity_vocab_size",
    "positions": "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length seq_length "
    "max_source_positions max_target_positions original_max_position_embeddings context_length",
    "window": "sliding_window attention_window_size",
    "experts": "num_experts num_local_experts n_routed_experts moe_num_experts ffn_num_experts",
    "experts_per_token": "num_experts_per_tok top_k_experts moe_k moe_topk num_experts_per_token moe_top_k",
    "query_rank": "q_lora_rank",
    "key_value_rank": "kv_lora_rank",
    "output_rank": "o_lora_rank",
    "unrotated_width": "qk_nope_head_dim",
    "rotary_width": "qk_rope_head_dim rotary_dim",
    "value_width": "v_head_dim swa_v_head_dim",
    "linear_key_heads": "linear_num_key_heads",
    "linear_value_heads": "linear_num_value_heads linear_num_heads",
    "linear_key_width": "linear_key_head_dim",
    "linear_value_width": "linear_value_head_dim linear_head_dim",
    "state": "mamba_d_state ssm_state_size state_size",
    "state_head_width": "mamba_d_head mamba_head_dim",
    "state_heads": "mamba_n_heads mamba_num_heads",
    "index_heads": "index_n_heads",
    "index_width": "index_head_dim",
    "index_keys": "index_topk",
    "layer_embedding": "hidden_size_per_layer_input",
}
"""Field of `Sizes` -> the config attributes that are set to it, where the config has them."""

ONES = "n_group num_group topk_group n_shared_experts num_shared_experts moe_num_shared_experts mamba_n_groups n_groups"
"""Attributes that are set to 1."""
FIXED = {
    "num_kv_shared_layers": 0,
    "num_nextn_predict_layers": 0,
    "first_k_dense_replace": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
    "image_size": 32,
    "patch_size": 16,
    "num_mel_bins": 16,
}
"""Attributes that get one value in all tiny models, where the config has them."""
KINDS_OF_LAYERS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types", "indexer_types")
"""Lists with one name per layer."""

Overrides = Callable[[Sizes, int], dict[str, Any]]
"""Sizes and hidden size -> attributes of the config of one model type."""

OVERRIDES: dict[str, Overrides] = {
    "bailing_hybrid": lambda s, hidden: {"n_group": 1, "topk_group": 1},
    "bamba": lambda s, hidden: {"attn_layer_indices": [1], "num_hidden_layers": 2},
    "blt": lambda s, hidden: {"encoder_hash_byte_group_vocab": 128},
    "clvp_encoder": lambda s, hidden: {"num_attention_heads": 3, "hidden_size": 120, "projection_dim": 120},
    "codegen": lambda s, hidden: {"n_head": 16, "n_embd": 16 * s.width},  # its code lays heads out in fours
    "convbert": lambda s, hidden: {"num_attention_heads": 2 * s.heads},  # half of them are heads of a convolution
    "dbrx": lambda s, hidden: {
        "attn_config": {"kv_n_heads": s.groups, "clip_qkv": 8, "rope_theta": 10000.0},
        "ffn_config": {
            "ffn_hidden_size": s.feed_forward,
            "hidden_size": s.joined,
            "moe_num_experts": s.experts,
            "moe_top_k": s.experts_per_token,
        },
    },
    "diffllama": lambda s, hidden: {"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 156},
    "emu3_vqgan": lambda s, hidden: {"base_channels": 32, "codebook_size": 64},
    "falcon_h1": lambda s, hidden: {"mamba_d_ssm": 2 * hidden},
    "florence_vision": lambda s, hidden: {
        "num_heads": [2, 2, 2, 2],
        "num_groups": [2, 2, 2, 2],
        "embed_dim": [8, 10, 12, 14],
        "depths": [1, 1, 1, 1],
        "projection_dim": s.joined,
    },
    "fun_asr_nano": lambda s, hidden: {
        "adaptor_config": {"hidden_size": s.joined, "intermediate_size": s.joined // 4, "num_attention_heads": s.heads},
    },
    "funnel": lambda s, hidden: {"block_sizes": [1, 1], "num_decoder_layers": 1},
    "glm5_next_text": lambda s, hidden: {"index_topk": 6, "index_kpool": 3},
    "gpt_neo": lambda s, hidden: {
        "attention_types": [[["global", "local"], 1], [["global"], s.layers - 2]],
        "window_size": 9,
    },
    "granitemoehybrid": lambda s, hidden: {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "jamba": lambda s, hidden: {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "janus_vqgan": lambda s, hidden: {"base_channels": 32, "num_embeddings": 64},
    "laguna": lambda s, hidden: {"num_attention_heads_per_layer": None},
    "layoutlmv3": lambda s, hidden: {"coordinate_size": hidden // 6, "shape_size": hidden // 6},
    "led": lambda s, hidden: {"attention_window": 8},
    "longformer": lambda s, hidden: {"attention_window": 8},
    "luke": lambda s, hidden: {"entity_emb_size": 48},
    "mamba2": lambda s, hidden: {"num_heads": 2 * hidden // s.state_head_width, "head_dim": s.state_head_width},
    "mimo_v2_flash": lambda s, hidden: {"num_attention_heads": 4 * s.groups},  # twice the groups in some layers
    "mistral_large4_text": lambda s, hidden: {"kv_source_layers": None},
    "mobilebert": lambda s, hidden: {
        "intra_bottleneck_size": s.joined,
        "true_hidden_size": s.joined,
        "embedding_size": s.joined,
    },
    "molmo2_adapter": lambda s, hidden: {"vision_feature_layer": [1, 0]},
    "muse_spark": lambda s, hidden: {"projector_hidden_size": s.feed_forward},
    "muse_spark_audio": lambda s, hidden: {
        "num_hidden_layers": 4,
        "hidden_sizes": [8, 10, 12, 14],
        "out_hidden_size": s.hidden,
    },
    "muse_spark_text": lambda s, hidden: {"moe_hidden_size": s.expert_feed_forward},
    "pegasus_x": lambda s, hidden: {"block_size": 16, "num_global_tokens": 6},
    "perceiver": lambda s, hidden: {"d_latents": s.joined, "num_latents": 9, "num_self_attends_per_block": 2},
    "prophetnet": lambda s, hidden: {"ngram": 2},
    "qwen4_exp_text": lambda s, hidden: {
        "indexer_n_heads": s.index_heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": s.index_width,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "hc_lowrank": s.query_rank,
    },
    "recurrent_gemma": lambda s, hidden: {"num_hidden_layers": 3},
    "reformer": lambda s, hidden: {"attn_layers": ["local", "lsh", "local"][: s.layers], "num_buckets": 4},
    "zamba": lambda s, hidden: _zamba(s, hidden) | {"n_mamba_heads": 2},
    "zamba2": lambda s, hidden: _zamba(s, hidden) | {"num_mem_blocks": 1},
    "zaya": lambda s, hidden: {"num_experts_per_tok": 1},
}
"""Sizes that only fit in other proportions, or have other names."""

OPTIONS: dict[str, Overrides] = {
    "big_bird": lambda s, hidden: {"attention_type": "original_full"},
    "bigbird_pegasus": lambda s, hidden: {"attention_type": "original_full"},
    "chameleon": lambda s, hidden: {"vocabulary_map": {"<image>": 120, "IMGIMGBSZ": 121, "IMGIMGAZ": 122}},
    "cohere_compass_text": lambda s, hidden: {
        "layer_types": ["sliding_attention", "full_attention", "full_attention"][: s.layers],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": None,
        },
    },
    "deepseek_ocr2_text": lambda s, hidden: {
        "mlp_layer_types": ["dense", "sparse", "sparse"][: s.layers],
        "num_experts_per_tok": s.experts_per_token,
        "n_group": 1,
        "topk_group": 1,
    },
    "deepseek_v2": lambda s, hidden: {"num_experts_per_tok": s.experts_per_token, "n_group": 1, "topk_group": 1},
    "diffusion_gemma_text": lambda s, hidden: {
        "num_experts": s.experts,
        "top_k_experts": s.experts_per_token,
        "moe_intermediate_size": s.expert_feed_forward,
    },
    "dots1": lambda s, hidden: {
        "n_routed_experts": s.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": s.experts_per_token,
    },
    "emu3": lambda s, hidden: {"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121}, "image_token_id": 120},
    "esm": lambda s, hidden: {"vocab_size": s.vocabulary, "pad_token_id": 1, "mask_token_id": 32},
    "falcon": lambda s, hidden: {"new_decoder_architecture": True, "num_kv_heads": s.groups},
    "granite4_vision": lambda s, hidden: {"deepstack_layer_map": [], "downsample_rate": "1/2"},
    "jamba": lambda s, hidden: {"use_mamba_kernels": False},
    "lfm2_moe": lambda s, hidden: {
        "layer_types": ["conv", "full_attention", "full_attention"][: s.layers],
        "num_dense_layers": 1,
    },
    "qwen2_5_omni_thinker": lambda s, hidden: {"vision_start_token_id": s.vocabulary - 8},
    "qwen3_omni_moe_thinker": lambda s, hidden: {"vision_start_token_id": s.vocabulary - 8},
    "reformer": lambda s, hidden: {"axial_pos_embds": False, "is_decoder": True},
    "squeezebert": lambda s, hidden: dict.fromkeys(
        ("q_groups", "k_groups", "v_groups", "post_attention_groups", "intermediate_groups", "output_groups"), 1
    ),
    "step3p5": lambda s, hidden: {"sliding_window": s.window},
    "xmod": lambda s, hidden: {"languages": ["en"], "default_language": "en"},
}
"""Options of models that are built from a model type alone, where the defaults do not run."""


def _zamba(s: Sizes, hidden: int) -> dict[str, Any]:
    """Attention reads the stream and the embeddings beside each other."""
    return {
        "attention_hidden_size": 2 * hidden,
        "attention_head_dim": 2 * hidden // s.heads,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    }
