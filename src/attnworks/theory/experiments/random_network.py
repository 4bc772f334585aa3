"""A random network of attention on random input: the options, weights and tokens of two experiments."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.checks import number
from attnworks.core.errors import UsageError
from attnworks.models.block import PureAttention
from attnworks.models.build import build
from attnworks.models.config import AttentionConfig, PureConfig
from attnworks.theory.experiments.contract import ExperimentRow, TheoryExperiment


@dataclass(frozen=True, kw_only=True)
class NetworkExperiment(TheoryExperiment[ExperimentRow]):
    """Options of a random network, and its weights and input for a seed.

    weights    factor of all attention weights, which are Glorot-uniform at 1
    seeds      number of networks and inputs
    """

    num_layers: int = 8
    num_heads: int = 4
    width: int = 32
    tokens: int = 24
    weights: float = 0.3
    seeds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_integers(num_layers=(1, 64), num_heads=(1, 64), width=(1, 1024), tokens=(2, 1024))
        self.check_integers(seeds=(1, 1000), seed=(0, 2**60))
        number("weights", self.weights, 1e-3, 1e3)
        if self.width % self.num_heads:
            expected = f"a width that {self.num_heads} divides"
            raise UsageError(f"{self.num_heads} equal heads", expected, str(self.width), "choose another")

    @property
    def scale(self) -> float:
        """Of the scores: 1 / sqrt(d_k)."""
        return (self.width // self.num_heads) ** -0.5

    def draw_network(self, seed: int, *, skip: bool = False, mlp: bool = False, norm: bool = False) -> PureAttention:
        """The network of a seed, in float64; its attention layers do not depend on the wiring."""
        d = self.width // self.num_heads
        attention = AttentionConfig(heads=self.num_heads, d_k=d, d_v=d, bias=False)
        wired = PureConfig(d_e=self.width, layers=self.num_layers, attention=attention, skip=skip, mlp=mlp, norm=norm)
        network = build(wired, seed=seed).double()
        everything = build(replace(wired, skip=True, mlp=True, norm=True), seed=seed)
        network.load_state_dict(everything.state_dict(), strict=False)
        assert isinstance(network, PureAttention)
        with torch.no_grad():
            for layer in network.attentions:
                for W in (layer.W_Q, layer.W_K, layer.W_V, layer.W_O):
                    W.mul_(self.weights)
        return network.requires_grad_(False)

    def draw_input(self, seed: int) -> Float[Tensor, "1 n e"]:
        """Standard normal token vectors."""
        source = torch.Generator().manual_seed(seed)
        return torch.randn(1, self.tokens, self.width, generator=source, dtype=torch.float64)


def check_size(output: Float[Tensor, "1 n e"]) -> None:
    """Refuse networks so large that the squares of their numbers overflow."""
    if not bool(output.abs().max() < 1e150):
        expected = "numbers whose squares float64 can hold"
        raise UsageError("the output of the network", expected, "more", "take smaller weights")
