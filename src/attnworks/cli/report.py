"""`attnworks report`: an examination to look at, in one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("exam", type=PATH)
@click.argument("after", type=PATH, required=False)
@click.option("--out", type=PATH, required=True, metavar="FILE.html", help="File to write; a page there is replaced.")
@click.option(
    "--trace",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Show translations from attnworks translate --trace; may be given several times.",
)
@click.option("--advice", type=PATH, metavar="FILE", help="Show the output of attnworks advise --json.")
@click.option("--model", type=PATH, metavar="FOLDER", help="Show the receipts of this reshaped model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object about the file and nothing else.")
def report(
    exam: Path,
    after: Path | None,
    out: Path,
    trace: tuple[Path, ...],
    advice: Path | None,
    model: Path | None,
    as_json: bool,
) -> None:
    """Write an examination as one HTML file, to look at in any browser, without a network.

    EXAM is a folder that `attnworks examine --out` wrote; with AFTER, a second one, both are compared. The page shows
    every head with its attention maps, role and measures, depth curves and findings. Above 10 MB it keeps the whole
    maps of the most telling heads, and small ones of all.

    \b
    Examples:
      attnworks report exams/first --out report.html
      attnworks report exams/first exams/pruned --model runs/pruned --out pruned.html
      attnworks translate runs/first "The chair is new ." --beam 4 --trace trace.json
      attnworks report exams/first --trace trace.json --out report.html
      attnworks advise runs/first --n 1024 --json > advice.json
      attnworks report exams/first --advice advice.json --out report.html
    """
    from attnworks.cli.report_display import show_written
    from attnworks.page.file import write_report

    exams = [exam] if after is None else [exam, after]
    show_written(write_report(exams, out, trace=trace, advice=advice, model=model), as_json=as_json)
