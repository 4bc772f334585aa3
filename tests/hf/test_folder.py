"""Folders of reshaped models of Hugging Face: every bit comes back, and nothing that was changed is believed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnworks
from attnworks.core.errors import AttnworksError, FolderError, UnsafeFileError
from attnworks.core.folders import canonical_json, seal, sha256
from attnworks.hf import mechanisms as mechanisms_module
from attnworks.hf.cut.recipe import CutRecipe
from attnworks.hf.cut.unused import earlier_recipe
from attnworks.hf.folder import is_reshaped, save_hf
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.open import open_model
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, weights_fingerprint
from attnworks.reshape.surgery import mechanisms_of, with_mechanisms
from attnworks.text.passages import Passage, Text
from attnworks.traces.subject import open_subject
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.tiny_models import TINY, inputs

BAND, ENDS = "structured:members=-1..0/first,error=none", "structured:members=first/mean,error=2,eps=0.3"
FAMILIES = ("bert", "gpt2", "bart", "t5")


def reshaped(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny model; in each layer the last head is structured, in the last layer all are."""
    model = TINY[name].build(dtype=dtype)
    now = mechanisms_of(model)
    wanted = {slot: ("dense",) * (len(specs) - 1) + (BAND,) for slot, specs in now.items()}
    last = list(now)[-1]
    return with_mechanisms(model, wanted | {last: (ENDS,) * len(now[last])}).eval()


def written(model: Any, folder: Path) -> Path:
    folder.mkdir()
    save_hf(model, folder)
    tiny_tokenizer(model.config.model_type).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(reshaped("bert"), tmp_path_factory.mktemp("reshaped") / "bert")


@pytest.fixture
def copied(bert: Path, tmp_path: Path) -> Path:
    """A folder of its own to damage."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_every_bit_comes_back(name: str, tmp_path: Path) -> None:
    model = reshaped(name)
    folder = written(model, tmp_path / name)
    opened = attnworks.open(folder).model
    assert type(opened) is type(model) and not opened.training
    assert is_reshaped(folder) and weights_fingerprint(opened) == weights_fingerprint(model)
    assert mechanisms_of(opened) == mechanisms_of(model)
    given = inputs(model)
    with torch.no_grad():
        assert torch.equal(opened(**given).logits, model(**given).logits)
    once_more = written(opened, tmp_path / "again")
    for file in (CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE):
        assert (once_more / file).read_bytes() == (folder / file).read_bytes(), file


@pytest.mark.parametrize("name", ["bert", "bart", "gpt2", "llama"])
def test_folders_of_earlier_versions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say nothing of modules and columns, and store all columns of fused and grouped projections."""

    def as_earlier(model: Any, layers: Any, layer: AttentionLayout, heads: Collection[int]) -> CutRecipe | None:
        looking = [head for head in range(layer.heads) if head not in heads]
        return None if name in ("gpt2", "llama") else earlier_recipe(layer, looking)

    with monkeypatch.context() as earlier:
        earlier.setattr(mechanisms_module, "unused_recipe", as_earlier)
        model = reshaped(name)
    folder = written(model, tmp_path / name)
    change_config(folder, lambda config: config.update(attnworks_layers=None, attnworks_cuts=[]), sealed=True)
    opened = attnworks.open(folder).model
    assert weights_fingerprint(opened) == weights_fingerprint(model) and mechanisms_of(opened) == mechanisms_of(model)
    given = inputs(model)
    with torch.no_grad():
        assert torch.equal(opened(**given).logits, model(**given).logits)
    again = attnworks.open(written(opened, tmp_path / "again")).model
    assert weights_fingerprint(again) == weights_fingerprint(model)


ALONE = """
import sys, transformers
for folder in sys.argv[1:]:
    for auto in (transformers.AutoModel, transformers.AutoConfig):
        try:
            auto.from_pretrained(folder)
        except ValueError as error:
            print(str(error).split("`")[1])
assert not [name for name in sys.modules if name.startswith("attnworks")]
"""


def test_transformers_alone_refuses_it(tmp_path: Path) -> None:
    """In a process that does not import attnworks.hf. The message names the type, and the folder says what to do."""
    folders = [written(reshaped(name), tmp_path / name) for name in FAMILIES]
    command = [sys.executable, "-c", ALONE, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"attnworks-{name}" for name in FAMILIES for _ in range(2)]
    for folder in folders:
        card = (folder / "README.md").read_text()
        assert "import attnworks.hf" in card and "attnworks.open" in card


def test_types_are_kept(tmp_path: Path) -> None:
    model = reshaped("bert", torch.bfloat16)
    assert weights_fingerprint(
        attnworks.open(written(model, tmp_path / "bert"), dtype="bfloat16").model
    ) == weights_fingerprint(model)


def test_the_type_that_is_asked_for(bert: Path) -> None:
    opened = open_model(str(bert), dtype="float64").model
    assert {parameter.dtype for parameter in opened.parameters()} == {torch.float64}


@pytest.mark.parametrize("name", FAMILIES)
def test_it_reads_text(name: str, tmp_path: Path) -> None:
    folder = written(reshaped(name), tmp_path / name)
    subject = open_subject(str(folder))
    passages = [Passage(Text(line), Text(line)) for line in LINES[:3]]
    text = subject.read(passages, batch_tokens=100)
    assert subject.name == name and subject.run(text.batch(0)[0]).hidden.isfinite().all()


def test_a_folder_as_it_came_is_none(tmp_path: Path) -> None:
    TINY["bert"].build(dtype=torch.float32).save_pretrained(tmp_path / "bert")
    assert not is_reshaped(tmp_path / "bert") and not is_reshaped(tmp_path) and not is_reshaped(tmp_path / "nowhere")
    (tmp_path / CONFIG_FILE).write_text("[1")
    assert not is_reshaped(tmp_path)


# Damage --------------------------------------------------------------------------------------------------------------


def refused(folder: Path, error: type[Exception] = FolderError) -> str:
    """Nothing is opened; the one line that says why."""
    with pytest.raises(error) as found:
        attnworks.open(folder)
    assert "\n" not in str(found.value)
    return str(found.value)


def change_config(folder: Path, change: Callable[[dict[str, Any]], None], *, sealed: bool) -> None:
    """Change the config; with `sealed`, in the manifest too, as somebody would who knows how."""
    config = json.loads((folder / CONFIG_FILE).read_bytes())
    change(config)
    (folder / CONFIG_FILE).write_bytes(canonical_json(config))
    if sealed:
        manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
        del manifest["sha256"]
        (folder / MANIFEST_FILE).write_bytes(
            seal(manifest | {"config_sha256": sha256((folder / CONFIG_FILE).read_bytes())})
        )


def test_another_config(copied: Path) -> None:
    change_config(copied, lambda config: config.update(hidden_dropout_prob=0.3), sealed=False)
    assert "one that was changed since" in refused(copied)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"enc.0": ["dense"] * 3}, "manifest.json"),
        ({"enc.9": ["dense"] * 3}, "config.json"),
        ({"enc.0": ["danse"] * 3}, "danse"),
        ({"enc.0": ["dense"] * 2}, ""),
        ({"enc.0": 3}, "config.json"),
        ([1], "config.json"),
        ("heads", "config.json"),
        (None, "config.json"),
    ],
    ids=str,
)
def test_other_heads(copied: Path, entry: object, told: str) -> None:
    change_config(copied, lambda config: config.update(attnworks=entry), sealed=True)
    assert told in refused(copied, AttnworksError)


@pytest.mark.parametrize("architectures", [["BertNoModel"], [], None, ["BertForMaskedLM'); import os"]], ids=str)
def test_other_classes(copied: Path, architectures: object) -> None:
    change_config(copied, lambda config: config.update(architectures=architectures), sealed=True)
    assert "config.json" in refused(copied)


def test_another_model_type(copied: Path) -> None:
    change_config(copied, lambda config: config.update(model_type="attnworks-nothing"), sealed=True)
    refused(copied, AttnworksError)


def test_other_weights(copied: Path) -> None:
    tensors = load_file(copied / WEIGHTS_FILE)
    name = next(name for name in tensors if name.endswith("log_mix"))
    save_file(tensors | {name: tensors[name] + 1}, copied / WEIGHTS_FILE)
    assert "model.safetensors" in refused(copied) and name in refused(copied)
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, copied / WEIGHTS_FILE)
    assert f"missing tensor {name!r}" in refused(copied)
    save_file(tensors | {"more": torch.ones(2)}, copied / WEIGHTS_FILE)
    assert "extra tensor 'more'" in refused(copied)
    (copied / WEIGHTS_FILE).write_bytes(b"nothing")
    assert "model.safetensors" in refused(copied)


def test_another_manifest(copied: Path) -> None:
    text = (copied / MANIFEST_FILE).read_text()
    (copied / MANIFEST_FILE).write_text(text.replace("float32", "float64", 1))
    assert "manifest.json" in refused(copied)
    (copied / MANIFEST_FILE).unlink()
    assert "manifest.json" in refused(copied)


def test_pickles_are_not_opened(copied: Path) -> None:
    (copied / WEIGHTS_FILE).unlink()
    torch.save({}, copied / "pytorch_model.bin")
    assert "pytorch_model.bin" in refused(copied, UnsafeFileError)


def test_saving_from_python(bert: Path, tmp_path: Path) -> None:
    subject = attnworks.open(bert)
    subject.save(tmp_path / "copy")
    assert weights_fingerprint(attnworks.open(tmp_path / "copy").model) == weights_fingerprint(subject.model)
    with pytest.raises(FolderError, match="a path that does not exist yet"):
        subject.save(tmp_path / "copy")
    subject.save(tmp_path / "copy", overwrite=True)
    as_it_came = TINY["bert"].build()
    attnworks.wrap(as_it_came, tiny_tokenizer("bert")).save(tmp_path / "other")
    assert weights_fingerprint(
        type(as_it_came).from_pretrained(tmp_path / "other", dtype="auto")
    ) == weights_fingerprint(as_it_came)


def test_a_small_folder_that_asks_for_a_huge_model(copied: Path) -> None:
    change_config(copied, lambda config: config.update(intermediate_size=10**12), sealed=True)
    refused(copied, AttnworksError)
