"""Readings of probes against transformers alone: eager attention of each sequence by itself, and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from attnworks.core.places import HeadId, Slot
from attnworks.exam.probes import Probes, run_probes
from attnworks.exam.probes.run import FARTHEST, SPECS
from attnworks.exam.probes.texts import NEEDLES, SEQUENCES, ProbeText, copied_needles, repeated_tokens
from attnworks.exam.reading import Reading
from attnworks.hf.subject import HFSubject
from tests.exam.probes.probe_helpers import tiny_subject
from tests.model_helpers import the

WORDS = 31


class Case(NamedTuple):
    """A tiny model, the special tokens around its text, and how many positions it has."""

    family: str
    frame: str
    positions: int
    window: int | None = None

    def subject(self) -> HFSubject:
        changes: dict[str, Any] = {} if self.window is None else {"sliding_window": self.window}
        return tiny_subject(self.family, WORDS, self.frame, self.positions, **changes)


CASES = [
    Case("gpt2", "none", 101),
    Case("llama", "bos", 83),
    Case("llama", "none", 43),
    Case("gpt2", "tagged", 13),
    Case("mistral", "bos", 67, window=5),
    Case("bert", "both", 67),
]
by_case = pytest.mark.parametrize("case", CASES, ids=str)


class Eager(NamedTuple):
    """What transformers computes for one sequence: P [h i j] of every layer, and -log p of each token but the first."""

    weights: list[Tensor]
    losses: list[float]


def eager(subject: HFSubject, text: ProbeText) -> list[Eager]:
    model: Any = subject.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    found = []
    with torch.no_grad():
        for row in text.rows:
            ids = torch.tensor([row.ids])
            outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
            logits = outputs.logits[0].double()
            losses = [float(logits[at].logsumexp(0) - logits[at, token]) for at, token in enumerate(row.ids[1:])]
            found.append(Eager([P[0] for P in outputs.attentions], losses))
    model.set_attn_implementation(before)
    return found


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def same(got: Tensor, expected: float) -> None:
    """The eager attention of Llama rotates and computes its softmax in float32."""
    assert math.isclose(float(got), expected, rel_tol=1e-6, abs_tol=1e-7) or (got.isnan() and math.isnan(expected))


def tensor_of(reading: Reading, layer: int) -> Tensor:
    value = reading.value[layer]
    assert isinstance(value, Tensor)
    return value


Pairs = Callable[[int], Sequence[tuple[int, int]]]
"""Number of a sequence -> pairs of query and key."""


def copied(text: ProbeText, ahead: int) -> Pairs:
    def pairs(number: int) -> list[tuple[int, int]]:
        copy, original = text.copies[number], text.originals[number]
        return [(copy.start + place, original.start + place + ahead) for place in range(copy.stop - copy.start - ahead)]

    return pairs


def at_offset(text: ProbeText, offset: int) -> Pairs:
    """Tokens of the text at this distance, unless it is that of the copy or next to it."""

    def pairs(number: int) -> list[tuple[int, int]]:
        special, copy, original = text.rows[number].special, text.copies[number], text.originals[number]
        if abs(offset) in (copy.start - original.start + near for near in (-1, 0, 1)):
            return []
        return [
            (i, i + offset)
            for i in range(len(special))
            if 0 <= i + offset < len(special) and not special[i] and not special[i + offset]
        ]

    return pairs


def sees(case: Case, i: int, j: int) -> bool:
    return case.family == "bert" or i - (case.window or i + 1) < j <= i


def visible(case: Case, text: ProbeText, number: int, i: int) -> int:
    return sum(sees(case, i, j) for j in range(len(text.rows[number])))


def check_attention(
    case: Case, probes: Probes, name: str, found: list[Eager], text: ProbeText, pairs: Pairs, at: int | None = None
) -> None:
    """One reading and its chance; `at` is the place of an offset."""
    reading, chance = probes.readings[name], probes.readings[f"{name}_chance"]
    places = [] if at is None else [at]
    per_sequence: list[float]
    for layer in range(len(reading.value)):
        even = [
            mean(sees(case, i, j) / visible(case, text, number, i) for i, j in pairs(number))
            for number in range(len(text.rows))
        ]
        said = [value for value in even if not math.isnan(value)]
        same(tensor_of(chance, layer)[tuple(places)], mean(said))
        for head in range(tensor_of(reading, layer).shape[0]):
            per_sequence = [
                mean(float(one.weights[layer][head, i, j]) for i, j in pairs(number))
                for number, one in enumerate(found)
            ]
            said = [value for value in per_sequence if not math.isnan(value)]
            same(tensor_of(reading, layer)[(head, *places)], mean(said))
            assert int(the(reading.count)[layer][(head, *places)]) == len(said)
            if len(said) > 1:
                same(the(reading.spread)[layer][(head, *places)], float(torch.tensor(said, dtype=torch.float64).std()))


def loss_of(subject: HFSubject, text: ProbeText, places: Sequence[slice]) -> float:
    """Of each token of these places but the first, from all tokens before it."""
    return mean(
        mean(one.losses[place.start : place.stop - 1]) for one, place in zip(eager(subject, text), places, strict=True)
    )


@by_case
def test_attention_by_loops(case: Case) -> None:
    subject = case.subject()
    probes = run_probes(subject, seed=5)
    repeated, needles = repeated_tokens(subject, seed=5), copied_needles(subject, seed=5)
    found = eager(subject, repeated)
    check_attention(case, probes, "probes.duplicate", found, repeated, copied(repeated, 0))
    check_attention(case, probes, "probes.induction", found, repeated, copied(repeated, 1))
    offsets = probes.readings["probes.offset"].ticks["offset"]
    assert offsets == tuple(range(-FARTHEST, FARTHEST + 1))
    for at, offset in enumerate(offsets):
        check_attention(case, probes, "probes.offset", found, repeated, at_offset(repeated, int(offset)), at)
    assert (needles is None) == (case.positions < 32)
    if needles is not None:
        check_attention(case, probes, "probes.retrieval", eager(subject, needles), needles, copied(needles, 1))


@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_losses_by_loops(case: Case) -> None:
    subject = case.subject()
    probes = run_probes(subject, seed=5)
    repeated, needles = repeated_tokens(subject, seed=5), copied_needles(subject, seed=5)

    same(torch.tensor(probes.first_loss, dtype=torch.float64), loss_of(subject, repeated, repeated.originals))
    same(torch.tensor(probes.copy_loss, dtype=torch.float64), loss_of(subject, repeated, repeated.copies))
    if needles is None:
        assert probes.needle_loss is None
    else:
        same(torch.tensor(probes.needle_loss, dtype=torch.float64), loss_of(subject, needles, needles.copies))
    assert "probes.copy_loss_without" not in probes.readings, "no head does induction"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_copy_loss_without_induction_heads(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three heads are taken for induction heads; the rows of W_O of these heads are set to zero by hand."""
    subject, chosen = tiny_subject(family, WORDS, "bos", 83), [("dec.0", 1), ("dec.1", 0), ("dec.1", 2)]
    heads = tuple(HeadId(Slot.parse(slot), head) for slot, head in chosen)
    monkeypatch.setattr(Probes, "heads", lambda probes, role: heads if role == "induction" else ())
    probes = run_probes(subject, seed=5)
    model: Any = subject.model
    with torch.no_grad():
        for slot, head in heads:
            if family == "gpt2":
                block = model.transformer.h[slot.layer].attn
                block.c_proj.weight[head * block.head_dim : (head + 1) * block.head_dim] = 0.0
            else:
                block = model.model.layers[slot.layer].self_attn
                block.o_proj.weight[:, head * block.head_dim : (head + 1) * block.head_dim] = 0.0
    repeated = repeated_tokens(subject, seed=5)
    expected = loss_of(subject, repeated, repeated.copies)
    (without,) = probes.readings["probes.copy_loss_without"].value
    assert isinstance(without, Tensor)
    same(without, expected)
    assert abs(expected - the(probes.copy_loss)) > 1e-3


def test_the_period_may_be_chosen() -> None:
    subject = tiny_subject("llama", 60, "bos", 128)
    repeated = repeated_tokens(subject, seed=2, period=25)
    induction = run_probes(subject, seed=2, period=25).readings["probes.induction"]
    found = eager(subject, repeated)
    for layer, head in ((0, 1), (1, 5)):
        per_sequence = [
            mean(float(one.weights[layer][head, i, j]) for i, j in copied(repeated, 1)(number))
            for number, one in enumerate(found)
        ]
        same(tensor_of(induction, layer)[head], mean(per_sequence))


def test_every_reading_is_declared_once() -> None:
    probes = run_probes(tiny_subject("gpt2", WORDS, "none", 101))
    assert {*probes.readings} == {*SPECS} - {"probes.copy_loss_without"}
    for name, reading in probes.readings.items():
        assert (reading.axes, reading.description) == (SPECS[name].axes, SPECS[name].description)
        count = NEEDLES if name in ("probes.retrieval", "probes.retrieval_chance", "probes.needle_loss") else SEQUENCES
        assert reading.sentences == count, name
