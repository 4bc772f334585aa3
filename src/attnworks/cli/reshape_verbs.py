"""What `attnworks prune`, `grow`, `swap` and `project` share: options, and how a receipt is shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnworks.cli.options import F, add_options, compute_options, json_option, prepare, take_texts, text_options

if TYPE_CHECKING:
    from attnworks.reshape import Reshape

out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder to write the new model to; must not exist yet. Not written if nothing changes.",
)


def reshape_options(command: F) -> F:
    """The text that a change is evaluated on, healing, the folder of the new model, and the device."""
    return add_options(
        command,
        click.option(
            "--heal",
            type=click.IntRange(0),
            metavar="N",
            default=0,
            show_default=True,
            help="Train for N steps after the change, to recover quality.",
        ),
        click.option(
            "--heal-by",
            type=click.Choice(["objective", "distil"]),
            default="objective",
            show_default=True,
            help="What healing minimises: the objective, or (distil) the distance to the old model's activations after "
            "every block.",
        ),
        click.option(
            "--learning-rate",
            type=click.FloatRange(0, min_open=True),
            metavar="FLOAT",
            help="Learning rate while healing.  [default: 3e-4; Hugging Face models: 5e-5]",
        ),
        text_options("every fourth line is held out", "the run's own corpus, or grammar; language models: pydoc"),
        click.option(
            "--pairs",
            type=click.IntRange(4),
            metavar="N",
            default=10_000,
            show_default=True,
            help="Read at most N texts to fit the change on, and to train on with --heal.",
        ),
        click.option(
            "--sentences",
            type=click.IntRange(1),
            metavar="N",
            help="Evaluate on at most N held-out sentences; for a language model, of passages of up to 512 tokens.  "
            "[default: 256; language models: passages of about 6,144 tokens in all]",
        ),
        objective_option,
        batch_tokens_option(2048),
        out_option,
        json_option,
        compute_options(),
    )


objective_option = click.option(
    "--objective",
    help="Loss to evaluate by: lm, mlm, seq2seq, embedding, or labels:FILE, a text file with the class of each "
    "sentence, by number or name, one per line.  [default: the one that fits the model]",
)


def batch_tokens_option(default: int) -> Any:
    """--batch-tokens with this default."""
    return click.option(
        "--batch-tokens",
        type=click.IntRange(1),
        metavar="N",
        default=default,
        show_default=True,
        help="Tokens per batch, padding included.",
    )


def reshape_and_show(verb: str, model: str, options: dict[str, Any]) -> None:
    """Call the public function of this name, and show its receipt."""
    import attnworks

    _run_and_show(verb, getattr(attnworks, verb), model, options)


def apply_and_show(reshape: Reshape, model: str, options: dict[str, Any]) -> None:
    """Apply a reshape, and show its receipt."""
    import attnworks

    _run_and_show(reshape.name, partial(attnworks.apply, reshape=reshape), model, options)


def _run_and_show(verb: str, function: Callable[..., Any], model: str, options: dict[str, Any]) -> None:
    as_json = prepare(options)
    texts = take_texts(options)
    from attnworks.cli.console import console, print_json, progress_display

    with progress_display(verb, quiet=as_json) as progress:
        _, receipt = function(model, texts=texts, **options, progress=progress)
    out = None if receipt.nothing_changed else options["out"]
    if as_json:
        print_json({**receipt.to_json(), "out": None if out is None else str(out)})
        return
    console().print(receipt)
    if out is None:
        console().print(f"{options['out']} was not written.", markup=False, soft_wrap=True)
    else:
        show_saved(out)


def show_saved(out: Path) -> None:
    """Where the new model is, and what to run next."""
    from attnworks.cli.console import console

    examine, undo = (shlex.join(["attnworks", verb, str(out)]) for verb in ("examine", "undo"))
    console().print(f"\nSaved  {out}\nNext   {examine}, or {undo} --out FOLDER", markup=False, soft_wrap=True)
