"""`attnworks compare`: two examinations, head by head."""

from __future__ import annotations

from pathlib import Path

import click

from attnworks.cli.console import console, print_json


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Show N changes, the most certain first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all changes as one JSON object and nothing else.")
def compare(before: Path, after: Path, top: int, as_json: bool) -> None:
    """Say what changed between two examinations, head by head.

    BEFORE and AFTER are folders that `attnworks examine` wrote: of two models, of one model before and after training
    or reshaping, or of one model on two texts. Numbers are compared with their confidence intervals. Heads of a model
    that attnworks reshape wrote are matched to those of the model before through its receipts; heads that were cut or
    added are listed.

    \b
    Examples:
      attnworks compare exams/step-1000 exams/step-9000
      attnworks compare exams/bert exams/bert-pruned --top 30
      attnworks compare exams/a exams/b --json | jq '.changes[:5]'
    """
    from attnworks.exam.compare import compare_exams as compare_exams
    from attnworks.exam.folder import read_exam

    comparison = compare_exams(read_exam(before), read_exam(after))
    if as_json:
        print_json(comparison.to_json())
        return
    from attnworks.cli.compare_display import show_comparison

    show_comparison(comparison, str(before), str(after), console(), top)
