"""Rank heads by a second-order estimate of the change of the outputs, again after every few heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.places import HeadId
from attnworks.models.modes import eval_mode, frozen_weights
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.pruning.distances import distance_of
from attnworks.reshape.pruning.order import Order, RankedText
from attnworks.reshape.pruning.ranked_text import ranked_text
from attnworks.reshape.surgery import PruneUnit
from attnworks.text.tokens import Batch
from attnworks.traces.edits import OpenGatesHook
from attnworks.traces.subject import LayerHook
from attnworks.training.objectives.contract import Outputs

ROUNDS = 12
"""About this many rounds would rank all units."""
MORE_TEXT = (2, 4)
"""How many times the usual text is read, one after the other, while rankings by two halves of it disagree."""
WANTED_DRAWS, MAX_DRAWS = 512, 3
"""Draws of a round over all sentences, as far as that needs no more than MAX_DRAWS for each sentence."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """D(gone + S) - D(gone) = -sum_{u in S} slope_u + 1/2 sum_{u, v in S} H_uv, for sets S of units that are left."""

    slope: Float[Tensor, " u"]
    H: Float[Tensor, "u u"]

    def change(self, chosen: Sequence[int]) -> float:
        """The estimated change of the loss without these units."""
        return float(-self.slope[chosen].sum() + self.H[chosen][:, chosen].sum() / 2)

    def least(self, left: Sequence[int], count: int) -> list[int]:
        """Units of which each adds least to the change, given those before it."""
        change, waiting, chosen = self.H.diagonal() / 2 - self.slope, list(left), list[int]()
        for _ in range(min(count, len(waiting))):
            chosen.append(min(waiting, key=lambda unit: float(change[unit])))
            waiting.remove(chosen[-1])
            change = change + self.H[chosen[-1]]
        return chosen


@dataclass(frozen=True, eq=False)
class Gradients:
    """Of every sentence s: dD_s / d gate, and of each draw dz_s / d gate, summed over the heads of each unit."""

    slopes: Float[Tensor, "s u"]
    draws: Float[Tensor, "s d u"]

    def quadratic(self, some: slice = slice(None)) -> Quadratic:
        """The mean over all sentences, or some of them, with H shrunk towards its diagonal."""
        return Quadratic(self.slopes[some].mean(0), shrunk(self.draws[some]))


def shrunk(draws: Float[Tensor, "s d u"]) -> Float[Tensor, "u u"]:
    """The mean of M_s over sentences, entries off the diagonal times 1 - lambda; M_s is the mean of G G^T over draws.

        lambda = sum_{u != v} Var(H_uv) / (H_uu H_vv)  /  sum_{u != v} H_uv^2 / (H_uu H_vv),   at most 1

    With lambda the expected error of H is smallest. Without it, of few draws, the units that are chosen are those whose
    H_uv happens to be too small. Var(H_uv) is the variance of (M_s)_uv over sentences, divided by their number.
    Source: Schafer and Strimmer 2005, target D.
    """
    sentences, per_sentence, units = draws.shape
    H, squares = draws.new_zeros(units, units), draws.new_zeros(units, units)
    for G in draws:
        M = G.T @ G / per_sentence
        H, squares = H + M / sentences, squares + M.square() / sentences
    variance = (squares - H.square()) / max(1, sentences - 1)
    size = H.diagonal()
    pairs = ((size[:, None] > 0) & (size > 0)).fill_diagonal_(False)  # a unit without effect has no correlations
    error, signal = ((table / size[:, None] / size).where(pairs, 0.0).sum() for table in (variance, H.square()))
    kept = 1 - (error / signal).clamp(0.0, 1.0) if bool(signal > 0) else 1.0
    return H * (kept + (1 - kept) * torch.eye(units, dtype=H.dtype))


def by_curvature(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
    """The next units to go are those without which the distance D to the original model grows least, by an estimate.

    With a gate g on the output of each head, of which those of the units that are gone are zero,

        D(gone + S) - D(gone) = -sum_{u in S} dD/dg_u + 1/2 1_S^T H 1_S

    where H is the Gauss-Newton matrix of D in the gates, and gates of a unit are one gate. dD/dg is the true gradient.
    H is the mean of outer products of gradients of random projections of the outputs (`distances.py`), so that a draw
    costs one backward pass. About a twelfth of the units goes in a round, each the best beside those before it;
    then gradient and H are computed anew. At the original model dD/dg is zero.

    D is 1 - cos for the objective `embedding`, and KL(original || model) where the objective is a cross-entropy: of two
    models with the same loss on the calibration text, the one that is nearer to the original is better on other
    text. For any other loss, D is its rise, and H the mean of outer products of the gradients of all sentences.
    If rankings by two halves of the text disagree, two and then four times as much text is read, as far as there is
    more. Language models are also ranked on repeated random tokens (`ranked_text.py`): without them, the heads that
    copy from the context are cut, which most prose does not need.

    Source: gates of Michel et al. 2019; second-order pruning of LeCun et al. 1990 and, with H off the diagonal, Hassibi
    and Stork 1993; Gauss-Newton and Fisher matrices of Martens 2020.
    Holds when: gates act alike over the whole way from one to zero, so that few units go in a round. The Gauss-Newton
    matrix leaves out how outputs bend in the gates.
    Departs: units are removed without a change of the other weights; H is computed from a few draws, with a relative
    error of about sqrt(2 / draws) for an entry of its diagonal.
    """
    order = _order(context, units, cut, times=1)
    for times in MORE_TEXT:
        agreement = order.agreement(lambda half: list(half)[:cut], [units])
        if agreement is None or agreement.certain or order.all_read:
            break
        order = _order(context, units, cut, times=times)
    return order


def _order(context: ReshapeContext, units: Sequence[PruneUnit], cut: int, times: int) -> Order:
    """The order by this many times the usual text."""
    gates = GateGradients(context, units, rounds=math.ceil(cut / _per_round(units)), times=times)
    first = gates.gradients([])

    def by_half(half: slice) -> list[PruneUnit]:
        return [units[number] for number in first.quadratic(half).least(range(len(units)), len(units))]

    return Order(_rounds(gates, first), by_half, RankedText(len(first.slopes), gates.all_read))


def _per_round(units: Sequence[PruneUnit]) -> int:
    return max(1, round(len(units) / ROUNDS))


def _rounds(gates: GateGradients, first: Gradients) -> Iterator[PruneUnit]:
    units, found, gone = gates.units, first, list[int]()
    while len(gone) < len(units):
        left = [number for number in range(len(units)) if number not in gone]
        chosen = found.quadratic().least(left, _per_round(units))
        yield from (units[number] for number in chosen)
        gone += chosen
        if len(gone) < len(units):
            found = gates.gradients(gone)


class GateGradients:
    """Computes gradients by the gates of units, round after round, and reports how many passes over the text are done.

    A forward or a backward pass over a batch is a step of the progress.
    """

    def __init__(self, context: ReshapeContext, units: Sequence[PruneUnit], rounds: int, times: int = 1) -> None:
        self.units, self.seed, self.tell = units, context.seed, context.tell
        text_loss, self.all_read = ranked_text(context.calibration, context.seed, times)
        self.subject, self.objective = text_loss.original, text_loss.objective
        self.columns = {head: column for column, unit in enumerate(units) for head in unit}
        self.read = [(batch.to(self.subject.device), rows) for batch, rows in text_loss.batches()]
        self.distance = distance_of(self.objective)
        sentences = sum(len(rows) for _, rows in self.read)
        draws = min(MAX_DRAWS, math.ceil(WANTED_DRAWS / sentences))
        self.draws = draws if self.distance.random else 1
        self.round, self.done = 0, 0
        self.all = len(self.read) * (1 + rounds * (2 + self.draws) - self.distance.flat)
        self.kept = [self._keep(*read) for read in self.read]

    def gradients(self, gone: Sequence[int]) -> Gradients:
        """Of all sentences, without the units that are gone."""
        off = [head for number in gone for head in self.units[number]]
        sloped = bool(gone) or not self.distance.flat
        slopes, draws = list[Tensor](), list[Tensor]()
        for (batch, rows), kept in zip(self.read, self.kept, strict=True):
            hook = OpenGatesHook(off)
            with eval_mode(self.subject.model), frozen_weights(self.subject.model), torch.enable_grad():
                outputs = self._outputs(batch, hook)
                self._step()
                for draw in range(self.draws):
                    scalars = self.distance.draw(outputs, batch, rows, (self.seed, self.round, draw))
                    draws.append(self._by_unit(scalars, hook, again=sloped or draw < self.draws - 1))
                if sloped:
                    slopes.append(self._by_unit(self.distance.away(outputs, kept, batch, rows), hook))
        self.round += 1
        every = torch.stack([torch.cat(draws[draw :: self.draws]) for draw in range(self.draws)], 1)
        return Gradients(torch.cat(slopes) if sloped else torch.zeros_like(every[:, 0]), every)

    def _by_unit(
        self, scalars: Float[Tensor, " b"], hook: OpenGatesHook, *, again: bool = False
    ) -> Float[Tensor, "b u"]:
        """The gradients of one number for each sentence by the gates of units, each the sum over those of its heads.

        again    whether the graph is needed for another gradient
        """
        found = torch.autograd.grad(
            scalars.sum(), list(hook.gates.values()), retain_graph=again, allow_unused=True
        )  # gates are one for each sentence
        self._step()
        total = torch.zeros(len(scalars), len(self.units) + 1, dtype=torch.float64)  # the last column: other heads
        for slot, gradient in zip(hook.gates, found, strict=True):
            if gradient is not None:
                columns = [self.columns.get(HeadId(slot, head), len(self.units)) for head in range(gradient.shape[1])]
                total.index_add_(1, torch.tensor(columns), gradient.double().cpu())
        return total[:, :-1]

    def _keep(self, batch: Batch, rows: Tensor) -> Any:
        """What the distance needs of the original's outputs."""
        with eval_mode(self.subject.model), torch.no_grad():
            kept = self.distance.keep(self._outputs(batch), batch, rows)
        self._step()
        return kept

    def _outputs(self, batch: Batch, hook: LayerHook | None = None) -> Outputs:
        logits = self.objective.reads_logits and self.subject.has_logits
        return self.subject.run(self.objective.prepare(batch), hook, logits=logits)

    def _step(self) -> None:
        self.tell("ranking heads", min(self.done, self.all - 1), self.all)
        self.done += 1
