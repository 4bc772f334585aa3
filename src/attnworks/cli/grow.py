"""`attnworks grow`: add keys, values or heads where capacity is missing."""

from __future__ import annotations

from typing import Any

import click

from attnworks.cli.options import comma_separated
from attnworks.cli.reshape_verbs import reshape_and_show, reshape_options


@click.command()
@click.argument("model")
@click.option(
    "--add",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Make keys and values wider by N dimensions in total, in the heads where this lowers the loss most.",
)
@click.option(
    "--where",
    default="auto",
    show_default=True,
    help="Where to grow: auto, or a list such as enc.0.3:keys=8,dec.0.*:values=2,enc.1:heads=1.",
)
@click.option(
    "--kinds",
    default="keys,values,heads",
    show_default=True,
    callback=comma_separated,
    help="With --where auto: what may grow (keys, values, heads).",
)
@click.option(
    "--by",
    default="fisher",
    show_default=True,
    help="How to set the new weights: fisher, or a baseline to compare with (whitened, random, zero, gradmax, "
    "document).",
)
@click.option("--compare", is_flag=True, help="Also measure every baseline at the same places.")
@reshape_options
def grow(model: str, **options: Any) -> None:
    """Add keys, values or heads where capacity is missing.

    MODEL is a run of attnworks train, or a Hugging Face model. One backward pass over the text finds, for every head,
    the new weights that lower the loss most. Other sentences check them, and further ones choose the step size. Where
    growing would not lower the loss, nothing is written and the reason is printed. Training of a grown run continues
    with its optimizer.

    \b
    Examples:
      attnworks grow runs/first --add 16 --out runs/grown
      attnworks grow runs/first --where enc.0.3:keys=8 --heal 100 --out runs/wider
      attnworks grow runs/first --where "dec.0.*:values=2" --compare --out runs/compared --json
      attnworks grow bert-folder --objective mlm --add 8 --kinds keys --out bert-grown
    """
    from attnworks.core.checks import one_of_options

    places = None if options["where"] == "auto" else options["where"]
    one_of_options("to grow", {"--add": options["add"] or None, "--where": places}, "for instance --add 16")
    reshape_and_show("grow", model, options)
