"""`attnworks history`: what was done to a model."""

from __future__ import annotations

import click

from attnworks.cli.options import json_option


@click.command()
@click.argument("model")
@json_option
def history(model: str, as_json: bool) -> None:
    """Show all reshapes of a model, first to last.

    \b
    Examples:
      attnworks history runs/projected
    """
    import attnworks
    from attnworks.cli.console import console, print_json

    receipts = attnworks.history(model)
    if as_json:
        print_json({"receipts": [receipt.to_json() for receipt in receipts]})
        return
    if not receipts:
        console().print(f"{model} was never reshaped.", markup=False)
    for number, receipt in enumerate(receipts, 1):
        console().print(f"[bold]{number}.[/]", receipt)
