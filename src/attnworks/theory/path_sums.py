"""Every single path through a network, for the small ones of a check: what the documents write as a sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.theory.cases import Draw
from attnworks.theory.networks import Network, drawn_network
from attnworks.traces.paths import paths_by_length


class PathOf(NamedTuple):
    """One path: the heads it takes from the first layer on (None: past the layer) and P_path X W_path."""

    heads: tuple[int | None, ...]
    term: Float[Tensor, "n e"]

    @property
    def length(self) -> int:
        return sum(head is not None for head in self.heads)


def every_path(
    X: Float[Tensor, "n e"],
    maps: Sequence[Float[Tensor, "h n n"]],
    weights: Sequence[Float[Tensor, "h e e"]],
    *,
    skip: bool = False,
    in_printed_order: bool = False,
) -> Iterator[PathOf]:
    """P_L ... P_1 X W_1 ... W_L for all choices of a head per layer; with skip also of none.

    in_printed_order    weights in the order of the maps, W_L ... W_1, as Xie 2021 prints them (S0.9)
    """
    choices = [[*range(len(P)), *([None] if skip else [])] for P in maps]
    for heads in product(*choices):
        T, order = X, torch.eye(X.shape[-1], dtype=X.dtype)
        for P, W, head in zip(maps, weights, heads, strict=True):
            if head is not None:
                T = P[head] @ T
                order = W[head] @ order if in_printed_order else order @ W[head]
        yield PathOf(heads, T @ order)


def folded(network: Network) -> tuple[list[Float[Tensor, "h e e"]], list[Float[Tensor, " e"]]]:
    """W_h = W_V,h W_O,h of all heads and the one bias b of every layer."""
    parts = [layer.folded() for layer in network.layers]
    return [W for _, W, _ in parts], [b for _, _, b in parts]


def one_bias(
    weights: Sequence[Float[Tensor, "h e e"]], biases: Sequence[Float[Tensor, " e"]], *, skip: bool
) -> Float[Tensor, " e"]:
    """b^T = sum_l b_l^T prod_{m > l} (sum_h W_h^(m) [+ I with skip]), whatever the input and the maps (S0.10, D2)."""
    total = torch.zeros_like(biases[0])
    for W, b in zip(weights, biases, strict=True):
        total = total @ W.sum(0) + b + (total if skip else 0.0)
    return total


def sum_of_paths(network: Network, X: Tensor, maps: list[Tensor], *, in_printed_order: bool = False) -> Tensor:
    """Every single path, added up, without the bias."""
    paths = every_path(X, maps, folded(network)[0], skip=network.skip, in_printed_order=in_printed_order)
    return torch.stack([path.term for path in paths]).sum(0)


def with_any_maps(draw: Draw, n: int, e: int, heads: int, layers: int) -> tuple[Network, Tensor, list[Tensor]]:
    """A network without biases, an input, and maps of any real numbers, which no softmax made."""
    network = drawn_network(draw, e=e, heads=heads, layers=layers, bias=False)
    return network, draw.normal(n, e), [draw.normal(heads, n, n) for _ in range(layers)]


def frozen_exit(network: Network, X: Tensor, maps: list[Tensor]) -> Tensor:
    """The output of the network if these are its attention maps."""
    return paths_by_length(X.unsqueeze(0), network.steps(maps)).sum(0).squeeze(0)
