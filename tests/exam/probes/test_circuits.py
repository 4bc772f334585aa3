"""Models whose circuits are known: trained to continue what was repeated, trained on other text, or made by hand."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

import attnworks
from attnworks.exam.examination import Examination
from attnworks.exam.probes import Probes, run_probes
from attnworks.exam.probes.roles import PROBE_ATTENTION
from attnworks.hf.subject import HFSubject
from tests.exam.probes.probe_helpers import WORDS, copier, new_model, subject_of, tiny_subject, trained, word_tokenizer
from tests.model_helpers import the


def lines_of_words() -> list[str]:
    """Random words, none twice in a line."""
    source = random.Random(0)
    return [" ".join(f"w{number}" for number in source.sample(range(WORDS), 15)) for _ in range(40)]


def labels_of(exam: Examination, name: str = "roles.label") -> list[list[str]]:
    return [[str(label) for label in row] for row in exam[name].value]


def largest(probes: Probes, name: str, layer: int) -> float:
    value = probes.readings[name].value[layer]
    assert isinstance(value, Tensor)
    return float(value.max())


def test_a_model_trained_on_repeats_has_previous_token_and_induction_heads() -> None:
    """Previous-token heads in the first layer give induction heads in the second what precedes each token.

    Source: Elhage et al. 2021, Olsson et al. 2022.
    """
    probes = run_probes(copier())
    previous, induction = probes.heads("previous"), probes.heads("induction")
    assert previous and {head.slot.layer for head in previous} == {0}
    assert induction and {head.slot.layer for head in induction} == {1}
    assert not probes.heads("duplicate") and not probes.heads("no role")
    assert largest(probes, "probes.induction", 0) < 0.1 and largest(probes, "probes.induction", 1) > 0.7
    first, copy = the(probes.first_loss), the(probes.copy_loss)
    (without,) = probes.readings["probes.copy_loss_without"].value
    assert isinstance(without, Tensor)
    assert copy < 0.5 and first > 3.4, "only what is repeated can be known"
    assert float(without) > 3.0, "without its induction heads the model cannot copy"
    assert probes.to_json() == {
        "first_loss": first,
        "copy_loss": copy,
        "needle_loss": probes.needle_loss,
        "heads": {role: [str(head) for head in probes.heads(role)] for role in probes.to_json()["heads"]},
    }
    assert probes.to_json()["heads"]["induction"] == [str(head) for head in induction]


def test_an_examination_labels_its_circuit() -> None:
    """By default, as the model is causal; the text has no token twice in a line."""
    exam = attnworks.examine(copier(), lines_of_words(), pin=[])
    probes = run_probes(copier())
    for role in ("previous", "induction"):
        for slot, head in probes.heads(role):
            assert labels_of(exam)[slot.layer][head] == role
    counted = {"previous", "induction"} & {label for row in labels_of(exam) for label in row}
    assert counted == {"previous", "induction"}
    assert torch.equal(exam["probes.copy_loss"].tensor, probes.readings["probes.copy_loss"].tensor)


def test_a_model_trained_without_repeats_has_none() -> None:
    """It learns which tokens follow each other, for which it needs no other token, and copies nothing."""
    subject, losses = trained(150, repeats=False)
    assert losses[-1] < 1.0 < 3.5 < losses[0]
    probes = run_probes(subject)
    assert not probes.to_json()["heads"]
    assert abs(the(probes.copy_loss) - the(probes.first_loss)) < 0.2
    assert "probes.copy_loss_without" not in probes.readings
    exam = attnworks.examine(subject, lines_of_words(), pin=[])
    assert not {"previous", "induction", "duplicate", "retrieval"} & {label for row in labels_of(exam) for label in row}


def test_before_training_there_are_none() -> None:
    with torch.random.fork_rng():
        probes = run_probes(subject_of(new_model(3)))
    assert not probes.to_json()["heads"] and abs(the(probes.copy_loss) - the(probes.first_loss)) < 0.1


def test_induction_heads_of_the_shortest_texts_attend_to_no_offset() -> None:
    """With 8 positions, all copies are 4 tokens away: the token after the same one is then always 3 tokens before."""
    subject = subject_of(copier().model)
    short = HFSubject(subject.model, "short", word_tokenizer(8))
    config: Any = subject.model.config
    before, config.max_position_embeddings = config.max_position_embeddings, 8
    try:
        probes = run_probes(short)
    finally:
        config.max_position_embeddings = before
    assert probes.heads("induction") and not any(probes.heads(f"offset -{distance}") for distance in range(2, 17))
    offsets = probes.readings["probes.offset"]
    places = [offsets.ticks["offset"].index(distance) for distance in (-3, -4, -5)]
    assert torch.stack([row for row in offsets.value if isinstance(row, Tensor)])[..., places].isnan().all()


def test_a_head_that_attends_at_one_distance_does_no_induction() -> None:
    """A GPT-2 whose single head looks a number of positions back, near the distance of copies."""
    words = 30
    for back in range(words - 5, words + 1):
        subject = tiny_subject("gpt2", words, positions=64, n_embd=64, n_head=1, n_layer=1)
        model: Any = subject.model
        block = model.transformer.h[0].attn
        with torch.no_grad():
            model.transformer.wpe.weight.copy_(torch.eye(64))
            model.transformer.wte.weight.zero_()
            model.transformer.h[0].ln_1.weight.fill_(1.0)
            model.transformer.h[0].ln_1.bias.zero_()
            block.c_attn.weight.zero_()
            block.c_attn.bias.zero_()
            block.c_attn.weight[:, :64] = 10 * torch.eye(64).roll(-back, 1)  # query i is key i - back
            block.c_attn.weight[:, 64:128] = torch.eye(64)
        probes = run_probes(subject)
        assert not probes.heads("induction") and not probes.heads("duplicate"), back
        induction = largest(probes, "probes.induction", 0)
        assert induction < PROBE_ATTENTION
        if back + 1 in (words, words - 1, words - 3, words - 4):
            assert induction > 0.2, "in a quarter of the sequences it finds the token after the same one"
