"""What every mechanism promises, each as a function that runs it and yields what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnworks.attention.check_cases import (
    BATCH,
    HEADS,
    Build,
    CheckCase,
    attended_outcome,
    blind_queries,
    padding_of,
    random_qkv,
    reference_outcome,
    setting_of,
)
from attnworks.attention.contract import AttentionCost, Context, Geometry, Mechanism
from attnworks.attention.mask import Mask
from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance

SHAPES = "outputs and weights have the right shapes"
OUTPUTS = "outputs equal the reference"
GRADIENTS = "gradients equal the reference"
WEIGHTS = "weights equal the reference"
ROWS = "rows of weights sum to one"
HIDDEN = "masked keys have no influence"
LATER = "later keys have no influence under a causal mask"
BLIND = "queries without keys give zeros and finite gradients"
HALF = "half precision is finite and close"
REFUSED = "masks that are not declared are refused"
COST = "cost is positive and grows with the length"


class Measured(NamedTuple):
    """One comparison of a property: the number found, and the largest that is allowed."""

    name: str
    where: str
    value: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.value <= self.limit  # not so for NaN


def difference(got: Tensor, want: Tensor, dtype: torch.dtype | None = None) -> tuple[float, float]:
    """max |got - want| / (1 + |want| rtol / atol), and atol: at most atol where torch.testing calls them close."""
    if got.shape != want.shape:
        return torch.inf, 0.0
    rtol, atol = tolerance(dtype or got.dtype)
    got, want = got.detach().double(), want.detach().double()
    found = (got - want).abs() / (1 + want.abs() * (rtol / atol))
    return (float(found.max()) if found.numel() else 0.0), atol


def _count(wrong: Tensor) -> tuple[float, float]:
    """The number of entries that are wrong; none are allowed."""
    return float(wrong.sum()), 0.0


def against_reference(build: Build, case: CheckCase, context: Context) -> Iterator[Measured]:
    """Outputs, gradients and weights against the reference, in float64, with and without weights asked for."""
    want = reference_outcome(build, case, context)
    kind = build(Geometry(HEADS, case.k, case.v), torch.float64)
    for weights in (False, True):
        where = f"{case}, weights={weights}"
        got = attended_outcome(build, case, context, weights=weights)
        shapes = [tuple(got.Y.shape) == (BATCH, HEADS, case.i, case.v)]
        shapes += [got.P is None] if not weights else [
            got.P is not None and tuple(got.P.shape) == (BATCH, HEADS, case.i, case.j)
        ]  # fmt: skip
        yield Measured(SHAPES, where, float(shapes.count(False)), 0.0)
        yield Measured(OUTPUTS, where, *difference(got.Y, want.Y))
        for leaf, gradient in got.gradients.items():
            yield Measured(GRADIENTS, f"dL/d{leaf}, {where}", *difference(gradient, want.gradients[leaf]))
        if not weights:
            continue
        if got.P is None or want.P is None:
            yield Measured(WEIGHTS, f"{where}: no weights from {'attend' if got.P is None else 'reference'}", 1.0, 0.0)
            continue
        yield Measured(WEIGHTS, where, *difference(got.P, want.P))
        if got.P.shape != want.P.shape:
            continue
        yield Measured(WEIGHTS, f"queries without a weight, {where}", *_count(got.P.any(-1) != want.P.any(-1)))
        if kind.rows_sum_to_one:
            yield Measured(ROWS, f"negative weights, {where}", *_count(~(got.P >= 0)))
            yield Measured(ROWS, f"sums, {where}", *difference(got.P.sum(-1), (got.P > 0).any(-1).to(got.P)))
        allowed = case.build_mask().allowed(case.i, case.j)
        if allowed is not None:
            yield Measured(
                HIDDEN, f"weights of hidden keys, {where}", *_count(got.P[~allowed.expand(got.P.shape)] != 0)
            )


def _huge_where(T: Tensor, hidden: Tensor) -> Tensor:
    """Rows of T [b h j .] where hidden [b j] become +-1e4."""
    return torch.where(hidden[:, None, :, None], 1e4 * T.sign(), T)


HIDING = ("padding", "causal-padding", "bool-b1ij", "additive-bhij")
"""Kinds of masks with which `masked_keys` hides keys."""


def masked_keys(build: Build, kind: str, dtype: torch.dtype, context: Context, *, weights: bool) -> Iterator[Measured]:
    """Hidden keys become huge, and nothing changes; no gradient flows to them, and some to others."""
    real = padding_of(7, "right", "left", "holes")
    table = real[:, None, None, :].expand(BATCH, 1, 7, 7)
    mechanism = build(Geometry(HEADS, 11, 13), dtype)
    Q, K, V = random_qkv(i=7, dtype=dtype)
    mask = {
        "padding": Mask(real),
        "causal-padding": Mask(real, causal=True),
        "bool-b1ij": Mask(dense=table),
        "additive-bhij": Mask(dense=torch.zeros(BATCH, HEADS, 7, 7, dtype=dtype).masked_fill(~table, -torch.inf)),
    }[kind]
    where = f"{kind} mask, {str(dtype)[6:]}, weights={weights}"
    want = mechanism(Q, K, V, mask, context, weights=weights)
    K, V = (_huge_where(T, ~real).requires_grad_() for T in (K, V))
    got = mechanism(Q, K, V, mask, context, weights=weights)
    yield Measured(HIDDEN, f"outputs, {where}", *difference(got.Y, want.Y, dtype))
    if weights:
        P = got.P.mT[(~real)[:, None].expand(BATCH, HEADS, 7)] if got.P is not None else torch.ones(1)
        yield Measured(HIDDEN, f"weights, {where}", *_count(P != 0))
    felt = {"K": K, "V": V} if mechanism.by_content else {"V": V}
    for name, gradient in zip(felt, torch.autograd.grad(got.Y.sum(), list(felt.values())), strict=True):
        by_key = gradient.transpose(1, 2)
        yield Measured(HIDDEN, f"gradient of {name}, {where}", *_count(by_key[~real] != 0))
        yield Measured(HIDDEN, f"no gradient of {name} at visible keys, {where}", *_count(~(by_key[real] != 0).any()))


def later_keys(build: Build, i: int, dtype: torch.dtype, context: Context, *, weights: bool) -> Iterator[Measured]:
    """The i last positions of seven: for every query, later keys become huge, and its output stays."""
    mask, mechanism = Mask(causal=True), build(Geometry(HEADS, 11, 13), dtype)
    Q, K, V = random_qkv(i=i, dtype=dtype)
    want = mechanism(Q, K, V, mask, context, weights=weights).Y
    for query in range(i):
        later = (torch.arange(7) > query + 7 - i).expand(BATCH, 7)
        got = mechanism(Q, _huge_where(K, later), _huge_where(V, later), mask, context, weights=weights).Y
        where = f"query {query} of {i}, {str(dtype)[6:]}, weights={weights}"
        yield Measured(LATER, where, *difference(got[:, :, : query + 1], want[:, :, : query + 1]))


def queries_without_keys(
    build: Build, case: CheckCase, dtype: torch.dtype, context: Context, *, weights: bool
) -> Iterator[Measured]:
    """Rows that see no key (or, in the reference, have no weight) are zero, in P too; all gradients are finite."""
    mechanism, inputs, mask, _ = setting_of(build, case)
    where = f"{case}, {str(dtype)[6:]}, weights={weights}"
    with torch.no_grad():
        P = mechanism.reference(*inputs, mask, context).P
    blind = blind_queries(case.mask, case.i, case.j)
    if P is not None:
        yield Measured(BLIND, f"weights of the reference, {where}", *_count(~(P == 0).all(-1)[blind]))
        blind = (P == 0).all(-1)
    got = attended_outcome(build, case, context, dtype, weights=weights)
    yield Measured(BLIND, f"outputs that are not zero, {where}", *_count(~(got.Y[blind] == 0)))
    yield Measured(BLIND, f"zero outputs of other queries, {where}", *_count(~(got.Y[~blind] != 0).any(-1)))
    if got.P is not None:
        yield Measured(BLIND, f"weights that are not zero, {where}", *_count(~(got.P[blind] == 0)))
    for leaf, gradient in got.gradients.items():
        yield Measured(BLIND, f"gradient of {leaf} that is not finite, {where}", *_count(~gradient.isfinite()))
    yield Measured(BLIND, f"gradient of Q, {where}", *_count(~(got.gradients["Q"][blind] == 0)))


def low_precision(
    build: Build, case: CheckCase, dtype: torch.dtype, context: Context, *, weights: bool
) -> Iterator[Measured]:
    """In half precision: finite, of the same dtype, and close to float64 on the same rounded numbers."""
    low, high = (build(Geometry(HEADS, case.k, case.v), one) for one in (dtype, torch.float64))
    high.load_state_dict(low.state_dict())
    # Scores of size about one in every mechanism: at k = 11 an unscaled product of normal vectors has spread 3.3.
    inputs = random_qkv(i=case.i, j=case.j, k=case.k, v=case.v, dtype=dtype, spread=0.3)
    where = f"{case}, {str(dtype)[6:]}, weights={weights}"
    with torch.no_grad():
        got = low(*inputs, case.build_mask(), context, weights=weights)
        want = high(*(T.double() for T in inputs), case.build_mask(), context, weights=True)
    yield Measured(HALF, f"dtype of outputs, {where}", float(got.Y.dtype != dtype), 0.0)
    yield Measured(HALF, f"outputs, {where}", *difference(got.Y, want.Y))
    if weights and got.P is not None and want.P is not None:
        yield Measured(HALF, f"dtype of weights, {where}", float(got.P.dtype != dtype), 0.0)
        yield Measured(HALF, f"weights, {where}", *difference(got.P, want.P))


def refused(build: Build, case: CheckCase, context: Context) -> Iterator[Measured]:
    """A mask or shape that the mechanism does not declare gives a UsageError."""
    mechanism = build(Geometry(HEADS, case.k, case.v), torch.float64)
    inputs = random_qkv(i=case.i, j=case.j, k=case.k, v=case.v)
    try:
        mechanism(*inputs, case.build_mask(), context)
    except UsageError:
        yield Measured(REFUSED, str(case), 0.0, 0.0)
    else:
        yield Measured(REFUSED, str(case), 1.0, 0.0)


def costs(mechanism: Mechanism, geometry: Geometry) -> Iterator[Measured]:
    """Whole positive numbers that never fall, and in the end grow, with the lengths; causality costs no more edges."""
    sizes = [(7, 7), (7, 13), (13, 13), (13, 29), (29, 29), (29, 59)]
    if not mechanism.supports_cross_attention:
        sizes = [(i, j) for i, j in sizes if i == j]
    for causal in (False, True)[: 1 + ("causal" in mechanism.supported_masks)]:
        found = [mechanism.cost(i, j, geometry, causal=causal) for i, j in sizes]
        for (i, j), cost in zip(sizes, found, strict=True):
            sane = isinstance(cost, AttentionCost) and all(isinstance(part, int) and part > 0 for part in cost)
            yield Measured(COST, f"{i} queries, {j} keys, causal={causal}: {cost}", float(not sane), 0.0)
        for smaller, larger in pairwise(found):
            falls = sum(a > b for a, b in zip(smaller, larger, strict=True))
            yield Measured(COST, f"{smaller}, then {larger}, causal={causal}", float(falls), 0.0)
        stays = sum(a >= b for a, b in zip(found[0], found[-1], strict=True))
        yield Measured(COST, f"from {found[0]} to {found[-1]}, causal={causal}", float(stays), 0.0)
        if causal:
            for n in (1, 2, 13, 29):
                more = mechanism.cost(n, n, geometry, causal=True).edges - mechanism.cost(n, n, geometry).edges
                yield Measured(COST, f"edges that causality adds at length {n}", float(more), 0.0)
