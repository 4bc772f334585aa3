"""D13: how many parameters a transformer has."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import nn

from attnworks.models.counting import PUBLISHED, Blueprint
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, statement
from attnworks.theory.sides import same
from attnworks.theory.together import together


@statement(
    "D13",
    where="derived",
    says=(
        "A decoder of vocabulary $V$, context $C$, width $d$, feed-forward width $f$ and $L$ layers has $Vd + Cd + "
        "L(4d^2 + 4d + 2df + f + d + 4d) + 2d$ parameters, the last $2d$ for its final norm. An encoder has no final "
        "norm, and adds two rows of segments, $2d$ for the norm of its embeddings and $d^2 + d$ for its pooler."
    ),
    verdict=Verdict.HOLDS,
    compares="parameters of our blueprint (or of torch's layers), and by the formula",
)
def parameters_of_a_stack(
    draw: Draw,
    V: Annotated[int, Between(1, 50_257)] = 101,
    C: Annotated[int, Between(1, 2048)] = 23,
    d: Annotated[int, Between(1, 512)] = 13,
    f: Annotated[int, Between(1, 2048)] = 29,
    L: Annotated[int, Between(1, 5)] = 3,
) -> Finding:
    """The layers are those of torch, without memory; heads do not change the number."""
    of_decoder = Blueprint(
        vocabulary=V, positions=C, layers=L, d_e=d, d_ff=f, d_attention=d, d_shared=d, final_norm=True
    )
    of_encoder = replace(of_decoder, final_norm=False, segments=2, embedding_norm=True, pooler=True)
    with torch.device("meta"):
        stack = nn.ModuleList([nn.TransformerEncoderLayer(d, 1, f) for _ in range(L)])
        decoder = nn.ModuleList([stack, nn.Embedding(V, d), nn.Embedding(C, d), nn.LayerNorm(d)])
        encoder = nn.ModuleList([decoder, nn.Embedding(2, d), nn.Linear(d, d)])
    counted = (sum(p.numel() for p in model.parameters()) for model in (decoder, encoder))
    formula = V * d + C * d + L * (4 * d**2 + 4 * d + 2 * d * f + f + d + 4 * d) + 2 * d
    formulas = (formula, formula + 2 * d + d**2 + d)
    ours = (sum(blueprint.count_parameters().values()) for blueprint in (of_decoder, of_encoder))
    figures = {
        PUBLISHED[name].title: float(sum(PUBLISHED[name].blueprint.count_parameters().values()))
        for name in ("gpt-1", "bert-large", "gpt-2-xl", "gpt-3")
    }
    return Finding(same(together(*ours, *counted), together(*formulas, *formulas)), figures=figures)
