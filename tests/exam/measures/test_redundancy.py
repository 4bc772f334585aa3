"""Jensen-Shannon distance between heads: closed forms, loops, padding, pieces, and the nearest head."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.softmax import masked_softmax
from attnworks.core.places import Slot
from attnworks.exam.measure import MEASURES, MeasureContext
from attnworks.exam.measures import redundancy
from attnworks.exam.measures.redundancy import Redundancy, all_heads, divergences
from attnworks.exam.reading import Reading, Readings
from attnworks.text.tokens import TokenRow, Tokens, collate
from attnworks.traces import maps
from attnworks.traces.layer import LayerTrace
from tests.helpers import assert_close

HEADS, GROUPS, D_K, D_V = 6, 3, 11, 13
LENGTHS = (5, 5, 3, 1, 7)
SETTING = MeasureContext(max_length=7)


def tokens(*lengths: int) -> Tokens:
    return collate([TokenRow((7,) * n, (False,) * n, tuple(range(n))) for n in lengths], pad_id=0)


def layer(
    queries: tuple[int, ...] = LENGTHS,
    keys: tuple[int, ...] = LENGTHS,
    *,
    causal: bool = False,
    dense: Tensor | None = None,
    groups: int = HEADS,
    dtype: torch.dtype = torch.float64,
    weighs: bool = False,
) -> LayerTrace:
    source = torch.Generator().manual_seed(31)
    b, i, j = len(queries), max(queries), max(keys)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=source).to(dtype)

    Q, K, V, Y = drawn(b, HEADS, i, D_K), drawn(b, groups, j, D_K), drawn(b, groups, j, D_V), drawn(b, HEADS, i, D_V)
    mask = Mask(Mask.from_lengths(list(keys)).real, causal, dense)
    trace = LayerTrace(
        Slot("cross" if queries != keys else "encoder", 2), Q, K, V, Y, mask, 1.7, tokens(*queries), tokens(*keys)
    )
    if not weighs:
        return trace
    P = whole_maps(trace)
    return replace(trace, scale=None, weigh=lambda: P)


def whole_maps(trace: LayerTrace) -> Tensor:
    """P with padding, by its definition."""
    K = trace.K.repeat_interleave(trace.heads // trace.K.shape[1], 1)
    S = 1.7 * trace.Q @ K.mT
    additive = trace.mask.additive()
    S = S if additive is None else S + additive
    return masked_softmax(S, trace.mask.allowed(S.shape[-2], S.shape[-1]))


def entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in row if p > 0)


def distance_by_hand(P: Tensor, queries: int) -> Tensor:
    """One sentence, one pair, one query at a time: [h h]; queries that see nothing are left out."""
    heads = P.shape[0]
    D = torch.zeros(heads, heads, dtype=torch.float64)
    for one in range(heads):
        for other in range(heads):
            found = []
            for p, q in zip(P[one, :queries].tolist(), P[other, :queries].tolist(), strict=True):
                if any(p) or any(q):
                    middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
                    found.append(entropy(middle) - (entropy(p) + entropy(q)) / 2)
            D[one, other] = math.sqrt(max(0.0, sum(found) / len(found) / math.log(2)))
    return D


def distances(trace: LayerTrace) -> Tensor:
    samples = Redundancy(SETTING).layer(trace)
    assert set(samples) == {"redundancy.distance"}
    values, valid = samples["redundancy.distance"]
    assert valid is not None and valid.shape == (len(values), 1, 1) and valid.all()
    return values


def from_maps(P: Tensor) -> LayerTrace:
    """One sentence whose maps are P [h i j]."""
    h, i, j = P.shape
    Q, K = P.new_zeros(1, h, i, D_K), P.new_zeros(1, h, j, D_K)
    V, Y = P.new_zeros(1, h, j, D_V), P.new_zeros(1, h, i, D_V)
    return LayerTrace(Slot("cross", 0), Q, K, V, Y, Mask(), None, tokens(i), tokens(j), weigh=lambda: P[None])


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_same_disjoint_and_half_shared_attention(dtype: torch.dtype) -> None:
    P = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]], dtype=dtype)
    D = distances(from_maps(P[:, None].expand(5, 3, 4).contiguous()))[0]
    half = math.log(2) - (3 / 4) * math.log(3) + math.log(2)  # H(3/4, 1/4) = 2 ln 2 - 3/4 ln 3
    half = math.sqrt((half - math.log(2) / 2) / math.log(2))
    want = torch.tensor(
        [[0, 0, 1, half, 1], [0, 0, 1, half, 1], [1, 1, 0, half, 1], [half, half, half, 0, 1], [1, 1, 1, 1, 0]],
        dtype=torch.float64,
    )
    assert_close(D, want)
    assert D[0, 1] == 0 and (D.diagonal() == 0).all()


@given(weight=st.floats(0, 1))
def test_mixtures(weight: float) -> None:
    """p = (1, 0), q = (1 - w, w): JS = H(w / 2) - H(w) / 2."""
    P = torch.tensor([[[1.0, 0.0]], [[1 - weight, weight]]], dtype=torch.float64)
    js = entropy([1 - weight / 2, weight / 2]) - entropy([1 - weight, weight]) / 2
    assert_close(divergences(P[None])[0, 0, 1], torch.tensor(js, dtype=torch.float64))


def test_the_mean_is_over_queries_before_the_root() -> None:
    same, apart = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    P = torch.tensor([same, same, apart], dtype=torch.float64).transpose(0, 1)
    assert_close(distances(from_maps(P.contiguous()))[0, 0, 1], torch.tensor(math.sqrt(1 / 3), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("exponent", [1, 2, 3, 4, 5])
def test_near_heads_keep_their_digits(dtype: torch.dtype, exponent: int) -> None:
    """p = (1/2 + d, 1/2 - d), q = (1/2 - d, 1/2 + d) have JS = 2 d^2 (1 + O(d^2)); entropies would lose it at 1e-4."""
    d = 10.0**-exponent
    P = torch.tensor([[[0.5 + d, 0.5 - d]], [[0.5 - d, 0.5 + d]]], dtype=dtype)
    exact = math.fsum(((1 + x) * math.log1p(x)) / 2 for x in (2 * d, -2 * d))
    assert abs(float(divergences(P[None])[0, 0, 1].sqrt()) / math.sqrt(exact) - 1) < (1e-2 if exponent > 4 else 2e-3)


def test_queries_that_see_nothing_are_left_out() -> None:
    P = torch.rand(3, 5, 7, dtype=torch.float64).softmax(-1)
    blind = torch.cat([P, torch.zeros(3, 2, 7, dtype=torch.float64)], 1)
    hidden = torch.ones(7, 7, dtype=torch.bool)
    hidden[5:] = False
    trace = replace(from_maps(blind), mask=Mask(dense=hidden))
    assert_close(distances(trace), distances(from_maps(P)))
    nothing = replace(trace, mask=Mask(dense=torch.zeros_like(hidden)))
    sample = Redundancy(SETTING).layer(nothing)["redundancy.distance"]
    assert sample.valid is not None and not sample.valid.any() and sample.values.isfinite().all()


# --- loops, masks, padding, pieces ------------------------------------------------------------------------------------

BAND = torch.ones(7, 7, dtype=torch.bool).tril(1).triu(-2)
ADDED = torch.linspace(-3, 3, HEADS * 49, dtype=torch.float64).sin().reshape(HEADS, 7, 7).masked_fill(~BAND, -torch.inf)
OWN = torch.stack([torch.ones(7, 7, dtype=torch.bool).triu(-row).tril(4 - row) for row in range(5)]).unsqueeze(1)
CASES = {
    "full": {},
    "causal": {"causal": True},
    "cross": {"queries": (2, 5, 3, 4, 7), "keys": (3, 1, 11, 2, 5)},
    "grouped": {"groups": GROUPS},
    "band": {"dense": BAND},
    "added": {"dense": ADDED},
    "causal-added": {"dense": ADDED, "causal": True},
    "per-sentence": {"dense": OWN},
    "causal-cached": {"queries": (3, 3, 3, 3, 3), "keys": (7, 7, 7, 7, 7), "causal": True},
    "weighs": {"weighs": True, "causal": True},
}


@pytest.mark.parametrize("case", CASES)
def test_distances_equal_loops(case: str) -> None:
    trace = layer(**CASES[case])
    P, D = whole_maps(trace), distances(trace)
    if trace.scale is None and trace.weigh is not None:
        P = trace.weigh()
    for row, length in enumerate(trace.queries.lengths.tolist()):
        want = distance_by_hand(P[row], length)
        torch.testing.assert_close(D[row].square(), want.square(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("at_once", [1, 23, 101, 499])
def test_pieces_change_nothing(case: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = layer(**CASES[case])
    want = distances(trace)
    monkeypatch.setattr(redundancy, "WEIGHTS_AT_ONCE", at_once)
    for _, P in all_heads(trace):
        assert P.shape[1] == HEADS
        assert P.numel() <= max(at_once, HEADS * P.shape[-1])
    assert_close(distances(trace), want)
    monkeypatch.setattr(maps, "WEIGHTS_AT_ONCE", at_once)
    assert_close(distances(trace), want)


@pytest.mark.parametrize("case", CASES)
def test_pieces_hold_every_row_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redundancy, "WEIGHTS_AT_ONCE", 101)
    trace = layer(**CASES[case])
    P = whole_maps(trace) if trace.weigh is None else trace.weigh()
    done = [0] * len(P)
    for sentences, piece in all_heads(trace):
        i, j = piece.shape[-2:]
        for row, own in zip(range(sentences.start, sentences.stop), piece, strict=True):
            assert_close(own, P[row, :, done[row] : done[row] + i, :j])
            assert not P[row, :, done[row] : done[row] + i, j:].any()
            done[row] += i
    assert done == trace.queries.lengths.tolist()


def test_padding_never_counts() -> None:
    trace = layer()
    want = distances(trace)
    real = ~trace.queries.real[:, None, :, None]
    for tensor in (trace.Q, trace.K):
        tensor.masked_fill_(real, 1e3)
    assert torch.equal(distances(trace), want)
    for row, length in enumerate(LENGTHS):
        Q, K, V, Y = (tensor[row : row + 1, :, :length] for tensor in (trace.Q, trace.K, trace.V, trace.Y))
        single = LayerTrace(trace.slot, Q, K, V, Y, Mask(), 1.7, tokens(length), tokens(length))
        assert_close(distances(single)[0], want[row])


def test_it_is_a_distance() -> None:
    D = distances(layer())
    assert torch.equal(D, D.mT) and (D >= 0).all() and (D <= 1).all()
    through = (D[:, :, :, None] + D[:, None]).amin(2)
    assert (through + 1e-12 >= D).all()


def test_single_precision_is_near() -> None:
    D = distances(layer(dtype=torch.float32))
    assert D.dtype == torch.float32
    assert_close(D, distances(layer()), torch.float32)
    assert distances(layer(dtype=torch.bfloat16)).dtype == torch.float32


# --- the nearest head -------------------------------------------------------------------------------------------------


def folded(*rows: list[list[float]]) -> Reading:
    value = tuple(torch.tensor(row, dtype=torch.float64) for row in rows)
    return Reading(
        "redundancy.distance", "decoder", ("layer", "head", "other"), value, "", "",
        spread=tuple(10 + row for row in value),
        interval=(tuple(row - 1 for row in value), tuple(row + 1 for row in value)),
        count=tuple(torch.full_like(row, 17).long() for row in value),
    )  # fmt: skip


def test_nearest_and_twin_leave_the_head_itself_out() -> None:
    distance = folded([[0, 0.5, 0.2], [0.5, 0, 0.4], [0.2, 0.4, 0]], [[0.0, 0.7], [0.7, 0.0]])
    nearest, twin = Redundancy(SETTING).conclude(Readings([distance]))
    assert (nearest.name, nearest.axes, nearest.kind) == ("redundancy.nearest", ("layer", "head"), "decoder")
    assert [row.tolist() for row in nearest.value if isinstance(row, Tensor)] == [[0.2, 0.4, 0.2], [0.7, 0.7]]
    assert twin.name == "redundancy.twin"
    assert twin.value == (("dec.0.2", "dec.0.2", "dec.0.0"), ("dec.1.1", "dec.1.0"))
    assert nearest.spread is not None and nearest.interval is not None and nearest.count is not None
    assert nearest.spread[0].tolist() == [10.2, 10.4, 10.2]
    assert_close(nearest.interval[0][1], torch.tensor([-0.3, -0.3], dtype=torch.float64))
    assert_close(nearest.interval[1][1], torch.tensor([1.7, 1.7], dtype=torch.float64))
    assert nearest.count[1].tolist() == [17, 17]


def test_a_head_alone_in_its_layer_has_no_twin() -> None:
    nearest, twin = Redundancy(SETTING).conclude(Readings([folded([[0.0]])]))
    assert isinstance(nearest.value[0], Tensor) and nearest.value[0].isnan().all()
    assert twin.value == (("none",),)
    trace = layer()
    Q, K, V, Y = (tensor[:, :1] for tensor in (trace.Q, trace.K, trace.V, trace.Y))
    assert distances(replace(trace, Q=Q, K=K, V=V, Y=Y)).tolist() == [[[0.0]]] * len(LENGTHS)


def test_what_is_declared_is_given() -> None:
    measure = MEASURES["redundancy"](SETTING)
    given_names = {"redundancy.distance", *(reading.name for reading in measure.conclude(Readings([folded([[0.0]])])))}
    assert {declared.name for declared in measure.declares()} == given_names and not measure.default


# --- a sink logit -----------------------------------------------------------------------------------------------------


def test_a_sink_of_little_weight_keeps_similar_heads_near() -> None:
    """In float32, to the distance in float64. With 1 - sum_j P_ij as its weight it would read 9e-6."""
    first = layer()
    Q, K = (torch.cat([T[:, :1], T[:, :1] + change * T[:, 1:2]], 1) for T, change in ((first.Q, 1e-7), (first.K, 0.0)))
    V, Y, sink = first.V[:, :2], first.Y[:, :2], torch.full((2,), -9.0, dtype=torch.float64)
    wide = replace(first, Q=Q, K=K, V=V, Y=Y, sink=sink)
    narrow = replace(wide, Q=Q.float(), K=K.float(), V=V.float(), Y=Y.float(), sink=sink.float())
    got, want = (distances(trace)[:, 0, 1] for trace in (narrow, wide))
    assert (got - want).abs().max() < 1e-6
    ((_, P), *_) = all_heads(wide)
    assert P.shape[-1] == LENGTHS[0] + 1
    assert_close(P.sum(-1), torch.ones(P.shape[:-1], dtype=torch.float64))
    assert (P[..., -1] > 0).all() and (P[..., -1] < 1e-3).all()
