"""Models of transformers that compute attention in their own code are observed at their softmax."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import attnworks
from attnworks.hf.subject import HFSubject
from attnworks.hf.tiny import tiny_model
from attnworks.hf.tiny_text import TEXTS, tiny_tokenizer
from attnworks.text.tokens import Batch
from attnworks.traces.edits import HeadsOffHook
from attnworks.traces.layer import LayerTrace
from tests.helpers import assert_close
from tests.model_helpers import filled
from tests.traces.trace_helpers import Keep, dense_map, random_batch

transformers: Any = pytest.importorskip("transformers")

TYPES = ("bloom", "deberta", "deberta-v2", "gptj", "mpt", "openai-gpt", "xlnet")
OTHERS = (
    *("big_bird", "blip_text_model", "canine", "clvp_decoder", "codegen", "convbert", "flaubert", "fsmt"),
    *("flava_text_model", "git", "gpt_neo", "gpt_neox_japanese", "groupvit_text_model", "ibert", "imagegpt"),
    *("luke", "megatron-bert", "mpnet", "mvp", "rembert", "roformer", "tapas", "visual_bert", "xlm"),
)
EVERY = [*TYPES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
FLOAT32_INSIDE = 1e-6
"""Some of these models compute their softmax in float32, or are in float32 altogether."""


@cache
def shared(name: str) -> Any:
    """A tiny model of this type, built once. Do not change it."""
    return tiny_model(name).model


def subject_of(name: str) -> tuple[HFSubject, Batch]:
    model = shared(name)
    if getattr(model.config, "is_encoder_decoder", False):
        return HFSubject(model), random_batch((7, 5, 3), (5, 7, 2))
    return HFSubject(model), random_batch((7, 5, 3))


def shown(subject: HFSubject, batch: Batch) -> list[LayerTrace]:
    keep = Keep()
    subject.run(batch, keep)
    return keep.traces


@torch.no_grad()
@pytest.mark.parametrize("name", EVERY)
def test_outputs_stay_and_weights_are_those_of_the_model(name: str) -> None:
    subject, batch = subject_of(name)
    keep = Keep()
    plain, seen = subject.run(batch), subject.run(batch, keep)
    assert torch.equal(plain.hidden, seen.hidden)
    model: Any = subject.model
    output = model(**subject._token_ids(batch), output_attentions=True)
    names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    for trace in keep.traces:
        assert trace.at_softmax
        P, real = dense_map(trace), trace.queries.real[:, None, :, None]
        V = trace.shared(trace.V, slice(None)).to(P.dtype)
        torch.testing.assert_close(P @ V * real, trace.Y.to(P.dtype) * real, rtol=FLOAT32_INSIDE, atol=FLOAT32_INSIDE)
        theirs = output.get(names[trace.slot.kind], output.get("attentions"))[trace.slot.layer].to(P.dtype)
        torch.testing.assert_close(P * real, theirs * real, rtol=FLOAT32_INSIDE, atol=FLOAT32_INSIDE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Deberta", "DebertaV2"])
def test_scores_by_relative_positions_have_no_factor(name: str) -> None:
    sizes = {"vocab_size": 53, "hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 23}
    relative = {"relative_attention": True, "max_relative_positions": 5, "pos_att_type": ["c2p", "p2c"]}
    config = getattr(transformers, f"{name}Config")(**sizes, **relative, num_hidden_layers=2)
    model = filled(getattr(transformers, f"{name}Model")(config), spread=0.3).eval()
    batch = random_batch((7, 5, 3))
    traces = shown(HFSubject(model), batch)
    output = model(batch.source.ids, batch.source.real.long(), output_attentions=True)
    assert len(traces) == len(output.attentions) == 2
    for trace, theirs in zip(traces, output.attentions, strict=True):
        assert trace.scale is None and not trace.bilinear
        assert_close(dense_map(trace), theirs * trace.queries.real[:, None, :, None])


@torch.no_grad()
@pytest.mark.parametrize("name", ["gptj", "openai-gpt"])
def test_scores_by_content_have_a_factor(name: str) -> None:
    for trace in shown(*subject_of(name)):
        assert trace.scale is not None and trace.mask.additive() is None and trace.X is not None


@torch.no_grad()
@pytest.mark.parametrize("name", TYPES)
def test_padding_changes_no_weights(name: str) -> None:
    subject, batch = subject_of(name)
    for one, other in zip(shown(subject, batch), shown(subject, batch.some(slice(1, 2))), strict=True):
        i, j = other.Q.shape[2], other.K.shape[2]
        theirs = dense_map(other)
        torch.testing.assert_close(dense_map(one)[1:2, :, :i, :j], theirs, rtol=FLOAT32_INSIDE, atol=FLOAT32_INSIDE)


@torch.no_grad()
@pytest.mark.parametrize("name", TYPES[::2])
def test_a_head_that_is_off_gives_zero(name: str) -> None:
    subject, batch = subject_of(name)
    (slot, heads), *_ = [(trace.slot, trace.heads) for trace in shown(subject, batch)]
    with subject.edit(off=f"{slot}.{heads - 1}"):
        edited = subject.run(batch).hidden
        direct = subject.model(**subject._token_ids(batch))
    hook = HeadsOffHook([])
    hook.off[slot] = [heads - 1]
    by_hook = subject.run(batch, hook).hidden
    torch.testing.assert_close(edited, by_hook)
    assert (edited - subject.run(batch).hidden).abs().max() > 1e-3
    assert not torch.equal(direct[0], subject.model(**subject._token_ids(batch))[0])


def examined(name: str) -> attnworks.Examination:
    model = shared(name)
    return attnworks.examine(model, list(TEXTS), tokenizer=tiny_tokenizer(model), measures="saturation")


def test_an_examination_says_what_was_observed_at_the_softmax() -> None:
    note = "observed at the softmax, as the model computes attention in its own code: dec.0, dec.1"
    assert note in examined("gptj").notes
    assert not any("softmax" in note for note in examined("bert").notes)


def test_blocks_without_attention_are_passed_over() -> None:
    exam = examined("jamba")
    assert [*exam.model["heads"]] == ["dec.1"], "the number of a layer is that of its block"
    assert any("dec.0" in note and "passed over" in note and "Mamba" in note for note in exam.notes)
    entropy = exam["saturation.entropy"]
    assert [len(row) for row in entropy.value] == [0, exam.model["heads"]["dec.1"]], "row l is layer l"
    assert {*entropy.to_frame()["layer"]} == {*exam.to_frame()["layer"]} == {1}
    assert not any("saturation was not computed" in note for note in exam.notes)


def test_the_cost_of_models_with_unusual_blocks() -> None:
    """Jamba has blocks without attention, and DeBERTa gives a parameter to a module as its input."""
    for name, closed in (("jamba", False), ("deberta", True)):
        model = shared(name)
        exam = attnworks.examine(model, list(TEXTS), tokenizer=tiny_tokenizer(model), measures="cost", pin=())
        cost = exam.model["cost"]
        assert cost["counted_flops"] > 0 and (cost["predicted_flops"] is not None) is closed
        assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(("model_type", "towers"), [("llava", ["model.vision_tower"]), ("llama", []), ("whisper", [])])
def test_parts_that_read_no_text_are_named(model_type: str, towers: list[str]) -> None:
    subject = HFSubject(tiny_model(model_type).model, model_type)
    found = [remark for remark in subject.remarks_on_layers() if remark.startswith("not examined: ")]
    assert found == [f"not examined: {tower}, as only the part that reads text is" for tower in towers]
