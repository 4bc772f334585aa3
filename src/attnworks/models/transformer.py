"""The Transformer: encoder, decoder, or both, as documented (post-norm) or with norms first."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models.block import Block, Wiring
from attnworks.models.config import TransformerConfig
from attnworks.models.initialisation import draw_initial_weights
from attnworks.models.layers import Dropout, Embedding, LayerNorm, OutputLayer, Positions
from attnworks.models.multihead import Observer, tie_layers
from attnworks.models.stepping import KeysValues, Memory, TransformerState


class Transformer(nn.Module):
    """Tokens to logits of the next token over the target vocabulary.

    Source: Conti 2024, section 1.2 (S4.17-S4.61, S4.153).
    `encode`, `decode` and `logits` are the three steps of `forward`. Without an encoder it is a causal language model
    over the target; without a decoder it gives logits for the tokens of the source itself.
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
        self.encoder = nn.ModuleList(_block(config, Slot("encoder", layer)) for layer in range(layers))
        self.decoder = nn.ModuleList(
            _block(config, Slot("decoder", layer), Slot("cross", layer) if layers else None)
            for layer in range(decoder_layers)
        )
        self.encoder_norm = _final_norm(config) if layers else None
        self.decoder_norm = _final_norm(config) if decoder_layers else None
        embedding = self.target_embedding or self.source_embedding
        self.output = OutputLayer(
            config.target_size if decoder_layers else config.vocabulary,
            d_e,
            tied_to=None if config.tie == "none" else embedding,
            bias=config.output_bias,
        )
        tie_layers(self)
        draw_initial_weights(self, config)

    def forward(
        self,
        source: Int[Tensor, "b i"] | None = None,
        target: Int[Tensor, "b t"] | None = None,
        source_real: Bool[Tensor, "b i"] | None = None,
        target_real: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b n w"]:
        """Logits. `source_real` and `target_real` are True at real tokens, False at padding; None if all are real."""
        return self.logits(self.hidden(source, target, source_real, target_real, observe))

    def hidden(
        self,
        source: Int[Tensor, "b i"] | None = None,
        target: Int[Tensor, "b t"] | None = None,
        source_real: Bool[Tensor, "b i"] | None = None,
        target_real: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b n e"]:
        """The input of the output layer: `forward` without the projection to the vocabulary."""
        self._check_given(source, target)
        Z = None if source is None else self.encode(source, source_real, observe)
        if target is None:
            assert Z is not None
            return Z
        return self.decode(target, Z, source_real, target_real, observe)

    def encode(
        self,
        source: Int[Tensor, "b i"],
        real: Bool[Tensor, "b i"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b i e"]:
        X = self._embed("encode", self.source_embedding, source, real)
        mask = Mask(real)
        for block in self.encoder:
            X = block(X, mask, observe=observe)
        return X if self.encoder_norm is None else self.encoder_norm(X)

    def decode(
        self,
        target: Int[Tensor, "b t"],
        Z: Float[Tensor, "b i e"] | None = None,
        source_real: Bool[Tensor, "b i"] | None = None,
        target_real: Bool[Tensor, "b t"] | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b t e"]:
        self._check_encoder_input("decoding", "Z=model.encode(source)", Z)
        X = self._embed("decode", self.target_embedding, target, target_real)
        mask, source_mask = Mask(target_real, causal=True), Mask(source_real)
        for block in self.decoder:
            X = block(X, mask, Z, source_mask, observe)
        return X if self.decoder_norm is None else self.decoder_norm(X)

    def start(
        self,
        source: Int[Tensor, "s i"] | None = None,
        real: Bool[Tensor, "s i"] | None = None,
        sentences: int = 1,
    ) -> TransformerState:
        """The state before the first target token: the source is encoded and projected once.

        A model without an encoder starts `sentences` empty texts.
        """
        if self.config.positions == "normalised-index":
            expected, remedy = "positions that do not depend on the length", "build the model with sinusoid positions"
            found = "normalised-index, whose codes change with every token"
            raise UsageError("decoding step by step", expected, found, remedy)
        self._check_encoder_input("decoding step by step", "source tokens", source)
        if source is None:
            return TransformerState(sentences=sentences, position=0, own=None, memory=None)
        Z = self.encode(source, real)
        memory = tuple(KeysValues(*block.cross.keys_values(Z)) for block in self._decoder_blocks() if block.cross)
        return TransformerState(sentences=len(source), position=0, own=None, memory=Memory(memory, real))

    def step(
        self, tokens: Int[Tensor, "s beams"], state: TransformerState
    ) -> tuple[Float[Tensor, "s beams w"], TransformerState]:
        """Logits of the next token of each hypothesis, and the state after these tokens."""
        X = self._embed("step", self.target_embedding, tokens.reshape(-1, 1), start=state.position)
        grown: list[KeysValues] = []
        for layer, block in enumerate(self._decoder_blocks()):
            own = None if state.own is None else state.own[layer]
            memory = None if state.memory is None else state.memory.keys_values[layer]
            X, keys_values = block.step(X, own, memory, None if state.memory is None else state.memory.real)
            grown.append(keys_values)
        X = X if self.decoder_norm is None else self.decoder_norm(X)
        logits = self.logits(X.reshape(*tokens.shape, -1))
        return logits, replace(state, position=state.position + 1, own=tuple(grown))

    def logits(self, X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a w"]:
        return self.output(X)

    def _decoder_blocks(self) -> list[Block]:
        return cast("list[Block]", list(self.decoder))

    def _embed(
        self, asked: str, embedding: Embedding | None, tokens: Tensor, real: Tensor | None = None, start: int = 0
    ) -> Float[Tensor, "b i e"]:
        if embedding is None:
            layers = f"encoder_layers={self.config.encoder_layers} and decoder_layers={self.config.decoder_layers}"
            expected = "an encoder to encode with, a decoder to decode and step with"
            raise UsageError(f"{asked} by this model", expected, layers, "build the model with the missing side")
        return self.dropout(self.positions(embedding(tokens), real, start))

    def _check_given(self, source: Tensor | None, target: Tensor | None) -> None:
        sides = {"source": (self.source_embedding, source), "target": (self.target_embedding, target)}
        expected, got = ([side for side, pair in sides.items() if pair[place] is not None] for place in (0, 1))
        if got != expected:
            remedy = "pass source=... if the model has an encoder, and target=... if it has a decoder"
            raise UsageError("a forward pass", f"{' and '.join(expected)} tokens", " and ".join(got) or "none", remedy)

    def _check_encoder_input(self, asked: str, name: str, given: Tensor | None) -> None:
        """Check that `given` is None if, and only if, the model has no encoder.

        Without this check, cross-attention would attend to the target itself.
        """
        if (given is None) == bool(len(self.encoder)):
            expected = name if given is None else f"no {name}, since there is no encoder"
            got = "none" if given is None else f"one of shape {list(given.shape)}"
            raise UsageError(asked, expected, got, f"pass {name} if, and only if, the model has an encoder")


def _block(config: TransformerConfig, slot: Slot, cross: Slot | None = None) -> Block:
    wiring = Wiring(norm=config.norm, norm_kind=config.norm_kind, norm_eps=config.norm_eps, dropout=config.dropout)
    return Block(
        config.d_e,
        wiring,
        self_attention=(slot, config.slot(slot)),
        cross_attention=None if cross is None else (cross, config.slot(cross)),
        d_ff=config.d_ff,
    )


def _final_norm(config: TransformerConfig) -> LayerNorm | None:
    return LayerNorm(config.d_e, config.norm_kind, config.norm_eps) if config.has_final_norm else None
