"""attnworks view: a page in the current folder, and where it is."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import attnworks
from attnworks.cli import main
from attnworks.exam.folder import write_exam
from tests.exam.test_examination import examined
from tests.exam_helpers import LINES, tiny_folder, write_lines


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, a machine without a display, and a browser that must not be asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail(f"opened {url}"))


def view(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["view", *map(str, arguments), "--threads", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "text.txt", LINES)


def test_without_a_display_the_place_is_printed(text: Path, tmp_path: Path) -> None:
    result = view(tiny_folder("bert"), "--text", text, "--measures", "rank")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Page   bert.html (") and "open it in a browser" in result.stdout
    assert (tmp_path / "bert.html").is_file()


def test_no_open_with_a_display(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    out = tmp_path / "a page.html"
    result = view(tiny_folder("bert"), "--text", text, "--measures", "rank", "--out", out, "--no-open")
    assert result.exit_code == 0 and str(out) in result.stdout and out.is_file()


def test_with_a_display_it_is_opened(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    assert "opened in the browser" in view(tiny_folder("bert"), "--text", text, "--measures", "rank").stdout


def test_the_work_of_heads_is_shown_without_being_asked_for(text: Path) -> None:
    """Also of the page of an examination; named measures are taken alone."""
    model = tiny_folder("bert")
    page = attnworks.view(model, text, out="work.html", open=False).contents.page["exams"][0]
    assert page["work"]["reading"] == "importance.gradient" and sum(page["work"]["layers"].values()) == pytest.approx(1)
    examined = attnworks.examine(model, text, report="report.html")
    assert examined.readings.of("importance.gradient") and examined.readings.of("roles.label")
    assert attnworks.view(model, text, measures="rank", open=False).contents.page["exams"][0]["work"] is None


def test_json_and_a_pin(text: Path) -> None:
    result = view(tiny_folder("bert"), "--text", text, "--measures", "rank", "--pin", "the cat sees it .", "--json")
    assert result.stderr == "" and json.loads(result.stdout)["path"] == "bert.html"


def test_an_examination_is_shown_as_it_is(tmp_path: Path) -> None:
    folder = write_exam(examined(), tmp_path / "first")
    assert "first.html" in view(folder).stdout


def test_options_of_an_examination_are_refused_for_one_that_was_made(tmp_path: Path) -> None:
    folder = write_exam(examined(), tmp_path / "exam")
    for options in (["--sentences", 8], ["--measures", "rank"], ["--max-length", 9], ["--pin", "it is"]):
        result = view(folder, "--no-open", *options)
        name = options[0].removeprefix("--").replace("-", "_")
        assert result.exit_code == 2 and result.stderr == (
            f"attnworks: view with {name}: expected a model, got an examination, which is shown as it is; "
            "leave that out, or view the model\n"
        )


def test_the_title_is_the_name_of_what_is_shown(text: Path, tmp_path: Path) -> None:
    """The name of the model, not that of the file or of the folder of the examination."""
    exam = examined()
    folder = write_exam(exam, tmp_path / "first")
    assert attnworks.view(folder, out="m.html", open=False).contents.page["title"] == exam.model["name"]
    page = attnworks.view(tiny_folder("bert"), text, measures="rank", out="m.html", open=False)
    assert page.contents.page["title"] == tiny_folder("bert").name


def test_mistakes_are_one_line(text: Path, tmp_path: Path) -> None:
    (tmp_path / "bert.html").write_text("mine")
    for words in (
        [tmp_path / "nowhere"],
        [tiny_folder("bert"), "--text", text],
        [tiny_folder("bert"), "--text", text, "--corpus", "grammar"],
        [tiny_folder("bert"), "--measures", "rankk"],
        ["pypi:not-installed"],
    ):
        result = view(*words)
        assert result.exit_code == 2 and result.stdout == "" and result.stderr.count("\n") == 1, result.output
        assert result.stderr.startswith("attnworks: ")
    assert (tmp_path / "bert.html").read_text() == "mine"
