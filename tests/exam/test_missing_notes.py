"""Readings without a value say which condition failed, in which layers, and by how much."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import attnworks
from attnworks import examine, prune
from attnworks.core.places import Slot
from attnworks.reshape.surgery import with_mechanisms
from attnworks.text.passages import Passage, Text
from tests.exam_helpers import LINES, tiny_folder, tiny_run, tiny_tokenizer
from tests.tiny_models import TINY

TWICE = ["the cat sees the cat .", "the bird sees the bird in the sea ."]


def notes_of(name: str, measure: str, texts: list[str] = LINES, model: Any = None) -> list[str]:
    model = TINY[name].build(dtype=torch.float32) if model is None else model
    exam = examine(model, texts, tokenizer=tiny_tokenizer(name.partition("-")[0]), measures=[measure], pin=())
    return [note for note in exam.notes if "not computed" in note]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("gpt2", "bounds was not computed: its mask is not the same for all queries, as with causal attention"),
        ("llama", "bounds was not computed: its queries are not linear in X, as with rotary positions"),
    ],
)
def test_a_theorem_that_does_not_apply(name: str, note: str) -> None:
    (found,) = notes_of(name, "bounds")
    assert found.startswith(note)


def test_layers_that_it_does_not_apply_to_are_named() -> None:
    """BART's encoder sees all tokens; its decoder does not."""
    found = notes_of("bart", "bounds")
    assert len(found) == 2 and not any("enc." in note for note in found)
    assert found[0].startswith("bounds was not computed in dec.0, dec.1, dec.2: its mask is not the same")
    assert found[1].startswith("bounds was not computed in cross.0, cross.1, cross.2: its queries and keys come from")


def test_scores_whose_range_is_too_large() -> None:
    model = TINY["bert"].build(dtype=torch.float32)
    assert not notes_of("bert", "bounds", model=model), "as long as ranges are small, nothing is missing"
    for layer in model.bert.encoder.layer:
        layer.attention.self.query.weight.data *= 300
    exam = examine(model, LINES, tokenizer=tiny_tokenizer("bert"), measures=["bounds"], pin=())
    (note,) = exam.notes
    said = (
        "bounds.composite was not computed: in every sentence the range of scores in a row is above 4.229, up to which"
    )
    assert note.startswith(said)
    told = re.findall(r"[\d.]+", note.partition("mean of")[2])
    assert [float(end) for end in told] == pytest.approx(
        sorted(float(row) for row in exam["bounds.row_range"].value if isinstance(row, Tensor)), rel=5e-3
    )
    assert not any("not apply" in note for note in exam.notes)


def test_heads_of_another_mechanism() -> None:
    model = with_mechanisms(
        TINY["bert"].build(dtype=torch.float32), {Slot.parse("enc.1"): ["dense", "structured", "dense"]}
    )
    assert notes_of("bert", "bounds", model=model) == [
        "bounds was not computed in enc.1: the weights of 1 of its 3 heads are no softmax of scaled dot products"
    ]
    whole = with_mechanisms(model, {Slot.parse("enc.1"): ["structured"] * 3})
    assert notes_of("bert", "saturation", model=whole) == [
        "saturation.score_range was not computed in enc.1: its heads have no scores, because their weights are not a "
        "softmax",
        "saturation.score_rms, saturation.score_expected were not computed in enc.1: its heads do not score by a "
        "factor of Q K^T",
    ]


def test_what_a_text_does_not_have() -> None:
    syntax, repeats = notes_of("bert", "roles", ["it is very red .", "the sea loves it ."])[:2]
    assert syntax.startswith("roles.syntactic, ") and syntax.endswith("give --parses, or use the embedded corpus")
    assert repeats.startswith("roles.duplicate, ") and repeats.endswith(
        "were not computed: no sentence has a token twice"
    )
    assert not any("twice" in note for note in notes_of("bert", "roles", TWICE))


def test_models_without_special_tokens() -> None:
    assert (
        "sinks.delimiter, sinks.delimiter_chance were not computed: no sentence has a special token after the first"
        in notes_of("gpt2", "sinks")
    )


def test_residuals_that_are_measured_for_a_sample_of_sentences() -> None:
    (note,) = notes_of("bert", "residuals", ["it is very red ."])
    assert note.startswith("residuals.composite, ")
    assert note.endswith("they are measured for one sentence in 16, and none was drawn; give more text")


def test_role_labels_of_cross_attention_to_sources_that_are_far_shorter() -> None:
    """Only cross-attention has no labels; the number of sentences is not blamed for it."""
    run = attnworks.open(tiny_run())
    passages = [Passage(Text("I read ."), Text("leggo " * 12))] * 4
    exam = examine(run, passages, measures=["roles"], pin=())
    assert [note for note in exam.notes if "role labels" in note] == [
        "no role labels in cross-attention: in no sentence can half of the queries see a key at one offset",
        "role labels are unreliable: they come from 4 sentences; examine 30 or more",
    ]
    assert {reading.kind for reading in exam.readings.of("roles.label")} == {"encoder", "decoder"}


def test_layers_without_heads() -> None:
    """Neither the syntax nor the tokens of the text are blamed."""
    model = TINY["bert"].build(dtype=torch.float32)
    cut, _ = prune(model, LINES, tokenizer=tiny_tokenizer("bert"), heads="1.*")
    found = notes_of("bert", "roles", TWICE, model=cut.model)
    assert [note for note in found if "enc." in note] == [
        f"{measure} was not computed in enc.1: no heads are left there" for measure in ("roles", "sinks")
    ]
    assert any("syntax" in note for note in found) and not any("twice" in note for note in found)


def test_layers_without_heads_are_one_note_of_a_measure_and_stop_no_paths() -> None:
    run = attnworks.open(tiny_run())
    deeper = attnworks.build(replace(run.model.config, encoder_layers=2, decoder_layers=2), seed=5)
    subject = attnworks.wrap(deeper, run.vocabularies)
    cut, _ = prune(subject, "grammar", heads="enc.0.*,cross.1.*", sentences=4, pairs=8)
    exam = examine(cut, sentences=8, measures=["roles", "paths"], pin=())
    assert [note for note in exam.notes if "heads" in note or "paths" in note] == [
        f"{measure} was not computed in enc.0, cross.1: no heads are left there" for measure in ("roles", "sinks")
    ]
    for kind in ("encoder", "decoder"):
        assert float(exam[f"paths.error@{kind}"].tensor.abs().max()) < 1e-5


def test_models_without_sink_logits_get_no_note_about_them() -> None:
    exam = examine(str(tiny_folder("bert")), texts=LINES, measures=["sinks"])
    assert "sinks.learned" in exam.readings and not [note for note in exam.notes if "learned" in note]
