"""One public name means one thing: classes and functions have unique names over the package, and modules are nouns."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import attnworks

ROOT = Path(attnworks.__file__).parent
COMMANDS = {
    "advise", "claims", "compare", "conti", "count", "examine", "export", "gradient", "grow", "growth", "history",
    "long_range", "project", "projection", "prune", "replay", "report", "serve", "structure", "swap", "train",
    "translate", "undo", "view",
}  # fmt: skip
"""Commands of the command line carry the name of the function that they call."""
NOUNS_IN_ING = {
    "training",
    "stepping",
    "counting",
    "ranking",
    "pruning",
    "swapping",
    "timing",
    "plotting",
    "embedding",
    "pooling",
    "reading",
    "averaging",
    "copying",
}
"""Words in -ing that the field uses as nouns."""


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def public_definitions(path: Path) -> list[str]:
    """Names of the classes and functions at the top of a module that do not begin with an underscore."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def homes() -> dict[str, set[str]]:
    """Every public name and the modules that define it. Functions of claims are found by their id and do not count."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        name = path.relative_to(ROOT).as_posix()
        for definition in () if name.startswith("theory/claims/") else public_definitions(path):
            found[definition].add(name)
    return found


def test_public_names_are_unique() -> None:
    several = {name: sorted(where) for name, where in homes().items() if len(where) > 1}
    allowed = {
        name
        for name, where in several.items()
        if name in COMMANDS and sum(not at.startswith("cli/") for at in where) <= 1
    }
    assert {name: where for name, where in several.items() if name not in allowed} == {}


def test_modules_are_nouns() -> None:
    gerunds = {
        path.relative_to(ROOT).as_posix()
        for path in modules()
        if any(word.endswith("ing") and word not in NOUNS_IN_ING for word in path.stem.split("_"))
    }
    assert gerunds == set()
