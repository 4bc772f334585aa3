"""`attnworks claims`: which statements of the documents hold, computed live."""

from __future__ import annotations

from typing import Any

import click

from attnworks.cli.options import (
    device_option,
    dtype_option,
    json_option,
    prepare,
    seed_option,
    take_texts,
    text_options,
)

VERDICTS = ("holds", "condition", "typo", "false", "not-checkable")


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--explain", is_flag=True, help="Show each claim in full: both sides, correction, numbers, code.")
@click.option(
    "--verdict",
    type=click.Choice(VERDICTS),
    multiple=True,
    help="Check only claims with this verdict; repeat for several.",
)
@click.option("--on", metavar="MODEL", help="Check the claims that apply to a model: a run or a Hugging Face model.")
@text_options("only with --on", "grammar")
@click.option(
    "--sentences",
    type=click.IntRange(1),
    metavar="N",
    default=16,
    show_default=True,
    help="With --on: read at most N sentences.",
)
@click.option("--max-length", type=click.IntRange(1), metavar="N", help="With --on: cut sentences after N tokens.")
@json_option
@device_option
@dtype_option(help="With --on: number type of the weights; the checks compute in float64.")
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", default=1, show_default=True, help="Number of CPU threads."
)
@seed_option
def claims(ids: tuple[str, ...], explain: bool, **options: Any) -> None:
    """Check published statements about attention.

    Five documents make 271 statements: Xie 2021, Attention (S0), a post of 2024 on rank collapse (S1), CS224N,
    Attention exploration (S2), Burgund, Attention growing networks (S3), and Conti 2024, The math behind
    transformers (S4). Each statement has a check that computes both of its sides, or says why there is nothing to
    compute. IDs are those of docs/claims.md, such as S0.17; S2 stands for all of a document, D for the results that
    were derived for attnworks, and S4.1* for all ids that begin so. Without any, all are checked.

    A statement that is wrong is shown with numbers that break it, and with its correction. The exit code is 1 if any
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
    if explain and options["on"] is not None:
        from attnworks.core.errors import UsageError

        raise UsageError("claims on a model", "--on MODEL, with ids or without", "--explain too", "leave one out")
    as_json = prepare(options)
    import attnworks
    from attnworks.cli.console import console, print_json, progress_display

    with progress_display("claims", quiet=as_json) as progress:
        found: Any = attnworks.claims(*ids, texts=take_texts(options), **options, progress=progress)
    if as_json:
        print_json(found.to_json())
    elif explain:
        from attnworks.theory.render import claims_summary

        console().print(*found, claims_summary(found), sep="\n")
    else:
        console().print(found)
    if options["on"] is None and not found.confirmed:
        click.get_current_context().exit(1)
