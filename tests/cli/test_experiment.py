"""attnworks experiment conti, on a very small scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnworks.cli import main
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.models.build import PRESETS
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run

SMALL = TransformerConfig(
    vocabulary=4,
    d_e=16,
    d_ff=16,
    attention=AttentionConfig(heads=2, d_k=8, d_v=8),
    encoder_layers=1,
    decoder_layers=1,
)


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PRESETS, "conti-1h", SMALL)
    monkeypatch.setitem(PRESETS, "conti-8h", SMALL)
    lines = [f"the {a} sees the {b}\tla {a}a vede la {b}a" for a in "bcdfg" for b in "hlmnp"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    return f"tsv:{tmp_path / 'pairs.tsv'}"


def experiment(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["experiment", "conti", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_it_leaves_runs_scores_maps_and_pictures_and_goes_on(pairs: str, tmp_path: Path) -> None:
    options = ("--corpus", pairs, "--epochs", 2, "--threads", 1, "--out", tmp_path / "out")
    code, stdout, stderr = experiment(*options)
    assert code == 0, stderr
    assert "conti-1h" in stdout and "conti-8h" in stdout and "beam 5" in stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["model"] for row in results["results"]] == ["conti-1h", "conti-8h"]
    assert results["dictionary_bleu"] is None
    trace = json.loads((tmp_path / "out" / "maps" / "conti-8h.json").read_text())["sentences"][0]
    assert [layer["slot"] for layer in trace["attention"]] == ["enc.0", "dec.0", "cross.0"]
    for layer in trace["attention"]:
        for head in layer["weights"]:
            assert len(head) == len(layer["queries"]) and {len(row) for row in head} == {len(layer["keys"])}
            assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in head)
    assert (tmp_path / "out" / "maps" / "conti-1h-sentence0-cross.0.png").stat().st_size > 1000
    again, stdout, _ = experiment(*options, "--json")
    assert again == 0 and json.loads(stdout)["results"][1]["steps"] == results["results"][1]["steps"]


def test_real_text_is_scored_as_text(pairs: str, tmp_path: Path) -> None:
    """A file of pairs as people write them; the settings of training are the preset's unless they are given."""
    natural = tmp_path / "natural.tsv"
    natural.write_text(
        "".join(f"{line}.\n" for line in (tmp_path / "pairs.tsv").read_text().replace("\t", ".\t").splitlines())
    )
    options = ("--models", "conti-1h", "--epochs", 1, "--threads", 1, "--out", tmp_path / "out")
    assert experiment("--corpus", f"tsv:{natural}", *options)[0] == 0
    run = Run.resume(tmp_path / "out" / "conti-1h")
    assert run.target.has_joiners and run.recipe.vocabulary == "word"
    assert run.recipe.learning_rate == Recipe.for_preset("conti-1h", steps=1).learning_rate
    read = json.loads((tmp_path / "out" / "maps" / "conti-1h.json").read_text())["sentences"][0]["source"]
    assert read[-2:] == [".", "<eos>"]


def test_a_folder_of_something_else_is_refused(pairs: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("{}")
    code, _, stderr = experiment("--corpus", pairs, "--out", tmp_path / "out")
    assert code == 2 and "a new folder, or one with the experiment" in stderr


@pytest.mark.smoke
def test_an_unknown_model_is_refused_before_anything_is_made(pairs: str, tmp_path: Path) -> None:
    code, _, stderr = experiment("--corpus", pairs, "--models", "conti-9h", "--out", tmp_path / "out")
    assert code == 2 and "preset 'conti-9h'" in stderr and not (tmp_path / "out").exists()
