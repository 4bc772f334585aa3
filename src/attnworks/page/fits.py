"""The nearest structured map of every head, on one sentence."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.measures.structure import EPS, closest_forms, families_of
from attnworks.exam.structure.fits import fit
from attnworks.exam.structure.search import best_offset
from attnworks.traces.layer import Kind


class Closest(NamedTuple):
    """The readings structure.closest of the heads of a layer, and structure.shift where there is one."""

    forms: tuple[str, ...]
    shifts: Float[Tensor, " h"] | None = None


class Fitted(NamedTuple):
    """By head: the name of the form, the nearest map of that form, and the error of `structure`, per query."""

    forms: tuple[str, ...]
    P: Float[Tensor, "h i j"]
    errors: Float[Tensor, " h"]


def fit_heads(H: Float[Tensor, "h i j"], kind: Kind, closest: Closest | None) -> Fitted:
    """Each head by the form and the offset that are closest to it over an examination, or else on this sentence."""
    names, H, causal = families_of(kind), H.float(), kind == "decoder"
    known = closest is not None and len(closest.forms) == len(H)
    forms = list(closest.forms) if closest is not None and known else [""] * len(H)
    offsets = best_offset(H, EPS) if "offset" in names else None
    if offsets is not None and closest is not None and known and closest.shifts is not None:
        offsets = torch.where(closest.shifts.isfinite(), closest.shifts.nan_to_num().long(), offsets)
    if unknown := [head for head, form in enumerate(forms) if form not in names]:
        duels = fit(H[unknown], names, eps=EPS, causal=causal).duels
        for head, form in zip(unknown, closest_forms(duels, names).closest, strict=True):
            forms[head] = form
    P, errors = torch.zeros_like(H), H.new_zeros(len(H))
    for form in sorted(set(forms)):
        heads = [head for head, name in enumerate(forms) if name == form]
        offset = None if offsets is None else offsets[heads]
        nearest = fit(H[heads], (form,), eps=EPS, causal=causal, offset=offset)
        P[heads], errors[heads] = nearest.form(form), nearest.error[:, 0]
    return Fitted(tuple(forms), P, errors)
