"""Small float64 networks of attention for the checks: their paths, and how much of a bound their outputs use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Context, Mask, Mechanism
from attnworks.exam.linalg import bounds
from attnworks.exam.linalg.residual import best_row, composite, residual, residual_norm
from attnworks.exam.linalg.spectrum import numerical_rank, singular_values
from attnworks.models.block import PureAttention
from attnworks.models.config import AttentionConfig, PureConfig
from attnworks.models.multihead import MultiHead, Observation
from attnworks.theory.cases import Draws
from attnworks.theory.sides import Sides, same, stacked
from attnworks.traces.paths import Hop, PathStep, paths_by_length


class NetworkRun(NamedTuple):
    """One forward pass over X: what every layer computed.

    states    the input and the output of every layer
    maps      P of every layer, [h n n]
    """

    states: list[Float[Tensor, "n e"]]
    maps: list[Float[Tensor, "h n n"]]

    @property
    def exit(self) -> Float[Tensor, "n e"]:
        return self.states[-1]


class NetworkPath(NamedTuple):
    """One path: the heads it takes from the first layer on (None: past the layer) and P_path X W_path."""

    heads: tuple[int | None, ...]
    term: Float[Tensor, "n e"]

    @property
    def length(self) -> int:
        return sum(head is not None for head in self.heads)


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
    def sizes(self) -> list[bounds.HeadSizes]:
        """Norms of the weights of every layer."""
        return [bounds.head_sizes(*layer.head_first()) for layer in self.layers]

    @property
    def bias(self) -> Float[Tensor, " e"]:
        """b^T = sum_l b_l^T prod_{m > l} (sum_h W_h^(m) [+ I with skip]) for any input and any maps (S0.10, D2)."""
        total = torch.zeros(self.model.config.d_e, dtype=torch.float64)
        for _, W, b in (layer.folded() for layer in self.layers):
            total = total @ W.sum(0) + b + (total if self.skip else 0.0)
        return total

    def run(self, X: Float[Tensor, "n e"], mask: Mask | None = None) -> NetworkRun:
        seen: list[Observation] = []
        self.model(X.unsqueeze(0), mask, observe=seen.append)
        states = self.model.states(X.unsqueeze(0), mask)
        return NetworkRun([Z.squeeze(0) for Z in states], [layer.P.squeeze(0) for layer in seen])

    def steps(self, maps: Sequence[Float[Tensor, "h n n"]]) -> list[PathStep]:
        """The network as steps with frozen attention: that of a run, or any other."""
        steps = []
        for layer, P in zip(self.layers, maps, strict=True):
            _, _, W_V, W_O = layer.head_first()
            hop = Hop(lambda P=P: P.unsqueeze(0), W_V, W_O, layer.head_first_biases()[2], layer.b_O)
            steps.append(PathStep((hop,), skip=self.skip))
        return steps

    def output_with_maps(self, X: Float[Tensor, "n e"], maps: Sequence[Float[Tensor, "h n n"]]) -> Float[Tensor, "n e"]:
        """The output of the network if these are its attention maps."""
        return paths_by_length(X.unsqueeze(0), self.steps(maps)).sum(0).squeeze(0)

    def paths(
        self, X: Float[Tensor, "n e"], maps: Sequence[Float[Tensor, "h n n"]], *, in_printed_order: bool = False
    ) -> Iterator[NetworkPath]:
        """P_L ... P_1 X W_1 ... W_L for all choices of a head per layer; with skip also of none.

        in_printed_order    weights in the order of the maps, W_L ... W_1, as Xie 2021 prints them (S0.9)
        """
        weights = [layer.folded()[1] for layer in self.layers]
        choices = [[*range(len(P)), *([None] if self.skip else [])] for P in maps]
        for heads in product(*choices):
            T, order = X, torch.eye(X.shape[-1], dtype=X.dtype)
            for P, W, head in zip(maps, weights, heads, strict=True):
                if head is not None:
                    T = P[head] @ T
                    order = W[head] @ order if in_printed_order else order @ W[head]
            yield NetworkPath(heads, T @ order)

    def sum_of_paths(
        self, X: Float[Tensor, "n e"], maps: Sequence[Float[Tensor, "h n n"]], *, in_printed_order: bool = False
    ) -> Float[Tensor, "n e"]:
        """The sum of all single paths, without the bias."""
        return torch.stack([path.term for path in self.paths(X, maps, in_printed_order=in_printed_order)]).sum(0)

    def rewired(self, *, skip: bool, size: float = 1.0) -> Network:
        """The same heads without biases, with `size` times their values, and with or without skip connections."""
        W_QK, W_V, _ = (torch.stack(parts) for parts in zip(*(layer.folded() for layer in self.layers), strict=True))
        return given_network(W_QK, size * W_V, scale=self.scale, skip=skip)

    def with_row_range(self, X: Float[Tensor, "n e"], row_range: float) -> Network:
        """Scale the first layer's W_Q so that no row of E has a larger range, E by the mean row or by the best one."""
        W_Q, W_K, _, _ = self.layers[0].head_first()
        residuals = residual(X), X - best_row(X, "composite")
        widest = max(float(bounds.logit_row_range(R, W_Q, W_K, self.scale)) for R in residuals)
        self.layers[0].W_Q.mul_(row_range / widest)
        return self

    def composite_share(self, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
        """The residual of the first layer's output over its bound: the larger of two such shares.

        One is of the least residual with the constant 4, the other of that from the mean row with 8 - 8/n.
        """
        Y = self.run(X).states[1]
        of_mean = composite(residual(X)), composite(residual(Y)), bounds.mean_factor(torch.tensor(float(len(X))))
        of_least = residual_norm(X, "composite"), residual_norm(Y, "composite"), 4.0
        shares = []
        for before, after, factor in (of_mean, of_least):
            bound = bounds.composite_bound(before, self.sizes[0], self.scale, factor)
            shares.append(after / (bound + len(X) * bounds.rounding_of_rows(Y)))
        return torch.stack(shares).max()

    def cubic_share(self, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
        """The diameter of the output over its bound c^{(3^L - 1) / 2} diam^{3^L}."""
        bound, states = bounds.row_diameter(X), self.run(X).states
        for sizes in self.sizes:
            bound = bounds.cubic_bound(bound, sizes, self.scale)
        return bounds.row_diameter(states[-1]) / (bound + bounds.rounding_of_rows(*states))

    def skip_shares(self, X: Float[Tensor, "n e"]) -> list[Float[Tensor, ""]]:
        """With skip: of each layer, the lower bound over the diameter of its output, and that over the upper bound."""
        states, shares = self.run(X).states, []
        for before, after, sizes in zip(states, states[1:], self.sizes, strict=False):
            low, high = bounds.skip_bounds(bounds.row_diameter(before), sizes, self.scale)
            diameter, rounding = bounds.row_diameter(after), bounds.rounding_of_rows(after)
            shares += [low / (diameter + rounding), diameter / (high + rounding)]
        return shares


def drawn_network(
    draw: Draws,
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
    """Normal weights. With qk = vo = 1 their scale makes scores and outputs about as large as the input's entries."""
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


def collapsing_network(draw: Draws, X: Float[Tensor, "n e"], *, share: float, layers: int, heads: int = 1) -> Network:
    """Layers that turn rows and keep their length, with (sum_h ||W_h||_2 ||W_QK,h||_2 / 4) diam_2(X)^2 = share."""
    e = X.shape[-1]
    # [2 layers heads e e]: scores, then values
    turns = torch.stack([draw.orthonormal(e, e) for _ in range(2 * layers * heads)]).unflatten(0, (2, layers, heads))
    size = 4 * share / float(bounds.row_diameter(X)) ** 2
    values = turns[1, :, :1].expand(layers, heads, e, e) / heads
    return given_network(size * turns[0], values)


def self_attending_network(n: int, *, layers: int, skip: bool = False) -> Network:
    """For X = I_n: scores so sharp that every row attends only to itself, and identities as values."""
    identity = torch.eye(n, dtype=torch.float64).expand(layers, 1, n, n)
    return given_network(1e4 * identity, identity, skip=skip)


def network_with_drawn_maps(
    draw: Draws, n: int, e: int, heads: int, layers: int
) -> tuple[Network, Tensor, list[Tensor]]:
    """A network without biases, an input, and maps of normal numbers in place of softmax."""
    network = drawn_network(draw, e=e, heads=heads, layers=layers, bias=False)
    return network, draw.normal(n, e), [draw.normal(heads, n, n) for _ in range(layers)]


def mechanism_outputs(
    mechanism: Mechanism, *QKV: Float[Tensor, "n d"], mask: Mask | None = None, context: Context | None = None
) -> Float[Tensor, "i w"]:
    """Y for Q [i k], K [j k] and V [j v], as wide as the values that the mechanism makes of V."""
    Q, K, V = (T[None, None] for T in QKV)
    return mechanism(Q, K, V, mask, context).Y[0, 0].detach()


def mechanism_weights(
    mechanism: Mechanism, *QKV: Float[Tensor, "n d"], mask: Mask | None = None, context: Context | None = None
) -> Float[Tensor, "i j"]:
    """P, the attention weights of the mechanism for Q [i k], K [j k] and V [j v]."""
    Q, K, V = (T[None, None] for T in QKV)
    P = mechanism(Q, K, V, mask, context, weights=True).P
    assert P is not None
    return P[0, 0].detach()


def row_and_column(m: int, n: int) -> tuple[Float[Tensor, "m n"], Float[Tensor, "m n"]]:
    """A = s 1 e_0^T and B = e_0 1^T with equal composite norms, whose sum is as large as it can be (D3)."""
    A, B = torch.zeros(2, m, n, dtype=torch.float64).unbind()
    A[:, 0], B[0] = (n / m) ** 0.5, 1.0
    return A, B


def numeric_rank(M: Float[Tensor, "i j"]) -> int:
    """The number of singular values above rounding."""
    return int(numerical_rank(singular_values(M), max(M.shape)))


def self_attended(X: Float[Tensor, "n e"], W_QK: Float[Tensor, "e e"]) -> Float[Tensor, "n e"]:
    """softmax(X W_QK X^T) X, with gradients."""
    return (X @ W_QK @ X.mT).softmax(-1) @ X


def converges_below_one(draw: Draws) -> Sides:
    """On both sides of c rho^2 = 1: the logarithm of the bound and of c^{-1/2} (c^{1/2} rho)^{3^L}, and where it falls.

    A bound that falls with depth counts one; on the right, one where `bound_converges` predicts it.
    """
    c, size = draw.normal(31).exp(), draw.normal(31).exp()
    rho = (size / c).sqrt()
    pairs = list(zip(rho, c, strict=True))
    deep, shallow = (torch.stack([bounds.published_bound(r, k, layers) for r, k in pairs]) for layers in (3, 2))
    predicted = torch.stack([bounds.bound_converges(r, k) for r, k in pairs])
    return same(stacked(deep.log(), deep < shallow), stacked(27 / 2 * size.log() - c.log() / 2, predicted))
