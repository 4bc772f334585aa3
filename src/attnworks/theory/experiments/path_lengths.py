"""What paths of each length contribute to the output of a network with skip connections.

Source: S0.11, S0.12 and D1; against S1.17, which counts paths and does not weigh them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from attnworks.exam.linalg.residual import relative_residual
from attnworks.models.multihead import Observation
from attnworks.theory.experiments.contract import ResultTable, three_digits
from attnworks.theory.experiments.figures import BLUE, GREY, ORANGE, panels, save_figure, title
from attnworks.theory.experiments.random_network import NetworkExperiment, check_size
from attnworks.traces.paths import Hop, PathStep, path_counts, paths_by_length


@dataclass(frozen=True)
class PathLengthRow:
    """All paths of one length, added up.

    count                number of these paths
    size                 ||C_j||_F over that of the output
    relative_residual    of C_j: near 0 they add the same vector to every token
    missing              ||C_0 + ... + C_j - output||_F over that of the output: rounding at the last length
    """

    length: int
    count: int
    size: float
    relative_residual: float
    missing: float

    @property
    def size_per_path(self) -> float:
        return self.size / self.count


@dataclass(frozen=True, kw_only=True)
class PathLengthExperiment(NetworkExperiment[PathLengthRow]):
    """A random network with skip connections; numbers are means over the seeds."""

    num_layers: int = 6
    num_heads: int = 2
    weights: float = 1.0

    def run(self) -> list[PathLengthRow]:
        """Every length from 0, the input itself, to the number of layers."""
        seeds = [_one_seed(self, seed) for seed in range(self.seed, self.seed + self.seeds)]
        return [_mean(same_length) for same_length in zip(*seeds, strict=True)]

    def tables(self, rows: Sequence[PathLengthRow]) -> list[ResultTable]:
        seeds = f", mean of {self.seeds} seeds" if self.seeds > 1 else ""
        table = ResultTable(
            f"Paths by length; L = {self.num_layers}, H = {self.num_heads}, with skip{seeds}; sizes over the output's",
            "length", "paths", "size of their sum", "size for each", "relative residual", "missing without longer ones",
            left=0,
        )  # fmt: skip
        for row in rows:
            numbers = (row.size, row.size_per_path, row.relative_residual, row.missing)
            table.add_row(str(row.length), _count(row.count), *map(three_digits, numbers))
        return [table]

    def sentences(self, rows: Sequence[PathLengthRow]) -> list[str]:
        most, largest = max(rows, key=lambda row: row.count), max(rows, key=lambda row: row.size)
        first, last, total = rows[0], rows[-1], sum(row.count for row in rows)
        return [
            f"Most paths have length {most.length} ({_count(most.count)} of {_count(total)}); the largest sum is that "
            f"of length {largest.length}.",
            f"Relative residual from length 0 to {last.length}: {three_digits(first.relative_residual)} to "
            f"{three_digits(last.relative_residual)}. All together are the output, within "
            f"{last.missing:.0e} of its size.",
        ]

    def draw(self, rows: Sequence[PathLengthRow], folder: Path) -> None:
        """How many paths of each length there are, the size of their sum, and how different it keeps the tokens."""
        figure, ((count, size, spread),) = panels(1, 3, 4.0, 3.5, folder)
        lengths = [row.length for row in rows]
        for axis, values, words, colour, form in (
            (count, [float(row.count) for row in rows], "how many paths", GREY, "{:,.0f}"),
            (size, [row.size for row in rows], "size of their sum, over that of the output", BLUE, "{:.2g}"),
            (spread, [row.relative_residual for row in rows], "how different they keep the tokens", ORANGE, "{:.2g}"),
        ):
            title(axis, words)
            bars = axis.bar(lengths, values, color=colour, width=0.72)
            axis.grid(False)
            axis.xaxis.get_major_locator().set_params(integer=True)
            if len(rows) <= _MAX_NAMED_BARS:
                numbers = [(form if value < 1e5 else "{:.0e}").format(value) for value in values]
                axis.bar_label(bars, numbers, fontsize=8, padding=2, color="#444444")
                axis.set(xticks=lengths, yticks=[])
                axis.spines["left"].set_visible(False)
            axis.set_xlabel("layers of attention on the path", fontsize=9.5)
        save_figure(figure, folder)


def _count(number: int) -> str:
    return f"{number:,}" if number < 1e9 else f"{number:.1e}"


def _one_seed(experiment: PathLengthExperiment, seed: int) -> list[PathLengthRow]:
    network, X = experiment.draw_network(seed, skip=True), experiment.draw_input(seed)
    seen: list[Observation] = []
    output = network(X, observe=seen.append)
    check_size(output)
    layers = zip(network.attentions, seen, strict=True)
    steps = [PathStep((Hop(lambda P=found.P: P, layer.W_V, layer.W_O),)) for layer, found in layers]
    C = paths_by_length(X, steps)
    whole, missing = output.norm(), C.cumsum(0) - output
    numbers = zip(path_counts(steps), C, missing, strict=True)
    return [
        PathLengthRow(
            length, count, float(term.norm() / whole), float(relative_residual(term)), float(left.norm() / whole)
        )
        for length, (count, term, left) in enumerate(numbers)
    ]


def _mean(rows: Sequence[PathLengthRow]) -> PathLengthRow:
    names = ("size", "relative_residual", "missing")
    return replace(rows[0], **{name: fmean(getattr(row, name) for row in rows) for name in names})


_MAX_NAMED_BARS = 13
"""Most bars that have their numbers above them, and no axis."""
