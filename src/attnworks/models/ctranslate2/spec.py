"""The spec of CTranslate2 for a Transformer of attnworks: the same function, with its weights in other places.

CTranslate2 has one number of heads for all layers of a stack, and one width for all heads of a layer. Heads that are
missing, and columns of narrower heads, become zeros: a head of zeros adds nothing to the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.errors import MissingExtraError
from attnworks.core.tensors import tensors_of
from attnworks.models.block import Block, Residual
from attnworks.models.decoding.translate import max_target_tokens
from attnworks.models.layers import LayerNorm
from attnworks.models.multihead import MultiHead
from attnworks.models.transformer import Transformer
from attnworks.text.vocabulary import BOS, EOS, SPECIALS, UNK, Vocabulary

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

MOST_SOURCE_TOKENS = 1024
"""The longest source for which position codes are stored; CTranslate2 cuts longer ones unless told otherwise."""
STORED_POSITIONS = max_target_tokens(MOST_SOURCE_TOKENS)


def import_ctranslate2(asked: str) -> Any:
    """The package ctranslate2; an error with a remedy where it is not installed."""
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError as error:
        got, remedy = "an environment without it", "pip install 'attnworks[fast]'"
        raise MissingExtraError(asked, "the package ctranslate2", got, remedy) from error
    return ctranslate2


def inexpressible_part(model: nn.Module, vocabularies: tuple[Vocabulary, Vocabulary]) -> str | None:
    """What of a model CTranslate2 cannot express, in words; None if it can express all of it."""
    if not isinstance(model, Transformer):
        return f"a {type(model).__name__} in place of a Transformer"
    config = model.config
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        if not layers:
            return f"a Transformer without {stack}"
    for slot in config.slot_names():
        for spec, heads in config.slot(slot).mechanism_groups():
            if spec.name != "dense":
                return f"{spec} in {slot}.{heads[0]}"
    if config.norm_kind != "standard":
        return f"norms of the kind {config.norm_kind}"
    if config.positions == "normalised-index":
        return "positions of the kind normalised-index"
    for vocabulary, rows in zip(vocabularies, (config.vocabulary, config.target_size), strict=True):
        if len({*_tokens(vocabulary, rows)}) < rows:
            return f"a vocabulary of {len(vocabulary):,} tokens for {rows:,} embeddings"
    for name, tensor in tensors_of(model).items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return f"NaN or infinity in {name}"
    return None


def make_spec(model: Transformer, vocabularies: tuple[Vocabulary, Vocabulary]) -> TransformerSpec:
    """The spec of a model that CTranslate2 can express, with the weights of the model in float32."""
    specs = import_ctranslate2("the spec of a model").specs
    config = model.config
    encoder_heads, decoder_heads = (
        max(1, *(layer.config.heads for layer in _attention_layers(stack))) for stack in (model.encoder, model.decoder)
    )
    norms: dict[str, Any] = {"pre_norm": True, "no_final_norm": not config.has_final_norm, "head_dim": 1}
    encoder = specs.transformer_spec.TransformerEncoderSpec(config.encoder_layers, encoder_heads, **norms)
    decoder = specs.transformer_spec.TransformerDecoderSpec(config.decoder_layers, decoder_heads, **norms)
    spec = specs.TransformerSpec(encoder, decoder)
    for stack, final_norm in ((encoder, model.encoder_norm), (decoder, model.decoder_norm)):
        stack.pre_norm = config.norm == "pre"
        stack.position_encodings.encodings = _position_codes(model)
        if final_norm is not None:
            _set_norm(stack.layer_norm, final_norm)
    assert model.source_embedding is not None and model.target_embedding is not None
    encoder.embeddings[0].weight = _numbers(model.source_embedding.weight)
    decoder.embeddings.weight = _numbers(model.target_embedding.weight)
    _set_linear(decoder.projection, model.output.weight, model.output.bias)
    for layer, block in zip(encoder.layer, model.encoder, strict=True):
        _set_block(layer, cast("Block", block), encoder_heads)
    for layer, block in zip(decoder.layer, model.decoder, strict=True):
        _set_block(layer, cast("Block", block), decoder_heads)
    settings = spec.config
    settings.layer_norm_epsilon = config.norm_eps
    settings.unk_token, settings.bos_token, settings.eos_token = (SPECIALS[token] for token in (UNK, BOS, EOS))
    settings.decoder_start_token, settings.add_source_eos = SPECIALS[BOS], True
    spec.register_source_vocabulary(_tokens(vocabularies[0], config.vocabulary))
    spec.register_target_vocabulary(_tokens(vocabularies[1], config.target_size))
    spec.validate()
    spec.optimize()
    return spec


def stored_positions(model: Transformer) -> int:
    """How many positions the spec of a model has."""
    most = model.config.max_positions
    return STORED_POSITIONS if most is None else most


def _tokens(vocabulary: Vocabulary, rows: int) -> list[str]:
    return [vocabulary.token(identity) for identity in range(rows)]


def _attention_layers(stack: nn.Module) -> Iterator[MultiHead]:
    return (module for module in stack.modules() if isinstance(module, MultiHead))


def _position_codes(model: Transformer) -> Tensor:
    return _numbers(model.positions(torch.zeros(1, stored_positions(model), model.config.d_e))[0])


def _set_block(layer: Any, block: Block, heads: int) -> None:
    _set_attention(layer.self_attention, block.attention, block.attention_residual, heads, crosses=False)
    if block.cross is not None:
        _set_attention(layer.attention, block.cross, block.cross_residual, heads, crosses=True)
    assert block.mlp is not None
    _set_residual(layer.ffn, block.mlp_residual)
    _set_linear(layer.ffn.linear_0, block.mlp.W_1.T, block.mlp.b_1)
    _set_linear(layer.ffn.linear_1, block.mlp.W_2.T, block.mlp.b_2)


def _set_attention(spec: Any, attention: MultiHead, residual: Residual, heads: int, *, crosses: bool) -> None:
    """Self-attention has one projection to Q, K and V; cross-attention one to Q, and one to K and V."""
    _set_residual(spec, residual)
    _, d_k, d_v = attention.config.geometry
    width = max(d_k, d_v)
    *inputs, W_O = attention.head_first()
    W = [_padded(W.mT, heads, width) for W in inputs]  # each [h d e]
    b = [None if b is None else _padded(b.unsqueeze(-1), heads, width) for b in attention.head_first_biases()]
    for linear, parts in zip(spec.linear, ((0,), (1, 2)) if crosses else ((0, 1, 2),), strict=False):
        biases = [bias.flatten() for part in parts if (bias := b[part]) is not None]
        columns = torch.cat([W[part].flatten(0, 1) for part in parts])
        _set_linear(linear, columns, torch.cat(biases) if biases else None)
    _set_linear(spec.linear[-1], _padded(W_O, heads, width).flatten(0, 1).T, attention.b_O)
    spec.head_dim = np.int32(width)
    spec.queries_scale = attention.scoring.scale if attention.config.heads else 1.0


def _padded(W: Float[Tensor, "h d e"], heads: int, width: int) -> Float[Tensor, "n w e"]:
    """The matrices of a layer with zeros for missing heads and for missing columns of narrower heads."""
    return F.pad(W, (0, 0, 0, width - W.shape[1], 0, heads - W.shape[0]))


def _set_residual(spec: Any, residual: Residual) -> None:
    assert residual.norm is not None
    _set_norm(spec.layer_norm, residual.norm)


def _set_norm(spec: Any, norm: LayerNorm) -> None:
    spec.gamma, spec.beta = _numbers(norm.gamma), _numbers(norm.beta)


def _set_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _numbers(weight)
    if bias is not None:
        spec.bias = _numbers(bias)


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()
