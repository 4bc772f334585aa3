"""attnworks report, examine --report and attnworks.report: files as a user meets them, and mistakes in one line."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import attnworks
from attnworks.cli import main
from attnworks.core import folders
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import with_sha256
from attnworks.exam.folder import write_exam
from attnworks.models.folder import save_model
from attnworks.page import PageExam, page_contents
from attnworks.page import file as file_module
from attnworks.page.html import PAGE_START
from attnworks.page.inputs import read_advice, read_trace
from tests.page.page_helpers import KEYS, QUERIES, Seen, made_exam, tokens
from tests.page.test_contents import advised


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_exam(made_exam(), tmp_path / "first")


def trace(**changes: Any) -> dict[str, Any]:
    """What attnworks translate --trace writes, for the sentence of the examination."""
    pin = made_exam().pins[0]
    attention = [
        {"slot": str(slot), "queries": pin.sides(slot.kind)[0], "keys": pin.sides(slot.kind)[1], "weights": P.tolist()}
        for slot, P in pin.maps.items()
    ]
    one, two = ({"parent": parent, "token": f"t{parent}", "logprob": -0.25} for parent in (0, 1))
    beam = [{"kept": [one, one], "ended": []}, {"kept": [], "ended": [two]}]
    words = {"source": tokens(QUERIES), "read": tokens(KEYS), "translation": tokens(KEYS)}
    return {"format": 2, "run": "r", "sentences": [{**words, "attention": attention, "beam": beam} | changes]}


def written(path: Path, data: object) -> Path:
    path.write_text(json.dumps(with_sha256(data) if isinstance(data, dict) else data))
    return path


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def mistake(*arguments: object) -> str:
    result = run(*arguments)
    lines = result.stderr.splitlines()
    assert result.exit_code == 2 and result.stdout == "" and len(lines) == 1, result.output
    assert lines[0].startswith("attnworks: ")
    return lines[0]


def test_one_examination(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run(folder, "--out", out)
    assert result.exit_code == 0 and result.stderr == "" and str(out) in result.stdout and "kB" in result.stdout
    page = Seen(out.read_text()).page()
    assert page["title"] == "model" and page["host"] == "file" and len(page["exams"][0]["pins"]) == 1
    told = json.loads(run(folder, "--out", out, "--json").stdout)
    assert told == {"path": str(out), "bytes": out.stat().st_size, "maps": 12, "maps_held": 12, "remarks": []}


def test_everything_in_one_page(folder: Path, tmp_path: Path) -> None:
    other = write_exam(made_exam(notes=("other",), model={**made_exam().model, "name": "r"}), tmp_path / "second")
    told = advised()
    files = (
        written(tmp_path / "trace.json", trace()),
        written(tmp_path / "advice.json", asdict(told)),
    )
    out = attnworks.report([folder, other], tmp_path / "report.html", trace=files[0], advice=files[1])
    page = Seen(out.path.read_text()).page()
    assert [exam["label"] for exam in page["exams"]] == ["first", "second"]
    assert [len(exam["pins"]) for exam in page["exams"]] == [1, 2]
    assert page["exams"][1]["pins"][1]["beam"][1]["ended"][0]["parent"] == 1
    assert page["advice"]["trials"][0]["spec"] == "linear" and page["comparison"]["compared"] > 0


def test_a_trace_that_could_be_of_both_is_given_to_neither(folder: Path, tmp_path: Path) -> None:
    other = write_exam(made_exam(notes=("other",)), tmp_path / "second")
    file = written(tmp_path / "trace.json", trace())
    with pytest.raises(UsageError, match="those of r, which could be of both; report the examination"):
        attnworks.report([folder, other], tmp_path / "report.html", trace=file)
    page = Seen(Path(attnworks.report(folder, tmp_path / "report.html", trace=file)).read_text()).page()
    assert len(page["exams"][0]["pins"]) == 2


def test_several_traces(folder: Path, tmp_path: Path) -> None:
    files = [written(tmp_path / f"{number}.json", trace()) for number in range(2)]
    out = tmp_path / "report.html"
    assert run(folder, "--out", out, "--trace", files[0], "--trace", files[1]).exit_code == 0
    assert len(Seen(out.read_text()).page()["exams"][0]["pins"]) == 3


def test_from_memory_and_from_the_folder_of_before(folder: Path, tmp_path: Path) -> None:
    out = attnworks.report(attnworks.open(folder), tmp_path / "memory.html").path
    assert Seen(out.read_text()).page()["title"] == "model"


def test_without_maps_a_line_says_so(tmp_path: Path) -> None:
    result = run(write_exam(made_exam(pins=()), tmp_path / "bare"), "--out", tmp_path / "report.html")
    assert result.exit_code == 0 and "examine with --pin" in result.stderr


def test_a_file_is_there_whole_or_as_it_was(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    as_it_was = f"{PAGE_START.decode()}as it was"
    out.write_text(as_it_was)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    assert "No space left" in mistake(folder, "--out", out)
    assert out.read_text() == as_it_was and {path.name for path in tmp_path.iterdir()} == {
        "first",
        "report.html",
    }


def test_places_that_will_not_do(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert "nothing there" in mistake(tmp_path / "none", "--out", out)
    assert "no exam.json" in mistake(tmp_path, "--out", out)
    assert "got a folder" in mistake(folder, "--out", tmp_path)
    assert "no folder" in mistake(folder, "--out", tmp_path / "none" / "report.html")
    assert "nothing there" in mistake(folder, "--out", out, "--trace", tmp_path / "none")
    assert "a folder" in mistake(folder, "--out", out, "--advice", folder)
    text, other_page = written(tmp_path / "text.txt", []), tmp_path / "other.html"
    other_page.write_text("<!DOCTYPE html><title>of someone else</title>")
    for needed in (text, folder / "exam.json", other_page):
        before = needed.read_bytes()
        assert "a file that is no page of attnworks, and would be lost" in mistake(folder, "--out", needed)
        assert needed.read_bytes() == before
    assert "none" in mistake(folder, "--out", out, "--model", tmp_path / "none")
    assert not out.exists()


ODD = [
    [], {}, {"format": 3, "sentences": []}, {"format": 2, "sentences": {}}, {"format": 2, "sentences": [7]},
    {"format": 2, "sentences": []}, {"format": 2.0, "sentences": [7]}, {"format": 1}, {"sentences": [7]},
    trace(source=["a"]), trace(source=[3] * QUERIES), trace(attention=[{"slot": 5, "weights": []}]),
    trace(attention=[{"slot": "enc.x", "weights": [[[1.0]]]}]), trace(attention=[{"slot": "enc.0"}]),
    trace(attention=[{"slot": "enc.0", "weights": [[1.0], [1.0, 2.0]]}]),
    trace(attention=[{"slot": "enc.0", "weights": [[[float("nan")] * QUERIES] * QUERIES]}]),
    trace(beam=[{"kept": [{"parent": 1, "token": "t", "logprob": 0.0}], "ended": []}]),
    trace(beam=[{"kept": [{"parent": 0, "token": 1, "logprob": 0.0}], "ended": []}]),
    trace(beam=[{"kept": [{"parent": 0, "token": "t", "logprob": float("inf")}], "ended": []}]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_traces_are_refused_in_one_line(number: int, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"expected (a trace|JSON with its own sha256), got something else"):
        read_trace(written(tmp_path / "trace.json", ODD[number]))


def test_files_of_older_versions_are_refused_with_the_command_that_writes_them_again(tmp_path: Path) -> None:
    path, advice = tmp_path / "file.json", asdict(advised())
    older = r"got a file of an older version of attnworks; write it again: "
    written(path, trace() | {"format": 1})
    with pytest.raises(FolderError, match=older + "attnworks translate MODEL TEXT --trace FILE"):
        read_trace(path)
    for unsealed in (trace() | {"format": 1}, trace()):
        path.write_text(json.dumps(unsealed))
        with pytest.raises(FolderError, match=older + "attnworks translate MODEL TEXT --trace FILE"):
            read_trace(path)
    path.write_text(json.dumps(advice | {"command": None}))
    with pytest.raises(FolderError, match=older + "attnworks advise MODEL --json > FILE"):
        read_advice(path)
    path.write_text(json.dumps({"anything": "else"}))
    for read in (read_trace, read_advice):
        with pytest.raises(FolderError, match="expected JSON with its own sha256, got something else"):
            read(path)


def test_what_is_no_json_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("{")
    with pytest.raises(FolderError, match="expected JSON"):
        read_trace(path)
    monkeypatch.setattr("attnworks.page.inputs.MAX_TRACE_BYTES", 0)
    with pytest.raises(FolderError, match=r"at most 0 bytes.*fewer sentences"):
        read_trace(path)


@pytest.mark.parametrize("change", [{"model": 3}, {"command": 3}, {"max_error": "x"}, {"chosen": 3}, {"present": [3]}])
def test_odd_advice_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    whole = asdict(advised())
    assert read_advice(written(tmp_path / "advice.json", whole)) == advised()
    for odd in (whole | change, [], {key: whole[key] for key in whole if key not in change}):
        with pytest.raises(FolderError, match=r"expected (advice|JSON with its own sha256), got something else"):
            read_advice(written(tmp_path / "advice.json", odd))


@pytest.mark.parametrize(
    "change",
    [
        {"time_interval": [0.0, 0.5]}, {"time_interval": [0.5, 0.4]}, {"time_interval": [-1.0, 0.5]}, {"time_ratio": 0},
        {"model_time_interval": [0.0, 1.0]}, {"model_time_interval": [1.0, 0.9]}, {"model_time_ratio": 0.0},
        {"trials": [{"slot": "enc.0", "spec": "linear", "time_interval": [0.0, 1.0]}]},
        {"trials": [{"slot": "enc.0", "spec": "linear", "time_interval": [2.0, 1.0]}]},
        {"rise": float("nan")}, {"length": 10**400}, {"loss": float("inf")},
    ],
    ids=str,
)  # fmt: skip
def test_advice_with_impossible_numbers_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    whole = asdict(advised())
    with pytest.raises(FolderError, match="expected advice, got something else"):
        read_advice(written(tmp_path / "advice.json", whole | change))


def test_advice_with_a_mix_whose_loss_is_no_number_can_be_read(tmp_path: Path) -> None:
    refused = {"tokens": 7, "before": 1.0, "after": float("nan")}
    whole = asdict(advised()) | {"refused": refused}
    shown = page_contents(
        [PageExam(made_exam(), "a")], advice=read_advice(written(tmp_path / "advice.json", whole))
    ).page
    assert shown["advice"]["refused"] == {"tokens": 7, "before": 1.0, "after": None}


def test_a_trace_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = trace()
    del other["sentences"][0]["attention"][0]
    with pytest.raises(UsageError, match="other layers or heads"):
        file_module.report(folder, tmp_path / "report.html", trace=written(tmp_path / "trace.json", other))


# What must not be lost ------------------------------------------------------------------------------------------------


def test_a_report_does_not_replace_what_it_is_made_from(folder: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "trace.json", trace())
    before = {path: path.read_bytes() for path in (*folder.iterdir(), file)}
    for out in (folder / "exam.json", folder / "manifest.json", file):
        assert "got a file" in mistake(folder, "--trace", file, "--out", out)
    assert before == {path: path.read_bytes() for path in before}


def test_pipes_and_names_that_are_too_long_are_refused(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "got a device or a pipe" in mistake(folder, "--out", tmp_path / "pipe")
    assert "File name too long" in mistake(folder, "--out", tmp_path / ("x" * 300))
    assert (tmp_path / "pipe").is_fifo()


def test_a_trace_of_a_model_with_a_layer_that_lost_all_heads(tmp_path: Path) -> None:
    exam = made_exam()
    heads = {**{str(slot): len(P) for slot, P in exam.pins[0].maps.items()}, "enc.7": 0}
    folder = write_exam(replace(exam, model={**exam.model, "heads": heads}), tmp_path / "cut")
    file = written(tmp_path / "trace.json", trace())
    assert run(folder, "--trace", file, "--out", tmp_path / "report.html").exit_code == 0


# What belongs to another model ----------------------------------------------------------------------------------------


def test_advice_for_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    advice = asdict(advised())
    advice["present"][0]["slot"] = "dec.9"
    file = written(tmp_path / "advice.json", advice | {"max_error": 0.1})
    assert "expected layers of a model that was examined, got dec.9" in mistake(
        folder, "--advice", file, "--out", tmp_path / "report.html"
    )


def test_receipts_of_a_model_that_never_was_reshaped_are_refused(folder: Path, tmp_path: Path) -> None:
    model = save_model(attnworks.build(attnworks.preset("tiny").with_vocabulary(19), seed=0), tmp_path / "model")
    told = mistake(folder, "--model", model, "--out", tmp_path / "report.html")
    assert "expected a model that was reshaped, got one that never was" in told


def test_what_is_no_examination_is_refused(tmp_path: Path) -> None:
    for what in (3, None, [3]):
        with pytest.raises(UsageError, match="expected an examination"):
            attnworks.report(what, tmp_path / "report.html")  # pyright: ignore[reportArgumentType]
