"""Opening a run to use it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnworks.core.errors import FolderError
from attnworks.core.folders import BEST_POINTER, read_pointer
from attnworks.models.decoding import Hypothesis
from attnworks.models.decoding.translate import trace_translation
from attnworks.text.vocabulary import BOS, EOS
from attnworks.traces.own import OwnSubject
from attnworks.training import run as run_module
from attnworks.training.run import Run
from tests.training.training_helpers import StopAfter, recipe, tensor_sha256, weights_of


def test_the_best_is_opened(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [1.0, 2.0]
    monkeypatch.setattr(run_module, "mean_loss", lambda *_, **__: losses.pop(0))
    done = Run.create(recipe(corpus, steps=4, validate_every=2), tmp_path / "run")
    seen: list[str] = []
    done.train([lambda event: seen.append(tensor_sha256(weights_of(done.model)))])
    trained = OwnSubject.open(str(tmp_path / "run"))
    assert not trained.model.training
    best = read_pointer(tmp_path / "run", BEST_POINTER)
    assert best is not None and best.name.endswith("2")
    assert tensor_sha256(weights_of(trained.model)) == seen[1] != seen[-1]
    assert trained.vocabularies[0].tokenizer.to_str() == done.source.tokenizer.to_str()


def test_a_run_that_was_never_validated(corpus: str, tmp_path: Path) -> None:
    made = Run.create(recipe(corpus), tmp_path / "run")
    with pytest.raises(FolderError, match="a checkpoint, got none yet"):
        OwnSubject.open(str(tmp_path / "run"))
    made.train(should_stop=StopAfter(1))
    assert tensor_sha256(weights_of(OwnSubject.open(str(tmp_path / "run")).model)) == tensor_sha256(
        weights_of(made.model)
    )


@pytest.mark.parametrize("preset", ["small", "small-lstm"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_types(preset: str, dtype: str, corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus, preset=preset), tmp_path / "run").train(should_stop=StopAfter(1))
    trained = OwnSubject.open(str(tmp_path / "run"), dtype=dtype)
    assert {parameter.dtype for parameter in trained.model.parameters()} == {getattr(torch, dtype)}


def test_a_trace_shows_what_was_read_and_written(corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus), tmp_path / "run").train(should_stop=StopAfter(1))
    trained = OwnSubject.open(str(tmp_path / "run"))
    sentence = ("Luca", "sees", "zebras")
    written = trained.vocabularies[1].encode(["Luca", "vede"])
    trace = trace_translation(
        trained.model, *trained.vocabularies, sentence, Hypothesis(tuple(written), -1.0, -1.0, True), beams=2
    )
    assert trace["source"] == ["Luca", "sees", "<unk>", "<eos>"]
    assert trace["read"] == ["<bos>", "Luca", "vede"]
    assert trace["translation"] == ["Luca", "vede"]
    source = torch.tensor([[*trained.vocabularies[0].encode(sentence), EOS]])
    maps: list[torch.Tensor] = []

    def keep(layer) -> None:
        maps.append(layer.P)

    with torch.no_grad():
        trained.model(source, torch.tensor([[BOS, *written]]), observe=keep)
    for layer, P in zip(trace["attention"], maps, strict=True):
        torch.testing.assert_close(torch.tensor(layer["weights"]), P[0])
    first = trace["beam"][0]
    assert {candidate["parent"] for kind in ("kept", "ended") for candidate in first[kind]} == {0}


def test_an_empty_translation_has_a_trace(corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus), tmp_path / "run").train(should_stop=StopAfter(1))
    trained = OwnSubject.open(str(tmp_path / "run"))
    empty = Hypothesis((), -1.0, -1.0, True)
    trace = trace_translation(trained.model, *trained.vocabularies, ("Luca",), empty)
    assert trace["read"] == ["<bos>"] and trace["translation"] == []
    assert all(len(head) == len(layer["queries"]) for layer in trace["attention"] for head in layer["weights"])
