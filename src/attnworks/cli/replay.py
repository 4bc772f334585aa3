"""`attnworks replay`: the reshapes of one model, applied to another."""

from __future__ import annotations

from pathlib import Path

import click

from attnworks.cli.options import json_option, set_threads, threads_option
from attnworks.cli.reshape_verbs import out_option, show_saved


@click.command()
@click.argument("model")
@click.option("--on", required=True, help="Model to apply the reshapes to: a run or a Hugging Face model.")
@out_option
@json_option
@threads_option()
def replay(model: str, on: str, out: Path, as_json: bool, threads: int | None) -> None:
    """Apply all reshapes of one model to another.

    MODEL is a folder that `attnworks prune`, `grow`, `swap`, `project` or `replay` wrote. Its reshapes are made again
    on the model of --on, with the same options, and measured again. Where `swap` chose the mechanisms itself, the same
    layers get the same mechanisms. Training between reshapes is not repeated.

    \b
    Examples:
      attnworks replay runs/projected --on runs/first --out runs/again
    """
    set_threads(threads)
    import attnworks
    from attnworks.cli.console import console, print_json, progress_display

    with progress_display("replay", quiet=as_json) as progress:
        replayed = attnworks.replay(model, on, out, progress=progress)
    if as_json:
        print_json({**replayed.to_json(), "out": str(out)})
        return
    console().print(replayed)
    show_saved(out)
