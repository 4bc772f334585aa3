"""What users of other tools try first, and mistakes of a first day: each ends in one line that says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from torch import nn

import attnworks
from attnworks.cli import main
from attnworks.core.errors import AttnworksError
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.own import OwnSubject
from tests.exam_helpers import LINES, tiny_folder
from tests.tiny_models import transformers

TEXT = LINES[0]


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return attnworks.open(tiny_folder("gpt2"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("load", "use attnworks.open(path)"),
        ("from_pretrained", "use attnworks.open(path)"),
        ("HookedTransformer", "use attnworks.open(path)"),
        ("run_with_cache", "use attnworks.trace(model, text)"),
        ("head_view", "use attnworks.view(model)"),
        ("MultiheadAttention", "use attnworks.nn.MultiheadAttention"),
        ("bench", "use the command attnworks bench"),
        ("exmaine", "did you mean 'examine'?"),
        ("xyzzy", "it has Activations, "),
    ],
)
def test_names_of_other_tools(name: str, told: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(attnworks, name)
    assert str(caught.value).startswith(f"module 'attnworks' has no attribute {name!r}; {told}")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("run_with_cache", "use attnworks.trace(subject, text)"),
        ("run_with_hooks", "use subject.edit(off=...)"),
        ("to_tokens", "use attnworks.trace(subject, text).tokens"),
        ("save_pretrained", "use subject.save(folder)"),
        ("config", "use subject.model.config"),
        ("generate", "use subject.model.generate"),
        ("logit", "did you mean 'logits'?"),
        ("modle", "did you mean 'model'?"),
        ("xyzzy", "it has "),
    ],
)
def test_attributes_of_other_tools(gpt2: Any, name: str, told: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(gpt2, name)
    assert str(caught.value).startswith(f"'HFSubject' object has no attribute {name!r}; {told}")
    assert not hasattr(gpt2, name)


def test_errors_inside_of_properties_stay_what_they_are(gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(gpt2), "layers", property(lambda self: self.blocks.missing))
    with pytest.raises(AttributeError, match="object has no attribute 'missing'"):
        _ = gpt2.layers


@pytest.mark.parametrize(
    ("function", "argument", "meant"),
    [
        ("examine", "model", "subject"),
        ("examine", "batch_size", "batch_tokens"),
        ("examine", "max_len", "max_length"),
        ("prune", "amount", "keep"),
        ("prune", "head", "heads"),
        ("swap", "mechanism", "to"),
        ("train", "num_train_epochs", "epochs"),
        ("train", "warmup_steps", "warmup"),
        ("train", "label_smoothing", "smoothing"),
        ("train", "gradient_accumulation_steps", "accumulate"),
        ("train", "vocab_size", "vocabulary_size"),
        ("translate", "beams", "num_beams"),
        ("trace", "sentence", "text"),
        ("count", "heads", "num_heads"),
    ],
)
def test_arguments_of_other_tools(function: str, argument: str, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(attnworks, function)(**{argument: 1})
    assert str(caught.value) == f"{function}() got an unexpected keyword argument {argument!r}; did you mean {meant!r}?"


def test_the_tokenizer_of_a_subject(gpt2: Any) -> None:
    assert gpt2.tokenizer(TEXT)["input_ids"] == list(gpt2.read_one(TEXT).sides[0][0].ids)
    model, vocabulary = attnworks.build(attnworks.preset("tiny")), Vocabulary.train("word", [TEXT.split()])
    assert attnworks.wrap(model, vocabulary).tokenizer == (vocabulary, vocabulary)
    assert OwnSubject(model, "a model").tokenizer is None


def refused(told: str, function: Any, *given: Any, **named: Any) -> None:
    with pytest.raises(AttnworksError) as caught:
        function(*given, **named)
    assert str(caught.value) == told


def test_values_of_another_type(gpt2: Any, tmp_path: Path) -> None:
    listed = "texts: expected a list of texts, a text file or a corpus, got {}; pass a list of strings"
    refused(listed.format(type(gpt2.tokenizer).__name__), attnworks.examine, gpt2, gpt2.tokenizer)
    refused(listed.format("int"), attnworks.prune, gpt2, 5, keep=0.5)
    refused(
        "tokenizer: expected a tokenizer or a vocabulary, got 'gpt2'; "
        "pass transformers.AutoTokenizer.from_pretrained('gpt2'), or a Vocabulary",
        attnworks.trace, gpt2.model, TEXT, tokenizer="gpt2",
    )  # fmt: skip
    known = "expected cpu, cuda, cuda:1 or mps, got 'gpu'; use cpu"
    refused(f"device: {known}", attnworks.open, tiny_folder("gpt2"), device="gpu")
    refused(
        "history: expected a folder, or the id of a model, got a HFSubject in memory; "
        "its receipts were returned with it; out= writes a folder with a history",
        attnworks.history, gpt2,
    )  # fmt: skip
    refused(
        """claims: expected ids, one after the other, got ['S0.17']; claims("S0.17", "S2")""",
        attnworks.claims, ["S0.17"],
    )  # fmt: skip
    model = tiny_folder("bert")
    refused(
        f"load {model}: expected the folder of an examination, got a model; "
        f"first: attnworks examine {model} --out EXAM; then use EXAM",
        attnworks.report, model, tmp_path / "page.html",
    )  # fmt: skip


def test_a_pipeline(gpt2: Any) -> None:
    pipeline = transformers.pipeline("text-generation", model=gpt2.model, tokenizer=gpt2.tokenizer)
    expected = "expected a path, or a model of attnworks or Hugging Face, got"
    refused(
        f"a model: {expected} TextGenerationPipeline; pass its .model, and tokenizer= its .tokenizer",
        attnworks.examine, pipeline, LINES,
    )  # fmt: skip
    refused(f"a model: {expected} Linear; use attnworks.traces.adapted for others", attnworks.wrap, nn.Linear(2, 2))


@pytest.mark.parametrize("off", [(1, 2), [(1, 2)], {1: [2]}, 3])
def test_heads_by_number(gpt2: Any, off: Any) -> None:
    told = f'edit with off: expected names of heads, got {off!r}; write for instance off="3.5,4.*"'
    refused(told, gpt2.edit, off=off)


def test_changes_without_names(gpt2: Any) -> None:
    refused(
        """edit with weights: expected a dict by names of heads, got list; write for instance weights={"3.5": new}""",
        gpt2.edit, weights=["1.2"],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["7", "1.9", "blocks.1.attn.hook_pattern"])
def test_activations_that_are_not_there(gpt2: Any, name: str) -> None:
    cache = attnworks.trace(gpt2, TEXT)
    refused(
        f"activations of {name!r}: expected a layer or a head (dec.0.0 to dec.0.2, dec.1.0 to dec.1.2), "
        "got no such layer or head; for instance dec.1 or dec.1.0",
        cache.__getitem__, name,
    )  # fmt: skip
    assert cache.get(name) is None and name not in cache


def test_a_stream_that_is_not_there(gpt2: Any) -> None:
    residual = attnworks.trace(gpt2, TEXT).residual
    refused(
        "the residual stream 'encoder': expected 'decoder', got another name; use residual['decoder']",
        residual.__getitem__, "encoder",
    )  # fmt: skip
    assert residual.get("encoder") is None and [*residual] == ["decoder"]


@pytest.mark.parametrize(
    ("command", "option", "meant"),
    [("swap", "--mechanism", "--to"), ("train", "--lr", "--learning-rate"), ("prune", "--amount", "--keep")],
)
def test_options_of_other_tools(command: str, option: str, meant: str) -> None:
    result = CliRunner().invoke(main, [command, "model", option, "1"])
    assert result.exit_code == 2 and f"No such option '{option}'. Did you mean '{meant}'" in result.stderr


def test_parts_of_a_model_below_an_output_layer(gpt2: Any) -> None:
    parts = attnworks.count(gpt2).to_json()["parts"]
    assert list(parts) == ["transformer.wte", "transformer.wpe", "transformer.h", "transformer.ln_f"]
    assert sum(parts.values()) == sum(parameter.numel() for parameter in gpt2.model.parameters())


def test_readings_list_their_names(gpt2: Any) -> None:
    exam = attnworks.examine(gpt2, LINES, measures="saturation")
    assert repr(exam.readings) == f"<Readings: {', '.join(exam.readings)}>" and "saturation.entropy" in exam.readings
