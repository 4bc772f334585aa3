"""attnworks count."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import attnworks
from attnworks.cli import main
from attnworks.models import AttentionConfig, PureConfig
from attnworks.models.folder import save_model


def count(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["count", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt-1", 116_534_784),
        ("bert-large", 335_141_888),
        ("gpt-2-xl", 1_557_611_200),
        ("gpt-3", 174_604_259_328),
        ("lamda", 137_701_097_472),
        ("minerva", 540_354_281_472),
    ],
)
def test_published_models(name: str, parameters: int) -> None:
    assert json.loads(count(name, "--json"))["parameters"] == parameters
    assert json.loads(count("--json"))[name]["counted"] == parameters
    assert f"{parameters:,}" in count(name)


def test_preset_with_vocabulary_equals_the_built_model() -> None:
    report = json.loads(count("tiny", "--vocabulary-size", "997", "--json"))
    preset = attnworks.preset("tiny").with_vocabulary(997)
    assert report["parameters"] == sum(p.numel() for p in attnworks.build(preset).parameters())
    assert sum(report["parts"].values()) == report["parameters"]


def test_shared_embeddings_count_once_under_all_names() -> None:
    parts = json.loads(count("base", "--json"))["parts"]
    assert parts["source embedding = target embedding = output"] == 37_000 * 512


@pytest.mark.parametrize("name", ["lstm-plain", "lstm-additive"])
def test_recurrent_presets_count(name: str) -> None:
    parts = json.loads(count(name, "--json"))["parts"]
    assert parts["recurrent encoder"] == 4 * 512 * (512 + 512 + 2)
    assert ("attention score" in parts) == (name == "lstm-additive")


def test_folder_and_config_file(tmp_path: Path) -> None:
    config = PureConfig(d_e=7, layers=2, attention=AttentionConfig(heads=3, d_k=5, d_v=2, bias=False))
    folder = save_model(attnworks.build(config), tmp_path / "pure")
    expected = 2 * (2 * 3 * 7 * 5 + 2 * 3 * 7 * 2)
    assert json.loads(count(str(folder), "--json"))["parameters"] == expected
    assert json.loads(count(str(folder / "config.json"), "--json"))["parameters"] == expected


def test_vocabulary_of_a_model_without_tokens_is_refused(tmp_path: Path) -> None:
    config = PureConfig(d_e=7, layers=1, attention=AttentionConfig(heads=3, d_k=5, d_v=2))
    folder = save_model(attnworks.build(config), tmp_path / "pure")
    result = CliRunner().invoke(main, ["count", str(folder), "--vocabulary-size", "11"])
    assert result.exit_code == 2
    assert "works on vectors" in result.stderr


@pytest.mark.parametrize("text", ["[1, 2]", "{", '{"kind": "transformre"}', '{"kind": "pure", "d_e": 1e99}'])
def test_a_bad_config_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    result = CliRunner().invoke(main, ["count", str(path)])
    assert result.exit_code in {1, 2}
    assert result.stderr.startswith("attnworks: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("width", [80, 60, 40])
@pytest.mark.parametrize(
    ("options", "figures"),
    [
        (("tiny",), "source embedding 4,736,000 31.3% cross-attention 132,096 self-attention 526,848"),
        ((), "gpt-1 bert-large gpt-2-xl minerva 2018 175,000,000,000 174,604,259,328 -0.23%"),
        (("--compare",), "bahdanau-additive luong-multiplicative recurrent d²) 4,095 393 35.4 353"),
    ],
)
def test_narrow_terminals_cut_neither_names_nor_numbers(
    options: tuple[str, ...], figures: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = count(*options)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert {*figures.split()} <= {*text.split()}


def test_a_vocabulary_needs_a_name() -> None:
    assert CliRunner().invoke(main, ["count", "--vocabulary-size", "5"]).exit_code == 2
