"""`attnworks undo`: the model before its last reshape."""

from __future__ import annotations

from pathlib import Path

import click

from attnworks.cli.options import json_option
from attnworks.cli.reshape_verbs import out_option


@click.command()
@click.argument("model")
@out_option
@json_option
def undo(model: str, out: Path, as_json: bool) -> None:
    """Bring back the model before its last reshape, bit for bit.

    \b
    Examples:
      attnworks undo runs/projected --out runs/back
    """
    import attnworks
    from attnworks.cli.console import console, print_json

    receipt = attnworks.undo(model, out)
    if as_json:
        print_json({"undone": receipt.to_json(), "out": str(out)})
    else:
        told = f"Undone: {receipt.title}. The model before it is in {out}, with the same files."
        console().print(told, markup=False, soft_wrap=True)
