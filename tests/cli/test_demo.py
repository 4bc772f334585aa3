"""attnworks demo, with a few steps of training."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attnworks.cli import main
from attnworks.cli.demo import MARKER, SENTENCES, _prepare_folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a place") / "demo"


@pytest.fixture(scope="module")
def shown(folder: Path) -> Result:
    return run("demo", "--quick", "--out", folder)


def test_it_shows_every_step(shown: Result, folder: Path) -> None:
    assert shown.exit_code == 0, shown.output
    for words in (
        "attention alone",
        "with skip",
        *SENTENCES,
        "Cut 6 of 24 heads",
        "healed",
        "Try next",
        "Trained for 3 steps only",
    ):
        assert words in shown.stdout, words
    assert str(folder / "page.html") in shown.stdout
    assert (folder / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert {path.name for path in folder.iterdir()} == {MARKER, "translator", "exam", "page.html", "pruned"}


def test_the_commands_that_it_prints_work(shown: Result) -> None:
    lines = shown.stdout.partition("Try next\n")[2].splitlines()
    assert len(lines) == 4
    for line in lines:
        program, verb, *words = shlex.split(line)
        assert program == "attnworks"
        if importlib.util.find_spec(f"attnworks.cli.{verb}") is None or verb == "view":
            continue  # opens a browser; tests/cli/test_view.py
        if "--minutes" in words:
            words[words.index("--minutes") :] = ["--steps", "4"]
        result = run(verb, *words)
        assert result.exit_code == 0, (line, result.output)


def test_a_translator_that_was_trained_further_is_kept(shown: Result, folder: Path) -> None:
    """As after the test before, which resumes its training."""
    before = (folder / "translator" / "run.json").read_bytes()
    result = run("demo", "--quick", "--out", folder)
    assert result.exit_code == 2 and result.stderr == (
        f"attnworks: demo in {folder}: expected a demo that may be replaced, got a translator that was trained "
        "further; move it, or choose another --out\n"
    )
    assert (folder / "translator" / "run.json").read_bytes() == before and (folder / "page.html").is_file()


def test_it_replaces_an_earlier_demo_and_nothing_else(shown: Result, folder: Path) -> None:
    """A model that was restored goes too; a file of somebody else stays."""
    shutil.rmtree(folder / "translator")
    assert run("demo", "--quick", "--out", folder).exit_code == 0
    (folder / "restored").mkdir(exist_ok=True)
    (folder / "notes.txt").write_text("mine")
    before = (folder / "translator" / "run.json").stat().st_mtime_ns
    again = run("demo", "--quick", "--out", folder)
    assert again.exit_code == 0, again.output
    assert (folder / "translator" / "run.json").stat().st_mtime_ns != before
    assert (folder / "notes.txt").read_text() == "mine" and not (folder / "restored").exists()


@pytest.mark.parametrize("name", ["translator", "notes.txt", "page.html"])
def test_a_folder_of_somebody_else_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    for place in (tmp_path, tmp_path / name):
        result = run("demo", "--quick", "--out", place)
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.startswith("attnworks: demo in") and "choose another --out" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


def test_what_a_link_points_to_is_kept(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / MARKER).touch()
    (tmp_path / "demo" / "translator").symlink_to(tmp_path / "precious")
    _prepare_folder(tmp_path / "demo")
    assert (tmp_path / "precious" / "file").read_text() == "mine"
    assert not (tmp_path / "demo" / "translator").exists()
