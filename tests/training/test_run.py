"""Runs: stopped and resumed they make the very same steps; which checkpoints stay; what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnworks
from attnworks.core.errors import FolderError, UnknownNameError, UsageError
from attnworks.core.folders import (
    BEST_POINTER,
    LAST_POINTER,
    best_checkpoint,
    read_pointer,
    read_sealed,
    seal,
    write_pointer,
)
from attnworks.models import Recurrent, Transformer, load_model
from attnworks.models.build import PRESETS
from attnworks.text.vocabulary import EOS, Vocabulary
from attnworks.training import run, run_folder
from attnworks.training.evaluate import mean_loss
from attnworks.training.events import Event, Remark, Saved, StepDone, Validated
from attnworks.training.objectives.language import NextTargetToken
from attnworks.training.run import Run
from attnworks.training.run_folder import delete_checkpoints
from tests.training.training_helpers import (
    SMALL,
    StopAfter,
    metrics_of,
    recipe,
    state_of,
    tensor_sha256,
    weights_of,
    write_pairs,
)


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir())


def straight(corpus: str, folder: Path, **changes: Any) -> Run:
    whole = Run.create(recipe(corpus, **changes), folder)
    whole.train()
    return whole


def in_stretches(corpus: str, folder: Path, stretches: list[int], **changes: Any) -> Run:
    """So many steps at a time, each time by another run object that reads the folder."""
    Run.create(recipe(corpus, **changes), folder)
    for steps in stretches:
        part = Run.resume(folder)
        part.train(should_stop=StopAfter(steps))
        assert read_pointer(folder, LAST_POINTER) is not None
    rest = Run.resume(folder)
    rest.train()
    return rest


# Resuming is exact ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Twelve steps without a stop."""
    home = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for name, config in SMALL.items():
            patch.setitem(PRESETS, name, config)
        yield straight(write_pairs(home / "pairs.tsv"), home / "run")


MORE_STRETCHES = [pytest.param(stretches, marks=pytest.mark.slow) for stretches in ([1], [5], [11])]
"""The twelve stretches of one step stop at every one of these steps, too."""


@pytest.mark.parametrize("stretches", [[0], [3, 4], [1] * 12, *MORE_STRETCHES], ids=str)
def test_stopped_and_resumed_is_the_same_run(corpus: str, tmp_path: Path, whole: Run, stretches: list[int]) -> None:
    parts = in_stretches(corpus, tmp_path / "parts", stretches)
    assert whole.progress.step == 12
    assert state_of(parts) == state_of(whole)
    assert metrics_of(parts.folder) == metrics_of(whole.folder)
    assert [line[:2] for line in metrics_of(whole.folder) if line[0] == "validation"] == [
        ("validation", 5),
        ("validation", 10),
        ("validation", 12),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"preset": "small-lstm", "schedule": "cosine"},
        {"preset": "small-tied", "mechanism": "luong-multiplicative", "vocabulary": "bpe", "vocabulary_size": 70},
        {"dtype": "bfloat16", "accumulate": 1, "validate_every": 100, "clip": 0.05},
    ],
    ids=str,
)
def test_whatever_the_recipe(corpus: str, tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = straight(corpus, tmp_path / "whole", **changes)
    parts = in_stretches(corpus, tmp_path / "parts", [3, 6], **changes)
    assert state_of(parts) == state_of(whole)
    assert metrics_of(parts.folder) == metrics_of(whole.folder)


def test_what_is_on_disk_is_the_run(whole: Run) -> None:
    again = Run.resume(whole.folder)
    assert state_of(again) == state_of(whole)
    assert again.progress == whole.progress
    last = read_pointer(whole.folder, LAST_POINTER)
    assert last is not None and tensor_sha256(weights_of(load_model(last))) == state_of(whole)[1]


def test_more_steps_than_were_planned(corpus: str, tmp_path: Path, whole: Run) -> None:
    short = straight(corpus, tmp_path / "short", steps=7)
    assert short.progress.step == 7
    longer = Run.resume(tmp_path / "short", steps=12)
    longer.train()
    assert state_of(longer) == state_of(whole)

    def training(folder: Path) -> list[Any]:
        return [line for line in metrics_of(folder) if line[0] == "training"]

    assert training(longer.folder) == training(whole.folder)


def test_a_run_that_is_done_stays_as_it_is(tmp_path: Path, whole: Run) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    again = Run.resume(tmp_path / "run")
    again.train()
    assert state_of(again) == state_of(whole)
    assert {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()} == before


def test_another_seed_is_another_run(corpus: str, tmp_path: Path, whole: Run) -> None:
    assert whole.recipe.seed == 11
    assert state_of(straight(corpus, tmp_path / "run", seed=12))[1] != state_of(whole)[1]


def test_a_stretch_that_was_lost_is_made_again(corpus: str, tmp_path: Path, whole: Run) -> None:
    """Steps after the last checkpoint went with the process; their lines in metrics.jsonl go too."""

    class Gone(BaseException):
        pass

    def watch(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 8:
            raise Gone

    cut = Run.create(recipe(corpus), tmp_path / "cut")
    with pytest.raises(Gone):
        cut.train([watch])
    with (tmp_path / "cut" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "training", "ste')
    rest = Run.resume(tmp_path / "cut")
    assert rest.progress.step == 5
    rest.train()
    assert state_of(rest) == state_of(whole)
    assert metrics_of(rest.folder) == metrics_of(whole.folder)


# Where it stops ------------------------------------------------------------------------------------------------------


def test_epochs_are_counted_in_batches(corpus: str, tmp_path: Path) -> None:
    one = Run.create(recipe(corpus, steps=None, epochs=1.5), tmp_path / "run")
    per_epoch = one.fit.order.per_epoch
    assert one.last_step == math.ceil(1.5 * per_epoch / 2)
    assert Run.create(recipe(corpus, steps=2, epochs=1.5), tmp_path / "other").last_step == 2
    assert Run.create(recipe(corpus, steps=None, epochs=1e-9), tmp_path / "third").last_step == 1


def test_minutes(corpus: str, tmp_path: Path) -> None:
    timed = Run.create(recipe(corpus, steps=None, minutes=1e-6), tmp_path / "run")
    assert timed.train().step == 1
    assert read_pointer(tmp_path / "run", BEST_POINTER) is not None
    assert Run.resume(tmp_path / "run").train().step == 1


def test_patience(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [3.0, 2.0, 2.5, 2.0, 1.0, 1.0]
    monkeypatch.setattr(run, "mean_loss", lambda *_, **__: losses.pop(0))
    stuck = Run.create(recipe(corpus, validate_every=2, patience=2), tmp_path / "run")
    progress = stuck.train()
    assert (progress.step, progress.best_step, progress.best_loss) == (8, 4, 2.0)
    assert steps_saved(tmp_path / "run") == [4, 8]
    assert Run.resume(tmp_path / "run").train().step == 8
    assert Run.resume(tmp_path / "run", patience=3).train().step == 12, "more patience goes on"


def test_watchers_are_told_everything_in_order(corpus: str, tmp_path: Path) -> None:
    seen: list[Event] = []
    straight_run = Run.create(recipe(corpus, steps=6), tmp_path / "run")
    straight_run.train([seen.append])
    kinds = [(type(event), event.step) for event in seen]
    expected = [(StepDone, step) for step in range(1, 6)] + [(Validated, 5), (Saved, 5)]
    assert kinds == [*expected, (StepDone, 6), (Validated, 6), (Saved, 6)]
    saved = seen[-1]
    assert isinstance(saved, Saved) and saved.folder == read_pointer(tmp_path / "run", LAST_POINTER)


def test_held_out_loss_is_not_smoothed(corpus: str, tmp_path: Path) -> None:
    """Perplexity is the exponential of the plain loss, whatever the training loss is."""
    seen: list[Event] = []
    done = Run.create(recipe(corpus, steps=2, smoothing=0.3), tmp_path / "run")
    done.train([seen.append])
    (validated,) = [event for event in seen if isinstance(event, Validated)]
    expected = mean_loss(done.model, NextTargetToken(EOS), done.valid_rows, batch_tokens=10_000)
    assert validated.loss == pytest.approx(expected, rel=1e-5)
    assert validated.perplexity == pytest.approx(math.exp(expected), rel=1e-5)


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_best_and_last(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [3.0, 1.0, 2.0, 1.0, 1.5, 4.0]
    monkeypatch.setattr(run, "mean_loss", lambda *_, **__: losses.pop(0))
    kept: dict[int, str] = {}
    best = Run.create(recipe(corpus, validate_every=2), tmp_path / "run")

    def watch(event: Event) -> None:
        if isinstance(event, Saved):
            kept[event.step] = state_of(best)[1]

    best.train([watch])
    assert steps_saved(tmp_path / "run") == [4, 12]
    folder = best_checkpoint(tmp_path / "run")
    assert folder is not None and folder.name == "step-00000004"
    assert tensor_sha256(weights_of(load_model(folder))) == kept[4]
    assert tensor_sha256(weights_of(load_model(tmp_path / "run"))) == kept[4], "loading a run gives its best"
    assert [line[-1] for line in metrics_of(tmp_path / "run", "step", "kind", "best") if line[1] == "validation"] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def test_never_validated_gives_the_last(corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus), tmp_path / "run").train(should_stop=StopAfter(2))
    assert read_pointer(tmp_path / "run", BEST_POINTER) is None
    folder = best_checkpoint(tmp_path / "run")
    assert folder is not None and folder.name == "step-00000002"


@pytest.mark.parametrize(("keep_every", "kept"), [(4, {4, 8, 12}), (5, {5, 10}), (1, set(range(1, 13)))])
def test_keep_every(corpus: str, tmp_path: Path, whole: Run, keep_every: int, kept: set[int]) -> None:
    """A history at those very steps, whenever validation happens to be."""
    straight(corpus, tmp_path / "run", keep_every=keep_every, validate_every=5)
    saved = set(steps_saved(tmp_path / "run"))
    assert kept <= saved and saved - kept <= {5, 10, 12}
    assert state_of(Run.resume(tmp_path / "run")) == state_of(whole)
    assert [line for line in metrics_of(tmp_path / "run") if line[0] == "validation"] == [
        line for line in metrics_of(whole.folder) if line[0] == "validation"
    ]


def test_forgetting_spares_last_and_best_and_clears_leftovers(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = straight(corpus, folder, validate_every=3)
    checkpoints = folder / "checkpoints"
    kept = ("step-99999999", "mine", "step-0000000²", "step-00000003.damaged-1")
    for name in (".step-00000003.abc.partial", ".step-00000003.abc.old", "step-00000003", *kept):
        (checkpoints / name).mkdir(exist_ok=True)
        (checkpoints / name / "junk").write_text("x")
    wanted = {
        read_pointer(folder, LAST_POINTER),
        read_pointer(folder, BEST_POINTER),
        *(checkpoints / name for name in kept),
    }
    delete_checkpoints(folder, None)
    assert set(checkpoints.iterdir()) == wanted
    delete_checkpoints(folder, 7)
    assert set(checkpoints.iterdir()) == wanted
    assert state_of(Run.resume(folder)) == state_of(done)


def remarks_of(run: Run) -> list[str]:
    heard: list[Event] = []
    run.train([heard.append])
    return [event.text for event in heard if isinstance(event, Remark)]


def test_without_last_json_the_newest_whole_checkpoint_is_taken(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = straight(corpus, folder, validate_every=4, keep_every=4)
    (folder / LAST_POINTER).unlink()
    files = {path: path.read_bytes() for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    run = Run.resume(folder)
    assert run.progress.step == done.progress.step and state_of(run) == state_of(done)
    newest = f"step-{done.progress.step:08d}"
    assert remarks_of(run) == [f"last.json is missing; resuming from {newest}, the newest whole checkpoint"]
    assert read_pointer(folder, LAST_POINTER) == folder / "checkpoints" / newest
    assert {path: path.read_bytes() for path in files} == files
    assert remarks_of(Run.resume(folder)) == []


def test_a_newer_checkpoint_that_is_damaged_is_named_and_never_overwritten(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = straight(corpus, folder, validate_every=4, keep_every=4)
    checkpoints, last = folder / "checkpoints", read_pointer(folder, LAST_POINTER)
    assert last is not None
    before = checkpoints / "step-00000004"
    (last / "model.safetensors").write_bytes(b"damaged")
    (folder / LAST_POINTER).unlink()
    run = Run.resume(folder)
    aside = checkpoints / f"{last.name}.damaged-1"
    assert aside.is_dir() and not last.exists()
    assert run.progress.step == max(int(one.name[5:]) for one in checkpoints.iterdir() if one != aside)
    aside.rename(last)
    (folder / LAST_POINTER).unlink()
    write_pointer(folder, LAST_POINTER, before)
    for other in checkpoints.iterdir():
        if other not in (before, last):
            shutil.rmtree(other)
    run = Run.resume(folder)
    newest = f"resuming from {before.name}, the newest whole checkpoint"
    assert run.remarks == [f"{last.name} is damaged; last.json names {before.name}; {newest}"]
    kept = checkpoints / f"{last.name}.damaged-1" / "model.safetensors"
    assert kept.read_bytes() == b"damaged", "renamed before training, which may never save at that step"
    run.train()
    assert kept.read_bytes() == b"damaged"
    assert state_of(Run.resume(folder)) == state_of(done)


def test_without_best_json_the_best_model_is_opened_all_the_same(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = straight(corpus, folder, validate_every=4, keep_every=4)
    last, best = read_pointer(folder, LAST_POINTER), folder / "checkpoints" / "step-00000004"
    assert last is not None and best.is_dir() and best != last
    saved = read_sealed(last / "training.json")
    saved["progress"]["best_step"] = 4
    (last / "training.json").write_bytes(seal(saved))
    (folder / BEST_POINTER).unlink()
    assert best_checkpoint(folder) == best
    shutil.rmtree(best)
    with pytest.raises(FolderError):
        load_model(folder)
    assert done.progress.step > 4


def test_a_damaged_last_json_is_as_good_as_none(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = straight(corpus, folder)
    (folder / LAST_POINTER).write_text("null")
    run = Run.resume(folder)
    assert state_of(run) == state_of(done) and run.remarks[0].startswith("last.json is damaged; resuming from step-")
    assert read_pointer(folder, LAST_POINTER) is not None
    shutil.rmtree(folder / "checkpoints")
    (folder / LAST_POINTER).write_text("null")
    with pytest.raises(FolderError, match="damaged, and there is no checkpoint"):
        Run.resume(folder)


def test_steps_of_more_digits_are_newer(tmp_path: Path) -> None:
    for name in ("step-00000003", "step-99999999", "step-100000000"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    write_pointer(tmp_path, LAST_POINTER, tmp_path / "checkpoints" / "step-99999999")
    delete_checkpoints(tmp_path, None)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-99999999", "step-100000000"}


def test_only_damaged_checkpoints_are_refused(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    straight(corpus, folder)
    (folder / LAST_POINTER).unlink()
    for path in (folder / "checkpoints").glob("*/training.json"):
        path.unlink()
    with pytest.raises(FolderError, match="a whole checkpoint in checkpoints, got last"):
        Run.resume(folder)


def test_killed_between_its_two_pointers_the_best_is_not_lost(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is both last and best takes two files to say so. Killed between, the run goes on as it was."""
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.0, 10: 2.0, 12: 2.0}

    class Killed(BaseException):
        pass

    def train(folder: Path, kill: bool) -> Run:
        going = Run.resume(folder) if folder.exists() else Run.create(recipe(corpus, validate_every=2), folder)
        monkeypatch.setattr(run, "mean_loss", lambda *_, **__: losses[going.progress.step])
        written = 0

        def killing(folder: Path, pointer: str, target: Path) -> None:
            nonlocal written
            written += target.name == "step-00000004"
            if kill and written == 2:
                raise Killed
            point(folder, pointer, target)

        with monkeypatch.context() as patch:
            point = run_folder.write_pointer
            patch.setattr(run_folder, "write_pointer", killing)
            going.train()
        return going

    with pytest.raises(Killed):
        train(tmp_path / "run", kill=True)
    done = train(tmp_path / "run", kill=False)
    assert done.progress.best_step == 4
    best = read_pointer(tmp_path / "run", BEST_POINTER)
    assert best is not None and best.name == "step-00000004"
    assert steps_saved(tmp_path / "run") == [4, 12]


def test_a_folder_that_does_not_say_its_model(corpus: str, tmp_path: Path, whole: Run) -> None:
    """As runs were written before presets changed: the model is that of the checkpoint, or the preset as it was."""
    for stretches in ([], [4]):
        folder = tmp_path / f"run{len(stretches)}"
        Run.create(recipe(corpus), folder)
        for steps in stretches:
            Run.resume(folder).train(should_stop=StopAfter(steps))
        saved = read_sealed(folder / "run.json")
        assert saved.pop("model")["kind"] == "transformer"
        (folder / "run.json").write_bytes(seal({name: value for name, value in saved.items() if name != "sha256"}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(PRESETS, "small", replace(SMALL["small"], norm="pre", initialisation="normal"))
            again = Run.resume(folder)
            again.train()
        assert state_of(again) == state_of(whole)


# What is refused -----------------------------------------------------------------------------------------------------


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_existing_place(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(FolderError, match="path that does not exist yet") as caught:
        Run.create(recipe(corpus), tmp_path / "there")
    assert "--resume" in one_line(caught)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="nothing there"):
        Run.resume(tmp_path / "nowhere")
    with pytest.raises(FolderError, match="a folder without it"):
        Run.resume(tmp_path)


def test_another_corpus_under_the_old_name(corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus), tmp_path / "run").train(should_stop=StopAfter(1))
    path = tmp_path / "pairs.tsv"
    text = path.read_text()
    path.write_text(text.replace("Maria vede pane", "Maria vede il pane"))
    with pytest.raises(FolderError, match="other sentences") as caught:
        Run.resume(tmp_path / "run")
    one_line(caught)
    path.write_text(text)
    Run.resume(tmp_path / "run").train()


def test_a_corpus_that_is_gone(corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus), tmp_path / "run")
    (tmp_path / "pairs.tsv").unlink()
    with pytest.raises(FolderError) as caught:
        Run.resume(tmp_path / "run")
    one_line(caught)


def test_a_recipe_that_was_edited(corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus), tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    text = path.read_text()
    path.write_text(text.replace('"seed": 11', '"seed": 12'))
    with pytest.raises(FolderError, match="changed since"):
        Run.resume(tmp_path / "run")
    path.write_text(text.replace("\n", "\r\n"), newline="")
    with pytest.raises(FolderError, match="changed since"):
        Run.resume(tmp_path / "run")


def test_a_vocabulary_of_another_run(corpus: str, tmp_path: Path) -> None:
    """It loads, and has the right size, but its words are others: silently wrong, if nobody looked."""
    Run.create(recipe(corpus), tmp_path / "run")
    path = tmp_path / "run" / "target.json"
    before = len(Vocabulary.load(path))
    path.write_text(path.read_text().replace('"pane"', '"vino"'))
    assert len(Vocabulary.load(path)) == before
    with pytest.raises(FolderError) as caught:
        Run.resume(tmp_path / "run")
    assert "target.json" in one_line(caught)


def test_unknown_names_are_told_before_a_folder_is_made(corpus: str, tmp_path: Path) -> None:
    for changes in ({"preset": "smalll"}, {"mechanism": "danse"}, {"corpus": "gramar"}):
        with pytest.raises(UnknownNameError):
            Run.create(recipe(**({"corpus": corpus} | changes)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_changes_on_resume_are_checked(corpus: str, tmp_path: Path) -> None:
    Run.create(recipe(corpus), tmp_path / "run")
    with pytest.raises(UsageError, match="steps=0"):
        Run.resume(tmp_path / "run", steps=0)


# Corners -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_a_corpus_of_one_pair(tmp_path: Path, pairs: int) -> None:
    """With fewer than three pairs nothing is held out: no validation loss, no scores, and still a run."""
    corpus = write_pairs(tmp_path / "few.tsv", pairs)
    few = straight(corpus, tmp_path / "run", steps=6)
    assert few.progress.step == 6
    assert read_pointer(tmp_path / "run", LAST_POINTER) is not None
    assert (few.progress.best_loss is None) == (pairs < 3)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = Run.resume(tmp_path / "run", steps=7)
    assert again.train().step == 7


def test_fewer_pairs(corpus: str, tmp_path: Path) -> None:
    some = Run.create(recipe(corpus, pairs=7), tmp_path / "run")
    assert len(some.train_rows) == 7
    assert len(Run.resume(tmp_path / "run").train_rows) == 7


def test_tied_embeddings_share_one_vocabulary(corpus: str, tmp_path: Path) -> None:
    tied = Run.create(recipe(corpus, preset="small-tied"), tmp_path / "run")
    assert tied.source.tokenizer.to_str() == tied.target.tokenizer.to_str()
    assert tied.source.encode(["pane"]) != [1]
    plain = Run.create(recipe(corpus), tmp_path / "plain")
    assert plain.source.encode(["pane"]) == [1]


def test_the_recipe_reaches_the_model(corpus: str, tmp_path: Path) -> None:
    made = Run.create(recipe(corpus, dropout=0.37, mechanism="luong-dot"), tmp_path / "run")
    assert isinstance(made.model, Transformer)
    assert made.model.config.dropout == 0.37
    assert made.model.config.attention.mechanism == "luong-dot"
    assert made.model.config.vocabulary == len(made.source) and made.model.config.target_size == len(made.target)
    recurrent = Run.create(recipe(corpus, preset="small-lstm", mechanism="luong-dot"), tmp_path / "lstm")
    assert isinstance(recurrent.model, Recurrent) and recurrent.model.config.mechanism == "luong-dot"


def test_scores_come_with_validation(corpus: str, tmp_path: Path, whole: Run) -> None:
    pytest.importorskip("sacrebleu")
    unscored = straight(corpus, tmp_path / "plain", score_sentences=0)
    scored, plain = (
        [line[1] for line in metrics_of(run.folder, "kind", "bleu") if line[0] == "validation"]
        for run in (whole, unscored)
    )
    assert all(isinstance(score, float) for score in scored) and plain == [None] * 3


def test_translations_of_the_model_as_it_is(corpus: str, tmp_path: Path) -> None:
    """Enough steps and the pairs are known by heart, in any order and with an empty sentence between."""
    changes = {"steps": 120, "dropout": 0.0, "warmup": 10, "validate_every": 120, "batch_tokens": 300, "accumulate": 1}
    learnt = straight(corpus, tmp_path / "run", **changes)
    pairs = [learnt.corpus.train[index] for index in (3, 11, 7)]
    sources = [pairs[0].words[0], (), pairs[1].words[0], pairs[2].words[0]]
    expected = [" ".join(pairs[0].words[1]), "", " ".join(pairs[1].words[1]), " ".join(pairs[2].words[1])]
    assert learnt.translate(sources) == expected
    scores = learnt.score("test")
    assert scores is None or 0 <= scores.bleu <= 100


def test_text_as_people_write_it(tmp_path: Path) -> None:
    """Raw sentences in, raw sentences out, and the standard signature; tokens between blanks are named as such."""
    spec = write_pairs(tmp_path / "pairs.tsv")
    path = tmp_path / "natural.tsv"
    path.write_text((tmp_path / "pairs.tsv").read_text().replace(" .", ".").replace("la mela", "l'amica"))
    changes = {"steps": 120, "dropout": 0.0, "warmup": 10, "validate_every": 120, "batch_tokens": 300, "accumulate": 1}
    natural = straight(f"tsv:{path}", tmp_path / "natural", **changes)
    assert natural.target.has_joiners and not natural.source.has_joiners
    pairs = natural.corpus.train[:9]
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    made = attnworks.translate(natural.folder, [pair.source.text for pair in pairs])
    assert [[pair.source.text, text] for pair, text in zip(pairs, made, strict=True)] == [
        line for pair in pairs for line in lines if line[0] == pair.source.text
    ]
    spaced, empty, joined = attnworks.translate(natural.folder, ["Luca sees bread .", "", "Luca sees bread."])
    assert (spaced, empty) == (joined, "") and joined.endswith(".") and not joined.endswith(" .")
    pytest.importorskip("sacrebleu")
    scores = natural.score("valid"), straight(spec, tmp_path / "spaced", steps=1).score("valid")
    assert ["tok:13a" in score.signature for score in scores if score is not None] == [True, False]
    assert "tok:none" in (scores[1].signature if scores[1] is not None else "")


def test_changes_on_resume_are_remembered_and_replace_every_limit(corpus: str, tmp_path: Path) -> None:
    made = straight(corpus, tmp_path / "run", steps=2)
    assert Run.resume(made.folder, epochs=1.5, learning_rate=0.01).recipe.steps is None
    again = Run.resume(made.folder)
    assert (again.recipe.epochs, again.recipe.steps, again.recipe.learning_rate) == (1.5, None, 0.01)


def test_sentences_too_long_for_the_mechanism_are_refused_before_anything_is_written(
    corpus: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"at most 3; set length=\d+ or more in --mechanism"):
        Run.create(recipe(corpus, mechanism="linformer:length=3,rank=2"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["", "nowhere", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device: str, corpus: str, tmp_path: Path) -> None:
    straight(corpus, tmp_path / "run", steps=1)
    unusable = f"^device {device}: expected a device that torch can use, got "
    unknown = f"^device: expected cpu, cuda, cuda:1 or mps, got '{device}'; use cpu$"
    with pytest.raises(UsageError, match=unusable if device == "cuda:99" else unknown):
        Run.resume(tmp_path / "run", device=device)
