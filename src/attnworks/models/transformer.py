"""The Transformer: encoder, decoder, or both, as documented (post-norm) or with norms first."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.core.errors import UsageError
from attnworks.models.block import Block, Wiring
from attnworks.models.config import AttentionConfig, TransformerConfig
from attnworks.models.layers import Dropout, Embedding, LayerNorm, Output, Positions
from attnworks.models.multihead import Observer, tie_layers
from attnworks.models.stepping import KeysValues, Memory, TransformerState


class Transformer(nn.Module):
    """Tokens to scores of the next token over the target vocabulary.

    Source: Conti 2024, section 1.2 (S4.17-S4.61, S4.153).
    `encode`, `decode` and `scores` are the three steps of `forward`. Without an encoder it is a causal language model
    over the target; without a decoder it scores the tokens of the source itself.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        d_e, layers, decoder_layers = config.d_e, config.encoder_layers, config.decoder_layers
        self.source_embedding = Embedding(config.vocabulary, d_e) if layers else None
        self.target_embedding = Embedding(config.target_size, d_e) if decoder_layers else None
        if config.tie == "all" and layers and decoder_layers:
            self.target_embedding = self.source_embedding
        self.positions = Positions(config.positions, d_e, config.position_base, config.max_length)
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(_block(config, f"enc.{layer}") for layer in range(layers))
        self.decoder = nn.ModuleList(
            _block(config, f"dec.{layer}", f"cross.{layer}" if layers else None) for layer in range(decoder_layers)
        )
        self.encoder_norm = _final_norm(config) if layers else None
        self.decoder_norm = _final_norm(config) if decoder_layers else None
        written = self.target_embedding or self.source_embedding
        self.output = Output(
            config.target_size if decoder_layers else config.vocabulary,
            d_e,
            tied_to=None if config.tie == "none" else written,
            bias=config.output_bias,
        )
        tie_layers(self)

    def forward(
        self,
        source: Int[Tensor, "b i"] | None = None,
        target: Int[Tensor, "b t"] | None = None,
        source_padding: Bool[Tensor, "b i"] | None = None,
        target_padding: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b n w"]:
        """Scores before softmax. Paddings are True at real tokens; position t of the target sees targets up to t."""
        return self.scores(self.hidden(source, target, source_padding, target_padding, observe))

    def hidden(
        self,
        source: Int[Tensor, "b i"] | None = None,
        target: Int[Tensor, "b t"] | None = None,
        source_padding: Bool[Tensor, "b i"] | None = None,
        target_padding: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b n e"]:
        """What the scores are read from: `forward` without the projection to the vocabulary."""
        self._check_given(source, target)
        Z = None if source is None else self.encode(source, source_padding, observe)
        if target is None:
            assert Z is not None
            return Z
        return self.decode(target, Z, source_padding, target_padding, observe)

    def encode(
        self,
        source: Int[Tensor, "b i"],
        padding: Bool[Tensor, "b i"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b i e"]:
        X = self._embed("encode", self.source_embedding, source, padding)
        mask = Mask(padding)
        for block in self.encoder:
            X = block(X, mask, observe=observe)
        return X if self.encoder_norm is None else self.encoder_norm(X)

    def decode(
        self,
        target: Int[Tensor, "b t"],
        Z: Float[Tensor, "b i e"] | None = None,
        source_padding: Bool[Tensor, "b i"] | None = None,
        target_padding: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b t e"]:
        self._check_encoded(Z)
        X = self._embed("decode", self.target_embedding, target, target_padding)
        mask, source_mask = Mask(target_padding, causal=True), Mask(source_padding)
        for block in self.decoder:
            X = block(X, mask, Z, source_mask, observe)
        return X if self.decoder_norm is None else self.decoder_norm(X)

    def start(
        self,
        source: Int[Tensor, "s i"] | None = None,
        padding: Bool[Tensor, "s i"] | None = None,
        sentences: int = 1,
    ) -> TransformerState:
        """The state before the first target token: the source is encoded and projected once.

        A model without an encoder starts `sentences` texts from nothing.
        """
        if self.config.positions == "normalised-index":
            raise UsageError(
                asked="decoding step by step",
                expected="positions that do not depend on the length of the sentence",
                got="normalised-index, whose codes change with every token written",
                remedy="build the model with sinusoid positions",
            )
        if (source is None) == bool(len(self.encoder)):
            raise UsageError(
                asked="decoding step by step",
                expected="source tokens" if source is None else "no source, since there is no encoder",
                got="none" if source is None else f"some of shape {list(source.shape)}",
                remedy="pass source=... if, and only if, the model has an encoder",
            )
        if source is None:
            return TransformerState(sentences=sentences, position=0, own=None, memory=None)
        Z = self.encode(source, padding)
        memory = tuple(KeysValues(*block.cross.keys_values(Z)) for block in self._decoder_blocks() if block.cross)
        return TransformerState(sentences=len(source), position=0, own=None, memory=Memory(memory, padding))

    def step(
        self, tokens: Int[Tensor, "s beams"], state: TransformerState
    ) -> tuple[Float[Tensor, "s beams w"], TransformerState]:
        """Scores of the token after these, one for each hypothesis, and the state that remembers them."""
        X = self._embed("step", self.target_embedding, tokens.reshape(-1, 1), start=state.position)
        grown: list[KeysValues] = []
        for layer, block in enumerate(self._decoder_blocks()):
            own = None if state.own is None else state.own[layer]
            memory = None if state.memory is None else state.memory.keys_values[layer]
            X, keys_values = block.step(X, own, memory, None if state.memory is None else state.memory.padding)
            grown.append(keys_values)
        X = X if self.decoder_norm is None else self.decoder_norm(X)
        scores = self.scores(X.reshape(*tokens.shape, -1))
        return scores, replace(state, position=state.position + 1, own=tuple(grown))

    def scores(self, X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a w"]:
        return self.output(X)

    def _decoder_blocks(self) -> list[Block]:
        return cast("list[Block]", list(self.decoder))

    def _embed(
        self, asked: str, embedding: Embedding | None, tokens: Tensor, padding: Tensor | None = None, start: int = 0
    ) -> Float[Tensor, "b i e"]:
        if embedding is None:
            raise UsageError(
                asked=f"{asked} by this model",
                expected="an encoder to encode with, a decoder to decode and step with",
                got=f"encoder_layers={self.config.encoder_layers} and decoder_layers={self.config.decoder_layers}",
                remedy="build the model with the side that is missing",
            )
        return self.dropout(self.positions(embedding(tokens), padding, start))

    def _check_given(self, source: Tensor | None, target: Tensor | None) -> None:
        expected = [
            name
            for name, present in (("source", self.source_embedding), ("target", self.target_embedding))
            if present is not None
        ]
        got = [name for name, tokens in (("source", source), ("target", target)) if tokens is not None]
        if got != expected:
            raise UsageError(
                asked="a forward pass",
                expected=f"{' and '.join(expected)} tokens",
                got=" and ".join(got) or "none",
                remedy="an encoder reads source=..., a decoder target=..., and only what the model has may be given",
            )

    def _check_encoded(self, Z: Tensor | None) -> None:
        """Without this, cross-attention would look at the target itself."""
        if (Z is None) == bool(len(self.encoder)):
            raise UsageError(
                asked="decoding",
                expected="the output of the encoder" if Z is None else "no encoder output, since there is no encoder",
                got="none" if Z is None else f"one of shape {list(Z.shape)}",
                remedy="pass Z=model.encode(source) if, and only if, the model has an encoder",
            )


def _block(config: TransformerConfig, slot: str, cross: str | None = None) -> Block:
    wiring = Wiring(norm=config.norm, norm_kind=config.norm_kind, norm_eps=config.norm_eps, dropout=config.dropout)
    return Block(
        config.d_e,
        wiring,
        self_attention=_named(config, slot),
        cross_attention=None if cross is None else _named(config, cross),
        d_ff=config.d_ff,
    )


def _named(config: TransformerConfig, slot: str) -> tuple[str, AttentionConfig]:
    return slot, config.slot(slot)


def _final_norm(config: TransformerConfig) -> LayerNorm | None:
    return LayerNorm(config.d_e, config.norm_kind, config.norm_eps) if config.has_final_norm else None
