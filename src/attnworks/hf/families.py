"""Where the parts of a transformer sit in the models of Hugging Face, as data: one row per family.

All paths start at the block. A family that is missing here is one whose parts attnworks does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from attnworks.models.anatomy import Role, StackKind
from attnworks.models.config import NormOrder


class Projection(NamedTuple):
    """Piece number `piece` of `pieces` equal pieces of the columns of a projection; `per_head`: of each head's columns.

    GPT-2 stores [Q_1 .. Q_h | K_1 .. K_h | V_1 .. V_h] in one matrix, GPT-NeoX [Q_1 K_1 V_1 | Q_2 K_2 V_2 | ..].
    """

    path: str
    piece: int = 0
    pieces: int = 1
    per_head: bool = False


class Projections(NamedTuple):
    """The four maps of an attention layer, and the attribute of its module that holds the width of one head.

    counts_heads    the module cuts queries into its number of heads, rather than by their width
    """

    query: Projection
    key: Projection
    value: Projection
    output: str
    width: str
    counts_heads: bool = False


@dataclass(frozen=True)
class PartPlace:
    """Where a part's branch and norm are; for attention also its module and its projections, seen from the block.

    optional    the part is only there in some models of the family (cross-attention of a decoder)
    """

    role: Role
    branch: str
    norm: str
    attention: str | None = None
    projections: Projections | None = None
    optional: bool = False


class Stack(NamedTuple):
    """Blocks in a row: a path from the base model to a module list, and what each block is made of.

    shared    the path leads to groups of blocks, each run for several layers in a row (ALBERT)
    """

    kind: StackKind
    blocks: str
    parts: tuple[PartPlace, ...]
    shared: str | None = None


@dataclass(frozen=True)
class Family:
    """The stacks of a family, and its norm order.

    pre_flag                entry of the config that decides between "pre" and "post", if one does
    parallel_flag           entry of the config that decides whether attention and MLP read the same stream, if one does
    counts_from_padding     positions are numbered from pad_token_id + 1, so that the first ones are never used
    """

    stacks: tuple[Stack, ...]
    norm: NormOrder
    pre_flag: str | None = None
    parallel_flag: str | None = None
    counts_from_padding: bool = False


def _separate(at: str, query: str, key: str, value: str, output: str, width: str) -> Projections:
    """Three separate projections in the attention module at `at`; the path of the output starts at the block."""
    to_query, to_key, to_value = (Projection(f"{at}.{name}") for name in (query, key, value))
    return Projections(to_query, to_key, to_value, output, width)


def _attention(role: Role, at: str, norm: str, names: str, *, counts_heads: bool = False) -> PartPlace:
    """Attention whose module is the branch; `names` in it are query, key, value and output projection, and width."""
    query, key, value, output, width = names.split()
    projections = _separate(at, query, key, value, f"{at}.{output}", width)
    return PartPlace(role, at, norm, at, projections._replace(counts_heads=counts_heads))


def _bert_attention(role: Role, at: str, *, optional: bool = False) -> PartPlace:
    dense = f"{at}.output.dense"
    projections = _separate(f"{at}.self", "query", "key", "value", dense, "attention_head_size")
    return PartPlace(role, dense, f"{at}.output.LayerNorm", f"{at}.self", projections, optional)


def _fused(at: str, pieces: Iterable[Projection], output: str, width: str) -> Projections:
    query, key, value = (piece._replace(path=f"{at}.{piece.path}") for piece in pieces)
    return Projections(query, key, value, f"{at}.{output}", width)


def _stack(kind: StackKind, blocks: str, *parts: PartPlace, shared: str | None = None) -> tuple[Stack, ...]:
    return (Stack(kind, blocks, parts, shared),)


_BART_NAMES = "q_proj k_proj v_proj out_proj head_dim"
_LLAMA_NAMES = "q_proj k_proj v_proj o_proj head_dim"
_T5_NAMES = "q k v o key_value_proj_dim"
_THIRDS = tuple(Projection("c_attn", piece, 3) for piece in range(3))
_HALVES = (Projection("q_attn"), Projection("c_attn", 0, 2), Projection("c_attn", 1, 2))
_INTERLEAVED = tuple(Projection("query_key_value", piece, 3, per_head=True) for piece in range(3))

_BART_SELF = _attention("self", "self_attn", "self_attn_layer_norm", _BART_NAMES)
_BART_CROSS = _attention("cross", "encoder_attn", "encoder_attn_layer_norm", _BART_NAMES)
_BART_MLP = PartPlace("mlp", "fc2", "final_layer_norm")
_T5_SELF = _attention("self", "layer.0.SelfAttention", "layer.0.layer_norm", _T5_NAMES)
_T5_CROSS = _attention("cross", "layer.1.EncDecAttention", "layer.1.layer_norm", _T5_NAMES)

_BERT_SELF = _bert_attention("self", "attention")
_BERT_CROSS = _bert_attention("cross", "crossattention", optional=True)
_BERT_MLP = PartPlace("mlp", "output.dense", "output.LayerNorm")
BERT = Family(_stack("encoder", "encoder.layer", _BERT_SELF, _BERT_CROSS, _BERT_MLP), "post")
ROBERTA = replace(BERT, counts_from_padding=True)

_ALBERT_MAPS = _separate("attention", "query", "key", "value", "attention.dense", "attention_head_size")
_ALBERT_SELF = PartPlace("self", "attention.dense", "attention.LayerNorm", "attention", _ALBERT_MAPS)
_ALBERT_MLP = PartPlace("mlp", "ffn_output", "full_layer_layer_norm")
_ALBERT_GROUPS = "encoder.albert_layer_groups"
ALBERT = Family(_stack("encoder", _ALBERT_GROUPS, _ALBERT_SELF, _ALBERT_MLP, shared="albert_layers"), "post")

_DISTILBERT_NAMES = "q_lin k_lin v_lin out_lin attention_head_size"
_DISTILBERT_SELF = _attention("self", "attention", "sa_layer_norm", _DISTILBERT_NAMES)
_DISTILBERT_MLP = PartPlace("mlp", "ffn", "output_layer_norm")
DISTILBERT = Family(_stack("encoder", "transformer.layer", _DISTILBERT_SELF, _DISTILBERT_MLP), "post")

_GPT2_SELF = PartPlace("self", "attn", "ln_1", "attn", _fused("attn", _THIRDS, "c_proj", "head_dim"))
_GPT2_MAPS = _fused("crossattention", _HALVES, "c_proj", "head_dim")
_GPT2_CROSS = PartPlace("cross", "crossattention", "ln_cross_attn", "crossattention", _GPT2_MAPS, optional=True)
GPT2 = Family(_stack("decoder", "h", _GPT2_SELF, _GPT2_CROSS, PartPlace("mlp", "mlp", "ln_2")), "pre")

_GPT_NEOX_MAPS = _fused("attention", _INTERLEAVED, "dense", "head_size")
_GPT_NEOX_SELF = PartPlace("self", "attention", "input_layernorm", "attention", _GPT_NEOX_MAPS)
_LLAMA_MLP = PartPlace("mlp", "mlp", "post_attention_layernorm")
GPT_NEOX = Family(_stack("decoder", "layers", _GPT_NEOX_SELF, _LLAMA_MLP), "pre", parallel_flag="use_parallel_residual")

_OPT_SELF = _attention("self", "self_attn", "self_attn_layer_norm", _BART_NAMES, counts_heads=True)
OPT = Family(_stack("decoder", "decoder.layers", _OPT_SELF, _BART_MLP), "pre", pre_flag="do_layer_norm_before")

_LLAMA_SELF = _attention("self", "self_attn", "input_layernorm", _LLAMA_NAMES)
LLAMA = Family(_stack("decoder", "layers", _LLAMA_SELF, _LLAMA_MLP), "pre")

_T5_MLPS = [PartPlace("mlp", f"layer.{place}.DenseReluDense", f"layer.{place}.layer_norm") for place in (1, 2)]
_T5_ENCODER = _stack("encoder", "encoder.block", _T5_SELF, _T5_MLPS[0])
T5 = Family(_T5_ENCODER + _stack("decoder", "decoder.block", _T5_SELF, _T5_CROSS, _T5_MLPS[1]), "pre")

_BART_ENCODER = _stack("encoder", "encoder.layers", _BART_SELF, _BART_MLP)
BART = Family(_BART_ENCODER + _stack("decoder", "decoder.layers", _BART_SELF, _BART_CROSS, _BART_MLP), "post")
MBART = replace(BART, norm="pre")

_VIT_SELF = _attention("self", "attention", "layernorm_before", _LLAMA_NAMES)
VIT = Family(_stack("encoder", "layers", _VIT_SELF, PartPlace("mlp", "mlp", "layernorm_after")), "pre")

HF_FAMILIES: dict[str, Family] = {
    "albert": ALBERT,
    "bart": BART,
    "bert": BERT,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": BERT,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "llama": LLAMA,
    "m2m_100": MBART,
    "marian": BART,
    "mbart": MBART,
    "mistral": LLAMA,
    "mt5": T5,
    "opt": OPT,
    "qwen2": LLAMA,
    "roberta": ROBERTA,
    "t5": T5,
    "vit": VIT,
    "xlm-roberta": ROBERTA,
}
