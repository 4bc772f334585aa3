"""Tables, sentences, results and figures of the experiments in theory."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from attnworks.cli.console import console, print_json
from attnworks.cli.conti_display import NO_PICTURES
from attnworks.core.checks import own_folder
from attnworks.core.errors import FolderError
from attnworks.core.folders import new_folder, read_file
from attnworks.studies.results import RESULTS_FILE
from attnworks.theory.experiments.collapse import CollapseExperiment
from attnworks.theory.experiments.contract import ResultTable, TheoryExperiment
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


def run_theory(name: str, given: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Compute, write to `out` in one step if there is one, and print."""
    experiment = THEORY_EXPERIMENTS[name](**given)
    if out is not None:
        _check_place(name, out)
    rows = experiment.run()
    report = {"experiment": name, "options": asdict(experiment), "rows": [asdict(row) for row in rows]}
    drawn = importlib.util.find_spec("matplotlib") is not None
    if out is not None:
        with new_folder(out) as scratch:
            (scratch / RESULTS_FILE).write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
            if drawn:
                experiment.draw(rows, scratch)
    if as_json:
        print_json(report)
        return
    console().print(*map(_rich_table, experiment.tables(rows)), *experiment.sentences(rows), sep="\n")
    if out is not None:
        written = f"\nresults and figure in {out}" if drawn else f"\nresults in {out}\n{NO_PICTURES}"
        console().print(written, markup=False)


def _check_place(name: str, folder: Path) -> None:
    """New, empty, or with the results of the same experiment, which are made again."""
    if not own_folder(folder, f"results of {name}", (RESULTS_FILE, *FIGURE_FILES)):
        return
    if _experiment_in(folder / RESULTS_FILE) != name:
        what = f"results of {name}"
        raise FolderError(
            f"{what} in {folder}", f"a new folder, or one with {what}", "something else", "choose another --out"
        )


def _experiment_in(path: Path) -> str | None:
    """Which experiment wrote a results file; None where there is no file."""
    try:
        return str(json.loads(read_file(path))["experiment"]) if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def _rich_table(table: ResultTable) -> Table:
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, title=table.title, title_justify="left")
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="left" if place < table.left else "right")
    for cells in table.rows:
        shown.add_row(*cells)
    return shown
