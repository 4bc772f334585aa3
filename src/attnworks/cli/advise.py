"""`attnworks advise`: which attention mechanisms would do in a model, and what they would save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import compute_options, prepare


@click.command()
@click.argument("model")
@click.option(
    "--n", "length", type=click.IntRange(2, 2**15), help="Measure time at this length.  [default: the text's]"
)
@click.option("--max-error", type=click.FloatRange(0, 1), default=0.02, show_default=True, help="Largest root mean "
              "square over the layers of the error of attention; and largest rise of the loss.")  # fmt: skip
@click.option("--to", multiple=True, metavar="SPEC", help="A mechanism to try, such as window:window=64; may be given "
              "several times.  [default: all that could pay]")  # fmt: skip
@click.option("--corpus", help="Read a corpus, as for attnworks train.  [default: that of the run, or grammar]")
@click.option("--text", type=click.Path(path_type=Path), help="Read the lines of this file instead.")
@click.option("--sentences", type=click.IntRange(1), metavar="N", default=1024, show_default=True, help="Read at most "
              "N sentences.")  # fmt: skip
@click.option("--objective", help="Loss: lm, mlm, seq2seq or embedding.  [default: that of the model]")
@click.option(
    "--batch-tokens", type=click.IntRange(1), default=2048, show_default=True, help="Padded tokens of a batch."
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw error against speed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@compute_options()
def advise(model: str, **options: Any) -> None:
    """Say which attention mechanisms could take the place of those in a model, and which mix of them to take.

    MODEL is a run of attnworks train, or a Hugging Face model; it stays as it is. Every mechanism is tried in every
    layer on the true queries, keys and values of text: the error of the layer's output, the measured time of its
    attention at length --n, and the FLOPs. The mix that is advised is the fastest with an error within --max-error; if
    its loss rises by more than this share, the fastest with at most half the error, and so on.

    \b
    Examples:
      attnworks advise runs/first --n 1024
      attnworks advise bert-folder --n 512 --max-error 0.05 --to window:window=64 --to linear
      attnworks advise runs/first --n 4096 --text lines.txt --plot advice.svg --json
    """
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.advise_display import advise_and_show

    advise_and_show(model, options)
