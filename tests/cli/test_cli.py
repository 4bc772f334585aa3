"""The command as a user meets it: help, version, errors, exit codes."""

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import attnworks
from attnworks.cli import main


def test_help_lists_every_command_with_examples() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    commands = result.output.partition("Build:")[2]
    for command in main.list_commands(click.Context(main)):
        assert re.search(rf"^  {command} +[A-Z].*\.$", commands, re.M), f"{command} has a summary of one line"


@pytest.mark.parametrize("command", main.list_commands(click.Context(main)))
def test_every_command_has_help_with_examples(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output


def test_help_does_not_import_torch() -> None:
    code = "import sys; from attnworks.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "import attnworks.cli.count\nassert 'torch' not in sys.modules and 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0 and result.stdout == f"attnworks, version {attnworks.__version__}\n"


def test_a_mistake_is_one_line_without_traceback() -> None:
    result = CliRunner().invoke(main, ["count", "gtp-3"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "'gtp-3'" in result.stderr and "did you mean 'gpt-3'?" in result.stderr


def test_a_mistake_in_a_process_of_its_own() -> None:
    """Exit code and streams of `python -m attnworks`, with a mistake that is found before torch is imported."""
    result = subprocess.run([sys.executable, "-m", "attnworks", "train"], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("attnworks: ") and result.stderr.count("\n") == 1
    assert "got neither" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_ATTNWORKS_COMPLETE" in result.output


def test_unknown_attribute_of_the_package_names_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"did you mean 'build'"):
        attnworks.biuld  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_help_of_options_is_in_plain_sentences() -> None:
    """No fragment whose noun is missing ("Of healing."), and no number left open ("At most so many.")."""
    texts = {
        f"{command.name} {option.opts[0]}": option.help or ""
        for command in _commands(main)
        for option in command.params
        if isinstance(option, click.Option)
    }
    assert len(texts) > 100
    bad = ("Of ", "To look", "To learn", "To judge", "To train")
    assert [name for name, text in texts.items() if text.startswith(bad) or "so many" in text.lower()] == []
    shown = [command.help or "" for command in _commands(main)] + list(texts.values())
    assert [text for text in shown if "go on" in text.lower()] == []


def _commands(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    inner = [command.get_command(context, name) for name in command.list_commands(context)]
    return [command, *(one for group in inner if group is not None for one in _commands(group))]


@pytest.mark.parametrize("words", [["count", "tiny"], ["history", "runs/first"], ["claims", "S0.17"]])
def test_ctrl_c_is_one_line_and_exit_code_130(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attnworks, words[0], interrupt)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 130 and result.stdout == "" and result.stderr == "attnworks: stopped\n"
