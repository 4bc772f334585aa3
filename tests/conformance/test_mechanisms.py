"""What every registered mechanism must keep. A mechanism that is registered is tested; no edit here is needed.

A mechanism for which a promise makes no sense by nature is named in one of the tables below, with the reason.

Most tests go through a covering array: each mechanism meets every mask, every dtype and both paths, and these meet each
other, but not all of them at once. `make test-all` tests the full product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from attnworks import attention
from attnworks.attention import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mask, Mechanism
from attnworks.attention.bigbird import BigBird
from attnworks.attention.check_cases import CHECKED_MASKS as MASKS
from attnworks.attention.check_cases import CheckCase as Case
from attnworks.attention.check_cases import (
    Outcome,
    Setting,
    attended_outcome,
    blind_queries,
    is_defined,
    reference_outcome,
    setting_of,
)
from attnworks.attention.check_cases import padding_of as padding
from attnworks.attention.check_properties import (
    HIDING,
    Measured,
    against_reference,
    costs,
    later_keys,
    low_precision,
    masked_keys,
    queries_without_keys,
)
from attnworks.attention.dense import Dense
from attnworks.attention.graph import Graph
from attnworks.attention.linear import Linear
from attnworks.attention.patterns import GlobalPattern, RandomPattern, WindowPattern
from attnworks.attention.pooling import Pooling
from attnworks.attention.structured import Structured
from attnworks.core.errors import UsageError
from tests.covering import Row, covering, noted, thorough
from tests.helpers import B, H, assert_close, qkv
from tests.helpers import build as built


class InBlocks(BigBird):
    """Matrix products also for blocks that are small enough for these tests."""

    smallest_block = 1


class InShifts(Structured):
    """Without the table that is quicker for sequences as short as in these tests."""

    few_pairs = 0


# Options under which a mechanism shows what it does at the small sizes of these tests, besides its defaults.
VARIANTS: tuple[str, ...] = (
    "bigbird:window=2,n_global=1,n_random=1,block=2",
    "bigbird:window=1,n_global=1,n_random=2,block=1",
    "linear:feature=exp",
    "linear:feature=random,features=16",
    "linear:feature=relu",
    "linear:feature=taylor",
    "linformer:rank=3,length=300",
    "linformer:rank=3,length=300,share=none",
    "linformer:rank=3,length=300,share=keys-values",
    "longformer:window=1,n_global=2",
    "longformer:window=1,n_global=1,dilation=1/2",
    "pooling:similarity=gaussian",
    "pooling:similarity=polynomial,values=relu",
    "pooling:similarity=elu,values=tanh",
    "sketched:seed=5",
    "sketched:seed=5,rank=3",
    "structured:members=0/block3,error=none,learned=false",
    "truncated:rank=3",
    "window:window=2",
    "window:window=1,dilation=2/3",
)
# The same for options that no text can hold.
BUILT: dict[str, Callable[[Geometry], Mechanism]] = {
    "linear/softplus": lambda _: Linear(feature=torch.nn.functional.softplus),
    "bigbird/in-blocks": lambda _: InBlocks(window=2, n_global=1, n_random=1, block=2),
    "graph/predicate": lambda _: Graph(graph=lambda i, j: (abs(i - j) <= 1) | (j == 2)),
    "graph/pattern": lambda _: Graph(graph=WindowPattern(1, (1, 2)) | GlobalPattern(1) | RandomPattern(1, block=2)),
    "pooling/callables": lambda _: Pooling(similarity=lambda Q, K: (Q @ K.mT).sigmoid(), values=torch.tanh),
    "structured/in-shifts": lambda geometry: InShifts.for_geometry(
        geometry, members="-1..2/first/last/mean/block2", error="-3", eps=0.1
    ),
}
# Mechanisms that draw new numbers at every call, so that only variants with a seed can be compared, and why.
UNSEEDED = {"sketched": "a fresh projection each time keeps the error's mean at zero over many calls"}
# Mechanisms that hold an i x j table even when no weights are asked for, and why.
TABLE_BY_NATURE = {
    "bahdanau-additive": "a hidden layer looks at every query-key pair",
    "pooling": "a similarity of any kind is asked for every pair",
    "truncated": "singular vectors are those of the whole map",
}
# Mechanisms whose edges are not the query-key pairs with a weight, and why.
EDGES_ARE_NOT_PAIRS: dict[str, str] = {
    "linear": "no pair is scored: each key is written to one state, from which each query reads",
    "linformer": "queries are scored against projected keys, and these reach all keys",
    "structured": "no pair is scored: each query reads one row for each member, and a mean is one row",
}
# Mechanisms without the softmax's indifference to large scores, and why.
NOT_FOR_LARGE_SCORES: dict[str, str] = {
    "truncated": "rows near unit vectors have equal singular values, and then no single nearest matrix",
}
# Mechanisms whose weights do not depend on Q and K, and so on no scale either, and why.
POSITION_ALONE: dict[str, str] = {
    "structured": "fixed maps are mixed in a way that each head learns",
}
# Mechanisms that ignore the scale of the scores, and why.
WITHOUT_SCALE: dict[str, str] = {
    "linear:feature=relu": "a positive factor of the features cancels: only its sign is felt",
    "linear:feature=taylor": "queries are normalised: only its sign is felt",
    "pooling/callables": "a similarity of one's own is taken as it is",
}
# Variants whose heads do not all cost the same, and why.
UNEQUAL_HEADS: dict[str, str] = {
    "graph/pattern": "dilations differ",
    "longformer:window=1,n_global=1,dilation=1/2": "dilations differ",
    "window:window=1,dilation=2/3": "dilations differ",
    "sketched:seed=5": "all heads share one projection",
    "sketched:seed=5,rank=3": "all heads share one projection",
}
# Values for the fields of Context that a mechanism may declare in `needs`.
CONTEXT_FIELDS: dict[str, object] = {}

NAMES = (*(name for name in attention.names() if name not in UNSEEDED), *VARIANTS, *BUILT)
LOW_PRECISION = (torch.bfloat16, torch.float16)
FLOATS = (torch.float64, torch.float32, *LOW_PRECISION)
# For each mechanism the subject that shows most at small sizes: it takes every test, all others the main ones, unless
# all tests are asked for.
TELLING = {
    "bigbird": "bigbird/in-blocks",
    "graph": "graph/predicate",
    "linformer": "linformer:rank=3,length=300",
    "longformer": "longformer:window=1,n_global=2",
    "sketched": "sketched:seed=5,rank=3",
    "structured": "structured/in-shifts",
    "truncated": "truncated:rank=3",
    "window": "window:window=2",
}
MAIN = tuple(dict.fromkeys(TELLING.get(name, name) for name in attention.names()))
EVERY_MECHANISM = NAMES if thorough else MAIN
PATHS = (False, True)
"""Values of `weights`: fused and explicit."""
every_subject = pytest.mark.parametrize("name", NAMES)
every_mechanism = pytest.mark.parametrize("name", EVERY_MECHANISM)


def base(name: str) -> str:
    """The registered name of a subject of these tests: `window:window=2` and `graph/ring` are window and graph."""
    return name.partition("/")[0].partition(":")[0]


def weighed_by(name: str) -> tuple[str, ...]:
    """Those of the inputs on which the weights depend."""
    return () if base(name) in POSITION_ALONE else ("Q", "K")


def build(name: str, geometry: Geometry, dtype: torch.dtype = torch.float64) -> Mechanism:
    if name not in BUILT:
        return built(name, geometry, dtype)
    with torch.random.fork_rng():
        torch.manual_seed(19)
        return BUILT[name](geometry).to(dtype)


def defined(name: str, mask: Mask, i: int, j: int) -> bool:
    """Whether the mechanism says that it can obey this mask at this shape."""
    return is_defined(MECHANISMS[base(name)], mask, i, j)


@cache
def can(name: str, mask: str, i: int, j: int) -> bool:
    return defined(name, MASKS[mask](i, j), i, j)


def every_pair(
    *factors: Iterable[Hashable], allowed: Callable[..., bool], names: Sequence[str] = EVERY_MECHANISM
) -> pytest.MarkDecorator:
    """One test for each name, with the rows of a covering array of names and factors in which the name stands."""
    found: dict[str, list[Row]] = {name: [] for name in names}
    for name, *row in covering(names, *map(tuple, factors), allowed=allowed):
        found[name].append(tuple(row))
    return pytest.mark.parametrize(("name", "rows"), [pytest.param(*one, id=one[0]) for one in found.items()])


def context_for(mechanism: Mechanism) -> Context:
    missing = mechanism.needs - CONTEXT_FIELDS.keys()
    assert not missing, f"{mechanism.name} needs {missing} of Context: add values to CONTEXT_FIELDS"
    return Context(**{field: CONTEXT_FIELDS[field] for field in mechanism.needs})  # pyright: ignore[reportArgumentType]


def context_of(name: str) -> Context:
    return context_for(build(name, Geometry(H, 11, 13)))


# The first that a mechanism accepts is the hardest it can take.
RICHEST_FIRST = ("additive-causal-padding", "causal-padding-empty", "padding-empty", "none")
BLINDING = [mask for mask in MASKS if blind_queries(mask, 7, 7).any()]


CASES = [
    *(Case(mask, 5, 7, 13, 11) for mask in MASKS),
    *(Case(mask, 7, 5, 11, 13) for mask in MASKS if "causal" not in mask),
    *(Case(mask, 7, 7, 11, 13) for mask in MASKS),
    *(Case(mask, 5, 7, 11, 11) for mask in ("none", "padding", "causal", "causal-padding-empty")),
    *(Case(mask, 1, 1, 11, 13) for mask in ("none", "causal")),
    *(Case(mask, 1, 7, 11, 13) for mask in ("causal", "causal-padding-empty")),
    Case("none", 5, 1, 11, 13),
]
SIZES = tuple(dict.fromkeys(case[1:] for case in CASES))


def setting(name: str, case: Case, dtype: torch.dtype = torch.float64) -> Setting:
    return setting_of(partial(build, name), case, dtype)


def expected(name: str, case: Case) -> Outcome:
    return reference_outcome(partial(build, name), case, context_of(name))


def obtained(name: str, case: Case, dtype: torch.dtype, weights: bool) -> Outcome:
    return attended_outcome(partial(build, name), case, context_of(name), dtype, weights=weights)


def assert_kept(found: Iterable[Measured]) -> None:
    """Every comparison of a property is within its limit."""
    for measured in found:
        assert measured.ok, measured


# --- against the reference --------------------------------------------------------------------------------------------


@every_pair(
    MASKS, SIZES, names=NAMES, allowed=lambda name, mask, size: (mask, *size) in CASES and can(name, mask, *size[:2])
)
def test_outputs_and_gradients_equal_the_reference(name: str, rows: list[Row]) -> None:
    for mask, size in rows:
        case = Case(mask, *size)
        with noted(case):
            want = expected(name, case)
            assert want.Y.abs().sum() > 0 and want.gradients["V"].abs().sum() > 0, "a case that tests nothing"
            assert_kept(against_reference(partial(build, name), case, context_of(name)))


@every_subject
def test_what_is_not_defined_is_refused(name: str) -> None:
    mechanism = build(name, Geometry(H, 11, 13))
    for mask, i, j in sorted({case[:3] for case in CASES}):
        if not can(name, mask, i, j):
            with noted(mask, i, j), pytest.raises(UsageError, match=f"^{mechanism.name} attention (with a|from one)"):
                mechanism(*qkv(i=i, j=j), MASKS[mask](i, j), context_for(mechanism))


@every_pair(
    (0.7, -0.3, 0.0),
    ("none", "padding-empty", "causal", "causal-padding-empty", "additive-bhij"),
    allowed=lambda name, _, mask: can(name, mask, 5, 5),
)
@torch.no_grad()
def test_a_given_scale_is_used(name: str, rows: list[Row]) -> None:
    for scale, mask in rows:
        with noted(scale, mask):
            mechanism, inputs, condition, _ = setting(name, Case(mask, 5, 5, 11, 13))
            context = replace(context_for(mechanism), scale=scale)
            want = mechanism.reference(*inputs, condition, context)
            if mask == "none" and weighed_by(name) and name not in WITHOUT_SCALE:
                assert (want.Y - mechanism(*inputs, condition, context_for(mechanism)).Y).abs().max() > 1e-3
            got = mechanism(*inputs, condition, context, weights=True)
            assert_close(got.Y, want.Y)
            assert_close(got.P, want.P)
            assert_close(mechanism(*inputs, condition, context).Y, want.Y)


@every_subject
def test_gradients_through_the_weights_equal_the_reference(name: str) -> None:
    case = next(Case(mask, 7, 7, 11, 13) for mask in RICHEST_FIRST if can(name, mask, 7, 7))
    mechanism, inputs, mask, leaves = setting(name, case)
    context = context_for(mechanism)
    G = torch.randn(B, H, 7, 7, dtype=torch.float64)
    leaves.pop("V")
    gradients = []
    for P in (mechanism(*inputs, mask, context, weights=True).P, mechanism.reference(*inputs, mask, context).P):
        assert P is not None
        gradients.append(torch.autograd.grad((P * G).sum(), list(leaves.values()), materialize_grads=True))
    for got, want in zip(*gradients, strict=True):
        assert_close(got, want)
    felt = dict(zip(leaves, gradients[0], strict=True))
    assert all(felt[leaf].abs().max() > 1e-3 for leaf in weighed_by(name))


@every_subject
def test_every_parameter_gets_a_gradient(name: str) -> None:
    for weights in PATHS:
        outcome = obtained(name, Case("none", 7, 7, 13, 11), torch.float64, weights)
        for leaf, gradient in outcome.gradients.items():
            felt = leaf not in ("Q", "K") or leaf in weighed_by(name)
            assert not felt or gradient.abs().max() > 1e-3, (leaf, weights)


@every_pair(
    ("none", "padding-empty", "causal", "causal-padding-empty", "additive-bhij"),
    allowed=lambda name, mask: can(name, mask, 7, 7),
)
def test_fused_and_explicit_agree_in_float32(name: str, rows: list[Row]) -> None:
    for (mask,) in rows:
        case = Case(mask, 7, 7, 13, 11)
        with noted(case):
            fused, explicit = (obtained(name, case, torch.float32, weights) for weights in PATHS)
            assert fused.Y.dtype == explicit.Y.dtype == torch.float32
            assert_close(fused.Y, explicit.Y)
            for leaf, gradient in fused.gradients.items():
                assert_close(gradient, explicit.gradients[leaf], torch.float32, message=leaf)


@every_pair(
    PATHS,
    LOW_PRECISION,
    ("none", "padding-empty", "causal-padding-empty", "bool-bhij", "additive-bhij"),
    names=NAMES,
    allowed=lambda name, weights, dtype, mask: can(name, mask, 7, 7),
)
def test_low_precision_is_close_to_float64(name: str, rows: list[Row]) -> None:
    for weights, dtype, mask in rows:
        with noted(weights, dtype, mask):
            case = Case(mask, 7, 7, 11, 13)
            assert_kept(low_precision(partial(build, name), case, dtype, context_of(name), weights=weights))


@every_pair(
    PATHS,
    ("none", "causal", "padding", "causal-padding-left", "bool-ij"),
    allowed=lambda name, weights, mask: can(name, mask, 5, 5),
)
def test_gradcheck(name: str, rows: list[Row]) -> None:
    # Small sizes: the numerical Jacobian runs the mechanism once or twice per input entry.
    i, j, k, v = 5, 5, 2, 3
    mechanism = build(name, Geometry(H, k, v))
    parameters = dict(mechanism.named_parameters())
    inputs = qkv(i=i, j=j, k=k, v=v, grad=True)
    context = context_for(mechanism)
    for weights, mask in rows:
        condition = MASKS[mask](i, j)

        def outputs(Q: Tensor, K: Tensor, V: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
            state = dict(zip(parameters, own, strict=True))
            result: Attended = functional_call(mechanism, state, (Q, K, V, condition, context), {"weights": weights})  # noqa: B023
            return tuple(part for part in result if part is not None)

        with noted(weights, mask):
            assert torch.autograd.gradcheck(outputs, (*inputs, *parameters.values()), fast_mode=True)


# --- masks ------------------------------------------------------------------------------------------------------------


@every_pair(PATHS, FLOATS, BLINDING, names=NAMES, allowed=lambda name, weights, dtype, mask: can(name, mask, 7, 7))
def test_queries_without_keys_give_zero_and_finite_gradients(name: str, rows: list[Row]) -> None:
    for weights, dtype, mask in rows:
        with noted(weights, dtype, mask):
            case = Case(mask, 7, 7, 11, 13)
            assert_kept(queries_without_keys(partial(build, name), case, dtype, context_of(name), weights=weights))


def test_the_masks_above_blind_queries() -> None:
    want = {"padding-empty", "causal-padding-left", "causal-padding-empty", "causal-padding-shared"}
    assert want | {mask for mask in MASKS if mask.startswith(("bool", "additive"))} == set(BLINDING)
    for mask in BLINDING:
        P = expected("dense", Case(mask, 7, 7, 11, 13)).P
        assert P is not None and torch.equal(P.sum(-1) == 0, blind_queries(mask, 7, 7))


@every_pair(
    PATHS,
    FLOATS,
    ("padding", "causal-padding"),
    names=NAMES,
    allowed=lambda name, weights, dtype, mask: can(name, mask, 7, 7),
)
def test_a_batch_of_nothing_but_padding_gives_zero(name: str, rows: list[Row]) -> None:
    for weights, dtype, kind in rows:
        mask = Mask(padding(7, "empty", "empty", "empty"), causal="causal" in kind)
        mechanism = build(name, Geometry(H, 11, 13), dtype)
        inputs = qkv(i=7, dtype=dtype, grad=True)
        with noted(weights, dtype, kind):
            got = mechanism(*inputs, mask, context_for(mechanism), weights=weights)
            assert (got.Y == 0).all()
            for gradient in torch.autograd.grad(got.Y.sum(), inputs, materialize_grads=True):
                assert (gradient == 0).all()


@every_pair(
    PATHS,
    (Case("causal", 7, 7, 11, 13), Case("causal", 5, 7, 13, 11)),
    (None, "left", "holes"),
    allowed=lambda name, weights, case, real: can(name, "causal-padding" if real else "causal", case.i, case.j),
)
def test_no_gradient_flows_from_an_output_to_a_later_key(name: str, rows: list[Row]) -> None:
    for weights, case, real in rows:
        mask = Mask(None if real is None else padding(case.j, real), causal=True)
        mechanism, (Q, K, V), _, _ = setting(name, case)
        with noted(weights, case, real):
            Y = mechanism(Q, K, V, mask, context_for(mechanism), weights=weights).Y
            for query in range(case.i):
                last = query + case.j - case.i  # queries are the last positions of the keys' sequence
                out = Y[:, :, query].square().sum()
                dQ, dK, dV = torch.autograd.grad(out, (Q, K, V), retain_graph=True, materialize_grads=True)
                assert (dQ[:, :, torch.arange(case.i) != query] == 0).all()
                assert (dK[:, :, last + 1 :] == 0).all() and (dV[:, :, last + 1 :] == 0).all()
                hidden_last = mask.real is not None and not mask.real[0, last]
                assert (dV[:, :, last] == 0).all() if hidden_last else (dV[:, :, last] != 0).any()


@every_pair(
    PATHS,
    FLOATS,
    HIDING,
    names=NAMES,
    allowed=lambda name, weights, dtype, kind: can(name, kind, 7, 7),
)
def test_hidden_keys_have_no_influence(name: str, rows: list[Row]) -> None:
    for weights, dtype, kind in rows:
        with noted(weights, dtype, kind):
            assert_kept(masked_keys(partial(build, name), kind, dtype, context_of(name), weights=weights))


@every_pair(PATHS, FLOATS, (5, 7), names=NAMES, allowed=lambda name, weights, dtype, i: can(name, "causal", i, 7))
def test_later_keys_have_no_influence(name: str, rows: list[Row]) -> None:
    for weights, dtype, i in rows:
        with noted(weights, dtype, i):
            assert_kept(later_keys(partial(build, name), i, dtype, context_of(name), weights=weights))


# --- numbers ----------------------------------------------------------------------------------------------------------


@every_pair(
    PATHS,
    ("none", "causal-padding-empty", "bool-ij"),
    allowed=lambda name, weights, mask: can(name, mask, 7, 7) and base(name) not in NOT_FOR_LARGE_SCORES,
)
def test_large_logits_stay_finite_and_right(name: str, rows: list[Row]) -> None:
    for weights, mask in rows:
        condition = MASKS[mask](7, 7)
        for dtype in (torch.float32, torch.float64):
            mechanism = build(name, Geometry(H, 11, 13), dtype)
            inputs = qkv(i=7, j=7, dtype=dtype, spread=1e3, grad=True)
            with noted(weights, mask, dtype):
                got = mechanism(*inputs, condition, context_for(mechanism), weights=weights)
                gradients = torch.autograd.grad(got.Y.sum(), inputs, materialize_grads=True)
                assert all(T.isfinite().all() for T in (got.Y, *gradients))
                if dtype == torch.float64:
                    with torch.no_grad():
                        want = mechanism.reference(*inputs, condition, context_for(mechanism))
                    assert_close(got.Y, want.Y)


@every_pair(
    PATHS,
    ("none", "padding-empty", "causal-padding-empty", "additive-bhij"),
    allowed=lambda name, weights, mask: can(name, mask, 7, 7),
)
def test_strided_inputs_give_the_same(name: str, rows: list[Row]) -> None:
    for weights, mask in rows:
        mechanism, inputs, condition, _ = setting(name, Case(mask, 7, 7, 11, 13))
        Q = inputs.Q.transpose(1, 2).contiguous().transpose(1, 2)  # as from a projection [b i h k]
        K = torch.repeat_interleave(inputs.K, 2, dim=-1)[..., ::2]
        V = inputs.V.mT.contiguous().mT
        assert not any(T.is_contiguous() for T in (Q, K, V))
        with noted(weights, mask):
            got = mechanism(Q, K, V, condition, context_for(mechanism), weights=weights)
            assert_close(got.Y, mechanism(*inputs, condition, context_for(mechanism), weights=weights).Y)


@every_mechanism
def test_inputs_and_parameters_are_left_alone(name: str) -> None:
    case = next(Case(mask, 7, 7, 11, 13) for mask in RICHEST_FIRST if can(name, mask, 7, 7))
    mechanism, inputs, mask, leaves = setting(name, case)
    before = {leaf: tensor.detach().clone() for leaf, tensor in leaves.items()}
    for weights in (False, True):
        mechanism(*inputs, mask, context_for(mechanism), weights=weights)
    for leaf, tensor in leaves.items():
        assert torch.equal(tensor, before[leaf]), leaf


# --- the modes of torch -----------------------------------------------------------------------------------------------


@every_subject
def test_no_queries_give_no_rows(name: str) -> None:
    mask = Mask(causal="causal" in MECHANISMS[base(name)].supported_masks)
    if not defined(name, mask, 0, 7):
        return
    mechanism = build(name, Geometry(H, 11, 13))
    for weights in PATHS:
        got = mechanism(*qkv(i=0), mask, context_for(mechanism), weights=weights)
        assert got.Y.shape == (B, H, 0, 13)
        assert not weights or (got.P is not None and got.P.shape == (B, H, 0, 7))


@every_subject
def test_what_is_remembered_does_not_depend_on_the_mode(name: str) -> None:
    """Nothing that was first computed without gradients, or under another default device, stands in the way later."""
    n = 23
    with torch.inference_mode():
        mechanism = build(name, Geometry(H, 11, 13), torch.float32)
        mechanism(*qkv(i=n, j=n, dtype=torch.float32), None, context_for(mechanism))
    mechanism = build(name, Geometry(H, 11, 13), torch.float32)
    for length in (n, n + 1):
        inputs = qkv(i=length, j=length, dtype=torch.float32, grad=True)
        if length > n:
            with torch.device("meta"), contextlib.suppress(RuntimeError, NotImplementedError, UsageError, TypeError):
                mechanism(*inputs, None, context_for(mechanism))
        Y = mechanism(*inputs, None, context_for(mechanism)).Y
        gradients = torch.autograd.grad(Y.sum(), inputs, materialize_grads=True)
        assert all(gradient.isfinite().all() for gradient in gradients)


@every_pair(("none", "causal", "padding"), names=NAMES, allowed=lambda name, mask: can(name, mask, 7, 7))
def test_training_in_mixed_precision(name: str, rows: list[Row]) -> None:
    for (mask,) in rows:
        mechanism, inputs, condition, _ = setting(name, Case(mask, 7, 7, 11, 13), torch.float32)
        with noted(mask):
            want = mechanism(*inputs, condition, context_for(mechanism)).Y
            with torch.autocast("cpu", torch.bfloat16):
                Y = mechanism(*inputs, condition, context_for(mechanism)).Y
            gradients = torch.autograd.grad(Y.float().sum(), inputs, materialize_grads=True)
            assert all(gradient.isfinite().all() for gradient in gradients)
            assert (Y.float() - want).abs().max() < 0.1 * want.abs().max()


@every_subject
def test_second_derivatives_are_right_or_refused(name: str) -> None:
    def second(weights: bool) -> Tensor:
        mechanism, inputs, condition, _ = setting(name, Case("none", 7, 7, 11, 13))
        Y = mechanism(*inputs, condition, context_for(mechanism), weights=weights).Y
        (dQ,) = torch.autograd.grad(Y.square().sum(), inputs.Q, create_graph=True)
        return torch.autograd.grad(dQ.square().sum(), inputs.Q)[0]

    try:
        found = second(weights=False)
    except (RuntimeError, NotImplementedError):
        return
    assert_close(found, second(weights=True))


# --- memory and cost --------------------------------------------------------------------------------------------------


def stored(tensor: Tensor) -> int:
    return tensor._nnz() if tensor.layout == torch.sparse_csr else tensor.numel()


class LargestOutput(TorchDispatchMode):
    """Remembers the largest tensor that any operation, forward or backward, returned, other than gradients of `own`."""

    def __init__(self, own: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.numel, self.operation = 0, ""
        self.own = {tensor.shape for tensor in own}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, Sequence) else [out]:
            if isinstance(tensor, Tensor) and stored(tensor) > self.numel and tensor.shape not in self.own:
                self.numel, self.operation = stored(tensor), str(func)
        return out


def largest_output(name: str, mask: Mask, i: int, j: int, k: int, v: int, dtype: torch.dtype) -> LargestOutput:
    mechanism = build(name, Geometry(1, k, v), dtype)
    inputs = qkv(1, 1, i, j, k, v, dtype, grad=True)
    with LargestOutput(mechanism.parameters()) as seen:
        mechanism(*inputs, mask, context_for(mechanism)).Y.sum().backward()
    return seen


@every_pair(
    (torch.float32, torch.bfloat16, torch.float64),
    ((11, 13), (13, 11)),
    ("none", "padding", "causal", "causal-padding"),
    allowed=lambda name, dtype, widths, mask: can(name, mask, 7, 7),
)
def test_no_table_of_all_pairs_is_held(name: str, rows: list[Row]) -> None:
    for dtype, (k, v), mask in rows:
        for i, j in ((257, 257), (251, 257)):
            condition = Mask(padding(j, "left") if "padding" in mask else None, "causal" in mask)
            if not defined(name, condition, i, j):
                continue
            with noted(dtype, k, v, mask, i, j):
                seen = largest_output(name, condition, i, j, k, v, dtype)
                if base(name) in TABLE_BY_NATURE:
                    assert seen.numel >= i * j, "no longer needs its place in TABLE_BY_NATURE"
                else:
                    assert seen.numel < i * j, seen.operation


@every_pair(
    (False, True),
    ((7, 7), (5, 7), (1, 7), (1, 1), (11, 13)),
    names=NAMES,
    allowed=lambda name, causal, size: can(name, "causal" if causal else "none", *size),
)
@torch.no_grad()
def test_edges_are_the_pairs_with_a_weight(name: str, rows: list[Row]) -> None:
    geometry = Geometry(3, 2, 5)
    mechanism = build(name, geometry)
    for causal, (i, j) in rows:
        with noted(causal, i, j):
            cost = mechanism.cost(i, j, geometry, causal=causal)
            if base(name) in EDGES_ARE_NOT_PAIRS:
                assert cost.edges > 0
                continue
            P = mechanism.reference(*qkv(1, 3, i, j, 2, 5), Mask(causal=causal), context_for(mechanism)).P
            assert P is not None
            assert cost.edges == int((P != 0).sum())


@every_subject
def test_cost_is_positive_and_grows(name: str) -> None:
    geometry = Geometry(3, 11, 13)
    mechanism = build(name, geometry)
    assert_kept(costs(mechanism, geometry))
    one_head = mechanism.cost(29, 29, geometry._replace(heads=1))
    assert name in UNEQUAL_HEADS or mechanism.cost(29, 29, geometry) == AttentionCost(*(3 * part for part in one_head))


# --- the tests themselves ---------------------------------------------------------------------------------------------


def test_every_registered_name_is_tested() -> None:
    assert {base(name) for name in NAMES} == set(MECHANISMS) == {base(name) for name in MAIN}
    assert set(NAMES) >= set(MAIN)
    assert {"dense", "luong-dot", "luong-multiplicative", "bahdanau-additive"} <= set(NAMES)
    assert not set(NAMES) & set(UNSEEDED)
    tables = (TABLE_BY_NATURE, EDGES_ARE_NOT_PAIRS, NOT_FOR_LARGE_SCORES, WITHOUT_SCALE, UNEQUAL_HEADS)
    assert {base(name) for table in tables for name in table} <= set(MECHANISMS)
    assert {name for name in MECHANISMS if not MECHANISMS[name].by_content} == set(POSITION_ALONE)


@every_subject
def test_a_mechanism_knows_its_registered_name(name: str) -> None:
    assert MECHANISMS[base(name)].name == base(name)


class WithoutReference(Dense):
    name = "incomplete"
    reference = Mechanism.reference


class WithoutCost(Dense):
    name = "incomplete"
    cost = Mechanism.cost


class WithoutAttend(Dense):
    name = "incomplete"
    attend = Mechanism.attend


FIRST: list[Row] = [(CASES[0].mask, CASES[0][1:])]


@pytest.mark.parametrize(
    ("mechanism", "test"),
    [
        (
            WithoutReference,
            lambda: test_outputs_and_gradients_equal_the_reference("incomplete", FIRST),
        ),
        (WithoutReference, lambda: test_gradients_through_the_weights_equal_the_reference("incomplete")),
        (WithoutReference, lambda: test_edges_are_the_pairs_with_a_weight("incomplete", [(True, (5, 7))])),
        (WithoutCost, lambda: test_edges_are_the_pairs_with_a_weight("incomplete", [(True, (5, 7))])),
        (WithoutCost, lambda: test_cost_is_positive_and_grows("incomplete")),
        (WithoutAttend, lambda: test_outputs_and_gradients_equal_the_reference("incomplete", FIRST)),
    ],
)
def test_an_incomplete_mechanism_fails_and_is_not_skipped(
    mechanism: type[Mechanism], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MECHANISMS._entries, "incomplete", mechanism)
    outcome: BaseException | None = None
    try:
        test()
    except (Exception, pytest.skip.Exception) as error:
        outcome = error
    assert isinstance(outcome, NotImplementedError)
