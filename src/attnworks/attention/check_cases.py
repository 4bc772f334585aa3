"""Inputs on which mechanisms are checked: sizes that are distinct primes, and every kind of mask.

A swapped axis then has a wrong size, and a wrong broadcast does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnworks.attention.contract import Attended, Context, Geometry, Mechanism
from attnworks.attention.mask import Mask

BATCH, HEADS = 3, 2
Build = Callable[[Geometry, torch.dtype], Mechanism]
"""Builds the mechanism under check, with the same parameters at every call."""


class RandomQKV(NamedTuple):
    """Inputs of a mechanism."""

    Q: Tensor
    K: Tensor
    V: Tensor


def random_qkv(
    b: int = BATCH,
    h: int = HEADS,
    i: int = 5,
    j: int = 7,
    k: int = 11,
    v: int = 13,
    dtype: torch.dtype = torch.float64,
    *,
    seed: int = 17,
    spread: float = 1.0,
    grad: bool = False,
) -> RandomQKV:
    """Standard normal Q, K, V (Q times `spread`), the same for the same arguments: drawn in float64, then rounded."""
    source = torch.Generator().manual_seed(seed)
    drawn = [
        torch.randn(shape, generator=source, dtype=torch.float64)
        for shape in ((b, h, i, k), (b, h, j, k), (b, h, j, v))
    ]
    drawn[0] = drawn[0] * spread
    return RandomQKV(*(T.to(dtype).requires_grad_(grad) for T in drawn))


def padding_of(j: int, *kinds: str) -> Tensor:
    """One row per kind: `full`, `right`- or `left`-padded by two, `holes` in the middle, `empty`."""
    real = torch.ones(len(kinds), j, dtype=torch.bool)
    for row, kind in zip(real, kinds, strict=True):
        hidden: dict[str, Sequence[int]] = {
            "full": [],
            "right": [-1, -2],
            "left": [0, 1],
            "holes": [1, j // 2],
            "empty": range(j),
        }
        row[list(hidden[kind])] = False
    return real


def boolean_table(*shape: int) -> Tensor:
    """A fixed boolean pattern; its second query (in every head) sees nothing, the others at least one key."""
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(23)) < 0.6
    allowed[..., :, 0] = True
    allowed[..., 1, :] = False
    return allowed


def additive_table(*shape: int) -> Tensor:
    """Random numbers to add to the scores, with -inf where `boolean_table` hides."""
    added = torch.randn(shape, generator=torch.Generator().manual_seed(29), dtype=torch.float64)
    return added.masked_fill(~boolean_table(*shape), -torch.inf)


CHECKED_MASKS: dict[str, Callable[[int, int], Mask]] = {
    "none": lambda i, j: Mask(),
    "padding": lambda i, j: Mask(padding_of(j, "right", "holes", "full")),
    "padding-empty": lambda i, j: Mask(padding_of(j, "left", "right", "empty")),
    "padding-shared": lambda i, j: Mask(padding_of(j, "left")),
    "causal": lambda i, j: Mask(causal=True),
    "causal-padding": lambda i, j: Mask(padding_of(j, "right", "holes", "full"), causal=True),
    "causal-padding-left": lambda i, j: Mask(padding_of(j, "left", "full", "left"), causal=True),
    "causal-padding-empty": lambda i, j: Mask(padding_of(j, "left", "right", "empty"), causal=True),
    "causal-padding-shared": lambda i, j: Mask(padding_of(j, "left"), causal=True),
    "bool-ij": lambda i, j: Mask(dense=boolean_table(i, j)),
    "bool-hij": lambda i, j: Mask(dense=boolean_table(HEADS, i, j)),
    "bool-b1ij": lambda i, j: Mask(dense=boolean_table(BATCH, 1, i, j)),
    "bool-bhij": lambda i, j: Mask(dense=boolean_table(BATCH, HEADS, i, j)),
    "additive-ij": lambda i, j: Mask(dense=additive_table(i, j)),
    "additive-bhij": lambda i, j: Mask(dense=additive_table(BATCH, HEADS, i, j)),
    "bool-causal-padding": lambda i, j: Mask(
        padding_of(j, "left", "holes", "empty"), True, boolean_table(BATCH, 1, i, j)
    ),
    "additive-causal-padding": lambda i, j: Mask(
        padding_of(j, "left", "right", "empty"), True, additive_table(BATCH, HEADS, i, j)
    ),
}


def blind_queries(mask: str, i: int, j: int) -> Tensor:
    """True [b h i] where the query sees no key."""
    allowed = CHECKED_MASKS[mask](i, j).allowed(i, j)
    if allowed is None:
        return torch.zeros(BATCH, HEADS, i, dtype=torch.bool)
    return ~allowed.expand(BATCH, HEADS, i, j).any(-1)


def is_defined(mechanism: type[Mechanism], mask: Mask, i: int, j: int) -> bool:
    """Whether the mechanism says that it can obey this mask at this shape."""
    given = {"real": mask.real is not None, "causal": mask.causal, "dense": mask.dense is not None}
    square = mechanism.supports_cross_attention or mask.causal or i == j
    return square and all(field in mechanism.supported_masks for field, present in given.items() if present)


class CheckCase(NamedTuple):
    """A mask by name, and sizes: queries, keys, and the widths of both."""

    mask: str
    i: int
    j: int
    k: int
    v: int

    def __str__(self) -> str:
        return f"{self.mask}-{self.i}x{self.j}-k{self.k}v{self.v}"

    def build_mask(self) -> Mask:
        return CHECKED_MASKS[self.mask](self.i, self.j)

    def defined_for(self, mechanism: type[Mechanism]) -> bool:
        return is_defined(mechanism, self.build_mask(), self.i, self.j)


class Setting(NamedTuple):
    """A mechanism, its inputs, a mask, and all that is differentiated: Q, K, V, own parameters, an additive mask."""

    mechanism: Mechanism
    inputs: RandomQKV
    mask: Mask
    leaves: dict[str, Tensor]


def setting_of(build: Build, case: CheckCase, dtype: torch.dtype = torch.float64) -> Setting:
    mechanism = build(Geometry(HEADS, case.k, case.v), dtype)
    inputs = random_qkv(i=case.i, j=case.j, k=case.k, v=case.v, dtype=dtype, grad=True)
    mask = case.build_mask()
    leaves: dict[str, Tensor] = {**inputs._asdict(), **dict(mechanism.named_parameters())}
    if mask.dense is not None and mask.dense.is_floating_point():
        leaves["mask"] = mask.dense.requires_grad_()
    return Setting(mechanism, inputs, mask, leaves)


class Outcome(NamedTuple):
    """Y, P, and the gradient of a fixed random combination of Y with respect to every leaf."""

    Y: Tensor
    P: Tensor | None
    gradients: dict[str, Tensor]


def differentiate(result: Attended, leaves: dict[str, Tensor]) -> Outcome:
    G = torch.randn(result.Y.shape, generator=torch.Generator().manual_seed(31), dtype=torch.float64)
    loss = (result.Y * G.to(result.Y.dtype)).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    P = None if result.P is None else result.P.detach()
    return Outcome(result.Y.detach(), P, dict(zip(leaves, gradients, strict=True)))


def reference_outcome(build: Build, case: CheckCase, context: Context) -> Outcome:
    mechanism, inputs, mask, leaves = setting_of(build, case)
    return differentiate(mechanism.reference(*inputs, mask, context), leaves)


def attended_outcome(
    build: Build, case: CheckCase, context: Context, dtype: torch.dtype = torch.float64, *, weights: bool
) -> Outcome:
    mechanism, inputs, mask, leaves = setting_of(build, case, dtype)
    return differentiate(mechanism(*inputs, mask, context, weights=weights), leaves)
