"""`attnworks swap`: swap attention for cheaper mechanisms."""

from __future__ import annotations

from typing import Any

import click

from attnworks.cli.reshape_verbs import reshape_and_show, reshape_options


@click.command()
@click.argument("model")
@click.option(
    "--to",
    multiple=True,
    metavar="SPEC",
    help="Mechanism to try, for example window:window=64; repeat for several.  [default: all that could be faster]",
)
@click.option(
    "--layers",
    default="auto",
    show_default=True,
    help="Which layers change: auto; layers or heads that get the one mechanism (enc.0,enc.1 or enc.0.3); or pairs "
    '"enc.0=linear enc.1=window:window=8".',
)
@click.option(
    "--max-error",
    type=click.FloatRange(0, 1),
    metavar="FLOAT",
    default=0.02,
    show_default=True,
    help="With --layers auto: largest relative error of the attention outputs (root mean square over the layers), and "
    "largest relative rise of the loss.",
)
@click.option(
    "--length",
    type=click.IntRange(2, 2**15),
    metavar="N",
    help="Sequence length to optimise for.  [default: mean length of the text]",
)
@reshape_options
def swap(model: str, **options: Any) -> None:
    """Swap attention for cheaper mechanisms where the error allows it.

    MODEL is a run of attnworks train, or a Hugging Face model. With --layers auto every layer tries every mechanism on
    the text. Each layer gets one of them or keeps its own, so that the whole model is as fast as possible within
    --max-error. If the loss then rises by more than that share, half the error is allowed, and so on. attnworks advise
    shows the trade-off without changing anything.

    \b
    Examples:
      attnworks swap runs/first --to window:window=8 --max-error 0.02 --out runs/windows
      attnworks swap runs/first --to linear --layers "enc.*" --heal 300 --out runs/linear
      attnworks swap bert-folder --length 512 --max-error 0.05 --out bert-swapped
    """
    reshape_and_show("swap", model, options)
