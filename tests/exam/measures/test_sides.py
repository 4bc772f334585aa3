"""Attention between two texts: every number against plain loops, and heads that align two texts by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations

import pytest
import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.core.places import Kind, Slot
from attnworks.exam.findings import find
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measure_hook import MeasureHook
from attnworks.exam.measures import sides as measured
from attnworks.exam.measures.labels import alignment_candidates, choose_roles, decide
from attnworks.exam.measures.sides import TwoTexts
from attnworks.exam.reading import Readings, tensors
from attnworks.exam.statistics import Accumulator
from attnworks.text.tokens import TokenRow, Tokens, collate
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import rows_of
from tests.exam.measures.handmade_heads import PAD_ID, batched, trace_of
from tests.helpers import assert_close

H = 3
FIRST, SEPARATOR, LAST = 1, 2, 3
MATCHED = ("permutation", "aligned")


def pair(
    one: Sequence[int], other: Sequence[int], form: str = "bert", links: Sequence[tuple[int, int]] = ()
) -> TokenRow:
    """Two texts with special tokens around and between them ("bert"), or with a line end alone ("lines")."""
    begin, middle, end = ([FIRST], [SEPARATOR], [LAST]) if form == "bert" else ([], [SEPARATOR], [])
    side = [-1] * len(begin) + [0] * len(one) + [-1] + [1] * len(other) + [-1] * len(end)
    aligned: list[list[int]] = [[] for _ in side]
    for a, b in links:
        first, second = len(begin) + a, len(begin) + len(one) + 1 + b
        aligned[first].append(second)
        aligned[second].append(first)
    special = [found == -1 and form == "bert" for found in side]
    return TokenRow(
        (*begin, *one, *middle, *other, *end), tuple(special), (-1,) * len(side), None, tuple(side), None,
        tuple(tuple(sorted(found)) for found in aligned) if links else None,
    )  # fmt: skip


CASES = [
    pair([11, 12, 13], [12, 11, 12, 14, 15], links=[(0, 1), (0, 4), (2, 0)]),
    pair([11, 12, 13, 14, 15, 16, 17], [13, 21]),
    pair([11], [11, 12, 13]),
    pair([11, 12, 13], [21, 22, 23, 24, 25], "lines", links=[(0, 0), (2, 3)]),
    pair([11, 12], [11, 12, 11], "lines"),
    TokenRow((FIRST, 11, 11, LAST), (True, False, False, True), (-1, 0, 1, -1)),
    TokenRow((11,), (False,), (0,)),
    pair([11, 12, 13], []),
]
"""Two texts, among rows of one text; texts of one token, and without any."""


class Case:
    """Random maps of some rows, and what each query sees."""

    def __init__(self, kind: Kind, rows: Sequence[TokenRow] = CASES, window: int = 99, seed: int = 7) -> None:
        self.kind: Kind = kind
        self.rows, self.window, self.causal = list(rows), window, kind == "decoder"
        source = torch.Generator().manual_seed(seed)
        self.maps: list[Tensor] = []
        for row in rows:
            n = len(row)
            S = torch.randn(H, n, n, generator=source) * torch.tensor([0.3, 1.0, 2.5])[:, None, None]
            hidden = torch.tensor([[j not in self.seen(n, i) for j in range(n)] for i in range(n)])
            self.maps.append(S.masked_fill(hidden, -torch.inf).softmax(-1))

    def seen(self, n: int, i: int) -> range:
        return range(max(0, i + 1 - self.window), i + 1) if self.causal else range(n)

    def trace(self) -> LayerTrace:
        tokens = collate(self.rows, PAD_ID)
        trace = trace_of(Slot(self.kind, 0), batched(self.maps, tokens, tokens), tokens, tokens, self.causal)
        if self.window == 99:
            return trace
        n = tokens.ids.shape[1]
        near = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - self.window)
        mask = Mask(real=tokens.real, dense=near.expand(len(self.rows), 1, n, n))
        return LayerTrace(
            trace.slot, trace.Q, trace.K, trace.V, trace.Y, mask, None, tokens, tokens, weigh=trace.weigh
        )  # fmt: skip

    def sides(self, s: int) -> list[int]:
        """The first token is in neither text."""
        side = self.rows[s].side or (-1,) * len(self.rows[s])
        return [-1, *side[1:]]

    def others(self, s: int, i: int) -> list[int]:
        """Keys of the other text that a query sees."""
        side = self.sides(s)
        return [j for j in self.seen(len(side), i) if min(side[i], side[j]) >= 0 and side[i] != side[j]]

    def of_texts(self, s: int, i: int) -> list[int]:
        side = self.sides(s)
        return [j for j in self.seen(len(side), i) if min(side[i], side[j]) >= 0]

    def queries(self, s: int, side: int | None = None) -> list[int]:
        """Queries, of one text or of both, that see a key of the other."""
        own = self.sides(s)
        return [i for i in range(len(own)) if self.others(s, i) and side in (None, own[i])]


def samples(trace: LayerTrace, *, seed: int = 0) -> dict[str, Tensor]:
    """Every sample of a layer, by sentence and head (or by sentence), with NaN where a sentence does not count."""
    measure = TwoTexts(MeasureContext(12, seed))
    found: dict[str, Tensor] = {}

    def keep(sentences: slice, heads: slice, name: str, values: Tensor, valid: Tensor | None) -> None:
        assert bool(values.isfinite().all()), name
        whole = found.setdefault(name, torch.full((trace.Q.shape[0], trace.heads), torch.nan, dtype=torch.float64))
        counted = torch.ones_like(values, dtype=torch.bool) if valid is None else valid.expand(values.shape)
        whole[sentences, heads] = torch.where(counted, values.double(), torch.nan)

    def on_maps(maps: measured.Maps) -> None:
        for name, sample in measure.maps(maps).items():
            keep(maps.sentences, maps.heads, name, *sample)

    rows = rows_of(trace, 3, {}, on_maps)
    for name, sample in measure.rows(rows).items():
        values, valid = sample.values.unsqueeze(-1), None if sample.valid is None else sample.valid.unsqueeze(-1)
        keep(slice(None), slice(None), name, values.expand(-1, trace.heads), valid)
    return {name.removeprefix("sides."): values for name, values in found.items()}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def by_loops(case: Case, s: int, P: Tensor) -> dict[str, float]:
    """The readings of one map [i j]."""
    row, found = case.rows[s], dict[str, float]()
    for side, name in enumerate(("to_second", "to_first")):
        found[name] = mean([sum(P[i, j].item() for j in case.others(s, i)) for i in case.queries(s, side)])
    found["sharpness"] = mean(
        [max(P[i, j].item() for j in case.others(s, i)) / sum(P[i, j].item() for j in case.others(s, i))
         for i in case.queries(s)]
    )  # fmt: skip
    every = [(i, j) for i in case.queries(s) for j in case.others(s, i)]
    same = [(i, j) for i, j in every if row.ids[i] == row.ids[j]]
    found["equal"] = sum(P[at].item() for at in same) / sum(P[at].item() for at in every) if same else math.nan
    golden = []
    for i in case.queries(s):
        partners = [j for j in case.others(s, i) if row.aligned is not None and j in row.aligned[i]]
        if partners:
            golden.append(sum(P[i, j].item() for j in partners) / sum(P[i, j].item() for j in case.of_texts(s, i)))
    found["gold"] = mean(golden)
    return found


def matched_by_loops(case: Case, s: int, P: Tensor, name: str) -> float:
    """By trying every partial permutation."""
    side = case.sides(s)
    first, second = ([i for i, own in enumerate(side) if own == number] for number in (0, 1))
    if min(len(first), len(second)) < 2 or not case.queries(s):
        return math.nan
    values = []
    for queries, keys in ((first, second), (second, first)):
        if not any(case.others(s, i) for i in queries):
            continue
        share = dict[tuple[int, int], float]()
        for i in queries:
            among = case.others(s, i) if name == "permutation" else case.of_texts(s, i)
            whole = sum(P[i, j].item() for j in among)
            share |= {(i, j): P[i, j].item() / whole if j in among and whole else 0.0 for j in keys}
        few, many = sorted((queries, keys), key=len)
        sums = (
            sum(share.get((a, b), share.get((b, a), 0.0)) for a, b in zip(few, chosen, strict=True))
            for chosen in permutations(many, len(few))
        )
        values.append(max(sums) / len(few))
    return mean(values)


def assert_values(got: Tensor, expected: Callable[[int, int], float]) -> None:
    right = torch.tensor([[expected(s, h) for h in range(got.shape[1])] for s in range(got.shape[0])])
    assert bool((~right.isnan()).any()), "nothing is compared"
    assert_close(got.nan_to_num(-1.0), right.double().nan_to_num(-1.0), torch.float64)


@pytest.fixture(autouse=True)
def wide_floats() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


WAYS = [("encoder", 99), ("decoder", 99), ("decoder", 5)]


@pytest.mark.parametrize(("kind", "window"), WAYS)
def test_readings_by_loops(kind: Kind, window: int) -> None:
    case = Case(kind, window=window)
    found = samples(case.trace())
    each = [[by_loops(case, s, P) for P in maps] for s, maps in enumerate(case.maps)]
    for name in ("to_first", "to_second", "sharpness", "equal", "gold"):
        if (kind, name) != ("decoder", "to_second"):
            assert_values(found[name], lambda s, h, name=name: each[s][h][name])
    if kind == "decoder":
        assert found["to_second"].isnan().all(), "the first text sees nothing of the second"


@pytest.mark.parametrize(("kind", "window"), WAYS)
def test_chance_levels_are_those_of_even_attention(kind: Kind, window: int) -> None:
    case = Case(kind, window=window)
    found = samples(case.trace())
    even = []
    for row in case.rows:
        n = len(row)
        P = torch.tensor([[float(j in case.seen(n, i)) for j in range(n)] for i in range(n)])
        even.append(P / P.sum(-1, keepdim=True))
    each = [by_loops(case, s, P) for s, P in enumerate(even)]
    for name in ("to_first", "sharpness", "equal", "gold"):
        assert_values(found[f"{name}_chance"], lambda s, _, name=name: each[s][name])


@pytest.mark.parametrize(("kind", "window"), WAYS)
@pytest.mark.parametrize("name", MATCHED)
def test_matchings_by_trying_them_all(kind: Kind, window: int, name: str) -> None:
    case = Case(kind, window=window)
    found = samples(case.trace())[name]
    assert_values(found, lambda s, h: matched_by_loops(case, s, case.maps[s][h], name))


# Heads that are known ------------------------------------------------------------------------------------------------


def map_of(row: TokenRow, kind: Kind, head: str, source: torch.Generator) -> Tensor:
    """P [i j] of a head that is known; it spreads its attention where it has nothing to attend to."""
    n, side = len(row), row.side or ()
    seen = torch.ones(n, n).tril() if kind == "decoder" else torch.ones(n, n)
    P = seen / seen.sum(-1, keepdim=True)
    texts = [[i for i, own in enumerate(side) if own == number and i] for number in (0, 1)]
    for queries, keys in (texts, texts[::-1]):
        if kind == "decoder" and queries is texts[0]:
            continue
        for place, i in enumerate(queries):
            if head == "partner" and place < len(keys):
                P[i] = 0.2 * P[i]
                P[i, keys[-1 - place]] += 0.8
            elif head == "sink and partner" and place < len(keys):
                P[i] = 0.0
                P[i, 0], P[i, keys[place]] = 0.9, 0.1
            elif head == "one key":
                P[i] = 0.0
                P[i, keys[0]] = 1.0
            elif head == "any key":
                P[i] = 0.0
                P[i, keys[int(torch.randint(len(keys), (), generator=source))]] = 1.0
    if head == "first":
        P = torch.zeros(n, n)
        P[:, 0] = 1.0
    return P


HEADS = ["even", "partner", "one key", "any key", "sink and partner", "first"]


def known_texts(number: int, *, seed: int = 0) -> list[TokenRow]:
    source = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(number):
        m, n = (torch.randint(5, 12, (2,), generator=source)).tolist()
        words = torch.randint(11, 997, (m + n,), generator=source).tolist()
        rows.append(pair(words[:m], words[m:]))
    return sorted(rows, key=len)


def readings_of(kind: Kind, rows: Sequence[TokenRow], at_once: int = 13, heads: Sequence[str] = HEADS) -> Readings:
    """As an examiner folds them, in padded batches."""
    source = torch.Generator().manual_seed(3)
    maps = [torch.stack([map_of(row, kind, head, source) for head in heads]) for row in rows]
    measure = TwoTexts(MeasureContext(max(map(len, rows))))
    accumulator = Accumulator(measure.declares())
    hook = MeasureHook([measure], accumulator)
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        tokens = collate(rows[part], PAD_ID)
        hook.attention(trace_of(Slot(kind, 0), batched(maps[part], tokens, tokens), tokens, tokens, kind == "decoder"))
        accumulator.flush()
    return accumulator.readings({Slot(kind, 0): len(heads)})


def value(readings: Readings, name: str, head: str) -> float:
    (row,) = tensors(readings[f"sides.{name}"].value)
    return row[HEADS.index(head)].item()


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_head_that_aligns_is_told_from_those_that_do_not(kind: Kind) -> None:
    readings = readings_of(kind, known_texts(61))
    (candidates,) = alignment_candidates(readings, kind, 0)
    assert candidates.names == ("aligns",)
    labels = choose_roles([decide(candidates, 0.05 / 7)]).label
    expected = {"partner": "aligns", "sink and partner": "aligns"}
    assert dict(zip(HEADS, labels, strict=True)) == {head: expected.get(head, "none") for head in HEADS}


def test_a_head_behind_a_sink_aligns_as_one_without() -> None:
    """One text more gives nothing to the other: the tokens that have no partner are spread over all."""
    readings = readings_of("encoder", known_texts(61))
    assert value(readings, "aligned", "sink and partner") == pytest.approx(1.0, abs=1e-12)
    assert value(readings, "aligned_chance", "sink and partner") < 0.75
    assert value(readings, "to_second", "sink and partner") < 0.3
    assert value(readings, "permutation", "partner") > 0.8
    assert value(readings, "sharpness", "any key") == pytest.approx(1.0, abs=1e-12)


def test_the_chance_level_is_that_of_independent_choices() -> None:
    """Even attention has it exactly, a head whose queries choose their keys at random on average; one key has less."""
    readings = readings_of("encoder", known_texts(199))
    for name in MATCHED:
        assert value(readings, name, "even") == pytest.approx(value(readings, f"{name}_chance", "even"), abs=1e-12)
        assert value(readings, name, "any key") == pytest.approx(value(readings, f"{name}_chance", "any key"), abs=0.02)
        assert value(readings, name, "one key") < value(readings, f"{name}_chance", "one key") - 0.3


def test_two_queries_and_two_keys_meet_by_chance_in_three_of_four_halves() -> None:
    """Each of two queries chooses one of two keys: both pairs, or one of two, so that the mean is 3/4."""
    rows = [pair([11, 12 + number], [21, 22]) for number in range(401)]
    readings = readings_of("encoder", rows)
    assert value(readings, "aligned", "partner") == pytest.approx(0.8 + 0.2 / 4 / 1, abs=0.06)
    assert value(readings, "permutation_chance", "any key") == pytest.approx(0.75, abs=0.03)


def test_batches_and_padding_do_not_count() -> None:
    """Random orders are those of a sentence, whatever is in the same batch."""
    rows = known_texts(23)
    one, many, all_at_once = (readings_of("encoder", rows, at_once) for at_once in (1, 5, 23))
    for other in (many, all_at_once):
        for name in one:
            for left, right in zip(tensors(one[name].value), tensors(other[name].value), strict=True):
                torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_the_seed_decides_the_random_orders_alone() -> None:
    case = Case("encoder")
    first, again, other = (samples(case.trace(), seed=seed) for seed in (0, 0, 1))
    for name, values in first.items():
        assert values.equal(again[name]) or values.isnan().any()
        torch.testing.assert_close(values, again[name], rtol=0, atol=0, equal_nan=True)
        same = torch.allclose(values, other[name], rtol=0, atol=0, equal_nan=True)
        assert same == (name not in ("permutation_chance", "aligned_chance"))


# Hostile cases -------------------------------------------------------------------------------------------------------


def test_without_two_texts_there_is_nothing() -> None:
    case = Case("encoder", [TokenRow((FIRST, 11, 12), (True, False, False), (-1, 0, 1))])
    assert samples(case.trace()) == {}
    tokens: Tokens = collate(CASES, PAD_ID)
    cross = trace_of(Slot("cross", 0), batched(Case("encoder").maps, tokens, tokens), tokens, tokens, False)
    assert samples(cross) == {}


def test_a_head_that_gives_nothing_to_the_other_text() -> None:
    """It has no shares of that, and aligns nothing; exact zeros and rounding errors alike."""
    for least in (0.0, 1e-9):
        case = Case("encoder", [CASES[0]])
        (P,) = case.maps
        side = torch.tensor(case.sides(0))
        P += torch.eye(len(side))  # each query keeps something for itself
        P[:, (side[:, None] != side) & (side[:, None] >= 0) & (side >= 0)] = least
        found = samples(case.trace())
        for name in ("sharpness", "equal"):
            assert found[name].isnan().all(), name
        for name in ("to_first", "to_second", "aligned", "gold"):
            torch.testing.assert_close(found[name], torch.zeros(1, H), rtol=0, atol=1e-7)
        assert not found["permutation"].any()


def test_a_head_that_gives_everything_to_its_sink() -> None:
    case = Case("encoder", [CASES[0]])
    case.maps[0][...] = 0.0
    case.maps[0][..., 0] = 1.0
    found = samples(case.trace())
    assert not found["aligned"].any() and not found["gold"].any() and found["sharpness"].isnan().all()


def test_the_first_token_of_a_sequence_is_in_neither_text() -> None:
    """All attention of the second line to the first token, a sink, is none to the first line."""
    case = Case("decoder", [pair([11, 12, 13], [11, 12, 13], "lines")])
    case.maps[0][...] = 0.0
    case.maps[0][..., 0] = 1.0
    assert not samples(case.trace())["to_first"].any()


def test_long_texts_are_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MATCHED_MAX_TOKENS", 3)
    found = samples(Case("encoder").trace())
    assert found["aligned"].isnan().all(1).tolist() == [True] * 4 + [True, True, True, True]
    assert not found["sharpness"][0].isnan().any()
    found = samples(Case("encoder", [pair([11, 12], [21, 22, 23]), *CASES]).trace())
    assert found["aligned"].isnan().all(1).tolist() == [False] + [True] * 8


def test_maps_in_single_precision_have_the_same_readings() -> None:
    case = Case("encoder")
    wide = samples(case.trace())
    case.maps = [P.float() for P in case.maps]
    tokens = collate(case.rows, PAD_ID)
    P = batched([P.double() for P in case.maps], tokens, tokens).float()
    narrow = samples(trace_of(Slot("encoder", 0), P, tokens, tokens, False))
    for name, values in wide.items():
        torch.testing.assert_close(narrow[name], values, rtol=1e-4, atol=1e-5, equal_nan=True)


# Findings ------------------------------------------------------------------------------------------------------------


def findings(readings: Readings) -> list[tuple[str, tuple[str, ...]]]:
    return [(found.text, found.heads) for found in find(readings) if "sides.aligned" in found.readings]


def test_the_finding_names_the_heads_that_align() -> None:
    ((text, heads),) = findings(readings_of("encoder", known_texts(61)))
    assert set(heads) == {"enc.0.1", "enc.0.4"}
    assert text.startswith("2 of 6 heads align the two texts token by token:") and "head 0.4 most" in text
    assert "1.00 of its attention to both texts goes to one partner of each token" in text and "\n" not in text


def test_the_finding_says_if_equal_tokens_are_joined() -> None:
    rows = [pair([11, 12, 13, 14 + n], [14 + n, 13, 12, 11]) for n in range(31)]
    ((text, heads),) = findings(readings_of("encoder", rows, heads=["even", "partner"]))
    assert heads == ("enc.0.1",) and text.startswith(
        "head 0.1 aligns the two texts token by token, mostly equal tokens"
    )
    assert "from the first text to the second" in text
    ((text, _),) = findings(readings_of("decoder", rows, heads=["even", "partner"]))
    assert "from the second to the first" in text and "from the first text" not in text


def test_the_finding_says_if_no_head_aligns() -> None:
    ((text, heads),) = findings(readings_of("encoder", known_texts(61), heads=["even", "one key", "any key"]))
    assert heads == () and text.startswith("no head aligns the two texts token by token")


def test_a_known_alignment_of_few_words_is_evidence_too() -> None:
    rows = [pair([11 + n, 12, 13, 14], [21, 22, 23, 24], links=[(0, 3), (1, 2)]) for n in range(31)]
    readings = readings_of("encoder", rows, heads=["even", "partner"])
    assert tensors(readings["sides.gold"].value)[0][1] > 0.8
    ((text, heads),) = findings(readings)
    assert heads == ("enc.0.1",) and "goes to tokens that the known alignment joins, 0.125 by chance" in text
    ((text, heads),) = findings(readings_of("encoder", rows, heads=["even", "one key"]))
    assert heads == () and "head 0.1 gives most to tokens that the known alignment joins: 0.250, 0.125 by ch" in text
    by_partner, by_gold = alignment_candidates(readings, "encoder", 0)
    gain = (by_gold.score - by_gold.baseline) / (1 - by_gold.baseline)
    assert gain[1, 0] > 0.7 and gain[0].abs().max() < 1e-9
    choice = choose_roles([decide(group, 0.05 / 4) for group in (by_partner, by_gold)])
    assert choice.label == ("none", "aligns") and choice.second == ("none", "none")


def test_one_sentence_gives_no_finding() -> None:
    assert findings(readings_of("encoder", known_texts(1))) == []
    assert findings(Readings([])) == []


def test_without_pairs_there_are_no_candidates() -> None:
    assert alignment_candidates(Readings([]), "encoder", 0) == []
