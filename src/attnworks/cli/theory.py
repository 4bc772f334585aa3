"""`attnworks experiment collapse, paths, two-keys, projection, gradient, context`: pictures of the theory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnworks.cli.options import F, prepare

SEED = click.option("--seed", type=click.IntRange(0, 2**60), default=0, show_default=True, help="Random seed.")
SEEDS = click.option(
    "--seeds", type=int, metavar="N", default=5, show_default=True, help="Repeat everything with N draws."
)


def shared(command: F) -> F:
    """Where results go, and how many threads compute."""
    for option in reversed(
        (
            click.option(
                "--out", type=click.Path(path_type=Path), help="Folder for results.json, figure.svg and figure.png."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print the results as JSON and nothing else."),
            click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: torch's own choice]"),
        )
    ):
        command = option(command)
    return command


def network_options(layers: int, heads: int, weights: float) -> Any:
    """What decides about a random network, with these defaults."""

    def add(command: F) -> F:
        for option in reversed(
            (
                click.option("--layers", type=int, default=layers, show_default=True, help="Layers of the network."),
                click.option(
                    "--heads", type=int, default=heads, show_default=True, help="Heads of a layer; must divide --width."
                ),
                click.option("--width", type=int, default=32, show_default=True, help="Width of a token vector."),
                click.option("--tokens", type=int, default=24, show_default=True, help="Tokens of the input."),
                click.option(
                    "--weights",
                    type=float,
                    default=weights,
                    show_default=True,
                    help="Factor of the attention weights; 1 is Glorot's.",
                ),
            )
        ):
            command = option(command)
        return command

    return add


@click.command()
@network_options(layers=8, heads=4, weights=0.3)
@SEEDS
@SEED
@shared
def collapse(out: Path | None, as_json: bool, threads: int | None, **options: Any) -> None:
    """Watch the tokens of a random network become the same vector, layer by layer.

    Attention alone, and with skip connections, MLPs and norms, on random input: relative residual, largest distance of
    two tokens, and second over first singular value. Beside them the bounds that hold (D6), from the layer before and
    from the input alone, the printed one (S0.17), and those with skip (S0.19). Medians over the seeds.

    \b
    Examples:
      attnworks experiment collapse
      attnworks experiment collapse --weights 1 --out runs/collapse     # as networks begin
      attnworks experiment collapse --heads 1 --layers 4 --seeds 1 --json
    """
    _show("collapse", options, out, as_json, threads)


@click.command()
@network_options(layers=6, heads=2, weights=1.0)
@SEEDS
@SEED
@shared
def paths(out: Path | None, as_json: bool, threads: int | None, **options: Any) -> None:
    """Split the output of a network with skip connections into paths by length.

    How many paths of each length there are, how large their sum is, and how different it leaves the tokens. All sums
    together are the output of the real forward pass; the distance from it is shown (D1, S0.12, S1.17). Means over
    the seeds.

    \b
    Examples:
      attnworks experiment paths
      attnworks experiment paths --layers 12 --heads 8 --weights 0.5 --out runs/paths
    """
    _show("paths", options, out, as_json, threads)


@click.command("two-keys")
@click.option("--betas", help="Lengths of the query, such as 2,10,50.  [default: 17 of them from 0.5 to 128]")
@click.option("--keys", type=int, default=10, show_default=True, help="Number of keys, a and b included.")
@click.option("--values", type=int, default=16, show_default=True, help="Width of a value.")
@click.option("--noise", type=float, default=1e-6, show_default=True, help="Variance of the entries of all keys.")
@click.option("--draws", type=int, default=4000, show_default=True, help="Draws of the keys for each length.")
@SEED
@shared
def two_keys(betas: str | None, out: Path | None, as_json: bool, threads: int | None, **options: Any) -> None:
    """Ask for the values of two keys a and b, when the key of a varies in length (CS224N).

    One head asks for both with the query β(μ_a + μ_b), or two heads ask for one each. Weights of a and b, and the
    variance of the output: simulated, and in closed form (S2.8-S2.20, D9).

    \b
    Examples:
      attnworks experiment two-keys
      attnworks experiment two-keys --betas 2,5,10,50 --noise 1e-3 --out runs/two-keys
    """
    if betas is not None:
        options["betas"] = _numbers(betas, "--betas", float)
    _show("two-keys", options, out, as_json, threads)


@click.command()
@click.option("--tokens", type=int, default=128, show_default=True, help="Tokens of the sequence.")
@click.option("--values", type=int, default=16, show_default=True, help="Columns of V.")
@click.option("--epsilon", type=float, default=0.5, show_default=True, help="Relative error in the printed theorem.")
@click.option("--draws", type=int, default=40, show_default=True, help="Draws of the projection for each k.")
@SEED
@shared
def projection(out: Path | None, as_json: bool, threads: int | None, **options: Any) -> None:
    """Put a random projection of k dimensions into attention, and measure the relative error.

    For attention that looks at one token, sharply, diffusely and at all alike, with values around zero and around one:
    measured and exactly expected error (D8), with the k = 5 ln n / (ε² - ε³) of the printed theorem (S0.21, S0.28).

    \b
    Examples:
      attnworks experiment projection
      attnworks experiment projection --tokens 256 --epsilon 0.3 --out runs/projection
    """
    _show("projection", options, out, as_json, threads)


@click.command()
@click.option("--widths", default="4,16,64,256,1024,4096", show_default=True, help="Widths of the keys.")
@click.option("--tokens", type=int, default=128, show_default=True, help="Number of queries and of keys.")
@SEEDS
@SEED
@shared
def gradient(widths: str, out: Path | None, as_json: bool, threads: int | None, **options: Any) -> None:
    """Measure how much gradient softmax lets through, against the width k of the keys.

    Without a scale, with 1/√k and with 1/k: the norm of the Jacobian diag(p) - p pᵀ, median over the rows p of
    attention, the share of rows below 0.01, and the entropy (S4.42, S4.46-S4.50).

    \b
    Examples:
      attnworks experiment gradient
      attnworks experiment gradient --widths 64,512 --tokens 1024 --out runs/gradient
    """
    options["widths"] = _numbers(widths, "--widths", int)
    _show("gradient", options, out, as_json, threads)


@click.command()
@click.option("--sharpness", type=float, default=4.0, show_default=True, help="Factor of the scores under W_q and W_k.")
@shared
def context(out: Path | None, as_json: bool, threads: int | None, **options: Any) -> None:
    """See a word move with its context: attention over three words in the plane (Conti 2024, section 3; S4.121).

    Two sentences take the same word to two places, in the hull of their words: W_q and W_k decide where in the hull,
    W_v where the hull is. Nothing is drawn at random.

    \b
    Examples:
      attnworks experiment context
      attnworks experiment context --sharpness 20 --out runs/context
    """
    _show("context", options, out, as_json, threads)


COMMANDS = (collapse, paths, two_keys, projection, gradient, context)


def _numbers(text: str, option: str, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 2,10,50", param_hint=option) from None


def _show(name: str, options: dict[str, Any], out: Path | None, as_json: bool, threads: int | None) -> None:
    prepare("cpu", threads, options.get("seed", 0))
    from attnworks.cli.theory_display import run_theory

    run_theory(name, options, out, as_json)
