"""`attnworks serve`: the page of a model, live."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import click

from attnworks.cli.console import echo
from attnworks.cli.options import compute_options, prepare
from attnworks.core.errors import MissingExtraError

NEEDED = ("starlette", "uvicorn")


@click.command()
@click.argument("model")
@click.option("--text", metavar="SENTENCE", help="Sentence to show first.  [default: one that suits the model]")
@click.option("--max-tokens", type=click.IntRange(4, 512), default=128, show_default=True, help="Longest sentence "
              "that is accepted, in tokens.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; one of this machine alone.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any that is free]"
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@compute_options(threads="torch's own choice less one, which answers")
def serve(model: str, **options: Any) -> None:
    """Look at a model live: type a sentence, see all heads change; cut, swap and project heads by click.

    MODEL is a run of attnworks train, or a Hugging Face model as for attnworks examine. The model on disk is never
    changed. Only this machine can reach the server, and only who knows the printed address, which is another one each
    time. For the page of an examination use attnworks report.

    \b
    Examples:
      attnworks serve runs/first
      attnworks serve bert-folder --text "The capital of France is [MASK] ." --open
      attnworks serve runs/first --port 8765
    """
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise MissingExtraError(
            "attnworks serve", f"{' and '.join(missing)} installed", "no such package", "pip install attnworks[serve]"
        )
    import torch

    prepare(options["device"], options["threads"] or max(1, torch.get_num_threads() - 1), options["seed"])
    from attnworks.page.server.start import serve_page

    ended = serve_page(
        model,
        host=options["host"],
        port=options["port"],
        max_tokens=options["max_tokens"],
        text=options["text"],
        opens=options["opens"],
        device=options["device"],
        dtype=options["dtype"],
        tell=echo,
        ends_process=True,
    )
    if not ended:  # Python would wait at its exit for the thread that still computes an answer
        sys.stdout.flush()
        os._exit(0)
