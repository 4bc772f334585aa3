"""`attnworks demo`: a first look at everything, in about three minutes."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MARKER = ".attnworks-demo"
OWN = ("translator", "exam", "page.html", "pruned", "restored")
"""What the demo and the commands that it prints write. Only these are replaced when the demo runs again."""
SENTENCES = (
    "Luca is studying in Spain. He is very happy.",
    "The chair is new. It is very beautiful.",
    "My sister does not eat the red apples.",
)
WIRINGS = {"attention alone": "attention alone", "skip": "with skip", "skip, MLP, norm": "with skip, MLP, norm"}
LAYERS, BAR_WIDTH = 6, 10
MINUTE: dict[str, Any] = {"minutes": 1}
A_FEW_STEPS: dict[str, Any] = {"steps": 3, "pairs": 200, "score_sentences": 0}


@click.command()
@click.option("--quick", is_flag=True, help="Train for 3 steps only, to check that everything works.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="attnworks-demo",
    show_default=True,
    metavar="FOLDER",
    help="Folder to write to; an earlier demo there is replaced, unless its translator was trained further; any other "
    "folder is refused.",
)
def demo(quick: bool, out: Path) -> None:
    """See what attnworks does, in about three minutes.

    The demo draws rank collapse, trains a small English-Italian translator for one minute, translates three sentences,
    examines the translator and writes the page, prunes a quarter of its heads, and prints commands to try next.
    Nothing is downloaded.

    \b
    Examples:
      attnworks demo
      attnworks demo --quick --out /tmp/attnworks-demo
    """
    _prepare_folder(out)
    import torch

    import attnworks
    from attnworks.cli.console import console, progress_console, progress_display
    from attnworks.cli.train import train_and_show
    from attnworks.core.display import counted

    torch.set_num_threads(1)  # the models are so small that more threads make them slower
    screen = console()
    _heading(screen, "1. Attention alone loses rank: how far apart are the tokens after each layer?")
    screen.print(_collapse(), "[dim]1: spread out, 0: all the same vector. Skip connections prevent the collapse.")

    _heading(screen, "2. Train a small English-Italian translator")
    translator = out / "translator"
    limits = A_FEW_STEPS if quick else MINUTE
    _, stopped = train_and_show(progress_console(), quiet=False, preset="tiny", out=translator, threads=1, **limits)
    if stopped:
        sys.exit(130)
    if quick:
        screen.print(f"Trained for {A_FEW_STEPS['steps']} steps only, so the translations mean nothing yet.")
    for made in attnworks.translate(translator, SENTENCES, num_beams=5):
        screen.print(f"{made.source}\n    -> {made}", markup=False)

    _heading(screen, "3. Examine its heads, and write the page")
    sentences = 8 if quick else 64
    with progress_display("examine", quiet=False) as progress:
        exam = attnworks.examine(translator, sentences=sentences, out=out / "exam", progress=progress)
    page = attnworks.report(exam, out / "page.html")
    screen.print(f"{counted(len(exam.readings), 'reading')}, {counted(len(exam.findings), 'finding')}.")
    screen.print(
        f"Page   {page.path.absolute()}\nOpen it in a browser; it needs no network.", markup=False, soft_wrap=True
    )

    _heading(screen, "4. Prune a quarter of its heads")
    with progress_display("prune", quiet=False) as progress:
        _, receipt = attnworks.prune(
            translator, keep=0.75, by="gradient", heal=2 if quick else 30, pairs=60 if quick else 1000,
            sentences=sentences, out=out / "pruned", progress=progress,
        )  # fmt: skip
    screen.print(receipt)

    _heading(screen, "Try next")
    for command in _next_commands(out):
        screen.print(f"  {command}", markup=False, soft_wrap=True)


def _next_commands(out: Path) -> list[str]:
    lines = (
        ("translate", out / "pruned", "--num-beams", 5, "My brother is too kind."),
        ("train", "--resume", out / "translator", "--minutes", 5),
        ("view", out / "pruned"),
        ("undo", out / "pruned", "--out", out / "restored"),
    )
    return [shlex.join(["attnworks", *map(str, words)]) for words in lines]


def _prepare_folder(out: Path) -> None:
    """A new or empty folder, or one of an earlier demo, whose files are removed; any other is refused."""
    from attnworks.core.errors import FolderError
    from attnworks.core.folders import disk_errors

    with disk_errors(f"demo in {out}", remedy="choose another --out"):
        if out.exists() and not (out / MARKER).is_file() and not (out.is_dir() and not any(out.iterdir())):
            got = "a folder with other files" if out.is_dir() else "a file"
            remedy = "choose another --out"
            raise FolderError(f"demo in {out}", "a new folder, or that of an earlier demo", got, remedy)
        if _trained_further(out / "translator"):
            got = "a translator that was trained further"
            raise FolderError(f"demo in {out}", "a demo that may be replaced", got, "move it, or choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).write_text("attnworks demo writes into this folder and replaces its own files here.\n")
        for place in (out / name for name in OWN):
            if place.is_symlink() or place.is_file():
                place.unlink()
            elif place.exists():
                shutil.rmtree(place)


def _trained_further(translator: Path) -> bool:
    """Whether training of the translator of an earlier demo was continued, which changes the limits of its recipe."""
    from attnworks.core.errors import AttnworksError
    from attnworks.training.run_folder import read_recipe

    if translator.is_symlink():
        return False
    try:
        recipe, _ = read_recipe(translator)
    except AttnworksError:
        return False
    return (recipe.minutes, recipe.steps) not in ((MINUTE["minutes"], None), (None, A_FEW_STEPS["steps"]))


def _heading(screen: Console, text: str) -> None:
    screen.print(f"\n{text}", style="bold", markup=False)


def _collapse() -> Table:
    """Bars of the relative residual after each layer of a random network, in three wirings."""
    from rich.table import Table
    from rich.text import Text

    from attnworks.theory.experiments.collapse import CollapseExperiment

    rows = CollapseExperiment(num_layers=LAYERS, weights=1.0, seeds=1).run()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("layer", justify="right")
    for title in WIRINGS.values():
        table.add_column(title, no_wrap=True)
    for layer in range(LAYERS + 1):
        found = {row.wiring: row.relative_residual for row in rows if row.layer == layer}
        table.add_row(str(layer), *(Text(*_bar(found[wiring])) for wiring in WIRINGS))
    return table


def _bar(value: float) -> tuple[str, str]:
    """A bar with its number, and its colour."""
    number = f"{value:.2f}" if value > 0.01 else f"{value:.0e}"
    colour = "green" if value > 0.3 else "yellow" if value > 1e-3 else "red"
    return f"{'█' * round(BAR_WIDTH * min(value, 1.0)):<{BAR_WIDTH}} {number}", colour
