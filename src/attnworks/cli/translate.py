"""`attnworks translate`: sentences in, translations out."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import compute_options, prepare

UNKNOWN_WORDS = 10
"""Most unknown words that are listed."""


@click.command()
@click.argument("model")
@click.argument("text", nargs=-1)
@click.option(
    "--num-beams",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    show_default=True,
    help="Beam width; 1 is greedy decoding.",
)
@click.option(
    "--length-penalty",
    type=float,
    default=0.6,
    show_default=True,
    help="Length penalty of beam search: 0 for none, 0.6 to 1 is usual.",
)
@click.option(
    "--num-return-sequences",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    show_default=True,
    help="Translations to print per sentence; at most --num-beams.",
)
@click.option("--do-sample", is_flag=True, help="Sample words by probability instead of searching.")
@click.option(
    "--temperature",
    type=float,
    default=1.0,
    show_default=True,
    help="With --do-sample: temperature of the distribution.",
)
@click.option(
    "--top-k", type=click.IntRange(1), metavar="K", help="With --do-sample: sample from the K most probable words."
)
@click.option(
    "--top-p",
    type=float,
    metavar="P",
    help="With --do-sample: sample from the smallest set of words with total probability P.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    metavar="N",
    default=64,
    show_default=True,
    help="Number of sentences to translate at once.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write attention maps and beam tree of every sentence to this JSON file.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "own", "ctranslate2"]),
    default="auto",
    show_default=True,
    help="What translates: ctranslate2 is faster and gives the same translations. auto chooses it for 8 sentences or "
    "more, where it is installed and can do what is asked.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "int8"]),
    default="float32",
    show_default=True,
    help="Precision of ctranslate2; with int8 it is faster, and a few translations differ.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, for each sentence, with scores.")
@compute_options()
def translate(model: str, text: tuple[str, ...], **options: Any) -> None:
    """Translate text with a trained model.

    MODEL is a run of attnworks train, or a model folder. The sentences are the arguments TEXT or, without them, the
    lines of standard input. Every sentence gives one line, or N lines with --num-return-sequences N. Words that are not
    in the vocabulary are read as <unk> and listed on standard error. An empty line stays empty. A translation that does
    not end is cut at twice the number of tokens of the longest sentence in its batch, plus ten.

    \b
    Examples:
      attnworks translate runs/first "Luca is studying in Spain. He is very happy."
      cat english.txt | attnworks translate runs/first --num-beams 5 > italian.txt
      attnworks translate runs/first --num-beams 5 --num-return-sequences 3 --json "The chair is new."
      attnworks translate runs/first --do-sample --top-p 0.9 --seed 7 "The chair is new."
    """
    as_json = prepare(options)
    from attnworks.api.subjects import as_subject
    from attnworks.api.translations import Translator
    from attnworks.cli.console import echo, print_json_line
    from attnworks.text.vocabulary import UNK

    subject = as_subject(
        model,
        device=options.pop("device"),
        dtype=options.pop("dtype"),
        progress=lambda remark, *_: echo(remark, err=True),
    )
    translator = Translator(subject, **options)
    unknown: dict[str, None] = {}  # each word once, in the order of the text
    for made in translator(text or _lines_of_input()):
        unknown |= dict.fromkeys(made.unknown)
        if as_json:
            print_json_line(made.to_json())
        else:
            lines = [made, *made.alternatives]
            echo("\n".join([*lines, *[""] * (translator.num_return_sequences - len(lines))]))
        sys.stdout.flush()
    if unknown and not as_json:
        echo(_about_unknown(unknown, translator.vocabularies[0].token(UNK)), err=True)


def _about_unknown(unknown: Collection[str], read_as: str) -> str:
    """The words that the model does not know, in quotes, with control characters escaped."""
    from attnworks.core.display import counted

    named = ", ".join(repr(word) for word in islice(unknown, UNKNOWN_WORDS))
    more = f" and {len(unknown) - UNKNOWN_WORDS} others" if len(unknown) > UNKNOWN_WORDS else ""
    return f"{counted(len(unknown), 'word')} not in the vocabulary of this run, read as {read_as}: {named}{more}"


def _lines_of_input() -> Iterator[str]:
    """Lines as `wc -l` counts them."""
    from attnworks.core.errors import FolderError

    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            got = f"byte {line[error.start]:#04x} in line {number}"
            raise FolderError("standard input", "UTF-8 text", got, "convert it to UTF-8 first") from None
