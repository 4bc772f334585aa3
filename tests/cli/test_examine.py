"""attnworks examine, as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from attnworks.cli import main
from attnworks.exam.folder import read_exam
from attnworks.exam.measures import all_measures
from tests.exam_helpers import (
    LINES,
    PAIRS,
    PARSES,
    minilm,
    save_model,
    save_tiny,
    tiny_folder,
    tiny_run,
    transformers,
    write_lines,
)

MEASURES = all_measures()
BOTH_SIDES = ["t5", "bart", "marian"]
ONE_SIDE = ["bert", "gpt2", "llama"]


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    """A folder for every kind of model, not to be written to."""
    saved = {name: tiny_folder(name) for name in (*ONE_SIDE, *BOTH_SIDES)}
    return saved | {name: tiny_run(name) for name in ("small", "small-lstm")}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "text.txt", LINES)


def examine(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["examine", *map(str, arguments), "--threads", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def examined(*arguments: object) -> dict[str, Any]:
    """What --json prints; and nothing else is said."""
    result = examine(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


def mistake(*arguments: object, code: int = 2) -> str:
    """The one line that a mistake is told in. Costs of measures may have been stated before."""
    result = examine(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.partition(":")[0] not in MEASURES]
    assert len(lines) == 1 and lines[0].startswith("attnworks: "), result.stderr
    return lines[0]


def check(found: dict[str, Any]) -> None:
    """The promises of the JSON."""
    assert found.keys() == {"format", "model", "corpus", "readings", "headline", "findings", "notes"}
    model, readings = found["model"], found["readings"]
    assert model["parameters"] > 0 and model["kinds"] and sum(model["layers"].values()) == len(model["heads"])
    assert found["corpus"]["sentences"] > 0 and found["corpus"]["tokens"] > 0
    assert readings
    for name, reading in readings.items():
        assert reading.keys() == {
            "axes",
            "kind",
            "value",
            "spread",
            "interval",
            "count",
            "source",
            "description",
            "ticks",
        }
        assert reading["kind"] in ("encoder", "decoder", "cross") and reading["source"] and reading["description"], name
        if reading["axes"][:2] == ["layer", "head"]:
            heads = [number for slot, number in model["heads"].items() if slot.startswith(reading["kind"][:3])]
            assert [len(row) for row in reading["value"]] == heads[: len(reading["value"])], name
        if reading["spread"] is not None:
            assert len(reading["interval"]) == 2 and reading["count"] is not None, name
    assert all(finding["text"] and 0 <= finding["weight"] <= 1 for finding in found["findings"])


# What it does --------------------------------------------------------------------------------------------------------


def test_a_trained_bert_on_the_embedded_corpus() -> None:
    found = examined(minilm(), "--sentences", 5)
    check(found)
    assert found["model"]["family"] == "bert" and found["model"]["layers"] == {"encoder": 6}
    assert found["corpus"]["name"] == "grammar" and found["corpus"]["sentences"] == 5
    labels = found["readings"]["roles.label"]["value"]
    assert len(labels) == 6 and all(len(row) == 12 for row in labels)
    assert found["findings"]


@pytest.mark.smoke
@pytest.mark.parametrize("name", ONE_SIDE)
def test_models_of_one_side(name: str, folders: dict[str, Path], text: Path) -> None:
    found = examined(folders[name], "--text", text)
    check(found)
    kind = "encoder" if name == "bert" else "decoder"
    assert found["model"]["kinds"] == [kind] and found["model"]["family"] == name
    assert found["corpus"] == {
        "name": str(text), "sentences": len(LINES), "tokens": found["corpus"]["tokens"],
        "longest": 16 if name == "bert" else 14, "dropped": 0, "split": 0, "written_by_the_model": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", [*BOTH_SIDES, "small", "small-lstm"])
@pytest.mark.parametrize("paired", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_models_of_two_sides(name: str, paired: bool, folders: dict[str, Path], tmp_path: Path) -> None:
    """Without a target, the model writes one."""
    lines = PAIRS[:4] if paired else LINES[:4]
    text = write_lines(tmp_path / "text.txt", lines)
    found = examined(folders[name], "--text", text)
    check(found)
    assert set(found["model"]["kinds"]) == ({"cross"} if name == "small-lstm" else {"encoder", "decoder", "cross"})
    assert found["corpus"]["written_by_the_model"] == (0 if paired else len(lines))
    assert found["corpus"]["sentences"] + found["corpus"]["dropped"] == len(lines)


@pytest.mark.parametrize("name", ["bert", "gpt2", pytest.param("bart", marks=pytest.mark.slow), "small"])
def test_every_measure(name: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of growth are searched with few evaluations: whether there is a reading does not depend on them.

    The measure of two texts in one sequence is about models with one stack.
    """
    monkeypatch.setattr("attnworks.reshape.growth.solvers.MAX_DOUBLINGS", 1)
    monkeypatch.setattr("attnworks.reshape.growth.solvers.MAX_REFINEMENTS", 0)
    text = write_lines(tmp_path / "text.txt", PAIRS[:4])
    joined = ["--join-pairs"] if name in ONE_SIDE else []
    found = examined(folders[name], "--text", text, "--measures", "all", *joined)
    check(found)
    measures = {reading.partition(".")[0].partition("@")[0] for reading in found["readings"]}
    two_stacks = len(found["model"]["kinds"]) > 1
    missing = ({"probes"} if two_stacks else set()) | (set() if joined else {"sides"})
    assert measures == {*MEASURES} - missing, "each says something"
    assert any(note.startswith("probes was not computed") for note in found["notes"]) == two_stacks
    assert any("objective" in note for note in found["notes"])


def test_probes_of_causal_models_by_default(folders: dict[str, Path], text: Path) -> None:
    """`--no-probe` leaves them out, and `--probe` runs them on encoders and beside named measures."""

    def probes(*arguments: object) -> set[str]:
        found = examined(*arguments, "--text", text)["readings"]
        return {name for name in found if name.startswith("probes.")}

    causal = probes(folders["gpt2"])
    assert "probes.copy_loss" in causal and "probes.induction" in causal
    assert not probes(folders["gpt2"], "--no-probe") and not probes(folders["gpt2"], "--measures", "rank")
    assert probes(folders["gpt2"], "--measures", "rank", "--probe") == causal
    assert not probes(folders["bert"])
    assert probes(folders["bert"], "--probe") == {name for name in causal if not name.endswith("loss")}


def test_a_folder_a_report_and_a_pin(folders: dict[str, Path], text: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "exams" / "bert", tmp_path / "report.html"
    arguments = (folders["bert"], "--text", text, "--pin", "the cat sees it .", "--pin", "it is tired", "--out", out)
    result = examine(*arguments, "--report", report)
    assert result.exit_code == 0, result.output
    assert "Findings" in result.stdout and str(out) in result.stdout
    exam = read_exam(out)
    with_work = examined(*arguments[:3], "--measures", "default,importance")  # the page shows the work of heads
    assert exam.to_json()["readings"] == with_work["readings"]
    assert "importance.gradient" in with_work["readings"] and not any(
        name.startswith("importance") for name in examined(*arguments[:3])["readings"]
    )
    assert [pin.tokens for pin in exam.pins] == [
        ("<s>", "the", "cat", "sees", "it", ".", "</s>"),
        ("<s>", "it", "is", "tired", "</s>"),
    ]
    assert {str(slot): tuple(P.shape) for slot, P in exam.pins[0].maps.items()} == dict.fromkeys(
        ("enc.0", "enc.1"), (3, 7, 7)
    )
    for P in exam.pins[0].maps.values():
        torch.testing.assert_close(P.float().sum(-1), torch.ones(3, 7), rtol=0, atol=5e-3)
    page = report.read_text()
    assert page.startswith("<!DOCTYPE html>") and "default-src &#x27;none&#x27;" in page and 'id="blob-exam0-1-' in page
    assert not re.search(r"<(script|link|img|iframe)[^>]* (src|href)=", page), "nothing is loaded from elsewhere"
    assert examine(*arguments).exit_code == 0, "an exam may be replaced by another"


def test_a_pin_on_two_sides(folders: dict[str, Path], text: Path, tmp_path: Path) -> None:
    examined(folders["t5"], "--text", text, "--pin", "the cat sees it .", "--out", tmp_path / "exam")
    (pin,) = read_exam(tmp_path / "exam").pins
    assert pin.tokens[-1] == "</s>" and pin.target is not None and pin.target[0] == "<pad>"
    assert {slot.kind for slot in pin.maps} == {"encoder", "decoder", "cross"}


def test_some_measures(folders: dict[str, Path], text: Path) -> None:
    found = examined(folders["gpt2"], "--text", text, "--measures", "rank, roles")
    assert {name.partition(".")[0] for name in found["readings"]} == {"rank", "roles", "sinks"}


def test_measures_are_listed_with_their_costs() -> None:
    result = CliRunner().invoke(main, ["examine", "--list-measures"])
    assert result.exit_code == 0, result.output
    for name in MEASURES:
        assert name in result.stdout and MEASURES[name].cost.split()[0] in result.stdout


def test_costs_are_stated_beforehand(folders: dict[str, Path], text: Path) -> None:
    result = examine(folders["bert"], "--text", text, "--measures", "rank,ablation")
    assert result.exit_code == 0 and f"ablation: {MEASURES['ablation'].cost}" in result.stderr
    assert "rank:" not in result.stderr


def test_without_parts(folders: dict[str, Path], text: Path) -> None:
    whole, bare = (
        examined(folders["bert"], "--text", text, "--measures", "rank", *more)
        for more in ((), ("--without", "skip,mlp"))
    )
    assert bare["model"]["without"] == ["skip", "mlp"] and "without skip, mlp" in bare["notes"][-1]
    assert whole["readings"]["rank.residual"]["value"][-1] != bare["readings"]["rank.residual"]["value"][-1]


@pytest.mark.parametrize(
    ("name", "objective"), [("gpt2", "lm"), ("bert", "mlm"), ("t5", "seq2seq"), ("bert", "embedding")]
)
def test_importance_for_an_objective(name: str, objective: str, folders: dict[str, Path], text: Path) -> None:
    found = examined(folders[name], "--text", text, "--measures", "importance", "--objective", objective)
    check(found)
    assert {reading.partition("@")[0] for reading in found["readings"]} == {
        "importance.gradient",
        "importance.gradient_signed",
    }
    assert repr(objective) in found["notes"][0]
    assert all(value > 0 for reading in found["readings"].values() for row in reading["spread"] for value in row)


def test_parses_alone_and_for_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    parses = tmp_path / "parses.conllu"
    parses.write_text(PARSES)
    alone = examined(folders["bert"], "--parses", parses, "--measures", "roles")
    assert alone["corpus"]["sentences"] == 2 and alone["corpus"]["name"] == str(parses)
    assert [1 if number else 0 for row in alone["readings"]["roles.syntactic"]["count"] for number in row] == [1] * 6
    text = write_lines(tmp_path / "text.txt", ["the cat sees it .", "the dog sees it .", "it is very tired ."])
    both = examined(folders["bert"], "--text", text, "--parses", parses, "--measures", "roles")
    assert both["corpus"]["without_parses"] == 1 and both["corpus"]["sentences"] == 3
    syntactic = "roles.syntactic"
    assert both["readings"][syntactic]["value"] == alone["readings"][syntactic]["value"]


def test_a_corpus(folders: dict[str, Path]) -> None:
    found = examined(folders["small"], "--corpus", "grammar", "--sentences", 3)
    check(found)
    assert found["corpus"]["name"] == "grammar" and found["corpus"]["sentences"] == 3


def test_what_was_left_out_is_said(folders: dict[str, Path], tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text.txt", ["", *LINES, "cat"])
    result = examine(folders["gpt2"], "--text", text, "--measures", "rank")
    assert result.exit_code == 0 and "1 line left out: empty (line 1)" in result.stderr
    assert examined(folders["gpt2"], "--text", text, "--measures", "rank")["corpus"]["dropped"] == 1


# Mistakes ------------------------------------------------------------------------------------------------------------


def test_no_model(tmp_path: Path, text: Path) -> None:
    assert "nothing at this path" in mistake(tmp_path / "nowhere", "--text", text)
    (tmp_path / "folder").mkdir()
    assert "config.json" in mistake(tmp_path / "folder", "--text", text)
    assert "a model folder" in mistake(text, "--text", text)


@pytest.mark.parametrize(
    ("content", "told"),
    [("\n \n\n", "empty (lines 1"), ("cat\ndog\n", "none in 2 lines"), ("a cat\ta dog\nit is", "tab")],
)
def test_text_without_text(content: str, told: str, folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_text(content)
    assert told in mistake(folders["gpt2"], "--text", path)


def test_no_text_file(folders: dict[str, Path], tmp_path: Path) -> None:
    assert "none.txt" in mistake(folders["gpt2"], "--text", tmp_path / "none.txt")
    (tmp_path / "none.txt").write_text("")
    for option in ("--text", "--parses"):
        assert "an empty file" in mistake(folders["gpt2"], option, tmp_path / "none.txt")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart"])
def test_long_text_is_split_or_cut(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    text = write_lines(tmp_path / "long.txt", [LINES[0], " ".join(["the cat sees"] * 20)])
    found = examined(folders[name], "--text", text, "--measures", "rank")
    assert "1 text is longer than the 37 tokens that the model reads: split into 2 windows" in found["notes"]
    assert found["corpus"]["split"] == 1 and found["corpus"]["sentences"] == 3
    pinned = mistake(folders[name], "--text", text, "--pin", "the cat sees " * 20, "--out", tmp_path / "exam")
    assert "a pinned sentence: expected at most 37 tokens" in pinned
    found = examined(folders[name], "--text", text, "--max-length", 37, "--measures", "rank")
    assert found["corpus"]["longest"] == 37
    assert "positions of the model" in mistake(folders[name], "--text", text, "--max-length", 38)
    assert "at least" in mistake(folders[name], "--text", text, "--max-length", 1)


def test_pickles_are_not_opened(tmp_path: Path, text: Path, folders: dict[str, Path]) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_bytes((folders["bert"] / "config.json").read_bytes())
    torch.save({}, folder / "pytorch_model.bin")
    assert "pickle" in mistake(folder, "--text", text)


def test_code_of_others_is_not_run(tmp_path: Path, text: Path) -> None:
    folder = save_tiny("bert", tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoModel": "modeling.Own", "AutoConfig": "modeling.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text("raise SystemExit('ran')")
    assert "code of its own" in mistake(folder, "--text", text)


@pytest.mark.parametrize(("bad", "told"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
def test_weights_that_are_no_numbers(bad: float, told: str, tmp_path: Path, text: Path) -> None:
    folder = save_tiny("bert", tmp_path / "bad")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layer.1.attention.self.key.weight" in name)
    weights[name][3, 2] = bad
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    line = mistake(folder, "--text", text)
    assert told in line and "layer.1.attention" in line


@pytest.mark.parametrize("measures", [[], ["--measures", "rank"], ["--measures", "importance"], ["--measures", "all"]])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_activations_that_overflow_name_the_layer(name: str, measures: list[str], tmp_path: Path, text: Path) -> None:
    """Weights that are finite, and a product of them that is not."""
    folder = save_tiny(name, tmp_path / "large")
    weights = load_file(folder / "model.safetensors")
    for key in weights:
        if ("layer.1.attention.self.value" if name == "bert" else "h.1.attn.c_attn") in key:
            weights[key] *= 1e38
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    line = mistake(folder, "--text", text, *measures)
    assert "activations of " + ("enc.1" if name == "bert" else "dec.1") in line and "finite numbers" in line


@pytest.mark.parametrize(("scale", "told"), [(1e38, "the output"), (1e36, "rank of the output")])
def test_an_mlp_that_overflows_is_named_too(scale: float, told: str, tmp_path: Path, text: Path) -> None:
    """Numbers so large that only their squares overflow do no better."""
    folder = save_tiny("gpt2", tmp_path / "large")
    weights = load_file(folder / "model.safetensors")
    key = next(name for name in weights if "h.0.mlp.c_proj.weight" in name)
    weights[key] *= scale
    if scale == 1e38:
        weights[key.replace("mlp.c_proj", "mlp.c_fc")] *= 1e2
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"attnworks: {told} of layer 0 of the decoder: expected finite" in mistake(folder, "--text", text)


def test_parses_that_are_none(folders: dict[str, Path], tmp_path: Path, text: Path) -> None:
    parses = tmp_path / "odd.conllu"
    for content, told in (
        ("the cat\n", "10 columns"),
        (PARSES.replace("\t2\tdet", "\t9\tdet"), "head"),
        ("# text = it\n", "no sentence"),
    ):
        parses.write_text(content)
        assert told in mistake(folders["bert"], "--parses", parses)
        assert told in mistake(folders["bert"], "--text", text, "--parses", parses)


def test_without_what_cannot_be_taken_out(folders: dict[str, Path], tmp_path: Path, text: Path) -> None:
    assert "norms" in mistake(folders["bert"], "--text", text, "--without", "norms")
    config = transformers.IBertConfig(
        vocab_size=53, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=7, pad_token_id=1
    )
    unknown = save_model(transformers.IBertModel(config), tmp_path / "unknown", tokenizer=False)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (unknown / file).write_bytes((folders["bert"] / file).read_bytes())
    line = mistake(unknown, "--text", text, "--without", "skip")
    assert "blocks are known" in line or "attention interface" in line


@pytest.mark.parametrize(
    ("name", "objective", "told"),
    [
        ("bert", "lm", "decoder"),
        ("gpt2", "mlm", "encoder"),
        ("gpt2", "labels:none.txt", "classes"),
        ("gpt2", "nothing", "nothing"),
        ("t5", "lm", "encoder-decoder"),
    ],
)
def test_objectives_that_do_not_fit(name: str, objective: str, told: str, folders: dict[str, Path], text: Path) -> None:
    assert told in mistake(folders[name], "--text", text, "--objective", objective, "--measures", "importance")


def test_a_model_without_attention(tmp_path: Path, text: Path) -> None:
    config = transformers.FNetConfig(vocab_size=53, hidden_size=12, num_hidden_layers=2, intermediate_size=7)
    folder = save_model(transformers.FNetModel(config), tmp_path / "fnet")
    assert "attention" in mistake(folder, "--text", text)


def test_no_tokenizer(tmp_path: Path, text: Path) -> None:
    folder = save_tiny("gpt2", tmp_path / "mute", tokenizer=False)
    assert "tokenizer" in mistake(folder, "--text", text)


def test_a_tokenizer_of_another_model(tmp_path: Path, text: Path) -> None:
    folder = save_tiny("gpt2", tmp_path / "small", vocab_size=11)
    assert "token" in mistake(folder, "--text", text)


def test_a_place_that_is_taken(folders: dict[str, Path], text: Path, tmp_path: Path) -> None:
    assert "new place" in mistake(folders["bert"], "--text", text, "--out", folders["gpt2"])
    assert "new place" in mistake(folders["bert"], "--text", text, "--out", text)
    assert (folders["gpt2"] / "config.json").is_file() and text.is_file()


def test_measures_that_are_none(folders: dict[str, Path], text: Path) -> None:
    assert "did you mean 'rank'" in mistake(folders["bert"], "--text", text, "--measures", "roles,rankk")
    for nothing in ("", " , "):
        assert "one name or more" in mistake(folders["bert"], "--text", text, "--measures", nothing)


@pytest.mark.parametrize("other", ["--text", "--parses"])
def test_one_text_at_a_time(other: str, folders: dict[str, Path], text: Path) -> None:
    assert f"--corpus or {other}, got both" in mistake(folders["bert"], other, text, "--corpus", "grammar")


def test_a_pin_that_is_no_sentence(folders: dict[str, Path], text: Path) -> None:
    for pin in ("", "cat", " ".join(["cat"] * 40)):
        mistake(folders["bert"], "--text", text, "--measures", "rank", "--pin", pin)


def test_a_device_that_is_not_there(folders: dict[str, Path], text: Path) -> None:
    assert "--device" in mistake(folders["bert"], "--text", text, "--device", "nowhere")
