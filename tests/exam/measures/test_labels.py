"""How often a model gets a label that is wrong, and that clear heads keep theirs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp
from torch import Tensor

import attnworks
from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.labels import CHANCE_ROLE_READINGS, FAMILY_WISE_ERROR, MIN_GAIN, Candidates, choose_label
from attnworks.exam.measures.roles import Roles
from attnworks.exam.measures.sinks import Sinks
from attnworks.exam.reading import Readings
from attnworks.text.tokens import count_rarity
from tests.exam.measures.handmade_heads import (
    Form,
    batched,
    examine,
    handmade_maps,
    padded_batches,
    trace_of,
    written_rows,
)
from tests.exam_helpers import NOUNS, OTHERS, tiny_tokenizer
from tests.model_helpers import filled
from tests.tiny_models import TINY

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


def labels_of(readings: Readings) -> list[str]:
    rows = [row for reading in readings.of("roles.label") for row in reading.value]
    return [label for row in rows for label in row if isinstance(label, str)]


# --- the test of one candidate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.05, 1e-3, 1e-5])
def test_a_candidate_stands_by_a_t_test_with_one_more_sentence(level: float) -> None:
    """Scores near those at which the decision changes, against SciPy's test of all sentences and one of LEAST."""
    source = torch.Generator().manual_seed(0)
    for n in (3, 6, 9, 30):
        noise = torch.randn(n, 60, 1, generator=source, dtype=torch.float64)
        scores = LEAST + 0.05 * noise + torch.linspace(0, 0.4, 60, dtype=torch.float64)[:, None]
        labels, _, _ = choose_label([candidates(scores), candidates(torch.zeros_like(scores))], level)
        more = torch.cat([scores, torch.full((1, 60, 1), LEAST, dtype=torch.float64)])
        chances = np.asarray(ttest_1samp(more[..., 0].numpy(), LEAST, alternative="greater"))[1]
        assert [label != "none" for label in labels] == (chances < level).tolist()
        assert n < 9 or len(set(labels)) == 2


def test_scores_that_agree_by_accident_are_not_certain() -> None:
    """Three sentences with the same score have a spread of 0."""
    same, nothing = (candidates(torch.full((3, 1, 1), score)) for score in (0.5, 0.0))
    assert choose_label([same, nothing], FAMILY_WISE_ERROR / 60)[0] == ("none",)
    many = candidates(torch.full((6, 1, 1), 0.5))
    assert choose_label([many, nothing], FAMILY_WISE_ERROR / 60)[0] == ("role 0",)


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
    group = candidates(scores.reshape(n, models, tests))
    labels, _, _ = choose_label([group, candidates(torch.zeros(n, models, 1))], FAMILY_WISE_ERROR / tests)
    wrong = sum(label != "none" for label in labels) / models
    assert wrong <= FAMILY_WISE_ERROR
    assert wrong > 0.01 or n < 64 or shape != "normal"


def gain_of(readings: Readings, kind: Kind, layer: int, head: int, label: str) -> float:
    """How much a head does what the label says, above attention spread evenly."""
    offset = {"previous": -1, "self": 0, "next": 1}.get(label)
    if offset is not None or label.startswith("offset"):
        at = readings[f"roles.offset@{kind}"].ticks["offset"].index(int(label[7:]) if offset is None else offset)
        places = ("roles.offset", (head, at), (at,))
    else:
        places = (CHANCE_ROLE_READINGS[label], (head,), ())
    name, of_head, of_layer = places
    score, even = readings[f"{name}@{kind}"].value[layer], readings[f"{name}_chance@{kind}"].value[layer]
    assert isinstance(score, Tensor) and isinstance(even, Tensor)
    return float((score[of_head] - even[of_layer]) / (1 - even[of_layer]))


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
            for reading in few.of("roles.label")
            for layer, row in enumerate(reading.value)
            for head, label in enumerate(row)
            if isinstance(label, str) and label not in ("none", "uniform")
        ))  # fmt: skip
    assert sum(refuted) <= FAMILY_WISE_ERROR * len(refuted)


# --- heads that have a role -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "form"), [("encoder", "bert"), ("decoder", "tagged")])
def test_clear_heads_keep_their_labels_with_few_sentences(kind: Kind, form: Form) -> None:
    names = ["offset -1", "offset 0", "offset -2", "first", "delimiter", "rare", "syntactic", "uniform", "random 3"]
    rows = written_rows(1, 24, form)
    causal = kind == "decoder"
    source = torch.Generator().manual_seed(0)
    maps = handmade_maps(names, rows, rows, dict(count_rarity(rows)), causal, "random", source)
    (tokens,) = padded_batches(rows, len(rows))
    trace = trace_of(Slot(kind, 0), batched(maps, tokens, tokens), tokens, tokens, causal)
    assert labels_of(examine([Roles, Sinks], [trace])) == [
        "previous", "self", "offset -2", "first", "delimiter", "rare", "syntactic", "uniform", "none",
    ]  # fmt: skip


def test_the_reading_states_the_error() -> None:
    (label,) = (declared for declared in Roles(MeasureContext(3)).declares() if declared.name == "roles.label")
    assert "5 % at most" in label.description
