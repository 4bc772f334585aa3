"""attnworks export, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import attnworks
from attnworks.api.exports import FORMATS
from attnworks.cli import main
from attnworks.cli.export import export
from tests.exam_helpers import tiny_run


def run(*words: object) -> Result:
    result = CliRunner().invoke(main, ["export", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_the_place_is_an_argument_or_an_option(tmp_path: Path) -> None:
    model = tiny_run()
    for words in (
        (model, "--to", "safetensors", tmp_path / "one"),
        (model, tmp_path / "two", "--to", "safetensors"),
        (model, "--to", "safetensors", "--out", tmp_path / "three"),
        ("--out", tmp_path / "four", "--to", "safetensors", model),
    ):
        result = run(*words)
        assert result.exit_code == 0 and result.stdout.startswith("Saved  "), result.output
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "three", "four")}) == 1
    assert attnworks.open(tmp_path / "one").vocabularies is not None


def test_json(tmp_path: Path) -> None:
    result = run(tiny_run(), "--to", "safetensors", tmp_path / "plain", "--json")
    assert json.loads(result.stdout) == {"out": str(tmp_path / "plain"), "to": "safetensors"}


def test_every_format_can_be_chosen() -> None:
    (option,) = (parameter for parameter in export.params if parameter.name == "to")
    assert isinstance(option.type, click.Choice) and [*option.type.choices] == [*FORMATS]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["RUN", "--to", "safetensors"], "give OUT or --out"),
        (["RUN", "OUT", "--out", "OUT", "--to", "safetensors"], "give one of them"),
        (["RUN", "OUT"], "Missing option '--to'"),
        (["RUN", "OUT", "--to", "onnx"], "'onnx' is not"),
        (["nowhere", "OUT", "--to", "safetensors"], "open nowhere: expected a model folder"),
        (["RUN", "RUN", "--to", "safetensors"], "a path that does not exist yet"),
    ],
)
def test_mistakes(words: list[str], told: str, tmp_path: Path) -> None:
    places = {"RUN": str(tiny_run()), "OUT": str(tmp_path / "out")}
    result = run(*(places.get(word, word) for word in words))
    assert result.exit_code == 2 and told in result.stderr, result.output
    assert not (tmp_path / "out").exists()
