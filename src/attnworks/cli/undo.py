"""`attnworks undo`: the model before its last reshape."""

from __future__ import annotations

from pathlib import Path

import click

from attnworks.cli.options import json_option


@click.command()
@click.argument("model")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write the model to; must not "
              "exist yet.")  # fmt: skip
@json_option
def undo(model: str, out: Path, as_json: bool) -> None:
    """Bring back the model before its last reshape, bit for bit.

    MODEL is a folder that `attnworks prune`, `grow`, `swap`, `project` or `replay` wrote. It stays as it is; the model
    before its last reshape is written to --out.

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
