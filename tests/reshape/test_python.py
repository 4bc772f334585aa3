"""Reshaping from Python, through the public names."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console

import attnworks
from attnworks.core.errors import FolderError, UsageError
from attnworks.models.build import PRESETS
from attnworks.models.folder import weights_fingerprint
from attnworks.page.inputs import read_advice
from attnworks.reshape import NoBottleneckError, Reshape, ReshapeContext, ReshapeResult
from attnworks.reshape.losses import LossIntervals
from attnworks.reshape.pruning.ranking import RANKINGS
from tests.exam_helpers import LINES, tiny_folder, tiny_run, write_lines
from tests.reshape.reshape_helpers import PASSAGES, WORDS, files_of, model_of
from tests.training.training_helpers import SMALL

FEW: dict[str, Any] = {"pairs": 50, "sentences": 5}


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])


@pytest.fixture(scope="module")
def run() -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "small", SMALL["small"])
        return tiny_run()


@dataclass(frozen=True)
class Louder(Reshape):
    """A reshape of one's own that nobody registered."""

    factor: float = 1.0
    name: ClassVar[str] = "louder"

    def make(self, context: ReshapeContext) -> ReshapeResult:
        model = copy.deepcopy(context.model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "W_O" in name:
                    parameter.mul_(self.factor)
        return ReshapeResult(model, {"all": f"times {self.factor}"}, rise=0.0)


@pytest.mark.parametrize(
    ("verb", "options", "title"),
    [
        ("prune", {"keep": 0.5, "by": "random"}, "Cut 3 of 6 heads (ranked by random)"),
        ("prune", {"heads": "enc.0.0"}, "Cut 1 of 6 heads (enc.0.0)"),
        ("grow", {"where": "enc.0.0:keys=1", "by": "zero"}, "Grew attention in 1 place (enc.0.0:keys=1)"),
        ("swap", {"to": "window:window=2", "layers": "enc.0"}, "Swapped attention in 1 layer (enc.0)"),
        ("project", {"heads": "enc.0.*", "form": "mean"}, "Replaced 2 heads by fixed forms (enc.0.*)"),
    ],
)
def test_a_path_and_a_folder_for_the_outcome(
    verb: str, options: dict[str, Any], title: str, run: Path, tmp_path: Path
) -> None:
    before, out = files_of(run), tmp_path / "new"
    new, receipt = getattr(attnworks, verb)(run, **options, **FEW, out=out)
    assert isinstance(new, attnworks.Subject) and isinstance(receipt, attnworks.Receipt)
    assert new.folder == out and receipt.title == title and receipt.summary.startswith(f"{title}: loss ")
    (kept,) = attnworks.history(out)
    assert kept == receipt and files_of(run) == before
    opened = attnworks.open(out)
    assert weights_fingerprint(opened.model) == weights_fingerprint(new.model) == receipt.fingerprint[1]
    assert attnworks.undo(out, tmp_path / "back") == receipt
    assert attnworks.history(tmp_path / "back") == []


def test_one_after_the_other_and_again(run: Path, tmp_path: Path) -> None:
    pruned, first = attnworks.prune(attnworks.open(run), heads="enc.0.0", **FEW, out=tmp_path / "pruned")
    _, second = attnworks.project(pruned, heads="enc.0.0", form="mean", **FEW, out=tmp_path / "projected")
    assert list(attnworks.history(tmp_path / "projected")) == [first, second]
    replayed = attnworks.replay(tmp_path / "projected", run, tmp_path / "again")
    assert [then for then, _ in replayed] == [first, second]
    assert all(then.fingerprint == now.fingerprint for then, now in replayed)
    assert "The weights are those of the model that was replayed, bit for bit." in shown(replayed)
    assert [pair["then"] for pair in replayed.to_json()["replayed"]] == [first.to_json(), second.to_json()]


def test_a_model_in_memory() -> None:
    model = model_of(torch.float32)
    new, receipt = attnworks.prune(model, PASSAGES, tokenizer=WORDS, heads="enc.0.0", sentences=2)
    assert new.folder is None and new.model is not model and receipt.text["evaluation"] == 2
    again, _ = attnworks.prune(new, PASSAGES, heads="enc.0.0", sentences=2)
    assert sum(p.numel() for p in again.model.parameters()) < receipt.parameters.after


@pytest.mark.parametrize("verb", ["prune", "grow", "swap", "project", "apply"])
def test_a_model_in_memory_has_no_history_to_keep(verb: str, tmp_path: Path) -> None:
    options: dict[str, dict[str, Any]] = {
        "prune": {"heads": "enc.0.0"}, "grow": {"where": "enc.0.0:keys=1"}, "project": {"heads": "enc.0.0"},
        "swap": {"to": "linear", "layers": "enc.0"}, "apply": {"reshape": Louder()},
    }  # fmt: skip
    with pytest.raises(UsageError) as error:
        getattr(attnworks, verb)(model_of(), texts=PASSAGES, tokenizer=WORDS, **options[verb], out=tmp_path / "new")
    assert "out=: expected a model that was opened from a folder" in str(error.value)
    assert "Subject.save" in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_place_that_is_taken_is_refused_first(run: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="existing"):
        attnworks.prune("nowhere", heads="enc.0.0", out=tmp_path)


def test_a_reshape_of_ones_own() -> None:
    model = model_of(torch.float32)
    same, nothing = attnworks.apply(model, Louder(), PASSAGES, tokenizer=WORDS)
    assert weights_fingerprint(same.model) == nothing.fingerprint[0] and nothing.loss.after == nothing.loss.before
    _, receipt = attnworks.apply(model, Louder(3.0), PASSAGES, tokenizer=WORDS, heal=2, learning_rate=1e-4)
    assert receipt.title == "Changed 1 place by louder" and receipt.asked == {"factor": 3.0}
    assert receipt.loss.after != receipt.loss.before and receipt.healing.steps == 2
    assert "after 2 steps of healing" in receipt.summary


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        ("prune", {}, "expected keep or budget or heads, got none of them"),
        ("prune", {"keep": 0.5, "heads": "enc.0.0"}, "expected keep or budget or heads, got keep and heads"),
        ("grow", {}, "expected add or where, got neither"),
        ("grow", {"add": 2, "where": "enc.0.0:keys=1"}, "got both"),
        ("swap", {"layers": "enc.0"}, "name one mechanism"),
        ("swap", {"to": "windov"}, "did you mean 'window'?"),
        ("advise", {"to": ["windov"]}, "did you mean 'window'?"),
        ("advise", {"length": 1}, "length"),
        ("project", {"heads": "enc.9.*"}, "enc.9.*"),
    ],
)
def test_mistakes(verb: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((UsageError, LookupError)) as error:
        getattr(attnworks, verb)(model_of(), PASSAGES, tokenizer=WORDS, **options)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_advice(tmp_path: Path) -> None:
    folder, lines = tiny_folder("bert"), write_lines(tmp_path / "lines.txt", LINES * 3)
    events: list[str] = []
    advice = attnworks.advise(
        folder, lines, to="window:window=2", max_error=1.0, length=64, objective="mlm",
        progress=lambda stage, done, total: events.append(stage),
    )  # fmt: skip
    assert isinstance(advice, attnworks.Advice) and advice.max_error == 1.0 and advice.model == str(folder)
    assert "trying mechanisms" in events and advice.length == 64
    assert (advice.command is None) == (not advice.chosen)
    if advice.command is not None:
        assert advice.command.startswith(f"attnworks swap {folder} --layers ") and " --length 64 " in advice.command
        assert advice.command.endswith(f" --text {lines} --objective mlm --out FOLDER")
    file = tmp_path / "advice.json"
    file.write_text(json.dumps(advice.to_json()))
    assert read_advice(file) == advice
    file.write_text(json.dumps({**advice.to_json(), "max_error": 0.5}))
    with pytest.raises(FolderError, match="changed since"):
        read_advice(file)
    advice.plot(tmp_path / "advice.svg")
    assert (tmp_path / "advice.svg").read_text().startswith("<?xml")
    assert "window:window=2" in shown(advice) and "window:window=2" in advice._repr_html_()


def test_growth_that_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.reshape.growth.score.MIN_TRUST", 1e9)
    with pytest.raises(NoBottleneckError):
        attnworks.grow(model_of(torch.float32), PASSAGES, tokenizer=WORDS, where="enc.0.0:values=1")


def shown(result: Any, width: int = 200) -> str:
    with (screen := Console(width=width)).capture() as captured:
        screen.print(result)
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_receipts_show_themselves(width: int) -> None:
    model = model_of(torch.float32)
    new, receipt = attnworks.prune(model, PASSAGES, tokenizer=WORDS, keep=0.5, by="gradient", compare=True, sentences=3)
    del new
    found = shown(receipt, width)
    assert " ".join(found.split()).startswith(receipt.summary)
    assert receipt.summary.startswith("Cut 6 of 12 heads (ranked by gradient): loss ")
    assert "% fewer parameters" in receipt.summary and all(len(line) <= width for line in found.splitlines())
    for ranking in RANKINGS:
        assert ranking in found.replace("\n", "") or width <= 80, ranking
    assert found.count(" %  ") >= 10 and "90 %" in found and "…" not in found
    assert "Cut 6 of 12 heads" in receipt._repr_html_() and receipt.to_json()["reshape"] == "prune"


def test_what_is_missing_of_a_comparison_is_said() -> None:
    _, receipt = attnworks.grow(
        model_of(torch.float32), PASSAGES, tokenizer=WORDS, where="enc.0.0:values=1", by="zero", compare=True
    )
    assert "comparison with document" in receipt.left_out and "loss_by_document" not in receipt.facts
    assert "Left out: comparison with document: " in shown(receipt)


def test_a_history_shows_itself(run: Path, tmp_path: Path) -> None:
    assert shown(attnworks.history(run)).strip() == f"{run} was never reshaped."
    _, receipt = attnworks.prune(run, heads="enc.0.0", **FEW, out=tmp_path / "new")
    found = attnworks.history(tmp_path / "new")
    assert shown(found).startswith("1. Cut 1 of ") and found.to_json() == {"receipts": [receipt.to_json()]}
    assert "1. Cut 1 of " in found._repr_html_()


def test_changes_in_words() -> None:
    model = model_of(torch.float32)
    _, receipt = attnworks.prune(model, PASSAGES, tokenizer=WORDS, heads="enc.0.0", sentences=2)
    loss = replace(receipt.loss, intervals=LossIntervals(rise=(0.07, 0.11)))
    made = replace(receipt, loss=replace(loss, before=2.31, after=2.40), time=0.8, time_interval=(0.7, 0.9))
    made = replace(made, parameters=replace(made.parameters, before=100, after=88))
    told = "loss 2.31 -> 2.4 (+0.09, 95 % interval +0.07 to +0.11), perplexity 10.1 -> 11"
    assert made.summary.partition(": ")[2] == f"{told}, 12 % fewer parameters, 1.25x faster"
    made, loss = replace(made, objective="embedding"), replace(loss, intervals=None)
    slow = replace(made, time=1.25, time_interval=(1.2, 1.3), loss=replace(loss, before=2.0, after=2.0))
    assert slow.summary.partition(": ")[2] == "loss unchanged at 2, 12 % fewer parameters, 1.25x slower"
    same = replace(slow, time_interval=(0.9, 1.3), loss=replace(loss, before=0.0, after=0.25))
    assert same.summary.partition(": ")[2].startswith("loss 0 -> 0.25 (+0.25), ")
    assert same.summary.endswith("no measurable change in speed")


def test_the_outcome_keeps_its_type_beside_a_folder(run: Path, tmp_path: Path) -> None:
    subject = attnworks.open(run, dtype="float64")
    new, _ = attnworks.prune(subject, heads="enc.0.0", out=tmp_path / "pruned", **FEW)
    assert {parameter.dtype for parameter in new.model.parameters()} == {torch.float64}


def test_a_model_that_was_changed_in_memory_has_no_history_to_keep(run: Path, tmp_path: Path) -> None:
    subject = attnworks.open(run)
    with torch.no_grad():
        next(subject.model.parameters()).add_(0.1)
    with pytest.raises(UsageError, match="changed in memory"):
        attnworks.prune(subject, heads="enc.0.0", out=tmp_path / "pruned", **FEW)
    assert not (tmp_path / "pruned").exists()


def test_a_history_is_not_overwritten(tmp_path: Path) -> None:
    new, _ = attnworks.prune(str(tiny_folder("bert")), LINES * 4, heads="0.0", out=tmp_path / "pruned", **FEW)
    with pytest.raises(FolderError, match="a history of reshapes"):
        new.save(tmp_path / "pruned", overwrite=True)
    assert len(attnworks.history(tmp_path / "pruned")) == 1


def test_text_of_receipts_is_no_markup(run: Path) -> None:
    _, receipt = attnworks.prune(run, heads="enc.0.0", **FEW)
    odd = replace(receipt, done={"enc.0.1": "gone [/b]", "enc.0.2": "[red]red"})
    assert "gone [/b]" in shown(odd) and "[red]red" in shown(odd)
