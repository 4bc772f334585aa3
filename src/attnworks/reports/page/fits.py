"""The nearest structured map of every head, on one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.linalg.structure import fit
from attnworks.measures.structure_fit import ACROSS, EPS, FAMILIES
from attnworks.traces.layer import Kind

NOTHING = "zero"


class Fitted(NamedTuple):
    """By head: the name of the form, the nearest map of that form, and the error of `structure`, per query."""

    forms: tuple[str, ...]
    P: Float[Tensor, "h i j"]
    errors: Float[Tensor, " h"]


def fit_heads(H: Float[Tensor, "h i j"], kind: Kind, told: Sequence[str] | None) -> Fitted:
    """Each head by the form that an examination told of it; where it told none, by what explains this sentence best."""
    families = [name for name in (ACROSS if kind == "cross" else FAMILIES) if name != NOTHING]
    H, causal = H.float(), kind == "decoder"
    forms = list(told) if told is not None and len(told) == len(H) else ["none"] * len(H)
    unknown = [head for head, form in enumerate(forms) if form not in families]
    if unknown:
        for head, form in zip(unknown, fit(H[unknown], families, eps=EPS, causal=causal).names, strict=True):
            forms[head] = str(form)
    P, errors = torch.zeros_like(H), H.new_zeros(len(H))
    for form in sorted(set(forms)):
        heads = [head for head, name in enumerate(forms) if name == form]
        nearest = fit(H[heads], (form,), eps=EPS, causal=causal)
        P[heads], errors[heads] = nearest.form(form), nearest.error[:, 0]
    return Fitted(tuple(forms), P, errors)
