"""The tables and the pictures of `attnworks experiment structure`."""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from attnworks.cli.console import console, print_json, progress_console
from attnworks.cli.conti_display import NO_PICTURES
from attnworks.cli.reshape_run import watching
from attnworks.cli.train_display import TrainDisplay, stop_on_signal
from attnworks.core.checks import own_folder
from attnworks.core.folders import read_file
from attnworks.studies.conti import MAPS_FOLDER
from attnworks.studies.pictures import draw_cost, draw_families, draw_forms, draw_heads
from attnworks.studies.results import RESULTS_FILE
from attnworks.studies.structure import (
    EIGHT_HEADS,
    ONE_HEAD,
    STUDIED_PRESETS,
    STUDIED_SLOT,
    StructureSettings,
    count_forms,
    run_structure,
)
from attnworks.training.events import Watcher
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run


def show_structure(folder: Path, recipes: dict[str, Recipe], settings: StructureSettings, as_json: bool) -> None:
    screen = progress_console()
    own_folder(folder, "the experiment", {*STUDIED_PRESETS, MAPS_FOLDER, RESULTS_FILE})
    folder.mkdir(parents=True, exist_ok=True)
    with stop_on_signal() as stopped, ExitStack() as displays:

        def watch_run(run: Run) -> Watcher:
            displays.close()
            return displays.enter_context(TrainDisplay(run, screen, quiet=as_json))

        def tell(stage: str, done: int, total: int) -> None:
            if not following:
                displays.close()
                following.append(displays.enter_context(watching("study", quiet=as_json)))
            following[0](stage, done, total)

        following: list[Any] = []
        report = run_structure(
            folder, recipes, settings, watch_run=watch_run, tell=tell, should_stop=lambda: bool(stopped)
        )
    if stopped:
        screen.print("Stopped; run the same command again to continue.")
        sys.exit(130)
    if as_json:
        print_json(report)
        return
    _print(report)
    pictures = _draw(folder, report)
    console().print(f"{len(pictures)} pictures in {folder / MAPS_FOLDER}" if pictures else NO_PICTURES, markup=False)


def _print(report: dict[str, Any]) -> None:
    heads = Table(box=SIMPLE_HEAD, title="Encoder heads", title_justify="left")
    for heading in ("model", "head", "role", "closest form", "its error"):
        heads.add_column(heading, justify="right" if heading == "its error" else "left")
    for model, told in report["models"].items():
        for head in told["heads"]:
            distance = "-" if head["distance"] is None else f"{head['distance']:.2f}"
            heads.add_row(model, head["head"], head["role"], head["form"], distance)
    costs = Table(box=SIMPLE_HEAD, title="Heads of conti-8h in structured forms", title_justify="left")
    for heading in ("heads", "one more", "its form", "loss", "BLEU", "healed loss", "healed BLEU"):
        costs.add_column(heading, justify="left" if heading in ("one more", "its form") else "right")
    for count, row in enumerate(report["projected"]):
        last = row["heads"][-1] if count else ""
        costs.add_row(
            str(count), last, report["alone"][last]["form"] if last else "", f"{row['loss']:.3f}", _score(row["bleu"]),
            f"{row['healed_loss']:.3f}", _score(row["healed_bleu"]),
        )  # fmt: skip
    console().print(heads, costs)
    for model in report["models"]:
        told = ", ".join(f"{number} {form}" for form, number in count_forms(report, model).items())
        console().print(
            f"{model}: BLEU {_score(report['models'][model]['bleu'])}; closest forms of its encoder heads: {told}"
        )


def _score(bleu: float | None) -> str:
    return "-" if bleu is None else f"{bleu:.1f}"


def _draw(folder: Path, report: dict[str, Any]) -> list[Path]:
    if importlib.util.find_spec("matplotlib") is None:
        return []
    home = folder / MAPS_FOLDER
    drawn = [home / f"{name}.png" for name in (ONE_HEAD, EIGHT_HEADS, "forms", "families", "cost")]
    traces = {name: json.loads(read_file(home / f"{name}.json"))["sentences"][0] for name in (ONE_HEAD, EIGHT_HEADS)}
    for name, path in zip((ONE_HEAD, EIGHT_HEADS), drawn, strict=False):
        draw_heads(traces[name], str(STUDIED_SLOT), path)
    layer = next(layer for layer in traces[EIGHT_HEADS]["attention"] if layer["slot"] == str(STUDIED_SLOT))
    draw_forms(layer["weights"], report["example"], drawn[2])
    draw_families(drawn[3])
    if all(row["bleu"] is not None for row in report["projected"]):
        draw_cost(report, drawn[4])
    return [path for path in drawn if path.exists()]
