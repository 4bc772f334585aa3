"""`attnworks examine`: what every head of a transformer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import compute_options, prepare


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    del context, parameter
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


def _list(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    if value and not context.resilient_parsing:
        from attnworks.cli.examine_display import show_measures

        show_measures()
        context.exit()


@click.command()
@click.argument("model")
@click.option(
    "--text", type=click.Path(path_type=Path), help="Read the lines of this file; a tab separates source and target."
)
@click.option("--corpus", help="Read a corpus, as for attnworks train.  [default: grammar]")
@click.option(
    "--parses", type=click.Path(path_type=Path), help="Read text with syntax (CoNLL-U); or syntax for --text."
)
@click.option("--sentences", type=click.IntRange(1), metavar="N", default=256, show_default=True, help="Read at most "
              "N sentences.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), help="Cut longer texts.  [default: refuse what does not fit]")
@click.option(
    "--measures", callback=_names, help="Compute these measures, comma-separated; --list-measures shows them."
)
@click.option("--all", "everything", is_flag=True, help="Compute every measure; each states its cost beforehand.")
@click.option(
    "--list-measures",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="Show all measures with their costs, and stop.",
)
@click.option("--objective", help="Loss for importance and ablation: lm, mlm, seq2seq, embedding or labels:FILE.")
@click.option("--without", callback=_names, help="Run without skip, mlp, norm (comma-separated), in float64.")
@click.option("--pin", multiple=True, metavar="SENTENCE", help="Keep the attention maps of this "
              "sentence.  [default, with --out or --report: one of the text]")  # fmt: skip
@click.option(
    "--batch-tokens", type=click.IntRange(1), default=4096, show_default=True, help="Padded tokens of a batch."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write all readings to this folder.")
@click.option("--report", type=click.Path(path_type=Path), help="Also write everything as one HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@compute_options()
def examine(model: str, **options: Any) -> None:
    """Examine the attention of a model, head by head.

    MODEL is a run of attnworks train, or a Hugging Face model: a folder with config.json and safetensors, or an id that
    is in the local cache. Without --text, --corpus or --parses it reads 256 sentences of the embedded corpus, whose
    syntax is known. Nothing is downloaded, and no code of the model's is run. Several processes share the text:
    torchrun --nproc-per-node 2 -m attnworks examine ...

    \b
    Examples:
      attnworks examine runs/first
      attnworks examine bert-folder --text corpus.txt --max-tokens 512 --out exam/
      attnworks examine MODEL --measures rank,roles,paths --pin "It was tired." --report report.html
      attnworks examine MODEL --without skip,mlp --json
      attnworks examine MODEL --all --objective mlm
      attnworks examine --list-measures
    """
    prepare(options["device"], options["threads"], options["seed"])
    from attnworks.cli.examine_run import examine_and_show

    examine_and_show(model, options)
