"""attnworks compare."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attnworks.cli import main
from attnworks.cli.compare import compare
from attnworks.core.errors import FolderError
from attnworks.exam.examination import Examination
from attnworks.exam.folder import read_exam, write_exam
from attnworks.exam.reading import Readings
from tests.exam.test_examination import examined, stated
from tests.exam_helpers import tiny_folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(compare, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("exams")
    exam = examined()
    labels = [["rare"] * 5] * 3
    changed = Readings([exam[name] for name in exam.readings])
    changed.add(stated("roles.label", ("layer", "head"), labels))
    loud = exam["sinks.first"]
    changed.add(replace(loud, value=tuple(row + 3 for row in loud.value)))  # type: ignore[operator]
    exams = {"a": exam, "same": exam, "b": replace(exam, readings=changed), "other": examined("encoder", "cross")}
    return {name: write_exam(exam, place / name) for name, exam in exams.items()}


def test_nothing_changed(folders: dict[str, Path]) -> None:
    result = run(folders["a"], folders["same"])
    assert result.exit_code == 0 and "nothing changed: all 57 numbers are the same" in result.output
    assert json.loads(run(folders["a"], folders["same"], "--json").output)["nothing_changed"] is True


def test_changes_are_shown_with_their_margin(folders: dict[str, Path]) -> None:
    result = run(folders["a"], folders["b"], "--top", 3)
    assert result.exit_code == 0
    text = result.output
    assert "15 of 57 numbers differ, 15 beyond chance" in text and "Changes beyond chance, 3 of 15" in text
    assert sum("sinks.first" in line for line in text.splitlines()) == 3 and "+3.00" in text
    assert "heads: 15 compared, 0 cut, 0 new\n" in text
    assert "roles: 14 of 15 compared heads have another role\n" in text and "New roles, 3 of 14" in text
    assert ["enc.0.0", "none", "rare"] in [line.split() for line in text.splitlines()]


def test_json_is_alone_and_complete(folders: dict[str, Path]) -> None:
    data = json.loads(run(folders["a"], folders["b"], "--json").stdout)
    assert len(data["changes"]) == 15 and all(change["certain"] for change in data["changes"])
    assert len(data["roles"]) == 14 and data["heads"]["roles_compared"] == data["heads"]["compared"] == 15
    assert data["heads"]["cut"] == data["heads"]["new"] == data["heads"]["not_compared"] == 0


def test_what_cannot_be_compared_is_said(folders: dict[str, Path]) -> None:
    text = run(folders["a"], folders["other"]).output
    assert "- different models: heads, kinds, layers" in " ".join(text.split())
    assert "only the second has rank.residual@cross" in " ".join(text.split())
    assert "heads: 15 compared, 0 cut, 0 new, 15 not compared" in text
    assert "not compared: heads of cross.0, cross.1, cross.2: the first model has no such layer" in text


def test_curves_stand_side_by_side(folders: dict[str, Path], tmp_path: Path) -> None:
    text = run(folders["a"], write_exam(examined(seed=13), tmp_path / "c")).output
    assert "By depth" in text and text.count("→") > 3 * 4
    assert max(map(len, text.splitlines())) <= 120 + len(str(tmp_path)) * 2


@pytest.mark.parametrize("odd", ["[/x]", "[red]", ":bomb:", "\\", "depth"])
def test_strings_of_a_folder_are_shown_as_they_are(odd: str, tmp_path: Path) -> None:
    def folder(name: str, label: str, value: float) -> Path:
        readings = [stated(odd, ("depth",), [value]), stated(f"{odd}.head", ("layer", "head"), [[value]])]
        readings += [stated(f"{odd}.{number}", ("depth",), [value]) for number in range(7)]
        labels = stated("roles.label", ("layer", "head"), [[label]])
        exam = replace(examined(), readings=Readings([*readings, labels]), notes=(label,), model={"name": label})
        return write_exam(exam, tmp_path / name)

    result = run(folder("a", odd, 1.0), folder("b", f"{odd}2", 2.0))
    assert result.exception is None and result.exit_code == 0
    text = " ".join(result.output.split())
    assert f"different models: name {odd} against {odd}2" in text and f"only the second notes: {odd}2" in text
    assert f"enc.0.0 {odd} {odd}2" in text and f"enc.0.0 {odd}.head 1.00 2.00 +1.00" in text
    assert f"depth {odd} {odd}.0" in text and f", {odd}.6" in text


def test_a_change_that_is_only_in_the_notes(folders: dict[str, Path], tmp_path: Path) -> None:
    exam = examined()
    readings = Readings([exam[name] for name in exam.readings])
    share = exam["paths.share"]
    readings.add(replace(share, value=tuple(row + 1 for row in share.value)))  # type: ignore[operator]
    result = run(folders["a"], write_exam(replace(exam, readings=readings), tmp_path / "b"))
    assert "nothing changed" not in result.output
    assert "none of the 57 numbers that are compared one by one differs" in result.output
    assert "- changed, though not compared number by number: paths.share" in " ".join(result.output.split())


def test_no_folder_is_one_clear_line(folders: dict[str, Path], tmp_path: Path) -> None:
    result = run(folders["a"], tmp_path / "nowhere")
    assert result.exit_code != 0 and isinstance(result.exception, FolderError)
    assert "nothing there" in str(result.exception)


@pytest.mark.parametrize("width", [60, 80])
def test_names_are_whole_in_narrow_terminals(
    width: int, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(name: str, value: float) -> Path:
        readings = [
            stated("a_rather_long_measure.with_a_long_reading", ("layer", "head"), [[value]], kind)
            for kind in ("encoder", "cross")
        ]
        model = {"name": "m", "heads": {"enc.0": 1, "cross.0": 1}}
        return write_exam(replace(examined(), readings=Readings([*readings]), model=model), tmp_path / name)

    monkeypatch.setenv("COLUMNS", str(width))
    text = run(folder("a", 123.456), folder("b", 4567.8)).output
    assert "enc.0.0  a_rather_long_measure.with_a_long_reading@encoder" in text.replace("   ", "  "), text
    assert "…" not in text and max(len(line) for line in text.splitlines()[1:]) <= width
    for name in ("a", "b"):
        text = run(folders["a"], folders[name]).output
        assert "…" not in text and (name == "a" or "sinks.first" in text)


def test_changes_come_before_notes(folders: dict[str, Path], tmp_path: Path) -> None:
    noted = write_exam(replace(read_exam(folders["b"]), notes=("few sentences",)), tmp_path / "noted")
    lines = run(folders["a"], noted).output.splitlines()
    changes = [at for at, line in enumerate(lines) if line.startswith("Changes ")]
    assert changes and max(changes) < lines.index("Notes")


def test_a_model_that_was_not_examined(folders: dict[str, Path]) -> None:
    model = tiny_folder("bert")
    result = CliRunner().invoke(main, ["compare", str(model), str(folders["a"])])
    assert result.exit_code == 2 and result.stderr == (
        f"attnworks: load {model}: expected the folder of an examination, got a model; "
        f"first: attnworks examine {model} --out EXAM; then use EXAM\n"
    )


def test_help_has_examples() -> None:
    assert "attnworks compare exams/" in run("--help").output


def test_heads_that_were_cut_and_heads_that_are_new(tmp_path: Path) -> None:
    """Of four heads in layer 0 the first two are cut and one is added; layer 1 has other heads without a receipt."""

    def folder(name: str, rows: list[list[float]], **lineage: object) -> Path:
        heads = {f"enc.{layer}": len(row) for layer, row in enumerate(rows)}
        told = {"lineage": {"original": "f", "reshapes": ["prune", "grow"], **lineage}} if lineage else {}
        labels = stated("roles.label", ("layer", "head"), [["rare"] * len(row) for row in rows])
        readings = Readings([stated("sinks.first", ("layer", "head"), rows), labels])
        return write_exam(Examination({"name": "m", "heads": heads, **told}, {}, readings), tmp_path / name)

    before = folder("before", [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6]])
    names = ["enc.0.2", "enc.0.3", "enc.0.2+aa"]
    after = folder("after", [[0.3, 0.8, 0.9], [0.5]], counts={"enc.0": 4}, heads={"enc.0": names})
    lines = run(before, after).output.splitlines()
    assert "1 of 2 numbers differ" in lines
    assert "heads: 2 compared, 2 cut, 1 new, 3 not compared" in lines
    assert "  cut from the second model: enc.0.0, enc.0.1" in lines and "  new in the second model: enc.0.2" in lines
    why = "2 heads against 1, and no receipt says which head became which"
    assert f"  not compared: heads of enc.1: {why}" in lines
    assert "roles: 0 of 2 compared heads have another role" in lines
    assert ["enc.0.3", "→", "enc.0.1", "sinks.first", "0.400", "0.800", "+0.400"] in [line.split() for line in lines]
    lines = run(after, before).output.splitlines()
    assert "  cut from the first model: enc.0.0, enc.0.1" in lines and "  new in the first model: enc.0.2" in lines
    told = json.loads(run(before, after, "--json").stdout)["heads"]
    assert (told["compared"], told["cut"], told["new"], told["not_compared"], told["roles_compared"]) == (2, 2, 1, 3, 2)
    assert told["matches"][3] == {
        "head": "enc.0.3", "before": "enc.0.3", "after": "enc.0.1", "state": "compared", "why": None,
    }  # fmt: skip
