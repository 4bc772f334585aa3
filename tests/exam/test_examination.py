"""Examinations, and readings as tables; also the readings that other tests of this package are made of."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from attnworks.cli import examine_display
from attnworks.cli.examine_display import show
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.places import Kind, Slot
from attnworks.exam.examination import ExamFinding, Examination, Pin
from attnworks.exam.findings import find
from attnworks.exam.reading import Reading, Readings, TextTable
from attnworks.exam.statistics import Moments

LAYERS, HEADS, SENTENCES, OFFSETS = 3, 5, 17, 7
ROLES = ("previous", "next", "self", "first", "delimiter", "syntactic", "rare", "uniform", "induction", "duplicate")


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
    with pytest.raises(UnknownNameError, match=r"did you mean 'rank\.residual'"):
        exam["rank.residuals"]
    with pytest.raises(UsageError, match=r"rank\.residual@encoder"):
        examined("encoder", "decoder")["rank.residual"]
    assert "tiny" in repr(exam) and "11 readings" in repr(exam) and "\n" not in repr(exam)


def test_json_is_plain_and_complete() -> None:
    exam = examined("encoder", "decoder", "cross")
    data = json.loads(json.dumps(exam.to_json(), allow_nan=False))
    assert data.keys() == {"format", "model", "corpus", "readings", "findings", "notes"}
    assert data["format"] == 3 and data["model"] == exam.model and data["notes"] == list(exam.notes)
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


def screen(exam: Examination, width: int = 80, folder: Path | None = None) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    show(exam, console, folder)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kinds", [("encoder",), ("decoder",), ("encoder", "decoder", "cross")])
def test_the_summary_fits_the_width(kinds: tuple[Kind, ...], width: int) -> None:
    exam = examined(*kinds)
    text = screen(exam, width, Path("runs/exam"))
    assert max(map(len, text.splitlines())) <= width
    assert "tiny" in text and "123,457 parameters" in text and "on grammar: 17 sentences, 211 tokens" in text
    assert all(word in text for word in ("residual", "cosine", "stable rank", "Findings", "Notes", "runs/exam"))
    assert "attnworks compare runs/exam OTHER" in text
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
    assert rows == [["0", *"·PNS1"], ["1", *"dhrui"], ["2", *"=·PNS"]]
    legend = screen(examined())
    assert " P  previous 2" in legend and " ·  no clear role 2" in legend


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


def test_progress_is_silent_when_quiet_and_in_lines_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine_display, "PLAIN_EVERY_SECONDS", -1.0)
    for quiet in (True, False):
        console = Console(file=io.StringIO(), width=80)
        with examine_display.examine_progress(console, quiet=quiet) as advance:
            advance.begin(34)
            advance(17)
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert text == "" if quiet else text.startswith("50% done in ") and "min left" in text


def test_progress_is_a_bar_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with examine_display.examine_progress(console, 34) as advance:
        advance(17)
    assert isinstance(console.file, io.StringIO)
    assert "50%" in console.file.getvalue() and "sentences/s" in console.file.getvalue()
