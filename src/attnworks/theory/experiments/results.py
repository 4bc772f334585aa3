"""Run an experiment of the theory by its name, and save what it found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnworks.core.checks import own_folder
from attnworks.core.display import rich_html
from attnworks.core.errors import FolderError
from attnworks.core.folders import new_folder, read_file
from attnworks.core.plotting import can_draw
from attnworks.theory.experiments.collapse import CollapseExperiment
from attnworks.theory.experiments.contract import TheoryExperiment
from attnworks.theory.experiments.figures import FIGURE_FILES
from attnworks.theory.experiments.path_lengths import PathLengthExperiment
from attnworks.theory.experiments.projection_error import ProjectionExperiment
from attnworks.theory.experiments.softmax_gradient import GradientExperiment
from attnworks.theory.experiments.two_keys import TwoKeysExperiment
from attnworks.theory.experiments.word_in_context import ContextExperiment

THEORY_EXPERIMENTS: dict[str, type[TheoryExperiment[Any]]] = {
    "collapse": CollapseExperiment,
    "paths": PathLengthExperiment,
    "two-keys": TwoKeysExperiment,
    "projection": ProjectionExperiment,
    "gradient": GradientExperiment,
    "context": ContextExperiment,
}
THEORY_FILE = "results.json"


@dataclass(frozen=True)
class TheoryResults:
    """The rows that an experiment computed."""

    name: str
    experiment: TheoryExperiment[Any]
    rows: Sequence[Any]

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(row) for row in self.rows]
        return {"experiment": self.name, "options": asdict(self.experiment), "rows": rows}

    def __rich__(self) -> Any:
        from attnworks.theory.experiments.render import theory_shown

        return theory_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)


def run_theory(name: str, out: Path | None = None, **options: Any) -> TheoryResults:
    """Compute an experiment, and write results and figure to the folder `out` in one step.

    options    fields of the experiment in THEORY_EXPERIMENTS
    """
    experiment = THEORY_EXPERIMENTS[name](**options)
    if out is not None:
        _check_place(name, out)
    results = TheoryResults(name, experiment, experiment.run())
    if out is not None:
        with new_folder(out) as scratch:
            (scratch / THEORY_FILE).write_text(json.dumps(results.to_json(), indent=2, allow_nan=False) + "\n")
            if can_draw():
                experiment.draw(results.rows, scratch)
    return results


def _check_place(name: str, folder: Path) -> None:
    """New, empty, or with the results of the same experiment, which are replaced."""
    what = f"results of {name}"
    if own_folder(folder, what, (THEORY_FILE, *FIGURE_FILES)) and _experiment_in(folder / THEORY_FILE) != name:
        expected = f"a new folder, or one with {what}"
        raise FolderError(f"{what} in {folder}", expected, "something else", "choose another --out")


def _experiment_in(path: Path) -> str | None:
    """Which experiment wrote a results file; None where there is no file."""
    try:
        return str(json.loads(read_file(path))["experiment"]) if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
