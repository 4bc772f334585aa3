"""Small networks of attention alone for a check, of drawn or given weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.exam.linalg.bounds import HeadSizes, diameter, head_sizes
from attnworks.models.config import AttentionConfig, PureConfig
from attnworks.models.multihead import MultiHead, Observation
from attnworks.models.pure import PureAttention
from attnworks.theory.cases import Draw
from attnworks.traces.paths import Hop, Step


class Run(NamedTuple):
    """One forward pass over X: what every layer computed.

    states    the input and the output of every layer
    maps      P of every layer, [h n n]
    """

    states: list[Float[Tensor, "n e"]]
    maps: list[Float[Tensor, "h n n"]]

    @property
    def exit(self) -> Float[Tensor, "n e"]:
        return self.states[-1]


class Network:
    """A `PureAttention` in float64 on one sequence at a time; torch's own random state is left alone."""

    def __init__(self, config: PureConfig) -> None:
        with torch.random.fork_rng(devices=[]):
            self.model = PureAttention(config).double().requires_grad_(False)

    @property
    def layers(self) -> list[MultiHead]:
        return self.model.attentions

    @property
    def skip(self) -> bool:
        return self.model.config.skip

    @property
    def scale(self) -> float:
        scale = self.layers[0].scoring.scale
        assert scale is not None
        return scale

    @property
    def sizes(self) -> list[HeadSizes]:
        """Norms of the weights of every layer."""
        return [head_sizes(*layer.head_first()) for layer in self.layers]

    def run(self, X: Float[Tensor, "n e"], mask: Mask | None = None) -> Run:
        seen: list[Observation] = []
        self.model(X.unsqueeze(0), mask, observe=seen.append)
        states = self.model.states(X.unsqueeze(0), mask)
        return Run([Z.squeeze(0) for Z in states], [layer.P.squeeze(0) for layer in seen])

    def steps(self, maps: Sequence[Float[Tensor, "h n n"]]) -> list[Step]:
        """The network as steps with frozen attention: that of a run, or any other."""
        return [
            Step((_hop(layer, P.unsqueeze(0)),), skip=self.skip) for layer, P in zip(self.layers, maps, strict=True)
        ]


def drawn_network(
    draw: Draw,
    *,
    e: int,
    heads: int = 1,
    layers: int = 1,
    k: int = 2,
    v: int = 3,
    bias: bool = True,
    skip: bool = False,
    mlp: bool = False,
    norm: bool = False,
    qk: float = 1.0,
    vo: float = 1.0,
) -> Network:
    """Normal weights, so scaled that with qk = vo = 1 scores and outputs are about as large as the input's entries."""
    attention = AttentionConfig(heads=heads, d_k=k, d_v=v, bias=bias)
    config = PureConfig(d_e=e, layers=layers, attention=attention, skip=skip, mlp=mlp, norm=norm)
    network = Network(config)
    for parameter in network.model.parameters():
        parameter.copy_(draw.normal(*parameter.shape, scale=e**-0.5))
    for layer in network.layers:
        layer.W_Q.mul_(qk)
        layer.W_O.mul_(vo * (e / (v * heads)) ** 0.5)
    return network


def given_network(
    W_QK: Float[Tensor, "l h e e"], W_V: Float[Tensor, "l h e e"], *, scale: float = 1.0, skip: bool = False
) -> Network:
    """Layers without biases whose heads have these W_QK and these W_h = W_V,h W_O,h."""
    layers, heads, e = W_QK.shape[:3]
    attention = AttentionConfig(heads=heads, d_k=e, d_v=e, bias=False, scale=scale)
    network = Network(PureConfig(d_e=e, layers=layers, attention=attention, skip=skip))
    for layer, qk, value in zip(network.layers, W_QK, W_V, strict=True):
        layer.W_Q.copy_(qk)
        layer.W_V.copy_(value)
        for identity in (layer.W_K, layer.W_O):
            identity.copy_(torch.eye(e).expand(heads, e, e))
    return network


def collapsing(draw: Draw, X: Float[Tensor, "n e"], *, share: float, layers: int, heads: int = 1) -> Network:
    """Layers that turn rows and keep their length, with (sum_h ||W_h||_2 ||W_QK,h||_2 / 4) diam_2(X)^2 = share."""
    e = X.shape[-1]
    turns = torch.stack([draw.orthonormal(e, e) for _ in range(2 * layers * heads)]).unflatten(0, (2, layers, heads))
    size = 4 * share / float(diameter(X)) ** 2
    values = turns[1, :, :1].expand(layers, heads, e, e) / heads
    return given_network(size * turns[0], values)


def rewired(network: Network, *, skip: bool, size: float = 1.0) -> Network:
    """The same heads without biases, with `size` times their values, and with or without skip connections."""
    W_QK, W_V, _ = (torch.stack(parts) for parts in zip(*(layer.folded() for layer in network.layers), strict=True))
    return given_network(W_QK, size * W_V, scale=network.scale, skip=skip)


def frozen_attention(n: int, *, layers: int, skip: bool = False) -> Network:
    """For X = I_n: scores so sharp that every row attends to itself alone, and values as they are."""
    identity = torch.eye(n, dtype=torch.float64).expand(layers, 1, n, n)
    return given_network(1e4 * identity, identity, skip=skip)


def _hop(layer: MultiHead, P: Float[Tensor, "1 h n n"]) -> Hop:
    _, _, W_V, W_O = layer.head_first()
    return Hop(lambda: P, W_V, W_O, layer.head_first_biases()[2], layer.b_O)
