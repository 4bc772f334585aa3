"""Unknown names are refused before any text is read; commands that are mistyped get a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from attnworks.cli import main
from tests.exam_helpers import tiny_run


@pytest.fixture(autouse=True)
def no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading text fails the test: it can take many seconds."""

    def read(*arguments: object, **options: object) -> None:
        pytest.fail("text was read")

    tiny_run()
    for name in ("training.run.open_corpus", "reshape.texts.open_corpus", "text.corpora.open_corpus"):
        monkeypatch.setattr(f"attnworks.{name}", read)
    for name in ("text.sources.from_corpus", "text.grammar.grammar_passages", "text.sources.from_file"):
        monkeypatch.setattr(f"attnworks.{name}", read)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("train nope --out OUT", "nope"),
        ("train tiny --mechanism nope --out OUT", "nope"),
        ("train tiny --mechanism window:wind=3 --out OUT", "wind"),
        ("train lstm-dot --mechanism nope --out OUT", "nope"),
        ("examine RUN --measures nope", "nope"),
        ("examine RUN --measures entropy", "the measure saturation makes saturation.entropy"),
        ("examine OUT", "OUT"),
        ("view RUN --measures nope", "nope"),
        ("view OUT", "OUT"),
        ("prune RUN --heads enc.7.9 --out OUT", "enc.7.9"),
        ("prune RUN --keep 0.5 --by nope --out OUT", "nope"),
        ("project RUN --heads zz --out OUT", "zz"),
        ("swap RUN --to nope --out OUT", "nope"),
        ("swap RUN --to linear --layers enc.9 --out OUT", "enc.9"),
        ("grow RUN --where enc.9.9:keys=3 --out OUT", "enc.9.9"),
        ("advise RUN --to nope", "nope"),
    ],
)
def test_unknown_names_are_refused_before_text_is_read(line: str, name: str, tmp_path: Path) -> None:
    places = {"RUN": str(tiny_run()), "OUT": str(tmp_path / "OUT")}
    words = [places.get(word, word) for word in line.split()]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    assert name in result.stderr and "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert not (tmp_path / "OUT").exists()


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["exmine"], "examine"),
        (["prnue"], "prune"),
        (["experiment", "colapse"], "collapse"),
        (["projct", "RUN"], "project"),
    ],
)
def test_a_mistyped_command_gets_the_nearest(words: list[str], nearest: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and f"Did you mean '{nearest}'?" in result.output


def test_a_command_like_no_other_gets_the_list() -> None:
    result = CliRunner().invoke(main, ["xyzzy"])
    assert result.exit_code == 2 and "Choose one of train, translate, export, count" in result.output


@pytest.mark.parametrize(
    "line",
    [
        "train tiny --out LONG",
        "train --resume LONG",
        "train tiny --corpus tsv:LONG --out OUT",
        "translate LONG word",
        "translate RUN word --trace LONG",
        "examine LONG",
        "examine RUN --out LONG",
        "examine RUN --text LONG",
        "view LONG",
        "view RUN --out LONG",
        "compare LONG LONG",
        "report LONG --out OUT",
        "report RUN --out LONG",
        "prune RUN --heads enc.0.0 --out LONG",
        "undo LONG --out OUT",
        "history LONG",
        "serve LONG",
        "count LONG",
        "advise RUN --plot LONG.svg",
        "experiment collapse --out LONG",
        "claims --on LONG",
    ],
)
def test_a_name_that_is_too_long_is_one_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # these mistakes may be found when text is read
    long = "a" * 300
    words = [
        word.replace("RUN", str(tiny_run())).replace("OUT", str(tmp_path / "OUT")).replace("LONG", long)
        for word in line.split()
    ]
    result = CliRunner().invoke(main, words)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "File name too long" in result.stderr


def test_completion_after_a_mistyped_command_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"_ATTNWORKS_COMPLETE": "bash_complete", "COMP_WORDS": "attnworks trian x", "COMP_CWORD": "2"}
    result = CliRunner().invoke(main, prog_name="attnworks", env=asked)
    assert result.exit_code == 0 and not result.output.strip()


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("train tiny --lr 3", "--learning-rate"),
        ("train tiny --bt 3", "--batch-tokens"),
        ("prune RUN --lr 3", "--learning-rate"),
    ],
)
def test_initials_of_an_option(line: str, option: str) -> None:
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2 and result.stderr.rstrip().endswith(f"Did you mean '{option}'?"), result.stderr
