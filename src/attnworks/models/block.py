"""One transformer block: self-attention, cross-attention and feed-forward, each with residual sum, norm and dropout.

`PureAttention` is a stack of blocks on vectors. Theorems on rank collapse switch its sum, norm and feed-forward off.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.core.places import Slot
from attnworks.models.config import AttentionConfig, NormKind, NormOrder, PureConfig
from attnworks.models.layers import Dropout, FeedForward, LayerNorm
from attnworks.models.multihead import MultiHead, Observer, tie_layers
from attnworks.models.stepping import KeysValues


class Block(nn.Module):
    """Self-attention, cross-attention (in a decoder that has an encoder) and feed-forward, in this order (S4.153)."""

    cross_residual: Residual  # set only beside `cross`
    mlp_residual: Residual  # set only beside `mlp`

    def __init__(
        self,
        d_e: int,
        wiring: Wiring,
        *,
        self_attention: tuple[Slot, AttentionConfig],
        cross_attention: tuple[Slot, AttentionConfig] | None = None,
        d_ff: int | None = None,
    ) -> None:
        super().__init__()
        slot, attention = self_attention
        self.attention = MultiHead(d_e, attention, slot)
        self.attention_residual = Residual(d_e, wiring)
        self.cross = self.mlp = None
        if cross_attention is not None:
            slot, attention = cross_attention
            self.cross, self.cross_residual = MultiHead(d_e, attention, slot), Residual(d_e, wiring)
        if d_ff is not None:
            self.mlp, self.mlp_residual = FeedForward(d_e, d_ff, wiring.dropout), Residual(d_e, wiring)

    def forward(
        self,
        X: Float[Tensor, "b i e"],
        mask: Mask | None = None,
        Z: Float[Tensor, "b j e"] | None = None,
        Z_mask: Mask | None = None,
        observe: Observer | None = None,
    ) -> Float[Tensor, "b i e"]:
        """X after the block. Z is the output of the encoder, for cross-attention."""
        residual = self.attention_residual
        X = residual.add(X, self.attention(residual.pre_norm(X), mask=mask, observe=observe))
        if self.cross is not None:
            residual = self.cross_residual
            X = residual.add(X, self.cross(residual.pre_norm(X), Z, mask=Z_mask, observe=observe))
        return self._feed_forward(X)

    def step(
        self,
        X: Float[Tensor, "n 1 e"],
        past: KeysValues | None,
        memory: KeysValues | None,
        memory_real: Bool[Tensor, "s j"] | None,
    ) -> tuple[Float[Tensor, "n 1 e"], KeysValues]:
        """The next position of n hypotheses, and the keys and values of all positions including it.

        The n rows are [sentences beams], flattened. `past` holds the keys and values of the positions before, one row
        per hypothesis; `memory` those of the source, one row per sentence.
        """
        residual = self.attention_residual
        Y, past = self.attention.step(residual.pre_norm(X), past)
        X = residual.add(X, Y)
        if self.cross is not None and memory is not None:
            residual = self.cross_residual
            X = residual.add(X, self.cross.read_memory(residual.pre_norm(X), memory, memory_real))
        return self._feed_forward(X), past

    def _feed_forward(self, X: Float[Tensor, "b i e"]) -> Float[Tensor, "b i e"]:
        if self.mlp is None:
            return X
        residual = self.mlp_residual
        return residual.add(X, self.mlp(residual.pre_norm(X)))


class Residual(nn.Module):
    """The sum, norm and dropout around one part f of a block: add(x, f(pre_norm(x))).

    post    LN(x + dropout(f(x)))
    pre     x + dropout(f(LN(x)))
    Without skip there is no sum, and without a norm no LN.
    Source: Conti 2024, section 1.2.2 (S4.33): u = LN(x + u').
    """

    def __init__(self, d_e: int, wiring: Wiring) -> None:
        super().__init__()
        self.skip, self.order = wiring.skip, wiring.norm
        self.norm = LayerNorm(d_e, wiring.norm_kind, wiring.norm_eps) if wiring.norm else None
        self.dropout = Dropout(wiring.dropout)

    def pre_norm(self, x: Float[Tensor, "b i e"]) -> Float[Tensor, "b i e"]:
        """The input of the part: LN(x) if the norm comes first, else x."""
        return self.norm(x) if self.norm is not None and self.order == "pre" else x

    def add(self, x: Float[Tensor, "b i e"], y: Float[Tensor, "b i e"]) -> Float[Tensor, "b i e"]:
        """The residual stream x with the output y of the part added to it, normalised if the norm comes last."""
        y = self.dropout(y)
        if self.skip:
            y = x + y
        return self.norm(y) if self.norm is not None and self.order == "post" else y


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Whether each part of a block has a residual sum, and where and how it is normalised."""

    skip: bool = True
    norm: NormOrder | None = "post"
    norm_kind: NormKind = "standard"
    norm_eps: float = 1e-5
    dropout: float = 0.0


class PureAttention(nn.Module):
    """SAN(X) = SA_L( ... SA_1(X)), on vectors instead of tokens; skip, MLP and norm can be switched on.

    Source: Xie 2021, section 2 (S0.8-S0.12); the rank post (S1.3-S1.6).
    """

    def __init__(self, config: PureConfig) -> None:
        super().__init__()
        self.config = config
        norm = "post" if config.norm else None
        wiring = Wiring(skip=config.skip, norm=norm, norm_kind=config.norm_kind, norm_eps=config.norm_eps)
        slots = [(Slot("encoder", layer), config.attention) for layer in range(config.layers)]
        d_ff = config.hidden if config.mlp else None
        self.layers = nn.ModuleList(Block(config.d_e, wiring, self_attention=slot, d_ff=d_ff) for slot in slots)
        tie_layers(self)

    @property
    def attentions(self) -> list[MultiHead]:
        """The attention of every layer."""
        return [layer.attention for layer in self.layers]  # pyright: ignore[reportReturnType]

    def forward(
        self, X: Float[Tensor, "b i e"], mask: Mask | None = None, observe: Observer | None = None
    ) -> Float[Tensor, "b i e"]:
        for layer in self.layers:
            X = layer(X, mask, observe=observe)
        return X

    def states(self, X: Float[Tensor, "b i e"], mask: Mask | None = None) -> list[Float[Tensor, "b i e"]]:
        """The input and the output of every layer, for curves over depth."""
        states = [X]
        for layer in self.layers:
            states.append(layer(states[-1], mask))
        return states
