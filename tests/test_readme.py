"""The examples of the README and of docs/, and the example scripts, run as printed."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import click
import pytest

from attnworks.cli import main

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
PLUGIN_COMMANDS = {"my_reshape", "damp"}
"""Commands of the plug-ins that pages write down as examples."""


def fenced(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("README.md", 4),
        ("docs/training.md", 1),
        ("docs/examining.md", 2),
        ("docs/exam.md", 1),
        ("docs/page.md", 1),
        ("docs/long_sequences.md", 7),
        ("docs/structure.md", 3),
        ("docs/reshaping.md", 2),
        ("docs/growing.md", 1),
        ("docs/pruning.md", 2),
        ("docs/swapping.md", 1),
        ("docs/theory.md", 6),
    ],
)
def test_python_examples_run(page: str, least: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As printed, in an empty folder, but with fewer pairs of the embedded corpus held out."""
    monkeypatch.setattr("attnworks.text.grammar.HELD_OUT_PAIRS", 100)
    monkeypatch.chdir(tmp_path)
    blocks = fenced("python", page)
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.parent.name for path in (ROOT / "src" / "attnworks").glob("*/__init__.py")]
    assert packages and all(f"`{package}/`" in page for package in packages)


def test_the_architecture_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.as_posix() for folder in ("src", "tests", "tools") for path in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"`([\w/]+\.py)[`:]", page))
    assert len(named) > 50 and "@@" not in page
    assert not [name for name in named if not any(module.endswith(f"/{name}") for module in modules)]


def console_commands(page: str) -> list[list[str]]:
    """The words of every `attnworks ...` line of a page, without comments and without the name of the program."""
    text = "".join(fenced("console", page)).replace("\\\n", " ")
    lines = [shlex.split(line.removeprefix("$ "), comments=True) for line in text.splitlines()]
    return [words[words.index("attnworks") + 1 :] for words in lines if "attnworks" in words[:2]]


@pytest.mark.parametrize("page", [page for page in PAGES if "$ attnworks " in (ROOT / page).read_text()])
def test_console_examples_have_real_commands_and_options(page: str) -> None:
    for words in console_commands(page):
        command: click.Command = main
        known = {name for option in main.params for name in option.opts}
        context = click.Context(main)
        if words[0] == "--plugin":
            words = words[2:]
        if words[0] in PLUGIN_COMMANDS:
            continue
        while isinstance(command, click.Group) and words:
            found = command.get_command(context, words[0])
            assert found is not None, f"{page}: {shlex.join(words)}"
            command, words = found, words[1:]
            known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        options = [word.split("=")[0] for word in words if word.startswith("--")]
        assert not (unknown := set(options) - known), f"{page}: {command.name} has no {', '.join(unknown)}"


def test_the_readme_has_one_example_of_every_command_in_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    shown = {words[0] for words in console_commands("README.md")}
    assert shown == set(main.list_commands(click.Context(main)))


def test_contributing_has_a_glossary_of_30_words() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")[2]
    words = re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)[1:]
    assert len(words) == 30 and words == sorted(words)


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_names_that_exist(page: str) -> None:
    """Modules in code, public names of the package, and no name or option of earlier versions."""
    import attnworks

    text = (ROOT / page).read_text()
    for name in set(re.findall(r"\battnworks\.(\w+)\(", text)):
        assert hasattr(attnworks, name), f"{page}: attnworks.{name}"
    modules = {path.relative_to(ROOT).as_posix() for folder in ("src", "tests", "tools", "bench", "examples", "web")
               for path in (ROOT / folder).rglob("*.*") if "node_modules" not in path.parts}  # fmt: skip
    for name in set(re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|tsx?|mjs))[`:]", text)) - {"my_module.py"}:
        assert any(f"/{module}".endswith(f"/{name}") for module in modules), f"{page}: {name}"
    functions = r"attnworks reshape|attnworks\.reshape\.(?:grow|prune|swap|project|advise)|attnworks\.(?:load|save)\b"
    options = r"--(?:n|lr|beam|alpha|n-best|sample|batch|max-tokens)\b(?!-)"
    assert not re.findall(f"{functions}|{options}", text)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", (ROOT / page).read_text()):
        target = (ROOT / page).parent / link if link else ROOT / page
        assert link.startswith("http") or target.exists(), link
        if heading and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings]
            assert heading in anchors or f'id="{heading}"' in target.read_text(), heading
