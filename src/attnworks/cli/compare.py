"""`attnworks compare`: two examinations, head by head."""

from __future__ import annotations

from pathlib import Path

import click

from attnworks.cli.options import json_option


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Show the N most certain changes.",
)
@json_option
def compare(before: Path, after: Path, top: int, as_json: bool) -> None:
    """Compare two examinations, head by head.

    BEFORE and AFTER are folders that `attnworks examine --out` wrote: of two models, of one model before and after
    training or reshaping, or of one model on two texts. Numbers are compared with their confidence intervals. Heads of
    a reshaped model are matched to those of the model before through its receipts; heads that were cut or added are
    listed. --json prints all changes.

    \b
    Examples:
      attnworks compare exams/step-1000 exams/step-9000
      attnworks compare exams/bert exams/bert-pruned --top 30
      attnworks compare exams/a exams/b --json | jq '.changes[:5]'
    """
    import attnworks
    from attnworks.cli.console import console, print_json

    comparison = attnworks.compare(before, after, top=top)
    if as_json:
        print_json(comparison.to_json())
    else:
        console().print(comparison)
