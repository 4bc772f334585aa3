"""Print how large the packages of attnworks are, and how many modules three typical commands cross.

    python tools/walk.py            # two small tables
    python tools/walk.py --list     # also the modules of every walk, in order of their first call

A walk is a command that really runs. A module counts if one of its functions is called, in any thread; what runs while
a module is imported does not count. Three groups are counted beside the walk: the package core, which everything uses,
the measures with their mathematics, and the configs, layers and mechanisms that are built and run inside a model. The
walk of a training step goes through the model, so there these count. The column `all` counts every module.

The walks are `examine` of a tiny BERT, `grow` of a tiny run, and one training step: of `train --steps 1`, the
call of the function that calls the optimizer's step (a hook of torch before that step finds the function).
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

from golden_launch import SOURCE
from golden_special import make_inputs

ROOT = SOURCE / "attnworks"
ATTNWORKS = [sys.executable, "-c", f"import sys; sys.path[0] = {str(SOURCE)!r}; from attnworks.cli import main; main()"]
LARGE = 450
RUN = "train tiny --steps 1 --corpus tsv:pairs.tsv --batch-tokens 120 --threads 1 --out"
WALKS = {
    "examine": "examine bert --text lines.txt --threads 1 --out exam",
    "grow": "grow run --add 4 --pairs 12 --sentences 4 --threads 1 --out grown",
    "step": f"{RUN} stepped",
}


CORE = "core/"
MEASURES = ("exam/measures/", "exam/linalg/", "exam/structure/")
MODEL = ("models/", "attention/")
PASSES = ("forward", "hidden", "start", "step", "build", "config_from_json", "skeleton")
"""Methods of a model that run its layers, and functions that build it."""


class Walk:
    """Notes the module of every function of attnworks that is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.began: dict[FrameType, int] = {}
        self.local = threading.local()
        self.step: FrameType | None = None
        self.steps: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            self.local.importing = getattr(self.local, "importing", 0) + (1 if event == "call" else -1)
        elif event == "call" and not getattr(self.local, "importing", 0) and (module := module_of(code)):
            self.began[frame] = len(self.calls)
            inside = getattr(self.local, "inside", 0)
            self.calls.append(f"({module})" if inside and module.startswith(MODEL) else module)
            self.local.inside = inside + runs_layers(module, code)
        elif event == "return" and frame in self.began:
            began = self.began.pop(frame)
            self.local.inside -= runs_layers(module_of(code) or "", code)
            if frame is self.step and not self.steps:
                self.steps = self.calls[began:]

    def before_optimizer_step(self, *_: object) -> None:
        """The innermost function of attnworks that runs now is the training step."""
        frame = sys._getframe(1)
        while frame is not None and frame not in self.began:
            frame = frame.f_back
        self.step = self.step or frame

    def run(self, arguments: list[str]) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from attnworks.cli import main

        register_optimizer_step_pre_hook(self.before_optimizer_step)
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            main.main(arguments, prog_name="attnworks")
        except SystemExit as end:
            assert not end.code, f"{' '.join(arguments)} ended with {end.code}"
        finally:
            sys.setprofile(None)


def module_of(code: CodeType) -> str | None:
    """The module of a function of attnworks; None for others, and for the body of a class."""
    if not code.co_flags & inspect.CO_OPTIMIZED or not code.co_filename.startswith(f"{ROOT}/"):
        return None
    return code.co_filename.removeprefix(f"{ROOT}/").removesuffix(".py")


def runs_layers(module: str, code: CodeType) -> bool:
    """Whether this function runs the layers of a model or builds them, so that what it calls is inside of the model."""
    return module.startswith("models/") and code.co_name in PASSES


def grouped(name: str, modules: list[str]) -> dict[str, list[str]]:
    """The modules of a walk, and those that are counted beside it. Modules in brackets ran inside of a model."""
    seen = [module for module in modules if not module.startswith("(")]
    if name == "step":
        seen = [*dict.fromkeys(module.strip("()") for module in modules)]
    inside = [module.strip("()") for module in modules if module.startswith("(")]
    groups: dict[str, list[str]] = {"walk": [], "core": [], "measures": []}
    for module in seen:
        groups["core" if module.startswith(CORE) else "measures" if module.startswith(MEASURES) else "walk"].append(
            module
        )
    return groups | {"inside the model": [module for module in inside if module not in seen]}


def walked(name: str, folder: str) -> list[str]:
    """The modules of a walk in order of their first call, found in a process of its own."""
    command = [sys.executable, __file__, "--walk", name]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def package(module: str) -> str:
    return module.partition("/")[0] if "/" in module else "(top)"


def sizes() -> Iterator[tuple[object, ...]]:
    """For every package and for all: files, modules, lines, and median and largest lines of a module."""
    lines = {path: len(path.read_text().splitlines()) for path in sorted(ROOT.rglob("*.py"))}
    of = {path: package(str(path.relative_to(ROOT))) for path in lines}
    yield "package", "files", "modules", "lines", "median", "largest", f"> {LARGE}"
    for name in (*sorted({*of.values()}), "all"):
        inside = {path: count for path, count in lines.items() if name in (of[path], "all")}
        modules = [count for path, count in inside.items() if path.name != "__init__.py"] or [0]
        large = sum(count > LARGE for count in modules)
        yield name, len(inside), len(modules), sum(inside.values()), round(median(modules)), max(modules), large


def show(rows: list[tuple[object, ...]]) -> None:
    for first, *others in rows:
        print(
            f"{first!s:<14}"
            + "".join(f"{value:>9,}" if isinstance(value, int) else f"{value!s:>9}" for value in others)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the modules of every walk")
    parser.add_argument("--walk", choices=WALKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path[0] = str(SOURCE)
    if given.walk:
        walk = Walk()
        walk.run(WALKS[given.walk].split())
        print(f"\n{json.dumps([*dict.fromkeys(walk.steps if given.walk == 'step' else walk.calls)])}")
        return
    show([*sizes()])
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        make_inputs(Path(folder))
        subprocess.run([*ATTNWORKS, *RUN.split(), "run"], cwd=folder, check=True, capture_output=True)
        found = {name: grouped(name, walked(name, folder)) for name in WALKS}
    print()
    beside = ("core", "measures", "inside the model")
    rows = (
        (
            name,
            len(of["walk"]),
            len({*map(package, of["walk"])}),
            *(len(of[group]) for group in beside),
            sum(map(len, of.values())),
        )
        for name, of in found.items()
    )
    show([("walk", "modules", "packages", "core", "measures", "model", "all"), *rows])
    for name, groups in found.items() if given.list else ():
        print(f"\n{name}: {WALKS[name]}")
        for group, modules in groups.items():
            print(f"  {group}: {' '.join(modules)}")


if __name__ == "__main__":
    main()
