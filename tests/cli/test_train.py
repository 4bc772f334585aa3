"""attnworks train, as a user meets it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

from attnworks.cli import main
from attnworks.cli.train_display import TrainDisplay
from attnworks.core.folders import LAST_POINTER, read_pointer
from attnworks.models import TransformerConfig
from attnworks.models.build import PRESETS
from attnworks.training.events import StepDone
from attnworks.training.run import Run
from attnworks.training.run_folder import read_recipe
from tests.training.training_helpers import SMALL, metrics_of, recipe, state_of, write_pairs


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, config in SMALL.items():
        monkeypatch.setitem(PRESETS, name, config)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pairs(tmp_path / "pairs.tsv")


def train(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["train", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def mistake(*arguments: object, code: int = 2) -> str:
    """The one line that a mistake is told in."""
    result = train(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    if lines[0].startswith(("Usage:", "Error: ")):  # click's own: usage, hint, blank, error
        assert lines[-1].startswith("Error: ") and len(lines) <= 4
        return lines[-1]
    assert len(lines) == 1 and lines[0].startswith("attnworks: ")
    return lines[0]


# What it does --------------------------------------------------------------------------------------------------------


def test_a_finished_run_has_nothing_to_do(corpus: str, tmp_path: Path) -> None:
    train("small", "--corpus", corpus, "--steps", 2, "--threads", 1, "--out", tmp_path / "run")
    result = train("--resume", tmp_path / "run", "--steps", 2, "--threads", 1)
    assert result.exit_code == 0 and result.stdout == f"{tmp_path / 'run'}\n"
    assert " ".join(result.stderr.split()) == (
        "Nothing to do: the run is at step 2, past its limit. Set a later one with --steps, --epochs or --minutes, "
        "which count from the start of the run."
    )


@pytest.mark.parametrize("preset", ["small", "small-lstm", "small-tied"])
def test_a_run_folder(preset: str, corpus: str, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "first"
    result = train(preset, "--corpus", corpus, "--steps", 5, "--threads", 1, "--out", out)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {
        "run.json",
        "source.json",
        "target.json",
        "metrics.jsonl",
        "last.json",
        "best.json",
        "checkpoints",
    }
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000005"]
    assert [line[:2] for line in metrics_of(out)] == [*(("training", step) for step in range(1, 6)), ("validation", 5)]
    assert result.stdout == f"{out}\n", "the folder, for a script to take"
    lines = result.stderr.splitlines()
    assert len(lines) <= 4, "short, where nobody watches"
    assert preset in lines[0] and "parameters" in lines[0] and "41 pairs" in lines[0]
    assert "held-out loss" in lines[1]
    assert f"attnworks translate {out}" in lines[-1]


@pytest.mark.slow
def test_the_real_presets_with_the_embedded_corpus(tmp_path: Path) -> None:
    result = train("tiny", "--steps", 2, "--pairs", 50, "--threads", 1, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "corpus grammar: 50 pairs" in result.stderr
    recipe, _ = read_recipe(tmp_path / "run")
    assert (recipe.preset, recipe.corpus, recipe.pairs, recipe.steps, recipe.epochs) == ("tiny", "grammar", 50, 2, None)


def test_options_reach_the_recipe(corpus: str, tmp_path: Path) -> None:
    words = (
        f"small --corpus {corpus} --pairs 9 --epochs 1 --minutes 5 --mechanism luong-dot --vocabulary bpe "
        "--vocabulary-size 60 --batch-tokens 70 --accumulate 2 --learning-rate 0.01 --schedule cosine --warmup 7 "
        "--smoothing 0.2 --dropout 0.3 --clip 2 --validate-every 3 --keep-every 4 --patience 5 --seed 6 "
        "--dtype bfloat16 --threads 1 --score-sentences 8"
    )
    assert train(*words.split(), "--out", tmp_path / "run").exit_code == 0
    recipe, _ = read_recipe(tmp_path / "run")
    expected = {
        "preset": "small", "corpus": corpus, "pairs": 9, "epochs": 1.0, "minutes": 5.0, "steps": None,
        "mechanism": "luong-dot", "vocabulary": "bpe", "vocabulary_size": 60, "batch_tokens": 70, "accumulate": 2,
        "learning_rate": 0.01, "schedule": "cosine", "warmup": 7, "smoothing": 0.2, "dropout": 0.3, "clip": 2.0,
        "validate_every": 3, "keep_every": 4, "patience": 5, "seed": 6, "dtype": "bfloat16", "threads": 1,
        "score_sentences": 8,
    }  # fmt: skip
    assert {name: getattr(recipe, name) for name in expected} == expected


def test_twenty_epochs_unless_told_otherwise(corpus: str, tmp_path: Path) -> None:
    assert train("small", "--corpus", corpus, "--pairs", 2, "--out", tmp_path / "run").exit_code == 0
    recipe, _ = read_recipe(tmp_path / "run")
    assert (recipe.epochs, recipe.steps) == (20.0, None)


def test_json_alone_on_standard_output(corpus: str, tmp_path: Path) -> None:
    result = train("small", "--corpus", corpus, "--steps", 3, "--out", tmp_path / "run", "--json")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["run"] == str(tmp_path / "run") and report["step"] == 3 and report["best_step"] == 3
    assert report["stopped"] is False and report["best_loss"] > 0 and report["seconds"] > 0


def test_resume(corpus: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train("small", "--corpus", corpus, "--steps", 3, "--out", run)
    done = train("--resume", run)
    assert done.exit_code == 0 and "at step 3" in done.stderr
    longer = train("--resume", run, "--steps", 6)
    assert longer.exit_code == 0 and "from step 3" in longer.stderr
    assert metrics_of(run)[-1][1] == 6
    train("small", "--corpus", corpus, "--steps", 6, "--out", tmp_path / "straight")
    assert state_of(Run.resume(run)) == state_of(Run.resume(tmp_path / "straight"))


def test_resume_takes_the_threads_of_the_run(corpus: str, tmp_path: Path) -> None:
    """The same thread count gives the same weights; so the run's own is the default, not the machine's."""
    train("small", "--corpus", corpus, "--steps", 2, "--threads", 1, "--out", tmp_path / "run")
    torch.set_num_threads(2)
    try:
        assert train("--resume", tmp_path / "run").exit_code == 0
        assert torch.get_num_threads() == 1
        assert train("--resume", tmp_path / "run", "--threads", 2).exit_code == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_bad_lines_are_told(tmp_path: Path) -> None:
    spec = write_pairs(tmp_path / "pairs.tsv")
    with (tmp_path / "pairs.tsv").open("a") as file:
        file.write("no tab here\n")
    result = train("small", "--corpus", spec, "--steps", 1, "--out", tmp_path / "run")
    assert result.exit_code == 0 and "no tab" in result.stderr and "46" in result.stderr


@pytest.mark.parametrize("name", ["[bold]", "[/x]", "d" * 150, "with blanks"])
def test_paths_are_printed_as_they_are(name: str, tmp_path: Path) -> None:
    """No markup, no line breaks: what is printed can be copied."""
    folder = tmp_path / name
    folder.mkdir(parents=True)
    spec = write_pairs(folder / "pairs.tsv")
    result = train("small", "--corpus", spec, "--steps", 1, "--out", folder / "run")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{folder / 'run'}\n"
    assert spec in result.stderr and str(folder / "run") in result.stderr


@pytest.mark.parametrize("pairs", [1, 2])
def test_so_few_pairs_that_none_is_held_out(pairs: int, tmp_path: Path) -> None:
    result = train("small", "--corpus", write_pairs(tmp_path / "p.tsv", pairs), "--steps", 2, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert f"attnworks translate {tmp_path / 'run'}" in result.stderr


@pytest.mark.parametrize(("minutes", "left"), [(60 * 80, "3.3 days left"), (150, "2.5 hours left"), (4, "4 min left")])
@pytest.mark.parametrize("width", [60, 80])
def test_time_left_is_never_cut(minutes: int, left: str, width: int, corpus: str, tmp_path: Path) -> None:
    """On a terminal; the description behind it is cut instead."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False)
    run = Run.create(recipe(corpus, minutes=minutes, steps=None, epochs=None), tmp_path / "run")
    with TrainDisplay(run, screen, quiet=False) as display:
        display(StepDone(1234, 1.5, 3.25, 7e-4, 1.0, 640, 0.1))
        assert display.bar is not None
        display.bar.refresh()
    assert isinstance(screen.file, io.StringIO)
    assert left in screen.file.getvalue()


def test_sizes_of_the_model(corpus: str, tmp_path: Path) -> None:
    """They are kept with the run, so that it resumes also before its first checkpoint."""
    out = tmp_path / "run"
    words = "--d-model 12 --num-layers 2 --num-heads 3 --d-ff 20 --norm pre --positions learned --steps 2 --threads 1"
    assert train("tiny", "--corpus", corpus, *words.split(), "--out", out).exit_code == 0
    config = Run.resume(out).model.config
    assert isinstance(config, TransformerConfig) and (config.encoder_layers, config.decoder_layers) == (2, 2)
    assert (config.d_e, config.d_ff, config.attention.heads, config.attention.d_k) == (12, 20, 3, 4)
    assert (config.norm, config.positions) == ("pre", "learned")
    assert "d_model" in mistake("--resume", out, "--d-model", 16)


def test_one_vocabulary_is_counted_once(corpus: str, tmp_path: Path) -> None:
    words = ("--corpus", corpus, "--steps", 1, "--vocabulary", "bpe", "--vocabulary-size", 60, "--threads", 1)
    joint = train("tiny", *words, "--joint-vocabulary", "--out", tmp_path / "joint")
    assert "one vocabulary of 60 tokens for both sides" in " ".join(joint.stderr.split())
    separate = train("tiny", *words, "--separate-vocabularies", "--out", tmp_path / "separate")
    assert "vocabularies of 60 and 60 tokens" in " ".join(separate.stderr.split())
    counts = [int(result.stderr.split(" parameters")[0].split()[-1].replace(",", "")) for result in (joint, separate)]
    assert counts[1] - counts[0] == 2 * 60 * 128


def test_own_files_and_averages(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "own.tsv").write_text(
        "the dog sees bread .\til cane vede pane .\nLuca eats bread .\tLuca mangia pane .\n"
    )
    words = (
        f"--corpus {corpus} --valid tsv:{tmp_path}/own.tsv --test tsv:{tmp_path}/own.tsv --average last:2 --steps 4 "
    )
    words += "--validate-every 2 --max-length 7 --threads 1"
    result = train("small", *words.split(), "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    told = " ".join(result.stderr.split())
    assert "2 valid pairs, 1 of them with a source that is also in training" in told
    assert "2 test pairs, 1 of them" in told and "over 7 tokens left out" in told
    assert "mean of the weights of 2 checkpoints: held-out loss" in told and "test: loss" in told
    recipe, _ = read_recipe(tmp_path / "run")
    assert (recipe.max_length, recipe.average) == (7, "last:2")
    assert "valid" in mistake("--resume", tmp_path / "run", "--valid", corpus)
    assert "tsv:FILE or text:SRC,TGT" in mistake("tiny", "--valid", "grammar", "--out", tmp_path / "other")


@pytest.mark.parametrize(("preset", "told"), [("small-tied", True), ("tiny", False)])
def test_a_long_run_names_the_smaller_preset(preset: str, told: bool, corpus: str, tmp_path: Path) -> None:
    screen = Console(file=io.StringIO(), width=200)
    run = Run.create(recipe(corpus, preset=preset, steps=3_000_000), tmp_path / "run")
    with TrainDisplay(run, screen, quiet=False) as display:
        for step in range(1, 21):
            display(StepDone(step, 1.5, 3.25, 7e-4, 1.0, 640, 0.1))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert shown.count("At this speed the run takes about 3.5 days") == 1
    assert ("the preset small is made for a computer without a GPU" in shown) == told


# Mistakes ------------------------------------------------------------------------------------------------------------


def test_neither_preset_nor_resume(tmp_path: Path) -> None:
    assert "PRESET with --out FOLDER, or --resume FOLDER" in mistake()
    assert "got neither" in mistake()
    assert "got tiny" in mistake("tiny")
    assert "--out" in mistake("--out", tmp_path / "run")
    assert "--resume" in mistake("tiny", "--out", tmp_path / "run", "--resume", tmp_path)
    assert "--out" in mistake("--resume", tmp_path, "--out", tmp_path / "run")


def test_unknown_names(corpus: str, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    assert "did you mean 'tiny'?" in mistake("tinny", "--corpus", corpus, "--steps", 1, *out)
    assert "did you mean 'grammar'?" in mistake("small", "--corpus", "gramar", "--steps", 1, *out)
    expected = f"corpus '{corpus[4:]}': expected a corpus by name, such as tsv:FILE, got a path; write {corpus}"
    assert mistake("small", "--corpus", corpus[4:], "--steps", 1, *out) == f"attnworks: {expected}"
    assert "write text:a.tsv,b.tsv" in mistake("small", "--corpus", "a.tsv,b.tsv", "--steps", 1, *out)
    assert "danse" in mistake("small", "--corpus", corpus, "--mechanism", "danse", "--steps", 1, *out)
    assert "missing.tsv" in mistake("small", "--corpus", "tsv:missing.tsv", "--steps", 1, *out)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "option",
    [
        "--steps 0", "--steps -1", "--steps x", "--epochs 0", "--epochs nan", "--epochs inf", "--minutes 0",
        "--pairs 0", "--learning-rate 0", "--learning-rate nan", "--clip 0", "--dropout 1", "--dropout -0.5",
        "--smoothing 1", "--score-sentences -1", "--batch-tokens 0", "--accumulate 0", "--validate-every 0",
        "--keep-every 0", "--patience 0",
        "--vocabulary letters", "--vocabulary-size 4", "--vocabulary-size 99999999999999999999", "--schedule linear",
        "--threads 0", "--threads x", "--seed -1", "--seed 99999999999999999999", "--seed x", "--dtype float16",
        "--device gpu", "--device cuda:77", "--device meta", "--device", "--nonsense 3",
    ],
)  # fmt: skip
def test_bad_values(option: str, corpus: str, tmp_path: Path) -> None:
    line = mistake("small", "--corpus", corpus, "--steps", 1, "--out", tmp_path / "run", *option.split())
    assert option.split()[0].lstrip("-").partition("-")[0] in line or "learning_rate" in line
    assert not (tmp_path / "run").exists()


def test_a_place_that_is_taken(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    line = mistake("small", "--corpus", corpus, "--steps", 1, "--out", tmp_path / "run")
    assert "an existing file or folder" in line and "--resume" in line
    (tmp_path / "file").write_text("x")
    assert "file" in mistake("small", "--corpus", corpus, "--steps", 1, "--out", tmp_path / "file" / "run")
    mistake("small", "--corpus", corpus, "--steps", 1, "--out", tmp_path / ("x" * 300))


def test_resuming_nothing(tmp_path: Path) -> None:
    assert "nothing there" in mistake("--resume", tmp_path / "nowhere")
    assert "a folder without it" in mistake("--resume", tmp_path)


@pytest.mark.parametrize("option", ["--seed 3", "--seed 0", "--pairs 3", "--vocabulary bpe", "--batch-tokens 9"])
def test_resuming_with_another_past(option: str, corpus: str, tmp_path: Path) -> None:
    train("small", "--corpus", corpus, "--steps", 1, "--out", tmp_path / "run")
    line = mistake("--resume", tmp_path / "run", *option.split())
    assert option.split()[0][2:].replace("-", "_") in line and "leave it out" in line


def test_no_number_any_more(corpus: str, tmp_path: Path) -> None:
    """Whether a step or a validation meets it first: the checkpoint before is whole, and the run can go on."""
    run = ("small", "--corpus", corpus, "--steps", 9, "--learning-rate", "1e30", "--warmup", 1, "--json")
    line = mistake(*run, "--out", tmp_path / "step", code=1)
    assert "training step 2" in line and "training pairs" in line and "learning_rate" in line
    line = mistake(*run, "--validate-every", 1, "--out", tmp_path / "validation", code=1)
    assert "validation after step 1" in line and "learning_rate" in line
    for name in ("step", "validation"):
        assert read_pointer(tmp_path / name, LAST_POINTER) is None
        assert train("--resume", tmp_path / name, "--learning-rate", 0.01).exit_code == 0


# Signals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(number: signal.Signals, corpus: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "attnworks", "train", "tiny", "--corpus", corpus, "--batch-tokens", "80"]
    process = subprocess.Popen(
        [*command, "--epochs", "5000", "--threads", "1", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 300
        while not (out / "metrics.jsonl").is_file() or (out / "metrics.jsonl").read_bytes().count(b"\n") < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert stdout == ""
    last = stderr.splitlines()[-1]
    assert last.startswith("Stopped at step ") and last.endswith(f"attnworks train --resume {out}")
    stopped = Run.resume(out)
    assert stopped.progress.step == int(last.split()[3].rstrip(";").replace(",", "")) > 1
    straight = Run.create(replace(stopped.recipe, steps=stopped.progress.step), tmp_path / "straight")
    straight.train()
    assert state_of(stopped) == state_of(straight)


@pytest.mark.slow
def test_two_processes(corpus: str, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "attnworks"]
    words = ["train", "tiny", "--corpus", corpus, "--steps", "2", "--threads", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*torchrun, *words], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'run'}\n" and done.stderr.count("held-out loss") == 1
