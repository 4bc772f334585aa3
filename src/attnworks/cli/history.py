"""`attnworks history`: what was done to a model."""

from __future__ import annotations

import click

from attnworks.cli.options import json_option


@click.command()
@click.argument("model")
@json_option
def history(model: str, as_json: bool) -> None:
    """Show all reshapes of a model, first to last.

    MODEL is a folder that `attnworks prune`, `grow`, `swap`, `project` or `replay` wrote. The receipt of each reshape
    says what was done where, and gives the loss before, predicted, measured and healed.

    \b
    Examples:
      attnworks history runs/projected
    """
    import attnworks
    from attnworks.cli.console import console, print_json

    found = attnworks.history(model)
    if as_json:
        print_json(found.to_json())
    else:
        console().print(found)
