"""Labels of heads whose role was put in by hand, and how often a model gets a label that is wrong."""

from __future__ import annotations

import itertools
import random
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp
from torch import Tensor

import attnworks
from attnworks.core.errors import UnknownNameError
from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.labels import (
    CHANCE_ROLE_READINGS,
    FAMILY_WISE_ERROR,
    MIN_GAIN,
    MIN_REST_SHARE,
    SINK_READINGS,
    Candidates,
    choose_roles,
    decide,
)
from attnworks.exam.measures.roles import Roles
from attnworks.exam.measures.sinks import Sinks
from attnworks.exam.reading import Readings
from attnworks.text.tokens import count_rarity
from tests.exam.measures.handmade_heads import (
    SINKS,
    Form,
    batched,
    examine,
    handmade_maps,
    handmade_traces,
    padded_batches,
    trace_of,
    written_rows,
)
from tests.exam_helpers import NOUNS, OTHERS, tiny_tokenizer
from tests.model_helpers import filled
from tests.tiny_models import TINY
from tests.traces.trace_helpers import dense_map

BASELINE = 0.1
LEAST = BASELINE + MIN_GAIN * (1 - BASELINE)
"""The score of a head whose gain is MIN_GAIN."""


def candidates(scores: Tensor) -> Candidates:
    """From the scores [sentence head candidate] of every sentence."""
    n, _, c = scores.shape
    mean = scores.mean(0)
    counts = torch.full(mean.shape, n)
    names = tuple(f"role {at}" for at in range(c))
    return Candidates(names, mean, scores.std(0), counts, torch.full_like(mean, BASELINE))


def chosen_labels(scores: Tensor, level: float) -> tuple[str, ...]:
    """The labels of heads with these scores, beside a role that no head has."""
    return choose_roles([decide(candidates(part), level) for part in (scores, torch.zeros_like(scores))]).label


def labels_of(readings: Readings, name: str = "label") -> list[str]:
    rows = [row for reading in readings.of(f"roles.{name}") for row in reading.value]
    return [label for row in rows for label in row if isinstance(label, str)]


# --- the test of one candidate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.05, 1e-3, 1e-5])
def test_a_candidate_stands_by_a_t_test_with_one_more_sentence(level: float) -> None:
    """Scores near those at which the decision changes, against SciPy's test of all sentences and one of LEAST."""
    source = torch.Generator().manual_seed(0)
    for n in (3, 6, 9, 30):
        noise = torch.randn(n, 60, 1, generator=source, dtype=torch.float64)
        scores = LEAST + 0.05 * noise + torch.linspace(0, 0.4, 60, dtype=torch.float64)[:, None]
        labels = chosen_labels(scores, level)
        more = torch.cat([scores, torch.full((1, 60, 1), LEAST, dtype=torch.float64)])
        chances = np.asarray(ttest_1samp(more[..., 0].numpy(), LEAST, alternative="greater"))[1]
        assert [label != "none" for label in labels] == (chances < level).tolist()
        assert n < 9 or len(set(labels)) == 2


def test_scores_that_agree_by_accident_are_not_certain() -> None:
    """Three sentences with the same score have a spread of 0."""
    assert chosen_labels(torch.full((3, 1, 1), 0.5), FAMILY_WISE_ERROR / 60) == ("none",)
    assert chosen_labels(torch.full((6, 1, 1), 0.5), FAMILY_WISE_ERROR / 60) == ("role 0",)


def test_the_two_largest_gains_are_the_roles() -> None:
    """Of heads with three roles, with two, with one and with none, in several groups of candidates."""
    scores = torch.tensor([[0.9, 0.2, 0.6, 0.7], [0.2, 0.5, 0.2, 0.8], [0.2, 0.2, 0.6, 0.2], [0.2, 0.25, 0.1, 0.2]])
    spread = 0.01 * torch.randn(30, 4, 4, generator=torch.Generator().manual_seed(0))
    first, rest = candidates((scores + spread)[..., :1].double()), candidates((scores + spread)[..., 1:].double())
    rest = rest._replace(names=("role 1", "role 2", "role 3"))
    choice = choose_roles([decide(group, 1e-6) for group in (first, rest)])
    assert choice.label == ("role 0", "role 3", "role 2", "none")
    assert choice.second == ("role 3", "role 1", "none", "none")
    expected = torch.tensor([0.9, 0.8, 0.6, torch.nan], dtype=torch.float64)
    torch.testing.assert_close(choice.score, expected, rtol=0, atol=0.02, equal_nan=True)
    assert choice.baseline.tolist()[:3] == [BASELINE] * 3 and choice.baseline[3].isnan()
    only_last = decide(rest._replace(allowed=torch.tensor([False, False, False, True])), 1e-6)
    assert choose_roles([only_last]).label == ("none",) * 4


# --- the family-wise error --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 8, 64])
@pytest.mark.parametrize("shape", ["normal", "skewed", "shares of 5 tokens"])
def test_gains_that_are_not_above_the_least_are_labelled_in_few_models(n: int, shape: str) -> None:
    """Models of 40 tests each, all with the largest true gain that is not enough."""
    source = torch.Generator().manual_seed(n)
    models, tests = 500, 40
    drawn = torch.rand(n, 5, models * tests, generator=source, dtype=torch.float64)
    if shape == "normal":
        scores = LEAST + 0.1 * torch.randn(n, models * tests, generator=source, dtype=torch.float64)
    elif shape == "skewed":
        scores = -LEAST * drawn[:, 0].log()
    else:
        scores = (drawn < LEAST).double().mean(1)
    labels = chosen_labels(scores.reshape(n, models, tests), FAMILY_WISE_ERROR / tests)
    wrong = sum(label != "none" for label in labels) / models
    assert wrong <= FAMILY_WISE_ERROR
    assert wrong > 0.01 or n < 64 or shape != "normal"


def gain_of(readings: Readings, kind: Kind, layer: int, head: int, label: str) -> float:
    """How much a head does what the label says, above attention spread evenly."""
    offset = {"previous": -1, "self": 0, "next": 1}.get(label)
    places: tuple[int, ...] = ()
    if offset is not None or label.startswith("offset"):
        name = "roles.offset"
        places = (readings[f"{name}@{kind}"].ticks["offset"].index(int(label[7:]) if offset is None else offset),)
    else:
        name = (CHANCE_ROLE_READINGS | SINK_READINGS)[label]
    score, even = readings[f"{name}@{kind}"].value[layer], readings[f"{name}_chance@{kind}"].value[layer]
    assert isinstance(score, Tensor) and isinstance(even, Tensor)
    if label not in SINKS:
        even = even[head]
    return float((score[head, *places] - even[places]) / (1 - even[places]))


def test_random_weights_get_few_labels_that_other_sentences_refute() -> None:
    """Sharp random weights. Some of their heads truly give much to one place: other sentences show the same gain."""
    source = random.Random(0)
    texts = [" ".join(source.choices([*NOUNS, *OTHERS], k=source.randint(8, 20))) for _ in range(32)]
    refuted = []
    for family, seed in itertools.product(("bert", "gpt2", "llama"), range(7)):
        model = filled(TINY[family].build(dtype=torch.float32), seed, spread=0.8)
        few, more = (
            attnworks.examine(model, part, tokenizer=tiny_tokenizer(family), measures=["roles"], pin=[]).readings
            for part in (texts[:8], texts[8:])
        )
        refuted.append(any(
            gain_of(more, reading.kind, layer, head, label) < MIN_GAIN
            for name in ("label", "second", "sink")
            for reading in few.of(f"roles.{name}")
            for layer, row in enumerate(reading.value)
            for head, label in enumerate(row)
            if isinstance(label, str) and label != "none"
        ))  # fmt: skip
    assert sum(refuted) <= FAMILY_WISE_ERROR * len(refuted)


# --- heads made by hand -----------------------------------------------------------------------------------------------

SENTENCES = 199
EVERYWHERE = ["rare", "first", "random 1", "random 2", "random 5"]
IN_ONE_TEXT = ["syntactic", "duplicate", "induction"]
ROLES: dict[str, str] = {"offset -1": "previous", "offset 0": "self", "offset 1": "next"}
FORMS: list[tuple[Kind, Form]] = [
    ("encoder", "bert"), ("encoder", "source"), ("decoder", "tagged"), ("decoder", "target"), ("cross", "source"),
]  # fmt: skip
by_form = pytest.mark.parametrize(("kind", "form"), FORMS)


def right_roles(name: str, kind: Kind) -> list[str]:
    """The roles outside the sinks of a head made by hand, and `none` twice."""
    roles = [role for role in name.removeprefix("nothing but ").split(" + ") if role not in SINKS]
    known = [role if kind == "cross" else ROLES.get(role, role) for role in roles if not role.startswith("random")]
    return [*known, "none", "none"]


def right_sink(name: str) -> str:
    first = name.removeprefix("nothing but ").split(" + ")[0]
    return first if first in SINKS else "none"


def assert_no_second_role(readings: Readings, names: list[str]) -> None:
    """Save that the syntactic head of many tokens is the next token."""
    for name, second in zip(names, labels_of(readings, "second"), strict=True):
        assert second == "none" or (second == "next" and name.endswith("syntactic")), name


@pytest.mark.parametrize(("seed", "noise"), [(0, "even"), (1, "random"), (2, "random")])
@by_form
def test_heads_made_by_hand_have_their_role_and_sink(
    kind: Kind, form: Form, seed: int, noise: Literal["even", "random"]
) -> None:
    names = [f"offset {offset}" for offset in (range(-3, 1) if kind == "decoder" else range(-3, 4))] + EVERYWHERE
    names += [] if kind == "cross" else IN_ONE_TEXT
    names += [] if form == "target" else ["delimiter"]
    readings = examine([Roles, Sinks], handmade_traces(kind, form, names, seed, noise, SENTENCES))
    assert labels_of(readings) == [right_roles(name, kind)[0] for name in names]
    assert_no_second_role(readings, names)
    assert labels_of(readings, "sink") == [right_sink(name) for name in names]
    for score, baseline, labels in zip(
        readings["roles.score"].value, readings["roles.baseline"].value, readings["roles.label"].value, strict=True
    ):
        assert isinstance(score, Tensor) and isinstance(baseline, Tensor)
        named = torch.tensor([label != "none" for label in labels])
        assert torch.equal(named, score > baseline) and torch.equal(~named, score.isnan())


@pytest.mark.parametrize("noise", ["even", "random"])
@by_form
def test_heads_have_a_sink_and_a_role_behind_it(kind: Kind, form: Form, noise: Literal["even", "random"]) -> None:
    """0.6 on the first token or on delimiters, and 0.3 on what the role says."""
    roles = ["offset -1", "offset -2", "rare", *(IN_ONE_TEXT if kind != "cross" else [])]
    sinks = ["first", *(["delimiter"] if form != "target" else [])]
    names = [f"{sink} + {role}" for sink in sinks for role in roles]
    readings = examine([Roles, Sinks], handmade_traces(kind, form, names, 3, noise, SENTENCES))
    assert labels_of(readings) == [right_roles(name, kind)[0] for name in names]
    assert_no_second_role(readings, names)
    assert labels_of(readings, "sink") == [right_sink(name) for name in names]


@by_form
def test_heads_have_two_roles(kind: Kind, form: Form) -> None:
    pairs = ["offset -1 + offset -3", "offset 0 + rare", "offset -2 + offset 0"]
    pairs += [] if kind == "cross" else ["offset -1 + syntactic", "offset -2 + duplicate"]
    names = [*pairs, *(f"first + {pair}" for pair in pairs)]
    readings = examine([Roles, Sinks], handmade_traces(kind, form, names, 4, "random", SENTENCES))
    found = zip(labels_of(readings), labels_of(readings, "second"), strict=True)
    assert [{*pair} for pair in found] == [{*right_roles(name, kind)[:2]} for name in names]
    assert labels_of(readings, "sink") == [right_sink(name) for name in names]


@by_form
def test_heads_that_give_all_to_a_sink_have_no_role(kind: Kind, form: Form) -> None:
    """What is left, 0.01, is less than MIN_REST_SHARE, whatever it does."""
    traces = handmade_traces(kind, form, ["offset -1", "offset -1", "offset 0"], 5, "even", SENTENCES)
    turned = []
    for trace in traces:
        if trace.slot.layer > 0:
            continue
        P = dense_map(trace) * torch.tensor([1.0, 0.1, 0.9 * MIN_REST_SHARE])[:, None, None]
        P[..., 0] += torch.where(trace.queries.real[:, None], 1 - P.sum(-1), 0.0)
        turned.append(trace_of(trace.slot, P, trace.queries, trace.keys, kind == "decoder"))
    readings = examine([Roles, Sinks], turned)
    previous = right_roles("offset -1", kind)[0]
    assert labels_of(readings) == [previous, previous, "none"]
    assert labels_of(readings, "sink") == ["none", "first", "first"]
    offsets = readings["roles.offset"]
    at = offsets.ticks["offset"].index(0)
    assert float(offsets.value[0][2][at]) > 0.7, "it does attend to the token itself"  # pyright: ignore[reportArgumentType]
    assert all(label == "none" for label in labels_of(examine([Roles, Sinks], handmade_traces(
        kind, form, ["nothing but first"], 5, "random", SENTENCES))))  # fmt: skip


def test_a_head_whose_effect_is_behind_the_sink_has_its_role() -> None:
    """0.99 on the first token, whose value is nearly zero: what the head adds to the stream comes from the rest."""
    rows = written_rows(0, 60, "bert")
    maps = handmade_maps(
        ["offset -1", "offset -1"], rows, rows, dict(count_rarity(rows)), False, "even", torch.Generator()
    )
    (tokens,) = padded_batches(rows, len(rows))
    P = 0.01 * batched(maps, tokens, tokens)
    P[..., 0] += torch.where(tokens.real[:, None], 1 - P.sum(-1), 0.0)
    labels = []
    for first in (1.0, 0.1):
        V = torch.ones(len(rows), 2, tokens.ids.shape[1], 1, dtype=torch.float64)
        V[:, 0, 0] = first  # of the first head only
        trace = trace_of(Slot("encoder", 0), P, tokens, tokens, False, V)
        labels.append(labels_of(examine([Roles, Sinks], [trace], grams=torch.ones(2, 1, 1, dtype=torch.float64))))
    assert labels == [["none", "none"], ["previous", "none"]]


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_no_pattern_is_no_role(kind: Kind) -> None:
    names = [f"random {spread}" for spread in (1, 2, 3, 5, 10) for _ in range(7)]
    readings = examine([Roles, Sinks], handmade_traces(kind, "bert", names, 5, "random", SENTENCES))
    for name in ("label", "second", "sink"):
        assert labels_of(readings, name) == ["none"] * len(names)


def test_even_attention_is_no_role() -> None:
    """A head that averages all values is described by `roles.evenness`."""
    for kind in ("encoder", "decoder"):
        readings = examine([Roles, Sinks], handmade_traces(kind, "bert", ["no role", "rare"], 0, "even", SENTENCES))
        assert labels_of(readings) == ["none", "rare"] and labels_of(readings, "sink") == ["none"] * 2
        evenness = readings["roles.evenness"].value[0]
        assert isinstance(evenness, Tensor) and evenness[0] > 0.999 and evenness[1] < 0.9


@pytest.mark.parametrize("name", ["offset -1", "first"])
def test_few_sentences_give_no_label(name: str) -> None:
    def labels(number: int) -> list[str]:
        return labels_of(
            examine([Roles, Sinks], handmade_traces("encoder", "bert", [name], 0, "even", number)),
            "sink" if name == "first" else "label",
        )

    with pytest.raises(UnknownNameError, match=r"roles\.label"):
        examine([Roles, Sinks], handmade_traces("encoder", "bert", [name], 0, "even", 2))["roles.label"]
    assert labels(4) == ["none"] and labels(9) == [ROLES.get(name, name)]


def test_without_sinks_the_label_says_so() -> None:
    traces = handmade_traces("encoder", "bert", ["offset -1", "first", *EVERYWHERE], 0, "even", SENTENCES)
    alone, both = examine([Roles], traces), examine([Roles, Sinks], traces)
    assert labels_of(alone) == labels_of(both) and labels_of(alone)[0] == "previous"
    assert {*labels_of(alone, "sink")} == {"none"} and "first" in labels_of(both, "sink")
    assert "sinks were not measured" in alone["roles.label"].description
    assert "sinks were not measured" not in both["roles.label"].description


@pytest.mark.parametrize(("kind", "form"), [("encoder", "bert"), ("decoder", "tagged")])
def test_clear_heads_keep_their_labels_with_few_sentences(kind: Kind, form: Form) -> None:
    names = ["offset -1", "offset 0", "offset -2", "first", "delimiter", "rare", "syntactic", "first + rare"]
    readings = examine([Roles, Sinks], handmade_traces(kind, form, [*names, "random 3"], 1, "random", 24))
    assert labels_of(readings) == [
        "previous", "self", "offset -2", "none", "none", "rare", "syntactic", "rare", "none",
    ]  # fmt: skip
    assert labels_of(readings, "sink") == [*["none"] * 3, "first", "delimiter", "none", "none", "first", "none"]


def test_the_reading_states_the_error() -> None:
    (label,) = (declared for declared in Roles(MeasureContext(3)).declares() if declared.name == "roles.label")
    assert "5 % at most" in label.description
