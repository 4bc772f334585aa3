"""Projecting heads: planted forms are found again, predictions are sums of single effects, receipts are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import attnworks
from attnworks.attention.structured import Structured
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.hf.subject import HFSubject
from attnworks.models import Transformer
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.contract import RESHAPES, ReshapeContext
from attnworks.reshape.evaluate import attention_flops
from attnworks.reshape.projection import project as project_module
from attnworks.reshape.projection.project import Project, rise_alone, with_forms
from attnworks.reshape.receipt import HealReport
from attnworks.reshape.run import ReshapeSettings, run_reshape, text_loss_on
from attnworks.reshape.surgery import attention_groups, mechanisms_of, with_mechanisms
from attnworks.reshape.texts import TextSplit, split_file, split_texts
from attnworks.text.passages import Passage, Text
from attnworks.training.objectives.sentences import SentenceEmbedding
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.reshape.reshape_helpers import (
    D_E,
    D_K,
    D_V,
    PASSAGES,
    WORDS,
    context_of,
    heads_of,
    model_of,
    subject_of,
    texts,
)
from tests.tiny_models import TINY

PREVIOUS, ENDS, SELF = (f"structured:members={members},error=none" for members in ("-1", "first/mean", "0/first"))


def planted(slots: dict[str, Any], mixes: dict[str, tuple[float, ...]], **changes: Any) -> Transformer:
    """A model whose heads have these forms; mixes are those of the last mechanism of a layer."""
    model = model_of(slots=slots, **changes)
    groups = attention_groups(model)
    for slot, mix in mixes.items():
        mechanism = groups[Slot.parse(slot)].mechanisms[-1]
        assert isinstance(mechanism, Structured)
        mechanism.set_weights(torch.tensor([mix], dtype=torch.float64))
    return model


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Forms that are known ------------------------------------------------------------------------------------------------


def test_planted_heads_are_found_again() -> None:
    model = planted({"enc.0": heads_of(PREVIOUS, ENDS)}, {"enc.0": (0.6, 0.4)})
    new, receipt = run_reshape(Project(heads="enc.0.*", eps=0.0), subject_of(model), texts())
    assert receipt.done == {"enc.0.0": "previous", "enc.0.1": "60 % first, 40 % mean"}
    assert receipt.loss.after == pytest.approx(receipt.loss.before, rel=1e-9)
    assert receipt.loss.predicted == pytest.approx(receipt.loss.before, rel=1e-9)
    (previous, ends) = attention_groups(new)[Slot.parse("enc.0")].mechanisms
    assert isinstance(previous, Structured) and isinstance(ends, Structured)
    assert previous.members == (-1,) and ends.members == ("first", "mean")
    torch.testing.assert_close(ends.mix, torch.tensor([[0.6, 0.4]]).double(), rtol=0, atol=1e-6)


def test_planted_heads_of_a_decoder() -> None:
    slots = {"dec.0": heads_of("dense", SELF), "dec.1": heads_of("dense", ENDS)}
    model = planted(slots, {"dec.0": (0.3, 0.7), "dec.1": (0.25, 0.75)}, encoder_layers=0)
    given = split_texts([passage.source.text for passage in PASSAGES])
    _, receipt = run_reshape(Project(heads="*.1", eps=0.0), subject_of(model), given)
    assert receipt.done == {"dec.0.1": "70 % first, 30 % self", "dec.1.1": "75 % mean, 25 % first"}
    assert receipt.objective == "lm" and receipt.loss.after == pytest.approx(receipt.loss.before, rel=1e-9)


def test_a_planted_head_that_looks_back() -> None:
    model = planted({"dec.0": heads_of("dense", PREVIOUS)}, {}, encoder_layers=0)
    given = split_texts([passage.source.text for passage in PASSAGES])
    _, receipt = run_reshape(Project(heads="0.1", eps=0.0), subject_of(model), given)
    assert receipt.done == {"dec.0.1": "previous"}


@pytest.mark.parametrize(
    ("form", "members"), [("previous", (-1,)), ("band", (-1, 0, 1)), ("-2/mean", (-2, "mean")), ("last", ("last",))]
)
def test_forms_that_are_asked_for(form: str, members: tuple[Any, ...]) -> None:
    model = model_of()
    new, receipt = run_reshape(Project(heads="enc.1.0", form=form, window=1), subject_of(model), texts())
    mechanism = attention_groups(new)[Slot.parse("enc.1")].mechanisms[0]
    assert isinstance(mechanism, Structured) and mechanism.members == members
    assert list(receipt.done) == ["enc.1.0"] and receipt.asked["form"] == form


def test_offsets_with_an_error_are_a_share_of_the_length() -> None:
    model = model_of()
    for sparsity, eps, offsets in ((0.0, 0.5, 0), (0.3, 0.0, 0), (0.3, 0.5, 3)):
        context = context_of(subject_of(model), length=9)
        asked = Project(heads="enc.0.0", form="self", eps=eps, sparsity=sparsity)
        (form,) = asked.fit(context, [HeadId.parse("enc.0.0")]).values()
        assert len(form.error) == len(form.errors) == offsets
    new = with_forms(model, {HeadId.parse("enc.0.0"): form})
    mechanism = attention_groups(new)[Slot.parse("enc.0")].mechanisms[0]
    assert isinstance(mechanism, Structured)
    assert mechanism.error == form.error and mechanism.errors[0].tolist() == pytest.approx(form.errors)


def test_an_error_with_many_digits() -> None:
    _, receipt = run_reshape(
        Project(heads="enc.*", form="self", eps=0.0100001234, sparsity=0.9), subject_of(model_of()), texts()
    )
    assert len(receipt.done) == 4


# What is predicted and what is measured ------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["seq2seq", "embedding"])
def test_what_each_head_does_alone(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a model in which that head alone has its form, on every second sentence of each batch."""
    monkeypatch.setattr(project_module, "PREDICTION_SENTENCES", 5)
    subject = subject_of(model_of())
    context = context_of(subject, objective=objective)
    heads = [HeadId.parse(name) for name in ("enc.0.0", "enc.1.1", "dec.0.1")]
    forms = Project(heads="*").fit(context, heads)
    alone = rise_alone(context, forms)
    some = slice(None, None, len(context.calibration.text.kept) // 5)
    assert some.step == 2
    whole = context.calibration.mean(some=some)
    for head in heads:
        subject = subject_of(with_forms(context.model, {head: forms[head]}))
        assert alone[head] == pytest.approx(context.calibration.mean(subject, some=some) - whole, abs=1e-12)
        assert abs(alone[head]) > 1e-9


def test_one_sentence_in_so_many() -> None:
    text_loss, losses = context_of(subject_of(model_of())).calibration, list[float]()
    with torch.no_grad():
        for number in range(len(text_loss.text.batches)):
            losses += text_loss.losses(text_loss.original, *text_loss.text.batch(number)).tolist()
    losses = losses[::3]
    assert len(losses) > len(text_loss.text.batches)
    assert text_loss.mean(some=slice(None, None, 3)) == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert text_loss.mean(some=slice(None, None, 3)) != text_loss.mean()


def test_the_receipt_says_what_was_measured() -> None:
    model, given = model_of(), texts()
    subject, project = subject_of(model), Project(heads="enc.*", window=1)
    before = weights_fingerprint(model)
    new, receipt = run_reshape(project, subject, given)
    judged = context_of(subject, TextSplit(given.held_out, given.held_out, {})).calibration
    assert receipt.loss.before == pytest.approx(judged.mean(), rel=1e-12)
    assert receipt.loss.after == pytest.approx(judged.mean(subject_of(new)), rel=1e-12)
    context = context_of(subject, given, length=receipt.length)
    rises = rise_alone(
        context,
        project.fit(
            context,
            [HeadId.parse("enc.0.0"), HeadId.parse("enc.0.1"), HeadId.parse("enc.1.0"), HeadId.parse("enc.1.1")],
        ),
    )
    assert receipt.loss.predicted == pytest.approx(receipt.loss.before + sum(rises.values()), rel=1e-12)
    assert receipt.loss.healed is None
    assert receipt.healing == HealReport(steps=0, learning_rate=3e-4, batch_tokens=2048, seed=0)
    lengths = [len(passage.source.text.split()) + 1 for passage in given.learn]
    assert receipt.length == round(sum(lengths) / len(lengths))
    assert receipt.text["calibration"] == len(given.learn) and receipt.text["evaluation"] == len(given.held_out)
    assert receipt.fingerprint == (before, weights_fingerprint(new)) and weights_fingerprint(model) == before
    assert receipt.reshape == "project" and RESHAPES["project"](**receipt.asked) == project
    assert receipt.objective == "seq2seq" and receipt.version == attnworks.__version__


def test_parameters_and_flops_by_hand() -> None:
    """Of four heads in the encoder and four in the decoder, three lose their queries and keys."""
    model = model_of()
    wanted = {
        Slot.parse("enc.0"): (PREVIOUS, "structured:members=first/mean,error=3,eps=0.1"),
        Slot.parse("dec.1"): ("dense", SELF),
    }
    new, n = with_mechanisms(model, wanted), 7
    projections, biases = D_E * D_K, D_K
    learned = 2 + 1 + 2  # the mix and the error of the second head, the mix of the third
    assert parameters(model) - parameters(new) == 3 * 2 * (projections + biases) - learned

    def projected(looking: int) -> int:
        return 2 * n * D_E * (2 * looking * D_K + 2 * 2 * D_V)

    full, half = 2 * n * n * (D_K + D_V), 2 * (n * (n + 1) // 2) * (D_K + D_V)
    across = 2 * projected(2) + 4 * full
    before = 4 * projected(2) + 4 * full + 4 * half + across
    assert attention_flops(model, n) == before
    previous, ends, itself = (2 * n * n * (D_V + members) for members in (1, 3, 2))
    after = projected(0) + projected(2) + projected(2) + projected(1) + 2 * full + previous + ends + 3 * half + itself
    assert attention_flops(new, n) == after + across


def test_the_receipt_counts() -> None:
    model = model_of()
    new, receipt = run_reshape(Project(heads="enc.0.0", form="previous", eps=0.0), subject_of(model), texts())
    assert (receipt.parameters.before, receipt.parameters.after) == (parameters(model), parameters(new))
    assert receipt.parameters.before - receipt.parameters.after == 2 * (D_E * D_K + D_K)
    assert receipt.flops.before == attention_flops(model, receipt.length)
    assert receipt.flops.after == attention_flops(new, receipt.length) < receipt.flops.before
    assert receipt.flops.saved == pytest.approx(1 - receipt.flops.after / receipt.flops.before)


def test_nothing_held_out_is_looked_at() -> None:
    """Other sentences to evaluate on, of the same lengths: the same model bit for bit, the same rise of the loss."""
    model, given = model_of(), texts()

    def backwards(side: Text) -> Text:
        return Text(" ".join(reversed(side.text.split())))

    others = [Passage(backwards(passage.source), backwards(passage.target or Text(""))) for passage in given.held_out]
    (one, first), (other, second) = (
        run_reshape(Project(heads="*", sparsity=0.3), subject_of(model), TextSplit(given.learn, held_out, {}))
        for held_out in (given.held_out, others)
    )
    assert weights_fingerprint(one) == weights_fingerprint(other) and first.done == second.done
    assert first.loss.before != second.loss.before
    rises = [receipt.loss.predicted - receipt.loss.before for receipt in (first, second)]
    assert rises[0] == pytest.approx(rises[1], abs=1e-12)


def test_no_sentence_is_on_both_sides(tmp_path: Any) -> None:
    given = texts()
    assert len(given.held_out) == len(PASSAGES) // 4
    assert len(given.learn) + len(given.held_out) == len(PASSAGES)
    assert not {id(one) for one in given.learn} & {id(one) for one in given.held_out}
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    lines = split_file(tmp_path / "lines.txt")
    assert [passage.source.text for passage in lines.held_out] == [LINES[3]]
    with pytest.raises(UsageError, match="4 different sentences, got 3 to fit the change on and 0 to"):
        split_texts(LINES[:3])


# In memory -----------------------------------------------------------------------------------------------------------


def test_python_with_an_own_model() -> None:
    model = model_of(torch.float32)
    new, receipt = attnworks.project(model, PASSAGES, tokenizer=WORDS, heads="enc.0.*", form="mean", heal=2)
    assert isinstance(new.model, Transformer) and receipt.done == {"enc.0.0": "mean", "enc.0.1": "mean"}
    assert receipt.loss.healed is not None and receipt.text["texts"] == len(PASSAGES)
    assert set(mechanisms_of(model)[Slot.parse("enc.0")]) == {"dense"}


@pytest.mark.parametrize(("name", "objective"), [("bert", "mlm"), ("gpt2", "lm"), ("opt", "lm"), ("t5", "seq2seq")])
def test_python_with_a_model_of_hugging_face(name: str, objective: str) -> None:
    model = TINY[name].build(dtype=torch.float32)
    pairs = [Passage(Text(line), Text(other)) for line, other in zip(LINES, LINES[::-1], strict=True)]
    given = pairs if objective == "seq2seq" else LINES
    new, receipt = attnworks.project(model, given, tokenizer=tiny_tokenizer(name), heads="*.1.0", form="mix")
    slots = [slot for slot in mechanisms_of(model) if slot.layer == 1]
    assert list(receipt.done) == [f"{slot}.0" for slot in slots] and receipt.objective == objective
    assert type(new.model) is type(model) and mechanisms_of(new.model)[slots[0]][0].startswith("structured")
    assert receipt.healing.learning_rate == 5e-5
    assert receipt.parameters.before == parameters(model) and receipt.parameters.after == parameters(new.model)


def test_layers_that_share_their_weights_get_one_form() -> None:
    """Fitted to what all of them look at; the effect of a head is that of all layers together."""
    model = TINY["albert"].build(dtype=torch.float32)
    given: dict[str, Any] = {"tokenizer": tiny_tokenizer("albert"), "form": "mix"}
    new, receipt = attnworks.project(model, LINES, heads="*.1", **given)
    assert list(receipt.done) == [f"enc.{layer}.1" for layer in range(5)] and len({*receipt.done.values()}) == 1
    assert len({*mechanisms_of(new.model).values()}) == 1
    one, of_one = attnworks.project(model, LINES, heads="2.1", **given)
    assert of_one.done == receipt.done and of_one.fingerprint == receipt.fingerprint
    assert mechanisms_of(one.model) == mechanisms_of(new.model)


def test_the_effect_of_layers_that_share_their_weights_is_predicted() -> None:
    subject = HFSubject(TINY["albert"].build(), "albert", tiny_tokenizer("albert"))
    text_loss = text_loss_on(subject, SentenceEmbedding(), [Passage(Text(line)) for line in LINES], ReshapeSettings())
    made = Project(heads="3.1", form="previous").make(ReshapeContext(subject, text_loss, 9))
    loss = text_loss.mean(subject.with_model(made.model)) - text_loss.mean()
    assert made.rise == pytest.approx(loss, rel=1e-9) and made.rise > 1e-6


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"window": -1}, {"window": 65}, {"eps": 1.5}, {"eps": float("nan")}, {"sparsity": -0.1}], ids=str
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(UsageError, match=f"projecting with {name}=.*choose a value in that range"):
        Project(heads="*", **options)


def test_a_form_that_is_none() -> None:
    with pytest.raises(UsageError, match="form 'prevous'"):
        Project(heads="*", form="prevous")


def test_models_that_cannot_be_reshaped() -> None:
    for model, tokenizer in ((TINY["vit"].build(), None), (nn.Linear(2, 3), None)):
        with pytest.raises(UsageError) as error:
            attnworks.project(model, LINES, tokenizer=tokenizer, heads="*")
        assert "\n" not in str(error.value)
