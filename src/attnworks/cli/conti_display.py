"""The table and the pictures of `attnworks experiment conti`."""

from __future__ import annotations

import importlib.util
import json
from contextlib import ExitStack
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from attnworks.cli.console import console, print_json, progress_console
from attnworks.cli.train_display import TrainDisplay, stop_on_signal
from attnworks.core.checks import own_folder
from attnworks.core.folders import read_file
from attnworks.models.build import PRESETS, preset
from attnworks.studies.conti import MAPS_FOLDER, run_conti
from attnworks.studies.pictures import draw_heads
from attnworks.studies.results import RESULTS_FILE
from attnworks.training.events import Watcher
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run


def show_conti(folder: Path, recipes: list[Recipe], as_json: bool) -> None:
    screen = progress_console()
    for recipe in recipes:
        preset(recipe.preset)
    own_folder(folder, "the experiment", {*PRESETS, MAPS_FOLDER, RESULTS_FILE})
    folder.mkdir(parents=True, exist_ok=True)
    with stop_on_signal() as stopped, ExitStack() as displays:

        def tell(run: Run) -> Watcher:
            displays.close()
            return displays.enter_context(TrainDisplay(run, screen, quiet=as_json))

        run_conti(folder, recipes, tell=tell, should_stop=lambda: bool(stopped))
    if stopped:
        screen.print("Stopped; run the same command again to continue.")
        return
    report = json.loads(read_file(folder / RESULTS_FILE))
    if as_json:
        print_json(report)
        return
    pictures = _draw(folder, [recipe.preset for recipe in recipes])
    _print_table(report)
    console().print(f"{len(pictures)} pictures in {folder / MAPS_FOLDER}" if pictures else NO_PICTURES, markup=False)


NO_PICTURES = "No pictures: pip install 'attnworks[plot]' and run the command again."


def _print_table(report: dict) -> None:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("model")
    for heading in ("parameters", "steps", "minutes", "held-out loss", "BLEU", "chrF"):
        table.add_column(heading, justify="right")
    for row in report["results"]:
        numbers = (row["loss"], row["bleu"], row["chrf"])
        loss, bleu, chrf = (
            "-" if value is None else f"{value:.{digits}f}" for value, digits in zip(numbers, (3, 1, 1), strict=True)
        )
        table.add_row(
            row["model"], f"{row['parameters']:,}", f"{row['steps']:,}", f"{row['minutes']:.1f}", loss, bleu, chrf
        )
    if report["dictionary_bleu"] is not None:
        table.add_row("word-for-word dictionary", "", "", "", "", f"{report['dictionary_bleu']:.1f}", "")
    console().print("Test split, best checkpoint, beam 5", table)


def _draw(folder: Path, presets: list[str]) -> list[Path]:
    """One picture per model, sentence and attention layer."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    drawn: list[Path] = []
    for name in presets:
        for number, trace in enumerate(json.loads(read_file(folder / MAPS_FOLDER / f"{name}.json"))["sentences"]):
            for layer in trace["attention"]:
                path = folder / MAPS_FOLDER / f"{name}-sentence{number}-{layer['slot']}.png"
                draw_heads(trace, layer["slot"], path)
                drawn.append(path)
    return drawn
