"""Attention-only networks: the objects of the rank-collapse theorems."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.models.block import Block, Wiring
from attnworks.models.config import PureConfig
from attnworks.models.multihead import MultiHead, Observer, tie_layers


class PureAttention(nn.Module):
    """SAN(X) = SA_L( ... SA_1(X)), on vectors instead of tokens; skip, MLP and norm can be switched on.

    Source: Xie 2021, section 2 (S0.8-S0.12); the rank post (S1.3-S1.6).
    """

    def __init__(self, config: PureConfig) -> None:
        super().__init__()
        self.config = config
        wiring = Wiring(
            skip=config.skip,
            norm="post" if config.norm else None,
            norm_kind=config.norm_kind,
            norm_eps=config.norm_eps,
        )
        self.layers = nn.ModuleList(
            Block(
                config.d_e,
                wiring,
                self_attention=(f"enc.{layer}", config.attention),
                d_ff=config.hidden if config.mlp else None,
            )
            for layer in range(config.layers)
        )
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
