"""`attnworks experiment collapse, paths, two-keys, projection, gradient, context`: pictures of the theory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.experiment_studies import number_option, numbers_option, show_experiment
from attnworks.cli.options import F, Option, add_options, json_option, prepare, threads_option

seeds = number_option("--seeds", 5, "Number of random repetitions.")
seed = number_option("--seed", 0, "Random seed.", click.IntRange(0, 2**60))


def shared(command: F) -> F:
    """The folder of the results, and the number of threads."""
    return add_options(
        command,
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help="Folder to write results.json, figure.svg and figure.png to.",
        ),
        json_option,
        threads_option(),
    )


def network_options(num_layers: int, num_heads: int, weights: float) -> Option:
    """The size and weights of a random network, with these defaults."""
    return lambda command: add_options(
        command,
        number_option("--num-layers", num_layers, "Number of layers."),
        number_option("--num-heads", num_heads, "Number of heads per layer; must divide --width."),
        number_option("--width", 32, "Width of a token vector."),
        number_option("--tokens", 24, "Number of tokens."),
        number_option("--weights", weights, "Scale of the random weights; 1 is Glorot initialisation."),
        seeds,
        seed,
    )


def _run(name: str, out: Path | None, options: dict[str, Any]) -> None:
    as_json = prepare(options)
    from attnworks.theory.experiments.results import run_theory

    show_experiment(run_theory(name, out, **options), out, as_json)


@click.command()
@network_options(num_layers=8, num_heads=4, weights=0.3)
@shared
def collapse(out: Path | None, **options: Any) -> None:
    """Show how all tokens of a network become the same vector.

    Attention alone, and with skip connections, MLPs and norms, on random input: relative residual, largest distance of
    two tokens, and second over first singular value. Beside them the bounds that hold (D6), from the layer before and
    from the input alone, the printed one (S0.17), and those with skip (S0.19). Medians over the seeds.

    \b
    Examples:
      attnworks experiment collapse
      attnworks experiment collapse --weights 1 --out runs/collapse     # as networks begin
      attnworks experiment collapse --num-heads 1 --num-layers 4 --seeds 1 --json
    """
    _run("collapse", out, options)


@click.command()
@network_options(num_layers=6, num_heads=2, weights=1.0)
@shared
def paths(out: Path | None, **options: Any) -> None:
    """Split the output of a network into paths by length.

    The network is random and has skip connections. Shows how many paths of each length there are, how large their sum
    is, and how different it leaves the tokens. All sums together are the output of the real forward pass; the distance
    from it is shown (D1, S0.12, S1.17). Means over the seeds.

    \b
    Examples:
      attnworks experiment paths
      attnworks experiment paths --num-layers 12 --num-heads 8 --weights 0.5 --out runs/paths
    """
    _run("paths", out, options)


@click.command("two-keys")
@numbers_option("--betas", float, "Query lengths β, comma-separated.  [default: 17 values from 0.5 to 128]")
@number_option("--keys", 10, "Number of keys, including a and b.")
@number_option("--values", 16, "Width of a value vector.")
@number_option("--noise", 1e-6, "Variance of the entries of all keys.")
@number_option("--draws", 4000, "Number of random draws of the keys per query length.")
@seed
@shared
def two_keys(out: Path | None, betas: tuple[float, ...] | None, **options: Any) -> None:
    """Ask for the values of two keys, with one head or two (CS224N).

    The key of a varies in length. One head asks for a and b with the query β(μ_a + μ_b), or two heads ask for one each.
    Weights of a and b, and the variance of the output: simulated, and in closed form (S2.8-S2.20, D9).

    \b
    Examples:
      attnworks experiment two-keys
      attnworks experiment two-keys --betas 2,5,10,50 --noise 1e-3 --out runs/two-keys
    """
    _run("two-keys", out, options if betas is None else {**options, "betas": betas})


@click.command()
@number_option("--tokens", 128, "Number of tokens.")
@number_option("--values", 16, "Number of columns of V.")
@number_option("--epsilon", 0.5, "Relative error to reach, by the printed theorem.")
@number_option("--draws", 40, "Number of random projections per dimension k.")
@seed
@shared
def projection(out: Path | None, **options: Any) -> None:
    """Measure the error of attention through a random projection.

    For attention to one token, sharp, diffuse and uniform attention, with values around zero and around one: the
    measured and the exact expected error (D8), with the k = 5 ln n / (ε² - ε³) of the printed theorem (S0.21, S0.28).

    \b
    Examples:
      attnworks experiment projection
      attnworks experiment projection --tokens 256 --epsilon 0.3 --out runs/projection
    """
    _run("projection", out, options)


@click.command()
@numbers_option("--widths", int, "Key widths, comma-separated.", "4,16,64,256,1024,4096")
@number_option("--tokens", 128, "Number of queries and of keys.")
@seeds
@seed
@shared
def gradient(out: Path | None, **options: Any) -> None:
    """Measure the gradient of softmax against the key width k.

    Without a scale, with 1/√k and with 1/k: the norm of the Jacobian diag(p) - p pᵀ, median over the rows p of
    attention, the share of rows below 0.01, and the entropy (S4.42, S4.46-S4.50).

    \b
    Examples:
      attnworks experiment gradient
      attnworks experiment gradient --widths 64,512 --tokens 1024 --out runs/gradient
    """
    _run("gradient", out, options)


@click.command()
@number_option("--sharpness", 4.0, "Scale of the scores when W_q and W_k are used.")
@shared
def context(out: Path | None, **options: Any) -> None:
    """Show how attention moves a word by its context.

    An example of three words in the plane, after Conti 2024, section 3. Attention moves a word to a mean of the words
    of its sentence, so two sentences move the same word to two places. W_q and W_k decide the weights of this mean,
    and W_v where the words are. Nothing is random (S4.121).

    \b
    Examples:
      attnworks experiment context
      attnworks experiment context --sharpness 20 --out runs/context
    """
    _run("context", out, options)
