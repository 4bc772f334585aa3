"""The package as a whole: names at its top, sizes of its modules."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import attnworks

MOST_LINES = 450
RESHAPES = ("project", "grow", "prune", "swap", "advise")


def test_importing_every_module_hides_no_function() -> None:
    """A submodule of the name of a public function would take its place once it is imported."""
    for module in pkgutil.walk_packages(attnworks.__path__, "attnworks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert attnworks._HOME and all(callable(getattr(attnworks, name)) for name in attnworks._HOME)
    assert all(callable(getattr(attnworks, name)) for name in RESHAPES)


def test_loading_a_model_imports_no_measure() -> None:
    """They take seconds, with scipy among them."""
    heavy = ("attnworks.exam.measures", "attnworks.reshape", "scipy")
    script = f"import sys; from attnworks import open, trace; print(*(name in sys.modules for name in {heavy}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]


def test_no_module_is_long() -> None:
    modules = Path(attnworks.__path__[0]).rglob("*.py")
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert lengths and not {path: lines for path, lines in lengths.items() if lines > MOST_LINES}
