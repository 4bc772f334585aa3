"""`attnworks advise`: what a cheaper attention would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import compute_options, json_option, prepare, take_texts, text_options
from attnworks.cli.reshape_verbs import batch_tokens_option, objective_option


@click.command()
@click.argument("model")
@click.option(
    "--to",
    multiple=True,
    metavar="SPEC",
    help="Mechanism to try, for example window:window=64; repeat for several.  [default: all that could be faster]",
)
@click.option(
    "--max-error",
    type=click.FloatRange(0, 1),
    metavar="FLOAT",
    default=0.02,
    show_default=True,
    help="Largest relative error of the attention outputs (root mean square over the layers), and largest relative "
    "rise of the loss.",
)
@click.option(
    "--length",
    type=click.IntRange(2, 2**15),
    metavar="N",
    help="Sequence length to measure time at.  [default: mean length of the text]",
)
@text_options("every fourth line is left out", "the run's own corpus, or grammar; language models: pydoc")
@click.option(
    "--sentences",
    type=click.IntRange(1),
    metavar="N",
    default=1024,
    show_default=True,
    help="Measure errors on at most N sentences.",
)
@objective_option
@batch_tokens_option(2048)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Write a picture of error against speed to this file.",
)
@json_option
@compute_options()
def advise(model: str, plot: Path | None, **options: Any) -> None:
    """Say what cheaper attention would cost, layer by layer.

    MODEL is a run of attnworks train, or a Hugging Face model; it stays as it is. Every mechanism is tried in every
    layer on the queries, keys and values of the text: the error of the layer's output, the measured time of its
    attention at --length, and the FLOPs. The recommendation is the fastest choice for all layers within --max-error.
    If the loss then rises by more than this share, half the error is allowed, and so on.

    \b
    Examples:
      attnworks advise runs/first --length 1024
      attnworks advise bert-folder --length 512 --max-error 0.05 --to window:window=64 --to linear
      attnworks advise runs/first --length 4096 --text lines.txt --plot advice.svg --json
    """
    as_json = prepare(options)
    texts = take_texts(options)
    import attnworks
    from attnworks.cli.console import console, print_json, progress_display
    from attnworks.core.plotting import check_picture

    if plot is not None:
        check_picture(plot)
    with progress_display("advise", quiet=as_json) as progress:
        advice = attnworks.advise(model, texts, **options, progress=progress)
    if as_json:
        print_json(advice.to_json())
    else:
        console().print(advice)
    if plot is not None:
        advice.plot(plot)
        if not as_json:
            console().print(f"Picture {plot}", markup=False, soft_wrap=True)
