"""Reshaped models under `from_pretrained`, `save_pretrained`, `pipeline` and sentence-transformers.

What is expected is what `attnworks.open` gives, and what the model in memory computed before it was saved.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import attnworks
import attnworks.hf
from attnworks.core.errors import AttnworksError, FolderError, UsageError
from attnworks.core.folders import canonical_json, seal, sha256
from attnworks.hf.folder import GENERATION_FILE, save_hf
from attnworks.hf.heads import MECHANISMS_ENTRY
from attnworks.hf.registration import register_reshaped
from attnworks.models.anatomy import heads_of
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, weights_fingerprint
from attnworks.reshape.surgery import keep_heads_by_layer, layers_of, mechanisms_of, put_heads, with_mechanisms
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.tiny_models import TINY, inputs, transformers

CLASSES = {
    "BertModel": ("bert", "AutoModel"),
    "BertForMaskedLM": ("bert", "AutoModelForMaskedLM"),
    "BertForSequenceClassification": ("bert", "AutoModelForSequenceClassification"),
    "BertForTokenClassification": ("bert", "AutoModelForTokenClassification"),
    "BertForQuestionAnswering": ("bert", "AutoModelForQuestionAnswering"),
    "GPT2Model": ("gpt2", "AutoModel"),
    "GPT2LMHeadModel": ("gpt2", "AutoModelForCausalLM"),
    "LlamaForCausalLM": ("llama", "AutoModelForCausalLM"),
    "T5ForConditionalGeneration": ("t5", "AutoModelForSeq2SeqLM"),
    "BartForConditionalGeneration": ("bart", "AutoModelForSeq2SeqLM"),
}
WRITERS = ("GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration", "BartForConditionalGeneration")
RESHAPES = ("pruned", "swapped", "grown")
TEXT, WINDOW = LINES[1], "window:window=2"


def reshaped(name: str, how: str) -> Any:
    """A tiny model of this class: pruned to other heads in every layer, with windows, or with wider values."""
    family, _ = CLASSES[name]
    extra = {"pad_token_id": 1} if family in ("gpt2", "llama") else {}
    model = TINY[family]._replace(model=name).build(dtype=torch.float32, **extra)
    layers = layers_of(model)
    if how == "pruned":
        keep_heads_by_layer(model, {slot: [*range(part.heads)][slot.layer % 2 :] for slot, part in layers.items()})
    elif how == "swapped":
        wanted = {slot: (WINDOW,) * len(specs) for slot, specs in mechanisms_of(model).items()}
        model = with_mechanisms(model, wanted)
    else:
        widen(model)
    return model.eval()


def widen(model: Any) -> None:
    """Two more values for the first head of the first layer."""
    slot, part = next(iter(layers_of(model).items()))
    first, *others = heads_of(part)
    more = torch.linspace(-1.0, 1.0, 2 * len(first.W_V)).view(-1, 2)
    b_V = None if first.b_V is None else torch.cat([first.b_V, first.b_V.new_ones(2)])
    W_O = torch.cat([first.W_O, torch.ones(2, first.W_O.shape[1])])
    put_heads(model, slot, [first._replace(W_V=torch.cat([first.W_V, more], 1), W_O=W_O, b_V=b_V), *others])


def written(model: Any, folder: Path) -> Path:
    folder.mkdir()
    save_hf(model, folder)
    tiny_tokenizer(model.config.model_type).save_pretrained(folder)
    return folder


@torch.no_grad()
def read(model: Any) -> Tensor:
    return model(**inputs(model))[0]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(reshaped("BertForMaskedLM", "pruned"), tmp_path_factory.mktemp("pretrained") / "bert")


@pytest.fixture
def copied(bert: Path, tmp_path: Path) -> Path:
    """A folder of its own to damage."""
    return Path(shutil.copytree(bert, tmp_path / "copy"))


# What is opened ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", RESHAPES)
@pytest.mark.parametrize("name", CLASSES)
def test_the_class_of_the_folder(name: str, how: str, tmp_path: Path) -> None:
    """With its output layer, bit for bit: by its Auto class, by itself, and by attnworks."""
    model, auto = reshaped(name, how), CLASSES[name][1]
    folder = written(model, tmp_path / "reshaped")
    for opened in (
        getattr(transformers, auto).from_pretrained(folder),
        getattr(transformers, name).from_pretrained(str(folder)),
        attnworks.open(folder).model,
    ):
        assert type(opened) is type(model) and not opened.training
        assert weights_fingerprint(opened) == weights_fingerprint(model)
        assert torch.equal(read(opened), read(model))


@pytest.mark.parametrize("how", RESHAPES)
@pytest.mark.parametrize("name", [name for name, (_, auto) in CLASSES.items() if auto != "AutoModel"])
def test_without_the_output_layer(name: str, how: str, tmp_path: Path) -> None:
    model = reshaped(name, how)
    body = transformers.AutoModel.from_pretrained(written(model, tmp_path / "reshaped"))
    assert type(body) is not type(model)
    with torch.no_grad():
        expected = model(**inputs(model), output_hidden_states=True)
    states = expected.decoder_hidden_states if model.config.is_encoder_decoder else expected.hidden_states
    assert torch.equal(read(body), states[-1])
    again = written(body, tmp_path / "body")
    assert torch.equal(read(transformers.AutoModel.from_pretrained(again)), states[-1])


def test_another_output_layer(bert: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is new and random, as in transformers, which says so."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    auto = transformers.AutoModelForSequenceClassification
    model, found = auto.from_pretrained(bert, num_labels=7, output_loading_info=True)
    assert model.classifier.weight.shape[0] == model.config.num_labels == 7
    assert found["missing_keys"] >= {"classifier.weight", "classifier.bias"}
    assert all(name.startswith("cls.") for name in found["unexpected_keys"]) and found["unexpected_keys"]
    assert "classifier.weight" in caplog.text and "train" in caplog.text
    body = transformers.AutoModel.from_pretrained(bert)
    assert torch.equal(read(model.bert), read(body))


@pytest.mark.parametrize("how", RESHAPES)
@pytest.mark.parametrize(("name", "inner"), [("BertModel", "bert"), ("GPT2Model", "transformer")])
def test_an_output_layer_for_a_model_without(name: str, inner: str, how: str, tmp_path: Path) -> None:
    body = reshaped(name, how)
    model = transformers.AutoModelForTokenClassification.from_pretrained(written(body, tmp_path / "body"), num_labels=3)
    assert model.classifier.out_features == 3
    assert torch.equal(read(getattr(model, inner)), read(body))
    again = attnworks.open(written(model, tmp_path / "again")).model
    assert weights_fingerprint(again) == weights_fingerprint(model) and torch.equal(read(again), read(model))


def test_an_output_layer_of_another_size(tmp_path: Path) -> None:
    folder = written(reshaped("BertForSequenceClassification", "pruned"), tmp_path / "reshaped")
    auto = transformers.AutoModelForSequenceClassification
    with pytest.raises(FolderError, match=r"classifier.*ignore_mismatched_sizes"):
        auto.from_pretrained(folder, num_labels=5)
    model, found = auto.from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True, output_loading_info=True)
    assert model.classifier.out_features == 5 and {name for name, *_ in found["mismatched_keys"]} == {
        "classifier.weight",
        "classifier.bias",
    }


def test_an_encoder_alone(tmp_path: Path) -> None:
    model = reshaped("T5ForConditionalGeneration", "pruned")
    folder = written(model, tmp_path / "reshaped")
    encoder = transformers.T5EncoderModel.from_pretrained(folder)
    given = {name: T for name, T in inputs(model).items() if not name.startswith("decoder")}
    with torch.no_grad():
        assert torch.equal(encoder(**given)[0], model.encoder(**given)[0])
    assert {*encoder.config.attnworks_heads} == {"enc.1"} < {*model.config.attnworks_heads}


def test_types_of_numbers(bert: Path, tmp_path: Path) -> None:
    auto = transformers.AutoModelForMaskedLM
    assert auto.from_pretrained(bert).dtype == torch.float32
    for asked in ("bfloat16", torch.bfloat16):
        half = auto.from_pretrained(bert, dtype=asked)
        assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16} == {half.config.dtype}
    folder = written(half, tmp_path / "half")
    assert auto.from_pretrained(folder).dtype == torch.bfloat16
    other = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    assert {parameter.dtype for parameter in other.parameters()} == {torch.bfloat16}


def test_options(bert: Path) -> None:
    auto = transformers.AutoModelForMaskedLM
    config = transformers.AutoConfig.from_pretrained(bert)
    model = auto.from_pretrained(bert, config=config, attn_implementation="eager", device_map="cpu")
    model.config.output_attentions = True
    with torch.no_grad():
        attentions = model(**inputs(model)).attentions
    assert [P.shape[1] for P in attentions] == [3, 2]
    for options in ({"quantization_config": object()}, {"device_map": "auto"}, {"dtype": "int8"}, {"variant": "x"}):
        with pytest.raises(UsageError):
            auto.from_pretrained(bert, **options)
    with pytest.raises(UsageError, match="GPT2Config"):
        transformers.GPT2Model.from_pretrained(bert)


def test_models_as_they_came(tmp_path: Path) -> None:
    """Nothing changes for the other models of transformers."""
    model = TINY["bert"].build(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert not (tmp_path / MANIFEST_FILE).exists()
    assert torch.equal(read(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)), read(model))


def test_saved_by_transformers(bert: Path, tmp_path: Path) -> None:
    """What was opened, and maybe trained, is saved as attnworks saves it."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(bert)
    with torch.no_grad():
        model.cls.predictions.bias.add_(1.0)
    model.save_pretrained(tmp_path / "saved")
    for file in (CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE):
        assert (tmp_path / "saved" / file).is_file()
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    assert weights_fingerprint(again) == weights_fingerprint(model) and getattr(again.config, MECHANISMS_ENTRY) == {}
    with pytest.raises(UsageError, match="push_to_hub"):
        model.save_pretrained(tmp_path / "other", push_to_hub=True)


# Text ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", RESHAPES)
@pytest.mark.parametrize("name", WRITERS)
def test_generated_with_a_cache_and_without(name: str, how: str, tmp_path: Path) -> None:
    model, auto = reshaped(name, how), getattr(transformers, CLASSES[name][1])
    opened = auto.from_pretrained(written(model, tmp_path / "reshaped"))
    if model.config.model_type == "t5":
        opened.config.num_hidden_layers = opened.config.num_decoder_layers  # the cache of T5 counts these
    settings = {"max_new_tokens": 9, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    given = {"input_ids": inputs(model)["input_ids"]}
    cached, whole = (opened.generate(**given, **settings, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(cached.sequences, whole.sequences)
    for one, other in zip(cached.logits, whole.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opens", ["attnworks", "transformers"])
def test_settings_of_generation_are_kept(opens: str, tmp_path: Path) -> None:
    model = reshaped("GPT2LMHeadModel", "pruned")
    model.generation_config.max_new_tokens, model.generation_config.temperature = 17, 0.6
    folder = written(model, tmp_path / "reshaped")
    opened: Any = (
        attnworks.open(folder).model
        if opens == "attnworks"
        else transformers.AutoModelForCausalLM.from_pretrained(folder)
    )
    assert opened.generation_config.max_new_tokens == 17 and opened.generation_config.temperature == 0.6
    (folder / GENERATION_FILE).write_text("[1")
    with pytest.raises(FolderError, match=GENERATION_FILE):
        attnworks.open(folder)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("text-generation", "LlamaForCausalLM"),
        ("fill-mask", "BertForMaskedLM"),
        ("text-classification", "BertForSequenceClassification"),
        ("token-classification", "BertForTokenClassification"),
        ("feature-extraction", "BertModel"),
        ("feature-extraction", "GPT2LMHeadModel"),
    ],
)
def test_pipelines(task: str, name: str, tmp_path: Path) -> None:
    model = reshaped(name, "pruned")
    folder = written(model, tmp_path / "reshaped")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = f"{tokenizer.mask_token} {TEXT}" if task == "fill-mask" else TEXT
    settings = {"max_new_tokens": 5, "do_sample": False} if task == "text-generation" else {}
    found = transformers.pipeline(task, model=str(folder), device="cpu")(text, **settings)
    expected = transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")(text, **settings)
    if name == "GPT2LMHeadModel":
        expected = [model.transformer(**tokenizer(text, return_tensors="pt"))[0][0].tolist()]
    assert found and found == expected


def test_sentence_transformers(tmp_path: Path) -> None:
    """Its files are kept, with the weights of a dense layer behind the pooling, and the embeddings are those."""
    package = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    source = tmp_path / "source"
    source.mkdir()
    TINY["bert"]._replace(model="BertModel").build(dtype=torch.float32).save_pretrained(source)
    tiny_tokenizer("bert").save_pretrained(source)
    transformer = Transformer(str(source))
    modules = [transformer, Pooling(15, "mean"), Dense(15, 7)]
    package.SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "whole"))
    attnworks.prune(str(tmp_path / "whole"), LINES, heads="0.1", out=tmp_path / "pruned")
    pruned = package.SentenceTransformer(str(tmp_path / "pruned"), device="cpu")
    model: Any = attnworks.open(tmp_path / "pruned").model
    assert model.config.attnworks_heads == {"enc.0": [0, 2]}
    tokenizer = tiny_tokenizer("bert")
    given = tokenizer(LINES[:3], return_tensors="pt", padding=True)
    real = given["attention_mask"][..., None]
    with torch.no_grad():
        pooled = (model(**given)[0] * real).sum(1) / real.sum(1)
        expected = modules[2]({"sentence_embedding": pooled})["sentence_embedding"]
    torch.testing.assert_close(torch.tensor(pruned.encode(LINES[:3])), expected)
    pruned.save(str(tmp_path / "again"))
    again = package.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert (again.encode(LINES[:3]) == pruned.encode(LINES[:3])).all()


# Damage --------------------------------------------------------------------------------------------------------------


def openers(folder: Path) -> list[Any]:
    return [
        lambda: transformers.AutoModelForMaskedLM.from_pretrained(folder),
        lambda: transformers.AutoModel.from_pretrained(folder),
        lambda: transformers.BertForMaskedLM.from_pretrained(folder),
    ]


def change_config(folder: Path, **changes: Any) -> None:
    """Change the config and the manifest, as somebody would who knows how."""
    config = json.loads((folder / CONFIG_FILE).read_bytes()) | changes
    (folder / CONFIG_FILE).write_bytes(canonical_json(config))
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    del manifest["sha256"]
    config_sha256 = sha256((folder / CONFIG_FILE).read_bytes())
    (folder / MANIFEST_FILE).write_bytes(seal(manifest | {"config_sha256": config_sha256}))


def test_other_weights(copied: Path) -> None:
    tensors = load_file(copied / WEIGHTS_FILE)
    name = next(name for name in tensors if "query.weight" in name)
    save_file(tensors | {name: tensors[name] + 1}, copied / WEIGHTS_FILE)
    for opens in openers(copied):
        with pytest.raises(FolderError, match=r"model\.safetensors"):
            opens()


@pytest.mark.parametrize(("file", "old", "new"), [(MANIFEST_FILE, "float32", "float64"), (CONFIG_FILE, "0.1", "0.2")])
def test_other_descriptions(file: str, old: str, new: str, copied: Path) -> None:
    text = (copied / file).read_text()
    assert old in text
    (copied / file).write_text(text.replace(old, new, 1))
    for opens in openers(copied):
        with pytest.raises(FolderError):
            opens()
    if file == MANIFEST_FILE:
        (copied / file).unlink()
        for opens in openers(copied):
            with pytest.raises(FolderError, match=r"manifest\.json"):
                opens()


def test_pipelines_refuse_what_was_changed(tmp_path: Path) -> None:
    """A swapped model has the shapes of a plain one: no other class may open it in its place."""
    folder = written(reshaped("BertForMaskedLM", "swapped"), tmp_path / "swapped")
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({name: T + 1 for name, T in tensors.items()}, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"Could not load model[\s\S]*FolderError[\s\S]*sha256 of"):
        transformers.pipeline("fill-mask", model=str(folder), device="cpu")


def test_no_code_is_run(copied: Path) -> None:
    marker = copied / "marker"
    (copied / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
        "from transformers import BertConfig as Config, BertForMaskedLM as Model\n"
    )
    change_config(copied, auto_map={"AutoConfig": "evil.Config", "AutoModelForMaskedLM": "evil.Model"})
    for trust in (None, False, True):
        transformers.AutoModelForMaskedLM.from_pretrained(copied, trust_remote_code=trust)
    assert not marker.exists()


def test_a_small_folder_that_asks_for_a_huge_model(copied: Path) -> None:
    change_config(copied, intermediate_size=10**12)
    for opens in openers(copied):
        with pytest.raises(AttnworksError):
            opens()


def test_a_type_without_the_entries_of_attnworks(copied: Path) -> None:
    config = json.loads((copied / CONFIG_FILE).read_bytes())
    del config[MECHANISMS_ENTRY]
    (copied / CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(ValueError, match="entry 'attnworks'"):
        transformers.AutoModel.from_pretrained(copied)
    with pytest.raises(AttnworksError, match="model_type"):
        attnworks.open(copied)


# Registration --------------------------------------------------------------------------------------------------------


def test_registering_again_changes_nothing() -> None:
    model = transformers.PreTrainedModel
    before = model.from_pretrained.__func__, model.save_pretrained, [*transformers.CONFIG_MAPPING.keys()]
    finders = [*sys.meta_path]
    register_reshaped()
    register_reshaped()
    assert (model.from_pretrained.__func__, model.save_pretrained, [*transformers.CONFIG_MAPPING.keys()]) == before
    assert sys.meta_path == finders


SCRIPTS = {
    "attnworks first": """
        import sys, attnworks, attnworks.hf
        assert not {"torch", "transformers"} & {*sys.modules}
        import transformers
        transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1])
    """,
    "transformers first": """
        import sys
        from transformers import AutoConfig, BertForMaskedLM
        import attnworks.hf
        BertForMaskedLM.from_pretrained(sys.argv[1])
        assert AutoConfig.from_pretrained(sys.argv[1]).model_type == "bert"
    """,
}


@pytest.mark.parametrize("order", SCRIPTS)
def test_orders_of_imports(order: str, bert: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPTS[order]), str(bert)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
