"""The package as a whole: names at its top, sizes of its modules."""

import importlib
import pkgutil
from pathlib import Path

import attnworks

MOST_LINES = 450
FUNCTIONS = ("build", "compare", "examine", "load", "preset", "read_exam", "report", "save")


def test_importing_every_module_hides_no_function() -> None:
    """A submodule of the name of a public function would take its place once it is imported."""
    for module in pkgutil.walk_packages(attnworks.__path__, "attnworks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert all(callable(getattr(attnworks, name)) for name in FUNCTIONS)
    assert all(callable(getattr(attnworks.reshape, name)) for name in ("project", "grow", "prune", "swap", "advise"))


def test_no_module_is_long() -> None:
    modules = Path(attnworks.__path__[0]).rglob("*.py")
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}
