"""The verbs that reshape, as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attnworks.cli import main
from attnworks.models.build import PRESETS
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.history import receipts
from attnworks.reshape.receipt import HealReport, Receipt
from tests.exam_helpers import LINES, tiny_folder, tiny_run, write_lines
from tests.reshape.reshape_helpers import files_of, load
from tests.training.training_helpers import SMALL

FEW = ("--pairs", 50, "--sentences", 5, "--threads", 1)


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])
    monkeypatch.setitem(PRESETS, "small-lstm", SMALL["small-lstm"])


def reshape(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def done(*arguments: object) -> Any:
    """What one JSON document says, alone on standard output."""
    result = reshape(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout, parse_constant=lambda number: pytest.fail(f"{number} is no JSON"))


def mistake(*arguments: object, code: int = 2) -> str:
    """The one line that a mistake is told in."""
    result = reshape(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    if lines[0].startswith(("Usage:", "Error: ")):  # click's own: usage, hint, blank, error
        assert lines[-1].startswith("Error: ") and len(lines) <= 4
        return lines[-1]
    assert lines[-1].startswith("attnworks: ") and not any("Traceback" in line for line in lines)
    return lines[-1]


@pytest.fixture(scope="module")
def run() -> Path:
    return tiny_run()


@pytest.fixture(scope="module")
def projected(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with two heads projected and healed, and what was printed."""
    out = tmp_path_factory.mktemp("reshape") / "projected"
    result = reshape("project", run, "--heads", "enc.0.*", "--heal", 2, "--learning-rate", 0.001, *FEW, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[:2] == ["reading text", "measuring before"] and "healing" in result.stderr
    return out, result.stdout


# What it does --------------------------------------------------------------------------------------------------------


def test_project(run: Path, projected: tuple[Path, str]) -> None:
    out, text = projected
    (receipt,) = receipts(out)
    assert receipt.text["corpus"] == f"tsv:{run.parent / 'pairs.tsv'}", "the corpus of the run"
    assert receipt.text["seed"] == 11 and receipt.text["pairs"] == 50 and receipt.text["evaluation"] <= 5
    assert receipt.healing == HealReport(steps=2, learning_rate=0.001, batch_tokens=2048, seed=0)
    assert text.startswith("Replaced 2 heads by fixed forms (enc.0.*): loss ") and f"Saved  {out}" in text.splitlines()
    for number in (receipt.loss.before, receipt.loss.predicted, receipt.loss.after, receipt.loss.healed):
        assert f"{number:.4g}" in text
    assert f"{receipt.parameters.before:,}" in text and f"{receipt.flops.after:,}" in text
    for head, form in receipt.done.items():
        assert head in text and form in text
    assert receipt.summary in " ".join(text.split())
    assert (
        "after 2 steps of healing" in text
        and "healed by 2 steps of training" in text
        and f"of about {receipt.length} tokens" in text
    )


def test_one_json_document(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = done("project", run, "--heads", "dec.0.1", "--form", "previous", *FEW, "--out", out)
    (receipt,) = receipts(out)
    assert set(said) == {*Receipt.__dataclass_fields__, "out"} and said["out"] == str(out)
    assert said["done"] == receipt.done and receipt.done["dec.0.1"].startswith("previous")
    assert said["loss"]["healed"] is None and said["loss"]["before"] == receipt.loss.before
    assert said["fingerprint"] == list(receipt.fingerprint)


def test_options_reach_the_receipt(run: Path, tmp_path: Path) -> None:
    words = (
        "--heads enc.0.1 --form band --window 1 --eps 0.25 --sparsity 0.5 --heal 1 --learning-rate 0.01 "
        "--pairs 9 --sentences 2 --objective embedding --batch-tokens 70 --seed 5 --threads 1 --corpus grammar"
    )
    said = done("project", run, *words.split(), "--out", tmp_path / "out")
    assert said["asked"] == {"heads": "enc.0.1", "form": "band", "window": 1, "eps": 0.25, "sparsity": 0.5}
    assert said["text"].pop("sha256")
    assert said["text"] == {
        "corpus": "grammar", "pairs": 9, "held_out": 2, "seed": 5, "calibration": 9, "evaluation": 2, "written": 0,
        "calibration_tokens": 169, "evaluation_tokens": 41, "split": [],
    }  # fmt: skip
    assert said["healing"] == {"steps": 1, "learning_rate": 0.01, "batch_tokens": 70, "seed": 5, "by": "objective"}
    assert said["objective"] == "embedding" and said["loss"]["before"] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("prune --keep 1", "a share of 1 of the 6 heads rounds to all of them. Choose a smaller --keep"),
        ("prune --heads none", "no heads were named"),
        ("project --heads none", "no heads were named"),
        ("swap --layers enc.0 --to dense", "these layers have this mechanism already"),
        ("swap --max-error 0 --to linear", "no mechanism is measurably faster within the error"),
    ],
)
def test_a_reshape_that_changes_nothing_writes_nothing(run: Path, tmp_path: Path, options: str, why: str) -> None:
    verb, *words = options.split()
    result = reshape(verb, run, *words, *FEW, "--out", tmp_path / "out")
    assert result.exit_code == 0 and not (tmp_path / "out").exists(), result.output
    *first, last = result.stdout.splitlines()
    said = " ".join(" ".join(first).split())
    assert said.startswith("Nothing was changed: ") and why in said and last == f"{tmp_path / 'out'} was not written."
    assert "Saved" not in result.stdout
    told = done(verb, run, *words, *FEW, "--out", tmp_path / "out")
    assert told["out"] is None and told["done"] == {} and not (tmp_path / "out").exists()


def test_history(run: Path, projected: tuple[Path, str]) -> None:
    out, text = projected
    assert done("history", run) == {"receipts": []}
    assert reshape("history", run).stdout == f"{run} was never reshaped.\n"
    (said,) = done("history", out)["receipts"]
    assert said["reshape"] == "project" and said["fingerprint"] == list(receipts(out)[0].fingerprint)
    shown = reshape("history", out).stdout
    assert shown.startswith("1. Replaced 2 heads by fixed forms (enc.0.*): loss ")
    assert shown.split()[1:] == text.partition("\nSaved")[0].split(), "the same receipt"


def test_undo(run: Path, projected: tuple[Path, str], tmp_path: Path) -> None:
    result = reshape("undo", projected[0], "--out", tmp_path / "back")
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout == (
        "Undone: Replaced 2 heads by fixed forms (enc.0.*). "
        f"The model before it is in {tmp_path / 'back'}, with the same files.\n"
    )
    before = {name: data for name, data in files_of(run).items() if name != "metrics.jsonl"}
    assert files_of(tmp_path / "back") == before
    said = done("undo", projected[0], "--out", tmp_path / "json")
    assert said["out"] == str(tmp_path / "json") and said["undone"]["done"] == receipts(projected[0])[0].done


def test_replay(run: Path, projected: tuple[Path, str], tmp_path: Path) -> None:
    result = reshape("replay", projected[0], "--on", run, "--threads", 1, "--out", tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert "The weights are those of the model that was replayed, bit for bit." in result.stdout
    assert f"Saved  {tmp_path / 'again'}" in result.stdout.splitlines()
    assert weights_fingerprint(load(tmp_path / "again")) == weights_fingerprint(load(projected[0]))
    (pair,) = done("replay", projected[0], "--on", projected[0], "--out", tmp_path / "more")["replayed"]
    assert pair["then"]["asked"] == pair["now"]["asked"] and pair["then"]["fingerprint"] != pair["now"]["fingerprint"]
    assert len(receipts(tmp_path / "more")) == 2


def test_a_model_of_hugging_face(tmp_path: Path) -> None:
    source, text = tiny_folder("bert"), write_lines(tmp_path / "text.txt", LINES)
    out = tmp_path / "out"
    said = done("project", source, "--heads", "1.2,0.*", "--text", text, "--threads", 1, "--out", out)
    assert list(said["done"]) == ["enc.0.0", "enc.0.1", "enc.0.2", "enc.1.2"]
    assert said["text"]["file"] == str(text) and said["objective"] == "mlm"
    assert said["parameters"]["after"] < said["parameters"]["before"]
    assert weights_fingerprint(load(out)) == said["fingerprint"][1]
    assert [one["done"] for one in done("history", out)["receipts"]] == [said["done"]]


def test_so_many_lines(tmp_path: Path) -> None:
    source, text = tiny_folder("bert"), write_lines(tmp_path / "text.txt", LINES * 2)
    said = done("project", source, "--heads", "0.0", "--text", text, "--sentences", 1, "--out", tmp_path / "out")
    assert said["text"]["evaluation"] == 1


def test_paths_are_printed_as_they_are(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "[bold]x"
    result = reshape("project", run, "--heads", "enc.0.0", "--form", "mean", *FEW, "--out", out)
    assert f"Saved  {out}" in result.stdout.splitlines()


@pytest.mark.parametrize("command", ["prune", "grow", "swap", "project", "history", "undo", "replay"])
def test_help_has_examples(command: str) -> None:
    text = reshape(command, "--help").stdout
    assert "Examples:" in text and f"attnworks {command} " in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_help_is_quick() -> None:
    """No torch before there is something to compute."""
    verbs = "advise grow history project prune replay swap undo"
    code = f"import sys; from attnworks.cli import {', '.join(verbs.split())}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--heads enc.7.0", "got 'enc.7.0'; for instance"),
        ("--heads 0.0", "enc.0.0 to enc.0.1, dec.0.0"),
        ("--heads enc.* --form prevous", "form 'prevous'"),
        ("--heads enc.* --objective mlm", "objective 'mlm'"),
        ("--heads enc.* --objective guess", "guess"),
        ("--heads enc.* --corpus gramar", "did you mean 'grammar'?"),
        ("--heads enc.* --corpus grammar --text x.txt", "--corpus or --text, got both"),
        ("--heads enc.* --window -1", "--window"),
        ("--heads enc.* --window 65", "--window"),
        ("--heads enc.* --eps 2", "--eps"),
        ("--heads enc.* --eps nan", "eps=nan: expected a number from 0 to 1"),
        ("--heads enc.* --sparsity -0.1", "--sparsity"),
        ("--heads enc.* --heal -1", "--heal"),
        ("--heads enc.* --learning-rate 0", "--learning-rate"),
        ("--heads enc.* --pairs 3", "--pairs"),
        ("--heads enc.* --batch-tokens 0", "--batch-tokens"),
        ("--heads enc.* --device gpu", "--device"),
        ("--heads enc.* --dtype int8", "--dtype"),
        ("--heads enc.* --nonsense", "--nonsense"),
        ("", "--heads"),
    ],
)
def test_bad_values(run: Path, tmp_path: Path, options: str, told: str) -> None:
    assert told in mistake("project", run, *options.split(), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rates_that_are_no_rates(run: Path, tmp_path: Path) -> None:
    heads = ("--heads", "enc.*", "--heal", 3, *FEW, "--out", tmp_path / "out")
    assert "lower the rate of healing" in mistake("project", run, *heads, "--learning-rate", "1e30", code=1)
    assert not (tmp_path / "out").exists()


def test_text_that_is_missing_or_too_short(run: Path, tmp_path: Path) -> None:
    heads = ("--heads", "enc.*", "--out", tmp_path / "out")
    assert "x.txt" in mistake("project", run, *heads, "--text", tmp_path / "x.txt")
    short = write_lines(tmp_path / "short.txt", LINES[:3])
    assert "4 different sentences" in mistake("project", run, *heads, "--text", short)


def test_places_that_are_taken(run: Path, projected: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    for words in (
        ("project", run, "--heads", "enc.*"),
        ("undo", projected[0]),
        ("replay", projected[0], "--on", run),
    ):
        line = mistake(*words, "--out", tmp_path / "out")
        assert "an existing file or folder" in line and "choose another --out" in line
    assert (tmp_path / "out").read_text() == "mine"


def test_models_that_are_not_there(run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    nowhere = tmp_path / "nowhere"
    for words in (("project", nowhere, "--heads", "*", *out), ("undo", nowhere, *out), ("history", nowhere)):
        assert "nothing at this path" in mistake(*words)
    assert "nowhere" in mistake("replay", nowhere, "--on", run, *out)
    assert "got no history" in mistake("undo", run, *out)
    assert "got no history" in mistake("replay", run, "--on", run, *out)
    (tmp_path / "empty").mkdir()
    mistake("project", tmp_path / "empty", "--heads", "*", *out)


def test_models_without_heads(tmp_path: Path) -> None:
    recurrent = tiny_run("small-lstm")
    line = mistake("project", recurrent, "--heads", "*", *FEW, "--out", tmp_path / "out")
    assert "a recurrent model" in line


def test_words_that_are_none() -> None:
    assert "No such command 'reshapen'" in mistake("reshapen")
