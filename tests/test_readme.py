"""The README's examples and the example scripts run as printed."""

import re
import runpy
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from attnworks.cli import main

ROOT = Path(__file__).parents[1]


def fenced(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("README.md", 3),
        ("docs/training.md", 1),
        ("docs/examining.md", 1),
        ("docs/exam.md", 1),
        ("docs/page.md", 1),
        ("docs/long_sequences.md", 5),
        ("docs/structure.md", 3),
        ("docs/reshaping.md", 1),
        ("docs/growing.md", 1),
        ("docs/pruning.md", 1),
        ("docs/swapping.md", 1),
        ("docs/theory.md", 6),
    ],
)
def test_python_examples_run(page: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, but with fewer pairs of the embedded corpus held out."""
    monkeypatch.setattr("attnworks.text.grammar.HELD_OUT_PAIRS", 100)
    blocks = fenced("python", page)
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_architecture_names_every_package_and_every_verb() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.parent.name for path in (ROOT / "src" / "attnworks").glob("*/__init__.py")]
    assert packages and all(f"`{package}/`" in page for package in packages)
    assert all(f"`{verb}`" in page for verb in main.list_commands(click.Context(main)))


def test_the_architecture_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.as_posix() for folder in ("src", "tests", "tools") for path in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"`([\w/]+\.py)[`:]", page))
    assert len(named) > 50 and "@@" not in page
    assert not [name for name in named if not any(module.endswith(f"/{name}") for module in modules)]


def test_console_examples_of_the_readme_name_real_commands() -> None:
    lines = [line.removeprefix("$ ") for block in fenced("console") for line in block.splitlines()]
    commands = [line.split()[1] for line in lines if line.startswith("attnworks ")]
    assert commands
    for command in dict.fromkeys(commands):
        assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0, command


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if link.endswith((".md", ".svg", ".png")):
            assert ((ROOT / page).parent / link).exists(), link
