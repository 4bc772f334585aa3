"""The README's examples and the example scripts run as printed."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_python_examples_of_the_readme_run() -> None:
    blocks = fenced("python")
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)


def test_console_examples_of_the_readme_name_real_commands() -> None:
    lines = [line.removeprefix("$ ") for block in fenced("console") for line in block.splitlines()]
    commands = [line.split()[1] for line in lines if line.startswith("attnworks ")]
    assert commands
    for command in commands:
        subprocess.run([sys.executable, "-m", "attnworks", command, "--help"], check=True, capture_output=True)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip()
