"""What heads do outside the sinks: every number against plain loops over sentences, queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import MEASURES, MeasureContext, Sample
from attnworks.exam.measures.roles import MIN_REST, Roles
from attnworks.exam.measures.sinks import Sinks
from attnworks.exam.pointers import after_same, rarest, same_tokens
from attnworks.text.tokens import TokenRow, collate, count_rarity
from attnworks.traces.layer import LayerTrace
from tests.exam.measures.handmade_heads import (
    PAD_ID,
    batched,
    examine,
    handmade_maps,
    handmade_traces,
    keys_behind,
    look,
    pointed_keys,
    trace_of,
    written_rows,
)
from tests.helpers import assert_close

SENTENCES = 199
H, SPAN, WINDOW, VALUE, STREAM = 3, 6, 3, 5, 7
LONG = TokenRow((1, 11, 12, 13, 11, 14, 3), (True, *[False] * 5, True), (-1, *range(5), -1), (-1, 2, -1, 2, 3, 3, -1))
TWICE = TokenRow((11, 11, 12, 12, 12), (False,) * 5, tuple(range(5)), (1, -1, 1, 4, 1))
INSIDE = TokenRow(
    (11, 12, 3, 11, 12, 11), (False, False, True, *[False] * 3), (0, 1, -1, 2, 3, 4), (1, -1, -1, 5, 3, 1)
)
SHORT = TokenRow((1, 13), (True, False), (-1, 0), (-1, -1))
ALONE = TokenRow((11,), (False,), (0,), (-1,))
SPECIAL = TokenRow((1, 3, 3), (True,) * 3, (-1,) * 3, (-1,) * 3)
CASES = [LONG, TWICE, INSIDE, SHORT, ALONE, SPECIAL]
Form = Literal["encoder", "decoder", "window", "cross"]
by_form = pytest.mark.parametrize("form", ["encoder", "decoder", "window", "cross"])
NEAR = {"previous": -1, "self": 0, "next": 1}
POINTED = ("rare", "duplicate", "induction", "syntactic_mass")


class Case(NamedTuple):
    """A layer of three heads, which rest on the first token, on nothing, and on the token before.

    form    which keys a query sees: all, those up to itself, the last WINDOW of these, or all of another text
    """

    form: Form
    trace: LayerTrace
    maps: list[Tensor]
    values: list[Tensor]
    W_O: Tensor
    queries: list[TokenRow]
    keys: list[TokenRow]
    rarity: dict[int, float]

    @property
    def causal(self) -> bool:
        return self.form in ("decoder", "window")

    def found(self) -> dict[str, Sample]:
        return look(Roles(MeasureContext(SPAN + 1)), self.trace, SPAN, self.W_O @ self.W_O.mT)

    def seen(self, s: int, i: int) -> list[int]:
        first = max(0, i + 1 - WINDOW) if self.form == "window" else 0
        return list(range(first, i + 1 if self.causal else len(self.keys[s])))

    def behind(self, s: int, i: int) -> list[int]:
        return [j for j in self.seen(s, i) if j in keys_behind(self.keys[s])]

    def choices(self, s: int, *, behind: bool = True) -> list[int]:
        seen = self.behind if behind else self.seen
        return [i for i in range(len(self.queries[s])) if len(seen(s, i)) > 1]

    def pointed(self, name: str, s: int, i: int) -> list[int]:
        """The keys of a role outside the sinks that a query sees."""
        role = "syntactic" if name == "syntactic_mass" else f"offset {NEAR[name]}" if name in NEAR else name
        keys = pointed_keys(role, self.queries[s], self.keys[s], self.rarity, i, self.causal)
        return [j for j in keys if j in self.behind(s, i)]

    def those(self, name: str, s: int) -> list[int]:
        return [i for i in self.choices(s) if self.pointed(name, s, i)]

    def weight(self, s: int, h: int, i: int, keys: Iterable[int]) -> float:
        return sum(self.maps[s][h, i, j].item() for j in keys)

    def effect(self, s: int, h: int, i: int, keys: Iterable[int]) -> float:
        """|P_ij v_j W_O|, key by key."""
        return sum((self.maps[s][h, i, j] * self.values[s][h, j] @ self.W_O[h]).norm().item() for j in keys)

    def rest(self, s: int, h: int, queries: Iterable[int]) -> float:
        """The attention of these queries outside the sinks."""
        return sum(self.weight(s, h, i, self.behind(s, i)) for i in queries)


def case_of(form: Form, seed: int = 7) -> Case:
    queries, keys = (CASES[::-1], CASES) if form == "cross" else (CASES, CASES)
    source = torch.Generator().manual_seed(seed)
    rarity = dict(count_rarity(CASES))
    causal = form in ("decoder", "window")
    names = ["first", "random 3", "offset -1"]
    maps = handmade_maps(names, queries, keys, rarity, causal, "random", source)
    K = collate(keys, PAD_ID, rarity)
    Q = collate(queries, PAD_ID, rarity) if form == "cross" else K
    window = None
    if form == "window":
        window = torch.ones(K.ids.shape[1], K.ids.shape[1], dtype=torch.bool).tril().triu(1 - WINDOW)
        maps = [P * window[: P.shape[1], : P.shape[2]] for P in maps]
        maps = [P / P.sum(-1, keepdim=True) for P in maps]
    V = torch.randn(*K.ids.shape, H, VALUE, generator=source, dtype=torch.float64).transpose(1, 2)
    W_O = torch.randn(H, VALUE, STREAM, generator=source, dtype=torch.float64)
    kind: Kind = "decoder" if causal else "cross" if form == "cross" else "encoder"
    trace = trace_of(Slot(kind, 0), batched(maps, Q, K), Q, K, causal, V, window)
    return Case(form, trace, maps, list(V), W_O, queries, keys, rarity)


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def share(part: float, whole: float) -> float:
    """NaN where the whole is nothing."""
    return part / whole if whole else math.nan


def assert_sample(sample: Sample, by_loop: Callable[..., float], *axes: range) -> None:
    """NaN stands for a sentence that says nothing."""
    expected = torch.empty(sample.values.shape, dtype=torch.float64)
    for place in torch.cartesian_prod(torch.arange(len(CASES)), *map(torch.tensor, axes)).reshape(-1, 1 + len(axes)):
        expected[tuple(at - (axis.start if axis else 0) for at, axis in zip(place, (None, *axes), strict=True))] = (
            by_loop(*place.tolist())
        )
    valid = torch.ones_like(expected, dtype=torch.bool) if sample.valid is None else sample.valid.expand_as(expected)
    assert torch.equal(valid, ~expected.isnan())
    assert valid.any()
    assert_close(sample.values[valid], expected[valid], torch.float64)


@by_form
def test_offsets_by_loops(form: Form) -> None:
    case = case_of(form)
    found = case.found()

    def those(s: int, offset: int) -> list[int]:
        queries = [i for i in case.choices(s) if i + offset in case.behind(s, i)]
        return queries if 2 * len(queries) >= len(case.choices(s)) else []

    def at(s: int, h: int, o: int) -> float:
        return share(sum(case.maps[s][h, i, i + o].item() for i in those(s, o)), case.rest(s, h, those(s, o)))

    def even(s: int, h: int, o: int) -> float:
        spread = sum(case.rest(s, h, [i]) / len(case.behind(s, i)) for i in those(s, o))
        return share(spread, case.rest(s, h, those(s, o)))

    assert_sample(found["roles.offset"], at, range(H), range(-SPAN, SPAN + 1))
    assert_sample(found["roles.offset_chance"], even, range(H), range(-SPAN, SPAN + 1))
    if form == "cross":
        assert "roles.self" not in found
    else:
        assert_sample(found["roles.self"], lambda s, h: at(s, h, 0), range(H))


@by_form
def test_pointers_by_loops(form: Form) -> None:
    case = case_of(form)
    found = case.found()

    def on_keys(name: str, s: int, h: int) -> float:
        those = case.those(name, s)
        return share(sum(case.weight(s, h, i, case.pointed(name, s, i)) for i in those), case.rest(s, h, those))

    def even(name: str, s: int, h: int) -> float:
        those = case.those(name, s)
        spread = (case.rest(s, h, [i]) * len(case.pointed(name, s, i)) / len(case.behind(s, i)) for i in those)
        return share(sum(spread), case.rest(s, h, those))

    for name in POINTED if form != "cross" else ("rare",):
        assert_sample(found[f"roles.{name}"], lambda s, h, name=name: on_keys(name, s, h), range(H))
        if name != "syntactic_mass":
            assert_sample(found[f"roles.{name}_chance"], lambda s, h, name=name: even(name, s, h), range(H))
    if form == "cross":
        assert not any(name in reading for reading in found for name in ("syntactic", "duplicate", "induction"))


@by_form
def test_effects_by_loops(form: Form) -> None:
    """Shares of |P_ij v_j W_O|, of the same queries as shares of attention."""
    case = case_of(form)
    found = case.found()

    def on_keys(name: str, s: int, h: int) -> float:
        those = case.those(name, s)
        whole = sum(case.effect(s, h, i, case.behind(s, i)) for i in those)
        return share(sum(case.effect(s, h, i, case.pointed(name, s, i)) for i in those), whole)

    names = ("rare",) if form == "cross" else (*NEAR, *POINTED)
    for name in names if not case.causal else (name for name in names if name != "next"):
        assert_sample(found[f"roles.{name}_effect"], lambda s, h, name=name: on_keys(name, s, h), range(H))
    without = look(Roles(MeasureContext(SPAN + 1)), case.trace, SPAN)
    unknown = [without[f"roles.{name}_effect"].valid for name in names]
    if case.causal:
        unknown.append(found["roles.next_effect"].valid)
    assert all(valid is not None and not valid.any() for valid in unknown)


@pytest.mark.parametrize("form", ["encoder", "decoder", "window"])
def test_syntax_by_loops(form: Form) -> None:
    """A largest weight counts if it is larger than even attention."""
    case = case_of(form)
    for s, P in enumerate(case.maps):
        if len(case.choices(s)):
            i = case.choices(s)[-1]  # the last query gives the same to all keys outside the sinks
            P[1, i, case.behind(s, i)] = case.weight(s, 1, i, case.behind(s, i)) / len(case.behind(s, i))
    case = case._replace(trace=trace_of(
        case.trace.slot, batched(case.maps, case.trace.queries, case.trace.keys), case.trace.queries, case.trace.keys,
        case.causal, case.trace.V, case.trace.mask.dense,
    ))  # fmt: skip
    found = case.found()

    def right(s: int, h: int) -> float:
        scores = []
        for i in case.those("syntactic_mass", s):
            weights = {j: case.maps[s][h, i, j].item() for j in case.behind(s, i)}
            (governor,) = case.pointed("syntactic_mass", s, i)
            uneven = max(weights.values()) > min(weights.values()) + 1e-9
            scores.append(float(uneven and weights[governor] == max(weights.values())))
        return mean(scores)

    assert_sample(found["roles.syntactic"], right, range(H))
    assert_sample(
        found["roles.syntactic_offset"],
        lambda s, o: mean(
            float(case.pointed("syntactic_mass", s, i) == [i + o]) for i in case.those("syntactic_mass", s)
        ),
        range(-SPAN, SPAN + 1),
    )


@by_form
def test_copying_and_averaging_by_loops(form: Form) -> None:
    """Of all keys, sinks too."""
    case = case_of(form)
    found = case.found()
    largest = [P.amax(-1) for P in case.maps]

    def evenness(s: int, h: int, i: int) -> float:
        weights = case.maps[s][h, i, case.seen(s, i)].tolist()
        return math.exp(-sum(p * math.log(p) for p in weights)) / len(weights)

    def over_choices(of_row: Callable[[int, int, int], float]) -> Callable[[int, int], float]:
        return lambda s, h: mean(of_row(s, h, i) for i in case.choices(s, behind=False))

    heads = range(H)
    assert_sample(found["roles.copy"], over_choices(lambda s, h, i: largest[s][h, i].item()), heads)
    assert_sample(found["roles.copy_share"], over_choices(lambda s, h, i: float(largest[s][h, i] >= 0.9)), heads)
    assert_sample(found["roles.evenness"], over_choices(evenness), heads)


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_a_sentence_that_leaves_nothing_behind_the_sinks_says_nothing(form: Form) -> None:
    """Less than MIN_REST of the attention, for one head of one sentence."""
    case = case_of(form)
    for left, counts in ((0.9 * MIN_REST, False), (20 * MIN_REST, True)):
        maps = [P.clone() for P in case.maps]
        maps[0][2] *= left
        for i in range(len(LONG)):
            maps[0][2, i, 0] += 1 - maps[0][2, i].sum()
        trace = trace_of(
            case.trace.slot, batched(maps, case.trace.queries, case.trace.keys), case.trace.queries, case.trace.keys,
            case.causal, case.trace.V,
        )  # fmt: skip
        found = case._replace(trace=trace, maps=maps).found()
        for name in ("offset", "offset_chance", "rare", "rare_chance", "duplicate", "syntactic_mass"):
            valid = found[f"roles.{name}"].valid
            assert valid is not None and valid[0, 0].any() and bool(valid[0, 2].any()) == counts, name
            expected = case.found()[f"roles.{name}"].valid
            assert expected is not None and torch.equal(valid[1:], expected[1:]), name


def test_every_reading_that_is_declared_is_given() -> None:
    names = ["rare", "first", "random 1", "random 2", "random 5", "offset -1"]
    for kind in ("encoder", "decoder"):
        readings = examine([Roles, Sinks], handmade_traces(kind, "bert", names, 0, "even", SENTENCES))
        declared = [*Roles(MeasureContext(3)).declares(), *Sinks(MeasureContext(3)).declares()]
        assert {reading.name for reading in declared} == set(readings)
        assert all(readings[reading.name].axes == reading.axes for reading in declared)
    assert MEASURES["roles"] is Roles and MEASURES["sinks"] is Sinks


def test_without_heads_syntax_counts_nothing() -> None:
    rows = [TokenRow(row.ids, row.special, row.word) for row in CASES]
    tokens = collate(rows, PAD_ID)
    trace = trace_of(Slot("encoder", 0), batched(case_of("encoder").maps, tokens, tokens), tokens, tokens, False)
    readings = examine([Roles], [trace])
    for name in ("syntactic", "syntactic_mass"):
        count = readings[f"roles.{name}"].count
        assert count is not None and not count[0].any() and count[0].shape == (H,)
    (baseline,) = readings["roles.syntactic_baseline"].value
    assert isinstance(baseline, Tensor) and baseline.isnan()


def test_the_baseline_is_the_best_fixed_offset_of_the_corpus() -> None:
    rows = written_rows(0, SENTENCES, "bert")
    names = [f"offset {offset}" for offset in range(-3, 4)]
    traces = handmade_traces("encoder", "bert", names, 0, "even", SENTENCES)
    readings = examine([Roles, Sinks], traces)
    (baseline, _), accuracy = readings["roles.syntactic_baseline"].value, readings["roles.syntactic"].value
    shares = []
    for offset in range(-20, 21):
        shares.append(
            mean(
                mean(float(head == i + offset) for i, head in enumerate(row.governor or ()) if head >= 0)
                for row in rows
                if max(row.governor or ()) >= 0
            )
        )
    assert isinstance(baseline, Tensor) and baseline.item() == pytest.approx(max(shares), abs=1e-12)
    fixed = torch.cat([row for row in accuracy if isinstance(row, Tensor)])
    assert fixed.max().item() == pytest.approx(baseline.item(), abs=1e-12)


def test_batches_in_any_order_fold_to_the_same() -> None:
    names = ["rare", "first", "random 1", "random 5", "offset -2", "syntactic"]
    traces = handmade_traces("decoder", "target", names, 0, "random", SENTENCES)
    forth, back = examine([Roles, Sinks], traces), examine([Roles, Sinks], traces[::-1])
    for name in forth:
        for one, other in zip(forth[name].value, back[name].value, strict=True):
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                assert_close(one.nan_to_num(-1.0), other.nan_to_num(-1.0), torch.float64)
            else:
                assert one == other


@example([(1, False), (1, False), (2, True), (1, False), (3, False), (1, True)], 1)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=11), st.integers(0, 3))
def test_repeats_by_loops(tokens: list[tuple[int, bool]], real: int) -> None:
    ids, special = zip(*tokens, strict=True)
    n = len(ids)
    row = TokenRow(ids, special, tuple(range(n)))
    filler = TokenRow((2,) * (n + real), (False,) * (n + real), tuple(range(n + real)))
    rarity = dict(count_rarity([row, filler]))
    both = collate([row, filler], 2, rarity)

    def same(i: int) -> list[int]:
        return [j for j in range(n) if not special[i] and not special[j] and ids[j] == ids[i] and j != i]

    def keys_of(found: Tensor) -> list[list[int]]:
        """Without the places that are filled up."""
        return [[key for key in keys if key >= 0] for keys in found[0].tolist()]

    before = [[j for j in same(i) if j < i] for i in range(n)]
    none: list[list[int]] = [[]] * real
    assert keys_of(same_tokens(both, before=True)) == before + none
    assert keys_of(same_tokens(both, before=False)) == [same(i) for i in range(n)] + none
    assert (
        keys_of(after_same(both)) == [[j + 1 for j in earlier if j + 1 != i] for i, earlier in enumerate(before)] + none
    )
    rare = keys_behind(row)
    assert rarest(both)[0].item() == (max(rare, key=lambda j: (rarity[ids[j]], -j)) if rare else -1)
    assert same_tokens(both, before=False).shape[-1] == n + real - 1 or n + real == 1
