"""attnworks.export: plain folders of models, and refusals."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import attnworks
from attnworks.api.exports import FORMATS
from attnworks.core.errors import FolderError, UnknownNameError, UsageError
from attnworks.hf.anatomy import layout_of
from attnworks.hf.tiny import tiny_model
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.surgery import keep_heads_by_layer
from tests.exam_helpers import LINES, tiny_folder, tiny_run, tiny_tokenizer
from tests.tiny_models import transformers

WAYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "uneven": ("prune", {"heads": "0.1"}, "got 2 heads in enc.0 and 3 in enc.1; "),
    "even": ("prune", {"heads": "*.1"}, "got fewer heads, whose width the config of BertForMaskedLM cannot give; "),
    "mechanism": ("swap", {"to": ["window:window=2"], "layers": "enc.1"}, "got window:window=2 in enc.1; "),
    "widths": ("grow", {"where": "1.0:keys=2", "by": "random"}, "got heads of other widths in enc.1; "),
}
"""Changes of a BERT that transformers cannot represent: a verb, its options, and what the refusal names."""


def reshaped(way: str) -> Any:
    verb, options, _ = WAYS[way]
    return getattr(attnworks, verb)(tiny_folder("bert"), LINES, sentences=2, **options)[0]


def test_a_plain_model_of_hugging_face(tmp_path: Path) -> None:
    """transformers alone opens it, with the same outputs and the same tokens."""
    found = attnworks.export(str(tiny_folder("bert")), to="safetensors", out=tmp_path / "plain")
    assert found == tmp_path / "plain"
    tokenizer = transformers.AutoTokenizer.from_pretrained(found)
    read = tokenizer(LINES[0], return_tensors="pt")
    before, after = (
        transformers.AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (tiny_folder("bert"), found)
    )
    assert torch.equal(before(**read).logits, after(**read).logits)


def test_even_heads_that_transformers_can_represent(tmp_path: Path) -> None:
    """The folder has entries of attnworks, the exported one has none."""
    model = copy.deepcopy(tiny_model("llama").model)
    kept = {slot: [head for group in layer.shares[1:] for head in group] for layer in layout_of(model).layers
            for slot in layer.slots}  # fmt: skip
    keep_heads_by_layer(model, kept)
    subject = attnworks.wrap(model, tiny_tokenizer("llama"))
    subject.save(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "attnworks-llama"
    attnworks.export(subject, to="safetensors", out=tmp_path / "plain")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float64).eval()
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["model_type"] == "llama"
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(plain(ids).logits, model.double()(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_what_transformers_cannot_represent_is_refused(way: str, tmp_path: Path) -> None:
    subject = reshaped(way)
    with pytest.raises(UsageError) as caught:
        attnworks.export(subject, to="safetensors", out=tmp_path / "plain")
    assert WAYS[way][2] in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "plain").exists()


def test_a_run(tmp_path: Path) -> None:
    """The best checkpoint with its vocabularies, which translates as the run does."""
    run = attnworks.open(tiny_run())
    found = attnworks.open(attnworks.export(tiny_run(), to="safetensors", out=tmp_path / "plain"))
    assert weights_fingerprint(found.model) == weights_fingerprint(run.model)
    assert attnworks.translate(found, ["Luca sees bread ."]) == attnworks.translate(run, ["Luca sees bread ."])


def test_weights_in_another_type(tmp_path: Path) -> None:
    attnworks.export(tiny_folder("bert"), to="safetensors", out=tmp_path / "half", dtype="bfloat16")
    assert transformers.AutoModel.from_pretrained(tmp_path / "half", dtype="auto").dtype == torch.bfloat16


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'safetensors'"):
        attnworks.export(tiny_run(), to="safetensor", out=tmp_path / "plain")
    (tmp_path / "there").mkdir()
    for given in FORMATS:
        with pytest.raises(FolderError, match="a path that does not exist yet"):
            attnworks.export(tiny_run(), to=given, out=tmp_path / "there")


def test_a_run_for_ctranslate2(tmp_path: Path) -> None:
    package = pytest.importorskip("ctranslate2")
    found = attnworks.export(tiny_run(), to="ctranslate2", out=tmp_path / "fast")
    translator = package.Translator(str(found))
    words = ["Luca", "sees", "bread", "."]
    ((best,),) = (one.hypotheses for one in translator.translate_batch([words], beam_size=1, max_decoding_length=20))
    assert " ".join(best) == attnworks.translate(tiny_run(), ["Luca sees bread ."], engine="own")[0]


@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        ("small-lstm", {}, "got a Recurrent; "),
        ("bert", {}, "got a BertForMaskedLM; models of Hugging Face are converted by ct2-transformers-converter"),
        ("small", {"dtype": "bfloat16"}, "expected weights in float32, got bfloat16"),
    ],
)
def test_what_is_not_written_for_ctranslate2(model: str, options: Any, told: str, tmp_path: Path) -> None:
    subject = tiny_folder(model) if model == "bert" else tiny_run(model)
    with pytest.raises(UsageError) as caught:
        attnworks.export(subject, to="ctranslate2", out=tmp_path / "fast", **options)
    assert told in str(caught.value) and not (tmp_path / "fast").exists()


def test_the_layer_that_ctranslate2_cannot_express_is_named(tmp_path: Path) -> None:
    swapped, _ = attnworks.swap(tiny_run(), to=["window:window=2"], layers="enc.0", sentences=8)
    with pytest.raises(UsageError, match=r"got window:window=2 in enc\.0\.0; export it to safetensors"):
        attnworks.export(swapped, to="ctranslate2", out=tmp_path / "fast")
    projected, _ = attnworks.project(tiny_run(), heads="dec.0.1", form="previous", sentences=8)
    with pytest.raises(UsageError, match=r" in dec\.0\.1; "):
        attnworks.export(projected, to="ctranslate2", out=tmp_path / "fast")
