"""What was done to a model and how to undo it: folders, receipts, replaying, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from attnworks.cli import main
from attnworks.core.errors import AttnworksError, FolderError, UsageError
from attnworks.core.folders import BEST_POINTER, LAST_POINTER, best_checkpoint, read_pointer, seal, sha256
from attnworks.models import Transformer
from attnworks.models.build import PRESETS
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.history import ModelFolder, receipts, replay, undo, write_outcome
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import ReshapeSettings
from attnworks.reshape.surgery import mechanisms_of
from attnworks.reshape.texts import split_file
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.own import OwnSubject
from attnworks.training.run import Run
from tests.exam_helpers import LINES, save_tiny, write_lines
from tests.reshape.reshape_helpers import files_of, load, project_folder, small_run, texts, without_time
from tests.training.training_helpers import SMALL, recipe, write_pairs


class Chain:
    """A run, and what became of it: the encoder's heads projected, then one of the decoder's with some healing."""

    def __init__(self, home: Path) -> None:
        self.run = small_run(home / "home")
        self.files = files_of(self.run)
        home = home / "home"
        self.first, self.second = home / "first", home / "second"
        self.done = [project_folder(self.run, "enc.*", self.first, eps=0.1, sparsity=0.3)]
        self.files_first = files_of(self.first)
        self.done.append(
            project_folder(self.first, "dec.0.1", self.second, settings=ReshapeSettings(steps=2, learning_rate=1e-3))
        )


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])


def refused(error: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def same_but_for_time(one: Receipt, other: Receipt) -> bool:
    return without_time(one) == without_time(other)


# Runs ----------------------------------------------------------------------------------------------------------------


def test_receipts_first_to_last(chain: Chain) -> None:
    assert receipts(chain.run) == []
    assert receipts(chain.first) == chain.done[:1] and receipts(chain.second) == chain.done
    first, second = chain.done
    assert list(first.done) == ["enc.0.0", "enc.0.1"] and list(second.done) == ["dec.0.1"]
    assert first.fingerprint[1] == second.fingerprint[0] == weights_fingerprint(load(chain.first))
    assert second.fingerprint[1] == weights_fingerprint(load(chain.second))
    assert second.loss.before == first.loss.after and second.loss.healed is not None
    assert second.parameters.before == first.parameters.after < first.parameters.before


def test_old_folders_stay_as_they_are(chain: Chain) -> None:
    assert files_of(chain.run) == chain.files and files_of(chain.first) == chain.files_first


def test_a_new_folder_is_a_run(chain: Chain) -> None:
    names = {path.name for path in chain.second.iterdir()}
    assert names == {"run.json", "source.json", "target.json", "best.json", "last.json", "checkpoints", "history"}
    assert {path.name for path in (chain.second / "history").iterdir()} == {"0", "1"}
    assert (
        read_pointer(chain.second, BEST_POINTER)
        == read_pointer(chain.second, LAST_POINTER)
        == best_checkpoint(chain.second)
    )
    for name in ("run.json", "source.json", "target.json"):
        assert (chain.second / name).read_bytes() == (chain.run / name).read_bytes()
    assert all(path.stat().st_mode & 0o777 in (0o644, 0o755) for path in chain.second.rglob("*"))


def test_undoing_gives_the_files_of_before(chain: Chain, tmp_path: Path) -> None:
    assert undo(str(chain.second), tmp_path / "one") == chain.done[1]
    assert files_of(tmp_path / "one") == chain.files_first
    assert undo(str(tmp_path / "one"), tmp_path / "none") == chain.done[0]
    old, back = best_checkpoint(chain.run), best_checkpoint(tmp_path / "none")
    assert old is not None and back is not None and files_of(back) == files_of(old)
    kept = {name: data for name, data in chain.files.items() if name != "metrics.jsonl"}
    assert {name: data for name, data in files_of(tmp_path / "none").items() if name in kept} == kept
    assert not (tmp_path / "none" / "history").exists()
    assert weights_fingerprint(load(tmp_path / "none")) == chain.done[0].fingerprint[0]


def test_nothing_to_undo(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(FolderError) as error:
        undo(str(chain.run), tmp_path / "out")
    assert "expected a model that was reshaped, got no history" in refused(error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_places_that_are_taken(chain: Chain, tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    if what == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    before = files_of(tmp_path)
    model = load(chain.second)
    for attempt in (
        lambda: undo(str(chain.second), out),
        lambda: replay(str(chain.second), str(chain.run), out),
        lambda: write_outcome(model, chain.done[1], ModelFolder.of(str(chain.first)), out),
    ):
        with pytest.raises(FolderError) as error:
            attempt()
        assert "an existing file or folder" in refused(error) and "choose another --out" in refused(error)
    assert files_of(tmp_path) == before


def test_doing_it_again_gives_the_same_bits(chain: Chain, tmp_path: Path) -> None:
    pairs = replay(str(chain.second), str(chain.run), tmp_path / "again")
    assert [then for then, _ in pairs] == chain.done
    assert all(same_but_for_time(then, now) for then, now in pairs)
    assert weights_fingerprint(load(tmp_path / "again")) == chain.done[1].fingerprint[1]
    assert receipts(tmp_path / "again") == [now for _, now in pairs]
    assert {path.name for path in tmp_path.iterdir()} == {"again"}, "what was in between is gone"
    undo(str(tmp_path / "again"), tmp_path / "back")
    assert weights_fingerprint(load(tmp_path / "back")) == chain.done[0].fingerprint[1]


def test_doing_it_to_another_model(chain: Chain, tmp_path: Path) -> None:
    longer = Run.resume(Path(shutil.copytree(chain.run, tmp_path / "other")), steps=5)
    longer.train()
    ((then, now),) = replay(str(chain.first), str(tmp_path / "other"), tmp_path / "out")
    assert then.asked == now.asked and then.fingerprint != now.fingerprint
    assert now.fingerprint[0] == weights_fingerprint(load(tmp_path / "other"))


def test_nothing_to_do_again(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(FolderError) as error:
        replay(str(chain.run), str(chain.run), tmp_path / "out")
    assert "got no history" in refused(error)


def test_a_reshaped_run_goes_on(chain: Chain, tmp_path: Path) -> None:
    run = Run.resume(Path(shutil.copytree(chain.second, tmp_path / "run")), steps=6)
    assert run.progress.step == 3 and weights_fingerprint(run.model) == chain.done[1].fingerprint[1]
    assert isinstance(run.model, Transformer)
    assert mechanisms_of(run.model) == mechanisms_of(load(chain.second))
    run.train()
    assert run.progress.step == 6 and run.progress.best_step == 6
    trained = load(tmp_path / "run")
    assert mechanisms_of(trained) == mechanisms_of(run.model) and weights_fingerprint(trained) == weights_fingerprint(
        run.model
    )
    again = Run.resume(tmp_path / "run")
    assert weights_fingerprint(again.model) == weights_fingerprint(run.model) and again.optimizer.state
    assert receipts(tmp_path / "run") == chain.done
    undo(str(tmp_path / "run"), tmp_path / "back")
    assert weights_fingerprint(load(tmp_path / "back")) == chain.done[1].fingerprint[0]


def test_a_reshaped_run_translates(chain: Chain) -> None:
    run, trained = Run.resume(chain.second), OwnSubject.open(str(chain.second))
    sentences = [["the", "cat", "sees", "bread", "."], ["she", "eats", "."]]
    assert [type(text) for text in run.translate(sentences)] == [str, str]
    assert isinstance(trained.vocabularies[1], Vocabulary)
    assert weights_fingerprint(trained.model) == weights_fingerprint(run.model)


def test_every_head_of_a_run(chain: Chain, tmp_path: Path) -> None:
    """No layer of the encoder or the decoder looks at queries and keys; cross-attention does."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copyfile(chain.run.parent / "pairs.tsv", home / "pairs.tsv")
    shutil.copytree(chain.run, home / "run")
    receipt = project_folder(home / "run", "*", home / "all", form="mix")
    assert len(receipt.done) == 4
    run = Run.resume(home / "all", steps=5)
    run.train()
    assert run.progress.step == 5 and weights_fingerprint(load(home / "all")) == weights_fingerprint(run.model)


def test_what_a_mechanism_drew_is_kept(tmp_path: Path) -> None:
    """Buffers of a reshaped model cannot be drawn again from the seed of its run."""
    corpus = write_pairs(tmp_path / "pairs.tsv")
    by_position = "structured:members=-1/first/mean,error=none,learned=false"
    Run.create(recipe(corpus, steps=1, mechanism=by_position), tmp_path / "run").train()
    project_folder(tmp_path / "run", "enc.0.1", tmp_path / "out", form="self")
    assert weights_fingerprint(Run.resume(tmp_path / "out").model) == weights_fingerprint(load(tmp_path / "out"))


# Models of Hugging Face ----------------------------------------------------------------------------------------------


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    source, given = save_tiny("bert", tmp_path / "bert"), split_file(write_lines(tmp_path / "text.txt", LINES * 2))
    (source / "README.md").write_text("# A model\n")
    before = files_of(source)
    first = project_folder(source, "0.*", tmp_path / "first", given)
    between = files_of(tmp_path / "first")
    second = project_folder(
        tmp_path / "first", "1.2,0.0", tmp_path / "second", given, settings=ReshapeSettings(steps=1, learning_rate=1e-4)
    )
    assert files_of(source) == before and files_of(tmp_path / "first") == between
    assert receipts(tmp_path / "second") == [first, second] and first.fingerprint[1] == second.fingerprint[0]
    assert (tmp_path / "second" / "tokenizer.json").read_bytes() == before["tokenizer.json"]
    undo(str(tmp_path / "second"), tmp_path / "one")
    assert files_of(tmp_path / "one") == between
    undo(str(tmp_path / "one"), tmp_path / "none")
    assert files_of(tmp_path / "none") == before
    pairs = replay(str(tmp_path / "second"), str(source), tmp_path / "again")
    assert [now.fingerprint for _, now in pairs] == [first.fingerprint, second.fingerprint]
    write_lines(tmp_path / "text.txt", LINES)
    with pytest.raises(UsageError) as error:
        replay(str(tmp_path / "second"), str(source), tmp_path / "more")
    assert "text.txt, which changed" in refused(error) and not (tmp_path / "more").exists()


def test_texts_in_memory_cannot_be_found_again(tmp_path: Path) -> None:
    source = save_tiny("gpt2", tmp_path / "gpt2")
    project_folder(source, "0.0", tmp_path / "out", texts())
    with pytest.raises(UsageError) as error:
        replay(str(tmp_path / "out"), str(source), tmp_path / "more")
    assert "texts that were given in Python" in refused(error)


@pytest.mark.parametrize("name", [".", ".."])
def test_folders_by_other_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_tiny("bert", tmp_path / "bert")
    before = files_of(source)
    (source / "inner").mkdir()
    monkeypatch.chdir(source / "inner" if name == ".." else source)
    receipt = project_folder(Path(name), "0.0", tmp_path / "out", texts())
    assert receipts(tmp_path / "out") == [receipt]
    undo(str(tmp_path / "out"), tmp_path / "back")
    assert files_of(tmp_path / "back") == before


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(chain: Chain, tmp_path: Path) -> Path:
    return Path(shutil.copytree(chain.second, tmp_path / "damaged"))


def not_undone(folder: Path) -> str:
    out = folder.parent / "out"
    with pytest.raises(FolderError) as error:
        undo(str(folder), out)
    assert not out.exists() and {path.name for path in folder.parent.iterdir()} == {folder.name}
    return refused(error)


@pytest.mark.parametrize("file", ["model.safetensors", "training.json"])
def test_a_kept_file_that_was_changed(damaged: Path, file: str) -> None:
    path = damaged / "history" / "1" / "before" / file
    path.write_bytes(path.read_bytes() + b" ")
    assert file in not_undone(damaged) and "the file that was kept" in not_undone(damaged)
    path.unlink()
    assert f"no file '{file}'" in not_undone(damaged)


@pytest.mark.parametrize("command", ["project", "replay"])
def test_a_damaged_history_is_found_before_text_is_read(
    chain: Chain, damaged: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnworks.reshape.texts.open_corpus", lambda *_, **__: pytest.fail("text was read"))
    file = damaged / "history" / "0" / "before" / "model.safetensors"
    file.write_bytes(file.read_bytes() + b" ")
    out = damaged.parent / "out"
    words = {
        "project": ["project", str(damaged), "--heads", "enc.0.0"],
        "replay": ["replay", str(chain.first), "--on", str(damaged)],
    }
    result = CliRunner().invoke(main, [*words[command], "--out", str(out)])
    assert isinstance(result.exception, SystemExit) and result.exit_code, result.output
    assert "the file that was kept" in result.stderr and not out.exists()


def test_a_receipt_that_could_not_be_read_again_is_not_written(chain: Chain, tmp_path: Path) -> None:
    receipt = replace(chain.done[0], loss=replace(chain.done[0].loss, after=float("nan")))
    with pytest.raises(FolderError, match=r"loss\.after nan") as error:
        write_outcome(load(chain.first), receipt, ModelFolder.of(str(chain.run)), tmp_path / "out")
    assert refused(error) and not list(tmp_path.iterdir())


def test_a_receipt_that_was_changed(damaged: Path) -> None:
    path = damaged / "history" / "1" / "receipt.json"
    path.write_text(path.read_text().replace("dec.0.1", "dec.0.0"))
    assert "receipt.json" in not_undone(damaged)
    with pytest.raises(FolderError):
        receipts(damaged)
    path.unlink()
    assert "receipt.json" in not_undone(damaged)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../escaped": "0" * 64}},
        {"files": [1]},
        {"files": {"config.json": 3}},
        {"checkpoint": "../x"},
        {"checkpoint": ".."},
        {"receipt": 7},
    ],
    ids=str,
)
def test_a_receipt_that_was_forged(damaged: Path, change: dict[str, object]) -> None:
    path = damaged / "history" / "1" / "receipt.json"
    saved = json.loads(path.read_text())
    del saved["sha256"]
    path.write_bytes(seal(saved | change))
    not_undone(damaged)


@pytest.mark.parametrize(
    "change",
    [
        {"asked": {"heads": "enc.*", "unknown": 1}},
        {"asked": {}},
        {"asked": {"heads": 3}},
        {"asked": {"heads": "enc.*", "eps": "a"}},
        {"numbers": ["x", "y"]},
        {"text": {"corpus": "grammar"}},
        {"healing": {"steps": 1}},
        {"reshape": "shrink"},
    ],
    ids=str,
)
def test_a_forged_receipt_is_not_replayed(chain: Chain, damaged: Path, change: dict[str, object]) -> None:
    path = damaged / "history" / "0" / "receipt.json"
    saved = json.loads(path.read_text())
    del saved["sha256"]
    path.write_bytes(seal(saved | {"receipt": saved["receipt"] | change}))
    with pytest.raises(AttnworksError) as error:
        replay(str(damaged), str(chain.run), damaged.parent / "again")
    assert "\n" not in str(error.value) and not (damaged.parent / "again").exists()


def test_a_receipt_that_points_elsewhere(damaged: Path) -> None:
    step = damaged / "history" / "1"
    (step / "elsewhere.txt").write_text("mine")
    saved = json.loads((step / "receipt.json").read_text())
    del saved["sha256"]
    hashes = {"../elsewhere.txt": sha256(b"mine")}
    (step / "receipt.json").write_bytes(seal(saved | {"files": saved["files"] | hashes}))
    assert "elsewhere.txt" in not_undone(damaged)


def test_a_receipt_with_other_fields(damaged: Path) -> None:
    path = damaged / "history" / "0" / "receipt.json"
    saved = json.loads(path.read_text())
    del saved["sha256"], saved["receipt"]["loss"]
    path.write_bytes(seal(saved))
    with pytest.raises(AttnworksError) as error:
        receipts(damaged)
    assert "loss" in refused(error)


def test_steps_that_are_missing(damaged: Path) -> None:
    (damaged / "history" / "0").rename(damaged / "history" / "2")
    assert "steps numbered from 0" in not_undone(damaged)


def test_a_receipt_is_json(chain: Chain) -> None:
    saved = json.loads((chain.second / "history" / "1" / "receipt.json").read_text())["receipt"]
    assert saved == json.loads(json.dumps(asdict(chain.done[1])))
    intervals = saved["loss"].pop("intervals")
    assert torch.isfinite(torch.tensor([*saved["loss"].values(), *intervals["rise"], *intervals["healed"]])).all()


def test_folders_inside_a_model_are_kept(tmp_path: Path) -> None:
    source = save_tiny("bert", tmp_path / "bert")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "LICENSE").write_text("free")
    before = files_of(source)
    project_folder(source, "0.*", tmp_path / "first", split_file(write_lines(tmp_path / "text.txt", LINES)))
    assert (tmp_path / "first" / "1_Pooling" / "config.json").read_text() == "{}"
    undo(str(tmp_path / "first"), tmp_path / "back")
    assert files_of(tmp_path / "back") == before


def test_weights_keep_the_type_that_they_are_stored_in(tmp_path: Path) -> None:
    source = save_tiny("bert", tmp_path / "bert")
    weights = source / "model.safetensors"
    half = {name: tensor.half() for name, tensor in load_file(weights).items()}
    save_file(half, weights, metadata={"format": "pt"})
    given = split_file(write_lines(tmp_path / "text.txt", LINES))
    receipt = project_folder(source, "0.*", tmp_path / "out", given, ReshapeSettings(steps=1))
    assert receipt.numbers == ("float32", "cpu")
    assert {tensor.dtype for tensor in load(tmp_path / "out").parameters()} == {torch.float16}
