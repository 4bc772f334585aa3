"""Probes in examinations: when they run, what they decide, and which models have none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import attnworks
from attnworks.core.places import HeadId, Slot
from attnworks.exam.examination import Examination
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.measures.labels import label_heads
from attnworks.exam.probes.roles import PROBE_ATTENTION, heads_by_probe
from attnworks.exam.probes.run import SPECS
from attnworks.exam.reading import Reading, Readings
from attnworks.text.passages import from_texts
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.own import OwnSubject
from tests.exam.probes.probe_helpers import tiny_subject
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.model_helpers import attention_config, the, transformer
from tests.tiny_models import TINY


def examined(name: str, probe: bool | None = None, measures: Sequence[str] | None = None) -> Examination:
    model = TINY[name].build(dtype=torch.float32)
    return attnworks.examine(model, LINES, tokenizer=tiny_tokenizer(name), probe=probe, measures=measures, pin=[])


def has_probes(exam: Examination) -> bool:
    return any(name.startswith("probes.") for name in exam.readings)


def test_causal_models_are_probed_unless_measures_are_named() -> None:
    assert has_probes(examined("gpt2"))
    assert not has_probes(examined("gpt2", False))
    assert not has_probes(examined("gpt2", measures=["rank"]))
    named = examined("gpt2", True, ["rank"])
    assert has_probes(named) and "rank.residual" in named.readings
    assert has_probes(examined("gpt2", measures=["probes"]))


def test_encoders_are_probed_if_asked() -> None:
    """They have attention on repeated tokens, in both directions, and no loss."""
    assert not has_probes(examined("bert"))
    exam = examined("bert", True)
    losses = {name for name in SPECS if "loss" in name}
    assert {name for name in exam.readings if name.startswith("probes.")} == {*SPECS} - losses
    offsets = exam["probes.offset"]
    assert offsets.kind == "encoder" and offsets.tensor.isfinite().all()
    assert not any("probes was not" in note for note in exam.notes)


def test_models_with_two_stacks_have_no_probes_and_a_note() -> None:
    exam = examined("marian", True)
    assert not has_probes(exam) and "roles.label@encoder" in exam.readings
    assert [note for note in exam.notes if "probes" in note] == [
        "probes was not computed: probes need a model with one stack of layers, and this model has two"
    ]


def test_models_without_room_for_a_copy_have_a_note() -> None:
    subject = tiny_subject("llama", 31, "both", positions=9)
    exam = attnworks.examine(subject, ["w1 w2 w3 w4", "w4 w5 w6"] * 2, pin=[])
    assert not has_probes(exam) and "roles.label" in exam.readings
    assert [note for note in exam.notes if "probes" in note] == [
        "probes was not computed: probes need 8 positions for text, and this model has 7"
    ]


def test_models_whose_maps_are_no_weights_have_no_probes() -> None:
    words = Vocabulary.train("word", [line.split() for line in LINES])
    attention = attention_config(mechanism="truncated:rank=2")
    model = transformer(torch.float32, attention=attention, decoder_layers=0, vocabulary=len(words))
    exam = attnworks.examine(OwnSubject(model, "own", words), LINES, probe=True, pin=[])
    assert not has_probes(exam)
    assert any("probes" in note and "mixtures of any sign" in note for note in exam.notes)


def test_layers_without_heads_have_rows_without_entries() -> None:
    """Also the last layers, which then show no attention at all."""
    subject = attnworks.wrap(TINY["llama"].build(dtype=torch.float32), tiny_tokenizer("llama"))
    for heads, counts in (("1.*", [6, 0]), ("0.*", [0, 6])):
        cut, _ = attnworks.prune(subject, LINES * 2, heads=heads)
        exam = attnworks.examine(cut, LINES * 2, pin=[])
        for name in ("probes.induction", "probes.offset", "roles.label", "roles.second", "roles.sink"):
            assert [len(row) for row in exam[name].value] == counts, (name, heads)
        assert sum("no heads are left" in note and note.startswith("probes ") for note in exam.notes) == 1


@pytest.mark.parametrize(("family", "positions"), [("gpt2", 37), ("gpt2", 31), ("llama", 9)])
def test_the_work_of_probes_is_known_beforehand(family: str, positions: int) -> None:
    """With and without enough positions for needles or copies, and with an induction head to leave out."""
    subject = tiny_subject(family, 31, "both" if family == "llama" else "none", positions)
    begun, done = list[int](), list[int]()
    passages, _ = from_texts(["w1 w2 w3 w4", "w4 w5 w6"])
    run_examination(
        subject, passages, ExamSettings(measures=["rank", "probes"]),
        begin=lambda steps, costs: begun.append(steps), advance=done.append,
    )  # fmt: skip
    assert begun == [sum(done)] == [2 + 40]


# What probes decide ---------------------------------------------------------------------------------------------------

EVEN = 0.02


def reading(name: str, value: list[float], low: list[float] | None = None) -> Reading:
    """Of one layer of a decoder; the ends of intervals are as near as `low`."""
    spec, number = SPECS[f"probes.{name}"], torch.tensor(value, dtype=torch.float64)
    least = number - 0.01 if low is None else torch.tensor(low, dtype=torch.float64)
    if "offset" in spec.axes:  # the same at all offsets but -1 and -2, where there is nothing
        wide = torch.zeros(*number.shape, 33, dtype=torch.float64)
        wide[..., 15], wide[..., 14] = number, number / 2
        number = wide if number.dim() else torch.full((33,), EVEN, dtype=torch.float64)
        least = number - 0.01
    count = torch.full(number.shape, 16)
    return spec.reading("decoder", [number], spread=(least,), low=(least,), high=(2 * number - least,), count=(count,))


def readings_of(**values: list[float]) -> Readings:
    found = [reading(name, value) for name, value in values.items()]
    chances = [f"{name}_chance" for name in values]
    return Readings(found + [
        SPECS[f"probes.{name}"].reading("decoder", [
            torch.full((33,) if name == "offset_chance" else (), EVEN, dtype=torch.float64)])
        for name in chances
    ])  # fmt: skip


def test_a_role_begins_at_the_threshold() -> None:
    found = heads_by_probe(readings_of(
        offset=[0.31, 0.29, 0.7, 0.0], duplicate=[0.0, 0.0, 0.0, 0.29], induction=[0.0, 0.31, 0.8, 0.0],
        retrieval=[0.31, 0.9, 0.29, 0.0],
    ))  # fmt: skip
    heads = {role: [head.head for head in those] for role, those in found.items()}
    assert PROBE_ATTENTION == 0.3
    assert heads == {"previous": [0, 2], "offset -2": [2], "induction": [1, 2], "retrieval": [0]}
    assert found["previous"][0] == HeadId(Slot("decoder", 0), 0)


def test_a_role_is_above_chance_for_certain() -> None:
    sure = reading("induction", [0.4, 0.4], low=[0.03, 0.01])
    rest = [reading("offset", [0.0, 0.0]), *readings_of(offset=[0.0], induction=[0.0]).of("probes.offset_chance")]
    chance = readings_of(offset=[0.0], induction=[0.0]).of("probes.induction_chance")
    found = heads_by_probe(Readings([sure, *rest, *chance]))
    assert [head.head for head in found["induction"]] == [0]


def test_retrieval_by_an_induction_head_is_no_second_role() -> None:
    """Labels say `retrieval` of heads that copy needles but not repeated random tokens."""
    probes = readings_of(offset=[0.0, 0.0], induction=[0.5, 0.1], retrieval=[0.9, 0.9])
    offsets = [the_offsets("roles.offset"), the_offsets("roles.offset_chance")]
    labels = label_heads(Readings([*probes.values(), *offsets]), {})["decoder"]
    assert labels.label == (("induction", "retrieval"),) and labels.second == (("none", "none"),)
    assert labels.sink == (("none", "none"),)


def the_offsets(name: str) -> Reading:
    """Attention of two heads to the token before, in 40 sentences of a text."""
    value = torch.tensor([[0.9, 0.0], [0.9, 0.0]], dtype=torch.float64) if "chance" not in name else torch.zeros(2, 2)
    parts = {"spread": (torch.full((2, 2), 0.01, dtype=torch.float64),), "count": (torch.full((2, 2), 40),)}
    return Reading(
        name, "decoder", ("layer", "head", "offset"), (value.double(),), "", "", parts["spread"], None, parts["count"],
        {"offset": (-1.0, 0.0)},
    )  # fmt: skip


def test_what_probes_decide_is_not_decided_by_the_text() -> None:
    """Without probes, the same text gives both heads the label previous."""
    offsets = [the_offsets("roles.offset"), the_offsets("roles.offset_chance")]
    assert label_heads(Readings(offsets), {})["decoder"].label == (("previous", "previous"),)
    probes = readings_of(offset=[0.0, 0.4])
    labels = label_heads(Readings([*offsets, *probes.values()]), {})["decoder"]
    assert labels.label == (("none", "previous"),)
    assert float(labels.score[0][1]) == pytest.approx(0.4) and labels.score[0][0].isnan()
    assert the(labels.baseline[0][1].item()) == pytest.approx(EVEN)
