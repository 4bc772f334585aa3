"""`attnworks claims`: which statements of the documents hold, computed live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import prepare

VERDICTS = ("holds", "condition", "typo", "false", "not-checkable")


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--explain", is_flag=True, help="Show both sides, correction, figures and code of each claim.")
@click.option(
    "--verdict", type=click.Choice(VERDICTS), multiple=True, help="Check claims of this verdict; may be repeated."
)
@click.option("--on", metavar="MODEL", help="Check claims about models on this one: a run, or a Hugging Face model.")
@click.option("--corpus", help="With --on: read a corpus, as for attnworks train.  [default: grammar]")
@click.option("--text", type=click.Path(path_type=Path), help="With --on: read the lines of this file instead.")
@click.option(
    "--sentences", type=click.IntRange(1), metavar="N", help="With --on: read at most N sentences.  [default: 16]"
)
@click.option("--max-tokens", type=click.IntRange(1), help="With --on: cut longer sentences.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON list, with an object per claim, and nothing else."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Random seed.")
def claims(ids: tuple[str, ...], **options: Any) -> None:
    """Check the statements of the five source documents, and say what was found.

    Five documents on attention make 271 statements; each has a check that computes both of its sides, or says why
    there is nothing to compute. IDs are those of docs/claims.md, such as S0.17; S2 stands for all of a document, D for
    the results that we derived, and S4.1* for all ids that begin so. Without any, all are checked.

    A statement that is wrong is shown with numbers that break it, and with its correction. The command fails if any
    check does not find what its verdict says.

    \b
    Examples:
      attnworks claims                         # all of them, in under a minute
      attnworks claims S0.17 --explain
      attnworks claims S2 D9 --seed 3
      attnworks claims --verdict false
      attnworks claims --on runs/first         # on a model of your own: which bounds hold, how tight
      attnworks claims --json > claims.json
    """
    prepare("cpu", options["threads"], options["seed"])
    from attnworks.cli.claims_display import check_and_show, check_on_and_show

    (check_and_show if options["on"] is None else check_on_and_show)(ids, options)
