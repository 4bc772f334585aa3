"""`attnworks translate`: sentences in, translations out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from attnworks.cli.options import compute_options, prepare


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("text", nargs=-1)
@click.option(
    "--beam", "beams", type=click.IntRange(1), default=1, show_default=True, help="Beams of the search; 1 is greedy."
)
@click.option("--alpha", type=float, default=0.6, show_default=True, help="Length penalty of beam search.")
@click.option("--n-best", type=click.IntRange(1), default=1, show_default=True, help="Translations of each sentence.")
@click.option("--sample", is_flag=True, help="Draw words by their probability instead of taking the best.")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="With --sample: temperature.")
@click.option("--top-k", type=click.IntRange(1), help="With --sample: draw from the k most probable words.")
@click.option(
    "--top-p", type=float, help="With --sample: draw from the most probable words with this total probability."
)
@click.option(
    "--batch", type=click.IntRange(1), default=64, show_default=True, help="Sentences to translate at a time."
)
@click.option("--trace", type=click.Path(path_type=Path), help="Write attention and beam tree of each sentence (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per sentence, with scores.")
@compute_options()
def translate(run: Path, text: tuple[str, ...], **options: object) -> None:
    """Translate with a trained run: the arguments, or the lines of standard input.

    One line comes out for each that goes in (with --n-best N, N lines). Words that are not in the vocabulary of the run
    are read as <unk> and listed on standard error; an empty line stays empty; a translation that does not end is cut
    after twice the tokens of the longest sentence that is decoded with it, and ten more.

    \b
    Examples:
      attnworks translate runs/first "Luca is studying in Spain . He is very happy ."
      cat english.txt | attnworks translate runs/first --beam 5 > italian.txt
      attnworks translate runs/first --beam 5 --n-best 3 --json "The chair is new ."
      attnworks translate runs/first --sample --top-p 0.9 --seed 7 "The chair is new ."
    """
    prepare(str(options["device"]), options["threads"], options["seed"])  # pyright: ignore[reportArgumentType]
    from attnworks.cli.translate_lines import translate_lines

    translate_lines(run, text or _lines_of_input(), **options)  # pyright: ignore[reportArgumentType]


def _lines_of_input() -> Iterator[str]:
    """Lines as `wc -l` counts them."""
    from attnworks.core.errors import FolderError

    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise FolderError(
                "stdin",
                "UTF-8 text",
                f"byte {line[error.start]:#04x} in line {number}",
                "convert it to UTF-8 first",
            ) from None
