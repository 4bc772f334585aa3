"""`attnworks project`: replace heads by fixed forms."""

from __future__ import annotations

from typing import Any

import click

from attnworks.cli.reshape_verbs import reshape_and_show, reshape_options


@click.command()
@click.argument("model")
@click.option(
    "--heads",
    required=True,
    help="Heads to replace, as layer.head with * for all, comma-separated: 3.2,4.* or enc.0.*.",
)
@click.option(
    "--form",
    default="auto",
    show_default=True,
    help="Form to give them: auto, mix, band, previous, next, self, first, last, mean, or a list of fixed maps such as "
    "-2..2/first.",
)
@click.option(
    "--window",
    type=click.IntRange(0, 64),
    metavar="N",
    default=2,
    show_default=True,
    help="Largest offset to each side that a form may use.",
)
@click.option(
    "--eps",
    type=click.FloatRange(0, 1),
    metavar="FLOAT",
    default=0.02,
    show_default=True,
    help="Largest weight that a head may keep on a position outside its form.",
)
@click.option(
    "--sparsity",
    type=click.FloatRange(0, 1),
    metavar="FLOAT",
    default=0.05,
    show_default=True,
    help="How many positions outside its form a head may keep, as a share of the mean sentence length: 0.05 is one in "
    "20 tokens.",
)
@reshape_options
def project(model: str, **options: Any) -> None:
    """Replace heads by fixed forms, such as the previous token.

    MODEL is a run of attnworks train, or a Hugging Face model. Each head gets the mix of fixed maps (offsets, first and
    last token, the mean of all tokens) that is nearest to its attention over the text, and loses its queries and keys.
    The loss is predicted, measured on held-out text, and measured again after --heal steps of training.

    \b
    Examples:
      attnworks project runs/first --heads "enc.0.*" --heal 300 --out runs/projected
      attnworks project bert-folder --heads "3.2,4.*" --eps 0.02 --sparsity 0.05 --out bert-projected
      attnworks project runs/first --heads enc.0.3 --form previous --out runs/previous --json
    """
    reshape_and_show("project", model, options)
