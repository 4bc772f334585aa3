"""Examinations, and readings as tables; also the readings that other tests of this package are made of."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import attnworks
from attnworks.cli import console as console_module
from attnworks.cli.console import progress_display
from attnworks.core.errors import MissingExtraError, UnknownNameError, UsageError
from attnworks.core.places import Kind, Slot
from attnworks.exam.examination import ExamFinding, Examination, Pin
from attnworks.exam.findings import find
from attnworks.exam.reading import Reading, Readings, TextTable
from attnworks.exam.statistics import Moments

LAYERS, HEADS, SENTENCES, OFFSETS = 3, 5, 17, 7
ROLES = ("previous", "next", "self", "retrieval", "aligns", "syntactic", "rare", "offset 4", "induction", "duplicate")


def drawn(
    name: str, axes: tuple[str, ...], shapes: list[tuple[int, ...]], kind: Kind = "encoder", seed: int = 3, **more: Any
) -> Reading:
    """A reading folded from random sentences, one shape per row."""
    source = torch.Generator().manual_seed(seed)
    folds = []
    for shape in shapes:
        fold = Moments(shape)
        fold.add(torch.rand(SENTENCES, *shape, generator=source, dtype=torch.float64))
        folds.append(fold)
    return Reading(
        name,
        kind,
        axes,
        tuple(fold.value for fold in folds),
        "words for people",
        "S0.14",
        tuple(fold.spread for fold in folds),
        (tuple(fold.interval[0] for fold in folds), tuple(fold.interval[1] for fold in folds)),
        tuple(fold.count for fold in folds),
        **more,
    )


def stated(name: str, axes: tuple[str, ...], rows: list[Any], kind: Kind = "encoder") -> Reading:
    """A reading of given numbers or labels, of unknown certainty."""
    value = tuple(
        tuple(row) if row and isinstance(row, list) and isinstance(row[0], str) else as_row(row) for row in rows
    )
    return Reading(name, kind, axes, value, "words for people", "S0.14")


def as_row(row: Any) -> Tensor:
    return torch.tensor(row, dtype=torch.float64)


def readings_of(kind: Kind = "encoder", layers: int = LAYERS, heads: int = HEADS, seed: int = 3) -> list[Reading]:
    by_head = [(heads,)] * layers
    ticks = {"offset": tuple(float(offset) for offset in range(-(OFFSETS // 2), OFFSETS // 2 + 1))}
    labels = [["none", *ROLES][(layer * heads + head) % 11] for layer in range(layers) for head in range(heads)]
    return [
        drawn("rank.residual", ("depth",), [()] * (layers + 1), kind, seed),
        drawn("rank.cosine", ("depth",), [()] * (layers + 1), kind, seed + 1),
        drawn("rank.stable", ("depth",), [()] * (layers + 1), kind, seed + 2),
        drawn("saturation.entropy", ("layer", "head"), by_head, kind, seed + 3),
        drawn("saturation.jacobian", ("layer", "head"), by_head, kind, seed + 4),
        drawn("sinks.first", ("layer", "head"), by_head, kind, seed + 5),
        drawn("roles.offset", ("layer", "head", "offset"), [(heads, OFFSETS)] * layers, kind, seed + 6, ticks=ticks),
        stated("roles.label", ("layer", "head"), [labels[at * heads : (at + 1) * heads] for at in range(layers)], kind),
        drawn("roles.score", ("layer", "head"), by_head, kind, seed + 7),
        drawn("paths.share", ("length",), [(layers + 1,)], kind, seed + 8),
        drawn("paths.embedding", (), [()], kind, seed + 9),
    ]


def examined(*kinds: Kind, seed: int = 3, **changes: Any) -> Examination:
    kinds = kinds or ("encoder",)
    readings = Readings([reading for kind in kinds for reading in readings_of(kind, seed=seed)])
    slots = [Slot(kind, layer) for kind in kinds for layer in range(LAYERS)]
    tokens, target = ("Luca", "è", "felice", "."), ("Luca", "is", "happy", "today", ".")
    pin = Pin(tokens, {}, target if len(kinds) > 1 else None)
    maps = {slot: torch.rand(HEADS, *map(len, pin.sides(slot.kind))) for slot in slots}
    model = {
        "name": "tiny",
        "family": "attnworks",
        "kinds": list(kinds),
        "layers": dict.fromkeys(kinds, LAYERS),
        "heads": {str(slot): HEADS for slot in slots},
        "parameters": 123_457,
        "dtype": "float32",
    }
    corpus = {"spec": "grammar", "sentences": SENTENCES, "tokens": 211, "longest": 19, "dropped": 0}
    known = {"model": model, "corpus": corpus, "readings": readings, "findings": find(readings)}
    known |= {"notes": ("no gradient: the model has no loss",), "pins": (Pin.of(tokens, maps, pin.target),)}
    return Examination(**(known | changes))


# --- the examination --------------------------------------------------------------------------------------------------


def test_readings_by_name() -> None:
    exam = examined()
    assert exam["rank.residual"] is exam.readings["rank.residual"]
    assert "rank.residual" in exam and "rank.nothing" not in exam
    assert exam.readings.get("rank.residual") is exam["rank.residual"]
    assert exam.readings.get("nope") is None and exam.readings.get("nope", 3) == 3
    assert examined("encoder", "decoder").readings.get("rank.residual", "which") == "which"
    with pytest.raises(UnknownNameError, match=r"did you mean 'rank\.residual'"):
        exam["rank.residuals"]
    with pytest.raises(UsageError, match=r"rank\.residual@encoder"):
        examined("encoder", "decoder")["rank.residual"]
    assert "tiny" in repr(exam) and "11 readings" in repr(exam) and "\n" not in repr(exam)


def test_json_is_plain_and_complete() -> None:
    exam = examined("encoder", "decoder", "cross")
    data = json.loads(json.dumps(exam.to_json(), allow_nan=False))
    assert data.keys() == {"format", "model", "corpus", "readings", "headline", "findings", "notes"}
    assert data["headline"]["text"] == str(exam.headline)
    assert data["format"] == 4 and data["model"] == exam.model and data["notes"] == list(exam.notes)
    assert set(data["readings"]) == set(exam.readings)
    entropy = data["readings"]["saturation.entropy@cross"]
    assert entropy["axes"] == ["layer", "head"] and entropy["kind"] == "cross" and entropy["source"] == "S0.14"
    assert entropy["value"] == [row.tolist() for row in exam["saturation.entropy@cross"].value]  # type: ignore[union-attr]
    assert entropy["count"] == [[SENTENCES] * HEADS] * LAYERS and len(entropy["interval"]) == 2
    assert data["findings"][0]["text"] == exam.findings[0].text


def test_pins_know_the_tokens_of_rows_and_columns() -> None:
    pin = Pin(("a", "b"), {}, ("x", "y", "z"))
    assert pin.sides("encoder") == (("a", "b"), ("a", "b"))
    assert pin.sides("decoder") == (("x", "y", "z"), ("x", "y", "z"))
    assert pin.sides("cross") == (("x", "y", "z"), ("a", "b"))
    assert Pin(("a", "b"), {}).sides("decoder") == (("a", "b"), ("a", "b"))


def test_pins_are_rounded_to_half_precision() -> None:
    P = torch.rand(2, 3, 3, dtype=torch.float64)
    pin = Pin.of(("a", "b", "c"), {Slot("encoder", 0): P})
    assert torch.equal(pin.maps[Slot("encoder", 0)], P.half())


# --- tables -----------------------------------------------------------------------------------------------------------


def lines(reading: Reading) -> list[str]:
    return reading.table().splitlines()


def test_a_table_shows_itself_at_the_prompt() -> None:
    table = drawn("rank.residual", ("depth",), [()]).table()
    assert isinstance(table, TextTable) and isinstance(table, str) and repr(table) == str(table)


def test_layers_go_down_and_heads_across() -> None:
    title, header, *rows = lines(stated("sinks.first", ("layer", "head"), [[0.5, 0.25, math.nan], [1.0, 0.125, 0.0]]))
    assert title.startswith("sinks.first (encoder): words")
    assert header.split() == ["layer", "\\", "head", "0", "1", "2"]
    assert [row.split() for row in rows] == [["enc.0", "0.500", "0.250", "-"], ["enc.1", "1.00", "0.125", "0"]]
    assert len({len(header), *map(len, rows)}) == 1


def test_layers_may_differ_in_heads() -> None:
    rows = lines(stated("sinks.first", ("layer", "head"), [[0.5], [0.25, 0.75]]))[2:]
    assert [row.split() for row in rows] == [["enc.0", "0.500"], ["enc.1", "0.250", "0.750"]]


def test_labels() -> None:
    rows = lines(stated("roles.label", ("layer", "head"), [["previous", "offset -2"], ["none", "none"]]))[2:]
    assert rows[0].split() == ["enc.0", "previous", "offset", "-2"] and rows[1].split() == ["enc.1", "none", "none"]


def test_depth_comes_with_its_interval() -> None:
    reading = drawn("rank.residual", ("depth",), [()] * 4)
    assert reading.interval is not None
    _, header, *rows = lines(reading)
    assert header.split() == ["depth", "residual", "95", "%", "interval"] and len(rows) == 4
    value, low, high = (float(part[2]) for part in (reading.value, *reading.interval))  # type: ignore[arg-type]
    assert rows[2].split() == ["2", f"{value:.3f}", f"{low:.3f}", "to", f"{high:.3f}"]


def test_the_strongest_offset_of_each_head() -> None:
    rows = [[[0.1, 0.7, 0.2], [math.nan, 0.2, 0.6], [math.nan] * 3]]
    reading = stated("roles.offset", ("layer", "head", "offset"), rows)
    assert lines(reading)[2].split() == ["enc.0", "1:", "0.700", "2:", "0.600", "-"]
    ticked = Reading("roles.offset", "encoder", reading.axes, reading.value, "", "", ticks={"offset": (-1.0, 0.0, 1.0)})
    assert lines(ticked)[2].split() == ["enc.0", "0:", "0.700", "1:", "0.600", "-"]


def test_other_axes() -> None:
    assert [row.split() for row in lines(stated("paths.share", ("length",), [[0.75, 0.25]]))[1:]] == [
        ["length", "share"],
        ["0", "0.750"],
        ["1", "0.250"],
    ]
    assert lines(stated("paths.bias", (), [0.5]))[-1].split() == ["0", "0.500"]
    matrix = lines(stated("x.pairs", ("one", "other"), [[[1.0, 2.0], [3.0, 4.0]]]))
    assert matrix[1].split() == ["one", "\\", "other", "0", "1"] and matrix[3].split() == ["1", "3.00", "4.00"]
    by_depth = lines(stated("x.spectrum", ("depth", "value"), [[1.0, 2.0], [3.0, 4.0]]))
    assert by_depth[2].split() == ["0", "1.00", "2.00"]


@pytest.mark.parametrize("name", list(examined().readings))
def test_every_kind_of_reading_makes_a_table(name: str) -> None:
    assert examined()[name].table().count("\n") >= 2


def test_findings_are_plain_data() -> None:
    finding = ExamFinding("head 3.7 is saturated", 0.5, ("saturation.jacobian",), ("enc.3.7",), "Health")
    plain = json.loads(json.dumps(finding.to_json()))
    assert plain["heads"] == ["enc.3.7"] and plain["group"] == "Health"


# --- in a terminal ----------------------------------------------------------------------------------------------------


def screen(result: object, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(result)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("kinds", [("encoder",), ("decoder",), ("encoder", "decoder", "cross")])
def test_the_summary_fits_the_width(kinds: tuple[Kind, ...], width: int) -> None:
    exam = examined(*kinds)
    text = screen(exam, width)
    assert max(map(len, text.splitlines())) <= width
    assert (
        "tiny" in text
        and "123,457 parameters" in " ".join(text.split())
        and "on grammar: 17 sentences, 211 tokens" in text
    )
    assert all(word in text for word in ("residual", "cosine", "stable rank", "Findings", "Notes"))
    assert not any(cut in text for cut in ("…", "..."))
    assert all(name in text for name in ("encoder", "cross-attention")) == (len(kinds) > 1)
    assert " ".join(exam.findings[0].text.split()) in " ".join(text.split())


def test_findings_stand_under_the_headings_of_their_groups() -> None:
    found = (
        *(ExamFinding(f"about heads {n}", 0.5, (), (), "What heads do") for n in range(6)),
        ExamFinding("thin", 0.9, (), (), "Health"),
    )
    text = screen(Examination({}, {}, Readings([]), found))
    lines = [line.strip(" •") for line in text[text.index("Findings") :].splitlines()]
    assert lines == [
        "Findings", "What heads do", *(f"about heads {n}" for n in range(4)), "and 2 more", "Health", "thin",
    ]  # fmt: skip


def test_heads_carry_the_letters_of_their_roles() -> None:
    rows = [line[:19].split() for line in screen(examined()).splitlines() if line[:4] in ("  0 ", "  1 ", "  2 ")]
    assert rows == [["0", *"·PNSc"], ["1", *"ahroi"], ["2", *"=·PNS"]]
    legend = screen(examined())
    assert " P  previous 2" in legend and " ·  no clear role 2" in legend


def test_heads_that_only_rest_have_a_sign_of_their_own() -> None:
    labels = stated("roles.label", ("layer", "head"), [["previous", "none", "none", "none"]])
    sinks = stated("roles.sink", ("layer", "head"), [["first", "first", "delimiter", "none"]])
    text = screen(Examination({}, {}, Readings([labels, sinks])))
    assert ["0", *"P1d·"] in [line.split() for line in text.splitlines()]
    for item in ("only rests on the first token 1", "only rests on delimiters 1", "no clear role 1", "and rests 1"):
        assert item in text


def test_offsets_share_a_letter_and_odd_labels_are_asked_about() -> None:
    reading = stated("roles.label", ("layer", "head"), [["offset -2", "offset 3", "strange"]])
    text = screen(Examination({}, {}, Readings([reading])))
    assert ["0", "o", "o", "?"] in [line.split() for line in text.splitlines()]
    assert " o  offset 2" in text and " ?  strange 1" in text


def test_without_roles_heads_are_shaded() -> None:
    text = screen(Examination({}, {}, Readings([stated("sinks.first", ("layer", "head"), [[0.1, 0.9, math.nan]])])))
    assert ["0", "0", "9", "·"] in [line.split() for line in text.splitlines()]
    assert "sinks.first@encoder: 0 is 0.100, 9 is 0.900" in text


def test_little_or_nothing_to_show() -> None:
    assert "model" in screen(Examination({}, {}, Readings([])))
    one = Examination({"heads": {"enc.0": 1}}, {}, Readings(readings_of(layers=1, heads=1)))
    assert "1 layer × 1 head" in screen(one)


@pytest.mark.parametrize(("heads", "width"), [(64, 80), (64, 120), (200, 80)])
def test_many_heads_go_on_below(heads: int, width: int) -> None:
    lines = screen(Examination({}, {}, Readings(readings_of(layers=2, heads=heads))), width).splitlines()
    assert max(map(len, lines)) <= width
    cells = [line[4:].split() for line in lines if line.startswith("  1 ")]
    assert sum(map(len, cells)) >= heads


def test_progress_is_silent_when_quiet_and_in_lines_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console_module, "PLAIN_EVERY_SECONDS", -1.0)
    for quiet in (True, False):
        with progress_display("examine", quiet=quiet) as progress:
            progress("examining", 0, 34)
            progress("examining", 17, 34)
        told = capsys.readouterr().err.splitlines()
        assert told == [] if quiet else told[0] == "examining" and told[1].startswith("examining: 17 of 34, about ")


def test_progress_is_a_bar_whose_estimate_is_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, soft_wrap=True)
    monkeypatch.setattr(console_module, "progress_console", lambda: console)
    with progress_display("examine", quiet=False) as progress:
        progress("examining", 9_600, 38_400)
        time.sleep(0.6)  # the column of the estimate is drawn anew after half a second
        progress("examining", 19_200, 38_400)
    assert isinstance(console.file, io.StringIO)
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).strip().splitlines()[-1]
    assert re.search(r"19200/38400 \d:\d\d:\d\d \d+ s left +examining", line) and len(line.rstrip()) <= 80


# --- as tensors, arrays and frames ------------------------------------------------------------------------------------


def test_values_as_one_tensor_and_one_array() -> None:
    exam = examined()
    for name in ("saturation.entropy", "rank.residual", "roles.offset", "paths.share", "paths.embedding"):
        reading = exam[name]
        assert isinstance(reading.tensor, Tensor) and isinstance(reading.numpy(), np.ndarray)
        assert reading.tensor.dim() == len(reading.axes) and (reading.numpy() == reading.tensor.numpy()).all()
    assert exam["roles.offset"].tensor.shape == (LAYERS, HEADS, OFFSETS)
    labels = exam["roles.label"]
    assert labels.numpy().shape == (LAYERS, HEADS) and labels.numpy()[0, 1] == "previous"
    with pytest.raises(UsageError, match=r"roles\.label as one tensor: expected numbers, got labels; use numpy\(\)"):
        labels.tensor  # noqa: B018


def test_layers_with_other_numbers_of_heads_are_no_tensor() -> None:
    uneven = stated("sinks.first", ("layer", "head"), [[0.5], [0.25, 0.75]])
    for read in (lambda: uneven.tensor, uneven.numpy):
        with pytest.raises(UsageError, match=r"expected layers of the same shape, got 1 and 2; use \.value") as told:
            read()
        assert "\n" not in str(told.value)
    assert list(uneven.to_frame()["value"]) == [0.5, 0.25, 0.75]


def test_a_reading_as_a_frame() -> None:
    reading = examined("encoder", "cross")["saturation.entropy@cross"]
    frame = reading.to_frame()
    assert list(frame.columns) == ["kind", "layer", "head", "value", "spread", "low", "high", "count"]
    assert len(frame) == LAYERS * HEADS and set(frame["kind"]) == {"cross"} and set(frame["count"]) == {SENTENCES}
    assert (frame["low"] <= frame["value"]).all() and (frame["value"] <= frame["high"]).all()
    row = frame[(frame["layer"] == 2) & (frame["head"] == 3)].iloc[0]
    assert row["value"] == float(reading.tensor[2, 3])
    assert frame.groupby("layer")["value"].mean().tolist() == pytest.approx(reading.tensor.mean(1).tolist())


def test_frames_of_other_axes_have_their_ticks() -> None:
    exam = examined()
    offsets = exam["roles.offset"].to_frame()
    assert len(offsets) == LAYERS * HEADS * OFFSETS and sorted(set(offsets["offset"])) == [-3, -2, -1, 0, 1, 2, 3]
    at = offsets[(offsets["layer"] == 1) & (offsets["head"] == 4) & (offsets["offset"] == -1)]
    assert at["value"].item() == float(exam["roles.offset"].tensor[1, 4, 2])
    assert list(exam["rank.residual"].to_frame()["depth"]) == [0, 1, 2, 3]
    assert list(exam["paths.share"].to_frame().columns)[:3] == ["kind", "length", "value"]
    assert len(exam["paths.embedding"].to_frame()) == 1
    labels = exam["roles.label"].to_frame()
    assert list(labels.columns) == ["kind", "layer", "head", "value"] and labels["value"][1] == "previous"


def test_an_examination_as_a_frame_has_one_row_per_head() -> None:
    exam = examined("encoder", "decoder", "cross")
    frame = exam.to_frame()
    assert len(frame) == 3 * LAYERS * HEADS and frame["name"].is_unique
    assert list(frame.columns) == [
        "kind", "layer", "head", "name", "saturation.entropy", "saturation.jacobian", "sinks.first", "roles.label",
        "roles.score",
    ]  # fmt: skip
    row = frame.set_index("name").loc["cross.1.2"]
    assert (row["kind"], row["layer"], row["head"]) == ("cross", 1, 2)
    assert row["sinks.first"] == float(exam["sinks.first@cross"].tensor[1, 2])
    assert row["roles.label"] == exam["roles.label@cross"].numpy()[1, 2]
    assert set(frame.groupby("kind")["sinks.first"].mean().index) == {"encoder", "decoder", "cross"}


def test_heads_without_a_number_are_rows_too() -> None:
    reading = stated("sinks.first", ("layer", "head"), [[0.5, 0.25]])
    frame = Examination({"heads": {"enc.0": 2, "enc.1": 1}}, {}, Readings([reading])).to_frame()
    assert list(frame["name"]) == ["enc.0.0", "enc.0.1", "enc.1.0"] and frame["sinks.first"].isna().sum() == 1


def test_without_pandas_a_frame_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for result in (examined(), examined()["sinks.first"]):
        with pytest.raises(MissingExtraError, match="the package pandas"):
            result.to_frame()


def test_an_examination_is_saved_and_its_page_written(tmp_path: Path) -> None:
    exam = examined()
    folder = exam.save(tmp_path / "exam")
    assert attnworks.open(folder).to_json() == exam.to_json()
    page = exam.report(tmp_path / "page.html")
    assert page.path == tmp_path / "page.html" and page.bytes == page.path.stat().st_size
    assert exam.findings and all(isinstance(finding, ExamFinding) for finding in exam.findings)


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("heads", [5, 40])
def test_a_reading_shows_itself_within_the_width(width: int, heads: int) -> None:
    reading = drawn("saturation.entropy", ("layer", "head"), [(heads,)] * 3)
    lines = screen(reading, width).splitlines()
    assert max(map(len, lines)) <= width and "…" not in "".join(lines)
    assert " ".join(lines[:2]).startswith("saturation.entropy (encoder): words for people")
    headings = " ".join(line.replace("layer \\ head", "") for line in lines if "layer" in line).split()
    assert headings == [str(head) for head in range(heads)], "every head has its column"
    assert sum(line.lstrip().startswith("enc.2") for line in lines) == sum("layer" in line for line in lines)


def test_results_in_a_prompt_and_in_a_notebook() -> None:
    exam = examined()
    assert (
        len(repr(exam)) < 100 and len(repr(exam["roles.offset"])) < 100 and "roles.offset" in repr(exam["roles.offset"])
    )
    assert "<pre" in exam["sinks.first"]._repr_html_() and "enc.2" in exam["sinks.first"]._repr_html_()
    assert "<iframe" in exam._repr_html_()
