"""From the options of `attnworks reshape` to receipts, shown."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from attnworks.cli.console import console, print_json, progress_bar, progress_console
from attnworks.cli.receipt_display import receipt_shown
from attnworks.core.checks import new_place, one_of_options
from attnworks.core.display import Progress, silent
from attnworks.reshape.contract import Reshape
from attnworks.reshape.growth.grow import Grow
from attnworks.reshape.history import ModelFolder, check_history, receipts_of, replay, undo, write_outcome
from attnworks.reshape.projection.project import Project
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.reshape.swapping.swap import Swap
from attnworks.reshape.texts import TextSplit, split_corpus, split_file
from attnworks.traces.subject import open_subject
from attnworks.training.run_folder import read_recipe


def project_and_show(model: str, options: dict[str, Any]) -> None:
    names = ("heads", "form", "window", "eps", "sparsity")
    _reshape_and_show(Project(**{name: options[name] for name in names}), model, options)


def grow_and_show(model: str, options: dict[str, Any]) -> None:
    kinds = tuple(kind.strip() for kind in options["kinds"].split(","))
    asked = Grow(kinds=kinds, **{name: options[name] for name in ("add", "where", "by", "compare")})
    places = None if asked.where == "auto" else asked.where
    one_of_options("to grow", {"--add": asked.add or None, "--where": places}, "for instance --add 16")
    _reshape_and_show(asked, model, options)


def prune_and_show(model: str, options: dict[str, Any]) -> None:
    heads = None if options["heads"] == "auto" else options["heads"]
    one_of_options("to prune", {"--keep": options["keep"], "--heads": heads}, "for instance --keep 0.5")
    names = ("keep", "heads", "by", "evenly", "compare")
    _reshape_and_show(Prune(**{name: options[name] for name in names}), model, options)


def swap_and_show(model: str, options: dict[str, Any]) -> None:
    names = ("to", "layers", "max_error", "length")
    _reshape_and_show(Swap(**{name: options[name] for name in names}), model, options)


def _reshape_and_show(asked: Reshape, model: str, options: dict[str, Any]) -> None:
    new_place(options["out"])
    settings = ReshapeSettings(
        options["objective"],
        options["heal"],
        options["rate"],
        options["batch_tokens"],
        options["seed"],
        options["heal_by"],
    )
    place = ModelFolder.of(model)
    subject = open_subject(model, device=options["device"], dtype=options["dtype"])
    asked.check(subject.model)  # both before any text is read, which may take long
    check_history(place)
    texts = texts_of(place, options, pairs=options["pairs"], held_out=options["sentences"])
    with watching("reshape", quiet=options["as_json"]) as tell:
        new, receipt = run_reshape(asked, subject, texts, settings, tell)
        write_outcome(new.to("cpu"), receipt, place, options["out"])
    if options["as_json"]:
        print_json({**asdict(receipt), "out": str(options["out"])})
    else:
        console().print(receipt_shown(receipt))
        _saved(options["out"])


def show_history(model: str, as_json: bool) -> None:
    found = receipts_of(model)
    if as_json:
        print_json({"receipts": [asdict(receipt) for receipt in found]})
    elif not found:
        console().print(f"{model} was never reshaped.", markup=False)
    else:
        console().print(*(receipt_shown(receipt, number) for number, receipt in enumerate(found, 1)), sep="\n")


def undo_and_show(model: str, out: Path, as_json: bool) -> None:
    receipt = undo(model, out)
    if as_json:
        print_json({"undone": asdict(receipt), "out": str(out)})
    else:
        console().print(
            f"Undone: {receipt.title}. The model before is in {out}, as its files were.",
            markup=False,
            soft_wrap=True,
        )


def replay_and_show(model: str, on: str, out: Path, as_json: bool) -> None:
    with watching("reshape", quiet=as_json) as tell:
        pairs = replay(model, on, out, tell=tell)
    if as_json:
        print_json({"replayed": [{"then": asdict(then), "now": asdict(now)} for then, now in pairs], "out": str(out)})
        return
    for number, (then, now) in enumerate(pairs, 1):
        console().print(receipt_shown(now, number))
        same = "the same weights as then, bit for bit" if then.fingerprint[1] == now.fingerprint[1] else "other weights"
        console().print(f"The outcome: {same}.")
    _saved(out)


def _saved(out: Path) -> None:
    examine, undo = (shlex.join(["attnworks", *verb, str(out)]) for verb in (["examine"], ["reshape", "undo"]))
    console().print(f"\nSaved  {out}\nNext   {examine}, or {undo} --out FOLDER", markup=False, soft_wrap=True)


def texts_of(place: ModelFolder, options: dict[str, Any], *, pairs: int, held_out: int) -> TextSplit:
    """The text that --corpus or --text names; for a run by default what it was trained on."""
    corpus, text, seed = options["corpus"], options["text"], options["seed"]
    one_of_options("the text to read", {"--corpus": corpus, "--text": text}, "leave one of them out", optional=True)
    if text is not None:
        return split_file(text, pairs=pairs, held_out=held_out)
    if corpus is None and place.is_run:
        recipe, _ = read_recipe(place.folder)
        corpus, seed, pairs = recipe.corpus, recipe.seed, min(pairs, recipe.pairs or pairs)
    return split_corpus(corpus or "grammar", pairs=pairs, held_out=held_out, seed=seed)


@contextmanager
def watching(what: str, *, quiet: bool) -> Iterator[Progress]:
    """A bar that says what is being done; messages, which have a total of 0, stay above it. Nothing at all if quiet."""
    if quiet:
        yield silent
        return
    screen: Console = progress_console()
    with progress_bar(what, screen, shown=screen.is_terminal) as bar:
        task = bar.add_task("", total=1)

        told: list[str] = []

        def tell(stage: str, done: int, total: int) -> None:
            if not total:
                screen.print(stage, markup=False)
                return
            bar.update(task, description=stage, completed=done, total=total)
            if not screen.is_terminal and stage not in told[-1:]:
                told.append(stage)
                screen.print(stage, markup=False)

        yield tell
