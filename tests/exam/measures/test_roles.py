"""What heads do: every number against plain loops, and labels of heads whose role was put in by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.core.errors import UnknownNameError
from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import MEASURES, MeasureContext, Sample
from attnworks.exam.measures.pointers import after_same, rarest, same_before, same_nearest
from attnworks.exam.measures.roles import Roles
from attnworks.exam.measures.sinks import Sinks
from attnworks.exam.reading import Readings
from attnworks.text.tokens import TokenRow, collate, count_rarity
from attnworks.traces.layer import LayerTrace
from tests.exam.measures.handmade_heads import (
    PAD_ID,
    Form,
    batched,
    examine,
    handmade_maps,
    look,
    padded_batches,
    pointed_keys,
    trace_of,
    written_rows,
)
from tests.helpers import assert_close

SENTENCES, AT_ONCE = 199, 67
EVERYWHERE = ["rare", "first", "uniform", "random 1", "random 2", "random 5"]
IN_ONE_TEXT = ["syntactic", "duplicate", "induction"]
ROLES: dict[str, str] = {"offset -1": "previous", "offset 0": "self", "offset 1": "next"}


def right_label(name: str, kind: Kind) -> str:
    if name.startswith("random"):
        return "none"
    return name if kind == "cross" else ROLES.get(name, name)


def handmade_traces(
    kind: Kind, form: Form, names: list[str], seed: int, noise: Literal["even", "random"]
) -> list[LayerTrace]:
    """Two layers of unlike numbers of heads, in padded batches."""
    causal = kind == "decoder"
    keys = written_rows(seed, SENTENCES, form)
    queries = written_rows(seed, SENTENCES, "target", "target") if kind == "cross" else keys
    order = sorted(range(SENTENCES), key=lambda row: (len(keys[row]), len(queries[row])))
    keys, queries = [keys[row] for row in order], [queries[row] for row in order]
    rarity = dict(count_rarity(keys))
    source = torch.Generator().manual_seed(seed)
    maps = handmade_maps(names, queries, keys, rarity, causal, noise, source)
    key_batches = padded_batches(keys, AT_ONCE)
    query_batches = padded_batches(queries, AT_ONCE) if kind == "cross" else key_batches
    traces = []
    for number, (Q, K) in enumerate(zip(query_batches, key_batches, strict=True)):
        P = batched(maps[number * AT_ONCE : (number + 1) * AT_ONCE], Q, K)
        for layer, heads in enumerate((slice(5), slice(5, None))):
            traces.append(trace_of(Slot(kind, layer), P[:, heads], Q, K, causal))
    return traces


def labels_of(readings: Readings) -> list[str]:
    return [label for layer in readings["roles.label"].value for label in layer if isinstance(label, str)]


# --- heads made by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "noise"), [(0, "even"), (1, "random"), (2, "random")])
@pytest.mark.parametrize(
    ("kind", "form"),
    [("encoder", "bert"), ("encoder", "source"), ("decoder", "tagged"), ("decoder", "target"), ("cross", "source")],
)
def test_heads_made_by_hand_are_told_by_their_label(
    kind: Kind, form: Form, seed: int, noise: Literal["even", "random"]
) -> None:
    names = [f"offset {offset}" for offset in (range(-3, 1) if kind == "decoder" else range(-3, 4))] + EVERYWHERE
    names += [] if kind == "cross" else IN_ONE_TEXT
    names += [] if form == "target" else ["delimiter"]
    readings = examine([Roles, Sinks], handmade_traces(kind, form, names, seed, noise))
    assert labels_of(readings) == [right_label(name, kind) for name in names]
    for score, baseline, labels in zip(
        readings["roles.score"].value, readings["roles.baseline"].value, readings["roles.label"].value, strict=True
    ):
        assert isinstance(score, Tensor) and isinstance(baseline, Tensor)
        named = torch.tensor([label != "none" for label in labels])
        assert torch.equal(named, score > baseline) and torch.equal(~named, score.isnan())


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_no_pattern_is_no_role(kind: Kind) -> None:
    names = [f"random {spread}" for spread in (1, 2, 3, 5, 10) for _ in range(7)]
    readings = examine([Roles, Sinks], handmade_traces(kind, "bert", names, 5, "random"))
    assert labels_of(readings) == ["none"] * len(names)


def test_few_sentences_give_no_label() -> None:
    def labels(number: int) -> list[str]:
        rows = written_rows(0, number, "bert")
        maps = handmade_maps(["first"], rows, rows, dict(count_rarity(rows)), False, "even", torch.Generator())
        (tokens,) = padded_batches(rows, number)
        return labels_of(
            examine(
                [Roles, Sinks], [trace_of(Slot("encoder", 0), batched(maps, tokens, tokens), tokens, tokens, False)]
            )
        )

    with pytest.raises(UnknownNameError, match=r"roles\.label"):
        labels(2)
    assert labels(4) == ["none"] and labels(7) == ["first"]


def test_without_sinks_the_label_says_so() -> None:
    traces = handmade_traces("encoder", "bert", ["offset -1", "first", *EVERYWHERE], 0, "even")
    alone, both = examine([Roles], traces), examine([Roles, Sinks], traces)
    assert labels_of(alone)[0] == "previous" and "first" not in labels_of(alone)
    assert "sinks were not measured" in alone["roles.label"].description
    assert "sinks were not measured" not in both["roles.label"].description


# --- numbers ----------------------------------------------------------------------------------------------------------

H, SPAN = 3, 6
LONG = TokenRow((1, 11, 12, 13, 11, 14, 3), (True, *[False] * 5, True), (-1, *range(5), -1), (-1, 2, -1, 2, 3, 3, -1))
TWICE = TokenRow((11, 11, 12, 12, 12), (False,) * 5, tuple(range(5)), (1, -1, 1, 4, 1))
SHORT = TokenRow((1, 13), (True, False), (-1, 0), (-1, -1))
ALONE = TokenRow((11,), (False,), (0,), (-1,))
SPECIAL = TokenRow((1, 3, 3), (True,) * 3, (-1,) * 3, (-1,) * 3)
CASES = [LONG, TWICE, SHORT, ALONE, SPECIAL]


class Case(NamedTuple):
    trace: LayerTrace
    maps: list[Tensor]
    queries: list[TokenRow]
    keys: list[TokenRow]
    rarity: dict[int, float]
    causal: bool

    def seen(self, s: int, i: int) -> list[int]:
        return list(range(i + 1 if self.causal else len(self.keys[s])))

    def choices(self, s: int) -> list[int]:
        return [i for i in range(len(self.queries[s])) if len(self.seen(s, i)) > 1]


def case_of(kind: Kind, seed: int = 7) -> Case:
    causal = kind == "decoder"
    queries, keys = (CASES[::-1], CASES) if kind == "cross" else (CASES, CASES)
    source = torch.Generator().manual_seed(seed)
    rarity = dict(count_rarity(CASES))
    maps = handmade_maps(["random 1", "random 2", "random 4"], queries, keys, rarity, causal, "even", source)
    K = collate(keys, PAD_ID, rarity)
    Q = collate(queries, PAD_ID, rarity) if kind == "cross" else K
    return Case(trace_of(Slot(kind, 0), batched(maps, Q, K), Q, K, causal), maps, queries, keys, rarity, causal)


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else math.nan


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


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_offsets_by_loops(kind: Kind) -> None:
    case = case_of(kind)
    found = look(Roles(MeasureContext(SPAN + 1)), case.trace, SPAN)

    def those(s: int, offset: int) -> list[int]:
        queries = [i for i in case.choices(s) if i + offset in case.seen(s, i)]
        return queries if 2 * len(queries) >= len(case.choices(s)) else []

    heads, offsets = range(H), range(-SPAN, SPAN + 1)
    assert_sample(
        found["roles.offset"],
        lambda s, h, o: mean(case.maps[s][h, i, i + o].item() for i in those(s, o)),
        heads,
        offsets,
    )
    assert_sample(
        found["roles.offset_argmax"],
        lambda s, h, o: mean(float(case.maps[s][h, i].argmax() == i + o) for i in those(s, o)),
        heads,
        offsets,
    )
    assert_sample(
        found["roles.offset_chance"], lambda s, o: mean(1 / len(case.seen(s, i)) for i in those(s, o)), offsets
    )
    if kind == "cross":
        assert "roles.self" not in found
    else:
        assert_sample(found["roles.self"], lambda s, h: mean(case.maps[s][h, i, i].item() for i in those(s, 0)), heads)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_pointers_by_loops(kind: Kind) -> None:
    case = case_of(kind)
    found = look(Roles(MeasureContext(SPAN + 1)), case.trace, SPAN)

    def those(name: str, s: int) -> list[tuple[int, int]]:
        if name == "rare" and all(case.keys[s].special):
            return []
        args = case.queries[s], case.keys[s], case.rarity
        return [(i, j) for i in case.choices(s) for j in pointed_keys(name, *args, i, case.causal)]

    for name in ("rare", "duplicate", "induction") if kind != "cross" else ("rare",):
        assert_sample(
            found[f"roles.{name}"],
            lambda s, h, name=name: mean(case.maps[s][h, i, j].item() for i, j in those(name, s)),
            range(H),
        )
        assert_sample(
            found[f"roles.{name}_chance"],
            lambda s, name=name: mean(1 / len(case.seen(s, i)) for i, _ in those(name, s)),
        )
    if kind == "cross":
        assert not any("syntactic" in name or "duplicate" in name or "induction" in name for name in found)
        return
    assert_sample(
        found["roles.syntactic"],
        lambda s, h: mean(float(case.maps[s][h, i].argmax() == j) for i, j in those("syntactic", s)),
        range(H),
    )
    assert_sample(
        found["roles.syntactic_mass"],
        lambda s, h: mean(case.maps[s][h, i, j].item() for i, j in those("syntactic", s)),
        range(H),
    )
    assert_sample(
        found["roles.syntactic_offset"],
        lambda s, o: mean(float(j - i == o) for i, j in those("syntactic", s)),
        range(-SPAN, SPAN + 1),
    )


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_copying_and_averaging_by_loops(kind: Kind) -> None:
    case = case_of(kind)
    found = look(Roles(MeasureContext(SPAN + 1)), case.trace, SPAN)
    largest = [P.amax(-1) for P in case.maps]

    def evenness(s: int, h: int, i: int) -> float:
        weights = case.maps[s][h, i, case.seen(s, i)].tolist()
        return math.exp(-sum(p * math.log(p) for p in weights)) / len(weights)

    heads = range(H)
    assert_sample(found["roles.copy"], lambda s, h: mean(largest[s][h, i].item() for i in case.choices(s)), heads)
    assert_sample(
        found["roles.copy_share"], lambda s, h: mean(float(largest[s][h, i] >= 0.9) for i in case.choices(s)), heads
    )
    assert_sample(found["roles.uniform"], lambda s, h: mean(evenness(s, h, i) for i in case.choices(s)), heads)


def test_every_reading_that_is_declared_is_given() -> None:
    for form, names in (("encoder", EVERYWHERE), ("decoder", EVERYWHERE)):
        readings = examine([Roles, Sinks], handmade_traces(form, "bert", names, 0, "even"))  # pyright: ignore[reportArgumentType]
        declared = [*Roles(MeasureContext(3)).declares(), *Sinks(MeasureContext(3)).declares()]
        assert {reading.name for reading in declared} == set(readings)
        assert all(readings[reading.name].axes == reading.axes for reading in declared)
    assert MEASURES["roles"] is Roles and MEASURES["sinks"] is Sinks


def test_without_heads_syntax_counts_nothing() -> None:
    rows = [TokenRow(row.ids, row.special, row.word) for row in CASES]
    tokens = collate(rows, PAD_ID)
    case = case_of("encoder")
    trace = trace_of(Slot("encoder", 0), batched(case.maps, tokens, tokens), tokens, tokens, False)
    readings = examine([Roles], [trace])
    for name in ("syntactic", "syntactic_mass"):
        count = readings[f"roles.{name}"].count
        assert count is not None and not count[0].any() and count[0].shape == (H,)
    (baseline,) = readings["roles.syntactic_baseline"].value
    assert isinstance(baseline, Tensor) and baseline.isnan()


def test_the_baseline_is_the_best_fixed_offset_of_the_corpus() -> None:
    rows = written_rows(0, SENTENCES, "bert")
    traces = handmade_traces("encoder", "bert", [f"offset {offset}" for offset in range(-3, 4)], 0, "even")
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
    traces = handmade_traces("decoder", "target", [*EVERYWHERE, "syntactic"], 0, "random")
    forth, back = examine([Roles, Sinks], traces), examine([Roles, Sinks], traces[::-1])
    for name in forth:
        for one, other in zip(forth[name].value, back[name].value, strict=True):
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                assert_close(one.nan_to_num(-1.0), other.nan_to_num(-1.0), torch.float64)
            else:
                assert one == other


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=11), st.integers(0, 3))
def test_repeats_by_loops(tokens: list[tuple[int, bool]], real: int) -> None:
    ids, special = zip(*tokens, strict=True)
    row = TokenRow(ids, special, tuple(range(len(ids))))
    filler = TokenRow((2,) * (len(ids) + real), (False,) * (len(ids) + real), tuple(range(len(ids) + real)))
    rarity = dict(count_rarity([row, filler]))
    both = collate([row, filler], 2, rarity)

    def by_loop(name: str, causal: bool) -> list[int]:
        found = []
        for i in range(len(ids)):
            text = [j for j in range(len(ids)) if not special[j] and ids[j] == ids[i] and j != i and not special[i]]
            before = [j for j in text if j < i]
            if name == "induction":
                found.append(before[-1] + 1 if before and before[-1] + 1 != i else -1)
            else:
                near = before[::-1] if causal else sorted(text, key=lambda j: (abs(i - j), j))
                found.append(near[0] if near else -1)
        return found + [-1] * real

    assert same_before(both)[0].tolist() == by_loop("duplicate", True)
    assert same_nearest(both)[0].tolist() == by_loop("duplicate", False)
    assert after_same(both)[0].tolist() == by_loop("induction", True)
    rare = [j for j in range(len(ids)) if not special[j]]
    assert rarest(both)[0].item() == (max(rare, key=lambda j: (rarity[ids[j]], -j)) if rare else -1)
