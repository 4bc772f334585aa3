"""Subject.save and attnworks.open: every bit comes back, folders are whole or not there, changed files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import attnworks
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.places import Slot
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.surgery import with_mechanisms
from attnworks.text.passages import Text
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import Subject
from tests.exam_helpers import LINES, minilm, tiny_tokenizer
from tests.model_helpers import the, transformer
from tests.tiny_models import TINY, transformers
from tests.traces.test_adapted import adapted
from tests.traces.test_cache import SIZES, TEXT, VOCABULARY, recurrent
from tests.traces.trace_helpers import random_batch

ITALIAN = Vocabulary.train("word", [["il", "gatto", "vede", "un", "uccello", "."]])
SAVED = ("own encoder", "own decoder", "own encoder-decoder", "recurrent", "bert", "gpt2", "t5")


def made(name: str) -> Subject:
    """A subject in float32, which is what folders are opened in."""
    if name in TINY:
        return attnworks.wrap(
            TINY[name].build(dtype=torch.float32), tiny_tokenizer(TINY[name].build().config.model_type)
        )
    if name == "recurrent":
        return attnworks.wrap(recurrent("luong-dot").float(), VOCABULARY)
    layers = {"own encoder": {"decoder_layers": 0}, "own decoder": {"encoder_layers": 0}}.get(name, {})
    sizes: Any = SIZES | ({"target_vocabulary": len(ITALIAN)} if name == "own encoder-decoder" else {})
    model = transformer(torch.float32, **sizes, **layers).eval()
    return attnworks.wrap(model, (VOCABULARY, ITALIAN) if name == "own encoder-decoder" else VOCABULARY)


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of all files but one, in which transformers notes where a tokenizer was read from."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "tokenizer_config.json"}


@pytest.mark.parametrize("name", SAVED)
def test_every_bit_comes_back(name: str, tmp_path: Path) -> None:
    subject = made(name)
    assert subject.save(tmp_path / "deep" / "model") == tmp_path / "deep" / "model"
    opened = attnworks.open(tmp_path / "deep" / "model")
    assert type(opened) is type(subject) and opened.folder == tmp_path / "deep" / "model"
    assert weights_fingerprint(opened.model) == weights_fingerprint(subject.model) and not opened.model.training
    assert torch.equal(opened.logits(TEXT), subject.logits(TEXT))
    cache, before = attnworks.trace(opened, TEXT), attnworks.trace(subject, TEXT)
    assert (cache.tokens, cache.target) == (before.tokens, before.target)
    again = opened.save(str(tmp_path / "again"))
    assert contents(again) == contents(tmp_path / "deep" / "model")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["own encoder", "gpt2"])
def test_types(name: str, dtype: str, tmp_path: Path) -> None:
    subject = made(name)
    subject.model.to(getattr(torch, dtype))
    subject.save(tmp_path / "model")
    assert attnworks.open(tmp_path / "model").logits(TEXT).dtype == torch.float32
    opened = attnworks.open(tmp_path / "model", dtype=dtype)
    assert weights_fingerprint(opened.model) == weights_fingerprint(subject.model)


def test_without_vocabularies(tmp_path: Path) -> None:
    """The model runs on batches, and reads text once it is given a vocabulary."""
    subject = OwnSubject(transformer(torch.float32, **SIZES).eval(), "bare")
    subject.save(tmp_path / "bare")
    opened = attnworks.open(tmp_path / "bare")
    batch = random_batch((7, 5), (3, 2), words=11)
    assert opened.name == "bare" and opened.source is None
    assert torch.equal(opened.run(batch, logits=True).logits, the(subject.run(batch, logits=True).logits))
    with pytest.raises(UsageError, match="tokenizer"):
        attnworks.open(tmp_path / "bare").logits(TEXT)
    cache = attnworks.trace(opened, TEXT, target=LINES[0], tokenizer=VOCABULARY)
    assert cache.tokens[0] == "the" and "cross.1.2" in cache


@pytest.mark.parametrize("name", ["own encoder-decoder", "gpt2"])
def test_overwriting(name: str, tmp_path: Path) -> None:
    subject, place = made(name), tmp_path / "model"
    subject.save(place)
    before = contents(place)
    with pytest.raises(FolderError, match="overwrite=True"):
        subject.save(place)
    assert contents(place) == before
    with torch.no_grad():
        next(subject.model.parameters()).add_(1.0)
    subject.save(place, overwrite=True)
    assert contents(place) != before and torch.equal(attnworks.open(place).logits(TEXT), subject.logits(TEXT))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["own encoder-decoder", "gpt2"])
def test_nothing_but_model_folders_is_overwritten(name: str, tmp_path: Path) -> None:
    subject = made(name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.json").write_text("{}")
    (tmp_path / "file").write_text("mine")
    subject.save(tmp_path / "clone")
    (tmp_path / "clone" / "manifest.json").unlink(missing_ok=True)
    (tmp_path / "clone" / ".git").mkdir()
    for place in ("notes", "file", "clone"):
        with pytest.raises(FolderError, match="a model folder"):
            subject.save(tmp_path / place, overwrite=True)
    assert (tmp_path / "file").read_text() == "mine" and (tmp_path / "clone" / ".git").is_dir()


@pytest.mark.parametrize("name", ["own encoder-decoder", "gpt2"])
def test_a_folder_is_whole_or_not_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, place = made(name), tmp_path / "model"

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "save", fails)
        patch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", fails)
        with pytest.raises(FolderError, match="free space"):
            subject.save(place)
        assert list(tmp_path.iterdir()) == []
    subject.save(place)
    before = contents(place)
    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "save", fails)
        patch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", fails)
        with pytest.raises(FolderError, match="free space"):
            subject.save(place, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and contents(place) == before


@pytest.mark.parametrize("file", ["source.json", "target.json", "vocabularies.json", "config.json"])
def test_changed_files_are_refused(file: str, tmp_path: Path) -> None:
    folder = made("own encoder-decoder").save(tmp_path / "model")
    text = (folder / file).read_text()
    for changed in (text.replace("0", "1", 1) if "0" in text else text.replace("cat", "dog"), text[:-5], "[]", ""):
        (folder / file).write_text(changed)
        if file == "config.json" and "kind" not in changed:
            continue  # no folder of attnworks any more
        with pytest.raises(FolderError) as found:
            attnworks.open(folder)
        assert file in str(found.value) and "\n" not in str(found.value)
    (folder / file).unlink()
    if file in ("source.json", "target.json"):
        with pytest.raises(FolderError, match=file):
            attnworks.open(folder)


def test_exchanged_vocabularies_are_refused(tmp_path: Path) -> None:
    folder = made("own encoder-decoder").save(tmp_path / "model")
    source, target = (folder / name for name in ("source.json", "target.json"))
    one, other = source.read_bytes(), target.read_bytes()
    source.write_bytes(other)
    target.write_bytes(one)
    with pytest.raises(FolderError, match="changed since"):
        attnworks.open(folder)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_transformers_opens_what_it_can_represent(name: str, tmp_path: Path) -> None:
    subject = made(name)
    folder = subject.save(tmp_path / "model")
    kind: Any = type(subject.model)
    opened = kind.from_pretrained(folder)
    assert weights_fingerprint(opened) == weights_fingerprint(subject.model)
    assert transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"] == [
        *subject._reader.read(Text(TEXT)).ids
    ]
    assert "attnworks" not in json.dumps(json.loads((folder / "config.json").read_text()))


def test_reshaped_models_are_saved_and_opened(tmp_path: Path) -> None:
    model: Any = TINY["gpt2"].build(dtype=torch.float32)
    band = "structured:members=-1..0/first,error=none"
    subject = attnworks.wrap(
        with_mechanisms(model, {Slot("decoder", 1): ("dense", band, "dense")}).eval(), tiny_tokenizer("gpt2")
    )
    folder = subject.save(tmp_path / "model")
    assert "attnworks.open" in (folder / "README.md").read_text()
    opened = attnworks.open(folder)
    assert torch.equal(opened.logits(TEXT), subject.logits(TEXT))
    before, cache = attnworks.trace(model, TEXT, tokenizer=tiny_tokenizer("gpt2")), attnworks.trace(opened, TEXT)
    assert torch.equal(cache["0"].weights, before["0"].weights)
    assert not torch.allclose(cache["1.1"].weights, before["1.1"].weights)
    torch.testing.assert_close(cache["1.0"].outputs, cache["1.0"].weights @ cache["1.0"].V)
    with opened.edit(off="1.1"):
        off = attnworks.trace(opened, TEXT)
        ids = torch.tensor([tiny_tokenizer("gpt2")(TEXT)["input_ids"]])
        torch.testing.assert_close(opened.model(ids).logits[0], off.logits)
    assert not off["1.1"].outputs.any() and not torch.allclose(the(off.logits), the(cache.logits))
    subject.save(folder, overwrite=True)


def test_a_model_of_one_s_own_is_not_saved(tmp_path: Path) -> None:
    subject = adapted(transformer(decoder_layers=0).eval(), "encoder")
    with pytest.raises(UsageError, match="save its state_dict"):
        subject.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_exams_are_opened_too(tmp_path: Path) -> None:
    exam = attnworks.examine(made("gpt2"), LINES, measures=["saturation"], out=tmp_path / "exam")
    opened = attnworks.open(tmp_path / "exam")
    assert isinstance(opened, attnworks.Examination) and set(opened.readings) == set(exam.readings)


def test_a_trained_model() -> None:
    subject = attnworks.open(minilm())
    cache = attnworks.trace(subject, "The cat sat on the mat .")
    assert len(cache) == 6 and cache["3.5"].weights.shape == (9, 9) and cache["3.5"].key_tokens[2] == "cat"
