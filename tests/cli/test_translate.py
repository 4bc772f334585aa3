"""attnworks translate, as a user meets it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attnworks.cli import main
from attnworks.models.build import PRESETS
from attnworks.text.vocabulary import Vocabulary
from attnworks.training.run import Run
from tests.training.training_helpers import SMALL, recipe, write_pairs

KNOWN = "Luca sees bread ."
LINES = ["Luca sees bread .", "", "my friend wants a house in Spain .", "   ", "she eats the red apple .", "Maria !"]
UNKNOWN_WORDS = r"(\d+ words? not in the vocabulary of this run, read as <unk>: [^\n]*\n)?"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A small transformer and a small recurrent model that have learnt to end their sentences."""
    home = tmp_path_factory.mktemp("runs")
    corpus = write_pairs(home / "pairs.tsv")
    with pytest.MonkeyPatch.context() as patch:
        for name, config in SMALL.items():
            patch.setitem(PRESETS, name, config)
        settings: dict[str, Any] = {"dropout": 0.0, "warmup": 10, "batch_tokens": 300, "accumulate": 1}
        for name in ("small", "small-lstm"):
            made = recipe(corpus, preset=name, steps=120, validate_every=120, score_sentences=0, **settings)
            Run.create(made, home / name).train()
        Run.create(recipe(corpus), home / "untrained")
        yield {name: home / name for name in ("small", "small-lstm", "untrained")}


@pytest.fixture(params=["small", "small-lstm"])
def run(request: pytest.FixtureRequest, runs: dict[str, Path]) -> Path:
    return runs[request.param]


def translate(run: Path, *arguments: object, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, ["translate", str(run), *map(str, arguments)], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines_of(result: Result, *, all_known: bool = False) -> list[str]:
    """The lines on standard output. Standard error may only list words that are not in the vocabulary."""
    assert result.exit_code == 0, result.output
    assert re.fullmatch("" if all_known else UNKNOWN_WORDS, result.stderr), result.stderr
    assert result.stdout.endswith("\n") or not result.stdout
    return result.stdout.split("\n")[:-1]


def mistake(run: Path, *arguments: object, code: int = 2, stdin: str | bytes | None = None) -> str:
    result = translate(run, *arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    lines = result.stderr.splitlines()
    if lines[0].startswith("Usage:"):
        return lines[-1]
    assert len(lines) == 1 and lines[0].startswith("attnworks: ")
    return lines[0]


def test_arguments_and_lines_give_the_same(run: Path) -> None:
    by_arguments = lines_of(translate(run, *LINES))
    by_lines = lines_of(translate(run, stdin="".join(f"{line}\n" for line in LINES)))
    assert by_arguments == by_lines and len(by_lines) == len(LINES)
    assert by_lines[1] == by_lines[3] == ""
    assert all(by_lines[index] for index in (0, 2, 4))


def test_it_has_learnt(runs: dict[str, Path]) -> None:
    (line,) = lines_of(translate(runs["small"], KNOWN), all_known=True)
    assert line == "Luca vede pane ."


@pytest.mark.parametrize(
    "stdin", ["", "\n", "\n\n\n", KNOWN, f"{KNOWN}\r\n\r\n{KNOWN}\r\n", "a\x0bb\x0cc\u2028d\x85e\rf\n"]
)
def test_as_many_lines_as_went_in(stdin: str, runs: dict[str, Path]) -> None:
    expected = stdin.count("\n") + bool(stdin and not stdin.endswith("\n"))
    assert len(lines_of(translate(runs["small"], stdin=stdin.encode()))) == expected


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_batches_change_nothing(batch: int, run: Path) -> None:
    once = lines_of(translate(run, *LINES[:-1], "--num-beams", 3))
    assert lines_of(translate(run, *LINES[:-1], "--num-beams", 3, "--batch-size", batch)) == once


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_one_line_each_with_any_beam(beam: int, run: Path) -> None:
    assert len(lines_of(translate(run, *LINES, "--num-beams", beam))) == len(LINES)


def test_n_best(run: Path) -> None:
    """N lines for each that goes in, so that a script can count on it; the first is the best."""
    best = lines_of(translate(run, *LINES, "--num-beams", 3))
    three = lines_of(translate(run, *LINES, "--num-beams", 3, "--num-return-sequences", 3))
    assert len(three) == 3 * len(LINES)
    assert three[::3] == best
    assert len(set(three[:3])) == 3
    assert three[3:6] == ["", "", ""]


def test_json(run: Path) -> None:
    result = translate(
        run, *LINES, "zebra sees the xylophone .", "--num-beams", 3, "--num-return-sequences", 2, "--json"
    )
    lines = lines_of(result, all_known=True)  # unknown words are in the objects
    objects = [json.loads(line) for line in lines]
    assert [each["source"] for each in objects] == [*LINES, "zebra sees the xylophone ."]
    assert [each["unknown"] for each in objects[-2:]] == [["!"], ["zebra", "xylophone"]]
    for each in objects:
        scores = [hypothesis["score"] for hypothesis in each["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        assert all(h.keys() == {"text", "score", "logprob", "finished"} for h in each["hypotheses"])
        assert all(h["logprob"] <= 0 for h in each["hypotheses"])
    assert objects[1]["hypotheses"][0] == {"text": "", "score": 0.0, "logprob": 0.0, "finished": True}
    plain = lines_of(translate(run, *LINES, "--num-beams", 3))
    assert [each["hypotheses"][0]["text"] for each in objects[:-1]] == plain


def test_samples_follow_from_the_seed(run: Path) -> None:
    options = ("--do-sample", "--temperature", 2)
    first = lines_of(translate(run, *LINES, *options, "--seed", 5))
    assert first == lines_of(translate(run, *LINES, *options, "--seed", 5))
    others = [lines_of(translate(run, *LINES, *options, "--seed", seed)) for seed in range(3)]
    assert any(other != first for other in others)
    greedy = lines_of(translate(run, *LINES))
    assert lines_of(translate(run, *LINES, "--do-sample", "--top-k", 1)) == greedy
    assert lines_of(translate(run, *LINES, "--do-sample", "--top-p", 1e-9)) == greedy


def test_unknown_words_are_listed_on_standard_error(run: Path) -> None:
    assert translate(run, KNOWN).stderr == ""
    assert translate(run, "zebra sees bread .", "--json").stderr == "", "there they are in the object"
    one = translate(run, "zebra sees zebra .")
    assert one.stderr == "1 word not in the vocabulary of this run, read as <unk>: 'zebra'\n" and one.exit_code == 0
    (line,) = translate(run, " ".join(f"w{number}" for number in range(13))).stderr.splitlines()
    assert line.startswith("13 words not in the vocabulary") and line.endswith("'w8', 'w9' and 3 others")
    (line,) = translate(run, "a\x1b[31mb a\u202eb").stderr.splitlines()
    assert line.isprintable(), "what cannot be printed is dropped or escaped"


def test_unknown_words_are_read(run: Path) -> None:
    assert len(lines_of(translate(run, "Zorro 🙂 Ωmega \u0000 \ud7ff ."))) == 1


def test_words_are_split_as_in_the_corpus(runs: dict[str, Path]) -> None:
    joined, apart = (translate(runs["small"], line) for line in ("Luca sees bread.", KNOWN))
    assert lines_of(joined, all_known=True) == lines_of(apart, all_known=True)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types(dtype: str, runs: dict[str, Path]) -> None:
    assert len(lines_of(translate(runs["small"], KNOWN, "--dtype", dtype, "--num-beams", 2), all_known=True)) == 1


def test_two_thousand_words(run: Path) -> None:
    words = KNOWN.split() * 500
    (line,) = lines_of(translate(run, " ".join(words), "--json"), all_known=True)
    (hypothesis,) = json.loads(line)["hypotheses"]
    assert len(hypothesis["text"].split()) <= 2 * (len(words) + 1) + 10
    assert hypothesis["logprob"] > float("-inf")


# Traces --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_trace(beams: int, runs: dict[str, Path], run: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    texts = lines_of(translate(run, *LINES, "--num-beams", beams, "--trace", path))
    trace = json.loads(path.read_text())
    assert trace["format"] == 2 and trace["run"] == str(run)
    told = [(line, text) for line, text in zip(LINES, texts, strict=True) if line.strip()]
    assert len(trace["sentences"]) == len(told)
    for sentence, (line, text) in zip(trace["sentences"], told, strict=True):
        assert sentence["source"][-1] == "<eos>" and sentence["read"][0] == "<bos>"
        assert len(sentence["source"]) == len(line.split()) + 1
        assert sentence["translation"] == text.split()
        assert sentence["read"][1:] == text.split()
        slots = ["cross.0"] if run == runs["small-lstm"] else ["enc.0", "dec.0", "cross.0"]
        assert [layer["slot"] for layer in sentence["attention"]] == slots
        for layer in sentence["attention"]:
            check_layer(layer, sentence)
        check_tree(sentence["beam"], beams)


def check_layer(layer: dict[str, Any], sentence: dict[str, Any]) -> None:
    queries, keys = {"enc": ("source", "source"), "dec": ("read", "read"), "cross": ("read", "source")}[
        layer["slot"].partition(".")[0]
    ]
    assert layer["queries"] == sentence[queries] and layer["keys"] == sentence[keys]
    assert len(layer["weights"]) == (1 if len(sentence["attention"]) == 1 else 2)
    for head in layer["weights"]:
        assert len(head) == len(layer["queries"])
        for position, row in enumerate(head):
            assert len(row) == len(layer["keys"])
            assert sum(row) == pytest.approx(1, abs=1e-5) and min(row) >= 0
            if layer["slot"].startswith("dec"):
                assert not any(row[position + 1 :]), "a word looked ahead"


def check_tree(steps: list[dict[str, Any]], beams: int) -> None:
    alive = [0.0]
    for step in steps:
        for candidate in step["kept"] + step["ended"]:
            assert 0 <= candidate["parent"] < len(alive)
            assert candidate["logprob"] <= alive[candidate["parent"]] + 1e-5
        assert all(candidate["token"] == "<eos>" for candidate in step["ended"])
        assert all(candidate["token"] != "<eos>" for candidate in step["kept"])
        assert len(step["kept"]) <= beams and len(step["ended"]) <= beams
        alive = [candidate["logprob"] for candidate in step["kept"]]
    assert steps


# Mistakes ------------------------------------------------------------------------------------------------------------


def test_no_run(runs: dict[str, Path], tmp_path: Path) -> None:
    assert "nothing at this path" in mistake(tmp_path / "nowhere", KNOWN)
    assert "a model folder, with config.json, got none in it" in mistake(tmp_path, KNOWN)
    line = mistake(runs["untrained"], KNOWN)
    assert "a checkpoint, got none yet" in line and f"--resume {runs['untrained']}" in line


@pytest.mark.parametrize(
    "options",
    [
        "--num-return-sequences 2", "--num-beams 2 --num-return-sequences 3", "--num-beams 0",
        "--num-beams 2 --do-sample", "--num-beams 2 --length-penalty -1", "--num-beams 2 --length-penalty nan",
        "--do-sample --temperature 0", "--do-sample --temperature nan", "--do-sample --top-p 0",
        "--do-sample --top-p 2", "--do-sample --top-k 0", "--batch-size 0", "--device nonsense", "--device meta",
        "--dtype int8", "--threads 0", "--seed -1", "--trace nowhere/trace.json", "--top-k 3", "--top-p 0.5",
        "--temperature 3",
    ],
)  # fmt: skip
def test_bad_options(options: str, runs: dict[str, Path]) -> None:
    mistake(runs["small"], KNOWN, *options.split())


def test_bytes_that_are_no_text(runs: dict[str, Path]) -> None:
    line = mistake(runs["small"], stdin=f"{KNOWN}\n".encode() + b"caf\xe9\n")
    assert "line 2" in line and "UTF-8" in line


def test_a_trace_that_cannot_be_written(runs: dict[str, Path], tmp_path: Path) -> None:
    assert str(tmp_path) in mistake(runs["small"], KNOWN, "--trace", tmp_path)


@pytest.mark.parametrize("name", ["source.json", "target.json"])
def test_a_changed_vocabulary(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["small"], tmp_path / "run"))
    Vocabulary.train("word", [["other", "words"]]).save(run / name)
    assert name in mistake(run, KNOWN)
    (run / name).unlink()
    assert name in mistake(run, KNOWN)
