"""`attnworks prune`: cut the heads that are needed least."""

from __future__ import annotations

from typing import Any

import click

from attnworks.cli.reshape_verbs import reshape_and_show, reshape_options


@click.command()
@click.argument("model")
@click.option(
    "--keep",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="How many heads to keep, as a share of all heads, for example 0.5.",
)
@click.option(
    "--budget",
    metavar="SHARE",
    help="How much of the model to keep instead: cut heads until it has at most this share of its parameters (0.9 or "
    "parameters:0.9) or of the measured time of a forward pass (time:0.8).",
)
@click.option(
    "--heads",
    default="auto",
    show_default=True,
    help="Heads to cut by name instead: 3.2,4.* or enc.0.*,cross.1.3.",
)
@click.option(
    "--by",
    default="curvature",
    show_default=True,
    help="How to rank heads: curvature (by how much the outputs are estimated to change, again after every few heads), "
    "ablation (the measured loss without each head, the least needed one first), gradient (how much the loss depends "
    "on each head), gates (switches that are trained), redundancy (heads that attend alike), role (heads without a "
    "clear role first), norm (small output weights first) or random. For a language model, curvature also reads "
    "random tokens that are repeated, so that heads that copy from the context are kept.",
)
@click.option("--evenly", is_flag=True, help="Cut the same share of heads in every layer.")
@click.option("--compare", is_flag=True, help="Also measure the loss of every ranking at 90 %, 80 %, ... of the heads.")
@reshape_options
def prune(model: str, **options: Any) -> None:
    """Cut the heads that are needed least.

    MODEL is a run of attnworks train, or a Hugging Face model. Heads are ranked on the text, and their rows and columns
    are removed from all four projections, so that the model becomes smaller and faster. Layers may end with different
    numbers of heads, or none. Heads that share keys and values are cut together. Loss, translations, embeddings, size
    and time are measured on held-out text, and again after --heal steps of training.

    \b
    Examples:
      attnworks prune runs/first --keep 0.5 --heal 300 --out runs/half
      attnworks prune runs/first --keep 0.5 --compare --out runs/compared
      attnworks prune bert-folder --budget time:0.8 --out bert-faster
      attnworks prune runs/first --heads "enc.0.3,cross.*.1" --out runs/fewer
      attnworks prune bert-folder --keep 0.5 --heal 300 --heal-by distil --out bert-half
    """
    from attnworks.core.checks import one_of_options

    heads = None if options["heads"] == "auto" else options["heads"]
    shares = {"--keep": options["keep"], "--budget": options["budget"]}
    one_of_options("to prune", {**shares, "--heads": heads}, "for instance --keep 0.5")
    reshape_and_show("prune", model, options)
