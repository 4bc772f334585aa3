"""Ways of filling new columns that only the study of growth uses, in addition to the methods of `attnworks grow`."""

from __future__ import annotations

import torch

from attnworks.attention.heads import HeadMatrices
from attnworks.core.registry import Registry
from attnworks.reshape.growth.apply import GrowthPlace, Rewritten
from attnworks.reshape.growth.methods import METHODS, Line, Method, fixed_line, kind_refusal, refit_steps
from attnworks.reshape.growth.places import Spot, Widths
from attnworks.reshape.growth.score import FIRST_STEP_LOSS_SHARE, GrowthKind
from attnworks.reshape.growth.survey import GrowthSurvey

BASELINES: Registry[Method] = Registry("way of growing")


def growth_method(way: str) -> Method:
    """The method of this name, from this module or from `attnworks grow`."""
    return BASELINES[way] if way in BASELINES else METHODS[way]


@BASELINES.register("split")
def split_columns(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """Split columns into two halves whose noise cancels, as Net2Net does with neurons."""
    generator = torch.Generator().manual_seed(seed)
    heads = {GrowthPlace(slot, at): head for slot, own in survey.heads.items() for at, head in enumerate(own)}

    def halved(spot: Spot, width: int) -> Rewritten:
        if spot.kind == "heads":
            raise kind_refusal("split", "keys and values")
        heads[spot.place] = _halved(heads[spot.place], spot.kind, width, generator)
        return Rewritten(heads[spot.place])

    return fixed_line(survey, widths, halved)


@BASELINES.register("document-descending")
def document_descending(survey: GrowthSurvey, widths: Widths, seed: int) -> Line:
    """The method `document` with the sign that descends, B = S - t dL/dS, and the best t."""
    del seed
    refit = refit_steps(survey, widths)
    return Line(lambda t: refit(-t), FIRST_STEP_LOSS_SHARE)


SPLIT_NOISE = 0.3
"""The norm of the noise, as a share of the norm of the column that is split."""


def _halved(head: HeadMatrices, kind: GrowthKind, width: int, generator: torch.Generator) -> HeadMatrices:
    """q k^T = (q + n)(k/2)^T + (q - n)(k/2)^T for `width` columns, each time the one of largest |q| |k|."""
    names = ("W_Q", "b_Q", "W_K", "b_K") if kind == "keys" else ("W_V", "b_V", "W_O", "")
    first, bias, second, other = (getattr(head, name, None) for name in names)
    assert first is not None and second is not None
    columns, rows = first.T, second.T if kind == "keys" else second  # both [d_k or d_v, d_e]
    for _ in range(width):
        at = int((columns.norm(dim=1) * rows.norm(dim=1)).argmax())
        noise = torch.randn(columns.shape[1], generator=generator, dtype=torch.float64).to(columns)
        noise *= SPLIT_NOISE * columns[at].norm() / noise.norm()
        columns = torch.cat([columns, columns[at : at + 1] - noise])
        columns[at] += noise
        rows = torch.cat([rows, rows[at : at + 1]])
        rows[[at, -1]] /= 2
        bias, other = (None if b is None else torch.cat([b, b[at : at + 1]]) for b in (bias, other))
        if other is not None:
            other[[at, -1]] /= 2
    halves = {"W_Q": columns.T, "b_Q": bias, "W_K": rows.T, "b_K": other}
    if kind == "values":
        halves = {"W_V": columns.T, "b_V": bias, "W_O": rows}
    return head._replace(**halves)
