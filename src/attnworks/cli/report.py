"""`attnworks report`: the page of an examination, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnworks.cli.options import json_option

if TYPE_CHECKING:
    from attnworks import WrittenPage

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("exams", type=PATH, nargs=-1, required=True, metavar="EXAM [AFTER]")
@click.option(
    "--out",
    type=PATH,
    required=True,
    metavar="FILE.html",
    help="HTML file to write; an existing page of attnworks is replaced.",
)
@click.option(
    "--trace",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Add translations from attnworks translate --trace; repeat for several files.",
)
@click.option(
    "--advice", type=PATH, metavar="FILE", help="Add the advice that attnworks advise --json printed to this file."
)
@click.option("--model", metavar="MODEL", help="Add the receipts of this reshaped model.")
@json_option
def report(exams: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Write the page of an examination as one HTML file.

    EXAM is a folder that `attnworks examine --out` wrote; with AFTER, a second one, both are compared. The page opens
    in any browser, without a network. It shows every head with its attention maps, role and measures, depth curves and
    findings. Above 10 MB it keeps the whole maps of the heads that matter most, and small ones of all.

    \b
    Examples:
      attnworks report exams/first --out report.html
      attnworks report exams/first exams/pruned --model runs/pruned --out pruned.html
      attnworks translate runs/first "The chair is new." --num-beams 4 --trace trace.json
      attnworks report exams/first --trace trace.json --out report.html
      attnworks advise runs/first --length 1024 --json > advice.json
      attnworks report exams/first --advice advice.json --out report.html
    """
    import attnworks

    show_page(attnworks.report(exams, **options), as_json=as_json)


def show_page(page: WrittenPage, *, as_json: bool) -> None:
    """Where the page is; what is not in it goes to standard error."""
    from attnworks.cli.console import console, print_json, progress_console

    for remark in page.remarks:
        progress_console().print(remark, markup=False, style="yellow")
    if as_json:
        print_json(page.to_json())
    else:
        console().print(page, soft_wrap=True)
