"""A sentence of the page: its attention maps (whole and as thumbnails), their spectra and nearest structured maps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.places import HeadId, Kind, Slot
from attnworks.exam.examination import Examination, Pin
from attnworks.exam.linalg.spectrum import gram_singular_values
from attnworks.exam.measures.structure import FORGIVEN_ERROR, closest_forms, families_of
from attnworks.exam.reading import LayerValues
from attnworks.exam.structure.fits import fit
from attnworks.exam.structure.search import best_offset
from attnworks.page.blobs import coding_of, encode_map, is_weights, pack, rounded, thumbnails

SINGULAR_VALUES = 32
MAX_SPECTRUM_TOKENS = 256
"""Maps of more tokens get neither spectra nor fits, whose cost grows with the cube of the number of tokens."""
FLOAT16_MAX = torch.finfo(torch.float16).max


@dataclass(frozen=True, eq=False)
class PageSentence:
    """A sentence with its maps; of a translated sentence also the translation and the beam search.

    beam    steps of {"kept": [...], "ended": [...]}, as in a trace of attnworks translate
    """

    pin: Pin
    translation: tuple[str, ...] | None = None
    beam: Sequence[Mapping[str, Any]] | None = None


class PageForms(NamedTuple):
    """The readings structure.closest of the heads of a layer, and structure.shift where there is one."""

    forms: tuple[str, ...]
    shifts: Float[Tensor, " h"] | None = None


class FittedForms(NamedTuple):
    """By head: the name of the form, the nearest map of that form, and the error of `structure`, per query."""

    forms: tuple[str, ...]
    P: Float[Tensor, "h i j"]
    errors: Float[Tensor, " h"]


class PageLayer:
    """The attention maps of one layer, encoded for a page."""

    def __init__(
        self,
        slot: Slot,
        P: Float[Tensor, "h i j"],
        weights: int,
        closest: PageForms | None,
        sizes: Float[Tensor, "h j"] | None = None,
        sinks: Sequence[int] = (0,),
    ) -> None:
        self.sizes, self.sinks = sizes, sinks
        self.slot, self.P = slot, P.float().nan_to_num(0.0, FLOAT16_MAX, -FLOAT16_MAX).clamp(-FLOAT16_MAX, FLOAT16_MAX)
        self.coding = coding_of(self.P, weights)
        self.thumbnails, self.thumbnail_size = thumbnails(self.P)
        self.is_short = max(P.shape[1:]) <= MAX_SPECTRUM_TOKENS
        has_fits = self.is_short and is_weights(self.P)
        self.fitted = fit_heads(self.P, slot.kind, closest) if has_fits else None

    @cached_property
    def _spectra(self) -> list[list[float]]:
        """The largest singular values by head."""
        return rounded(gram_singular_values(self.P)[:, :SINGULAR_VALUES].tolist(), 4)

    def contents(self, prefix: str, held: Sequence[int]) -> tuple[dict[str, Any], dict[str, str]]:
        """The `Slot` of a page and its blobs, with whole maps, fits and spectra of the heads `held` alone."""
        name, fitted = f"{prefix}-{self.slot}", self.fitted
        blobs = {f"{name}-maps": pack(encode_map(self.P[held], self.coding), noisy=True)} if held else {}
        fits = None
        if fitted is not None:
            blobs |= {f"{name}-fits": pack(encode_map(fitted.P[held], self.coding))} if held else {}
            errors = rounded(fitted.errors.tolist(), 4)
            fits = {"forms": list(fitted.forms), "errors": errors, "blob": f"{name}-fits" if held else None}
        heads, rows, columns = self.P.shape
        return {
            "name": str(self.slot),
            "kind": self.slot.kind,
            "heads": heads,
            "rows": rows,
            "columns": columns,
            "thumb": list(self.thumbnail_size),
            "coding": self.coding.to_json(),
            "held": list(held),
            "blob": f"{name}-maps" if held else None,
            "spectra": [self._spectra[at] if at in held else [] for at in range(heads)] if self.is_short else None,
            "fits": fits,
            "sinks": list(self.sinks),
            "sizes": None if self.sizes is None else rounded(self.sizes.tolist(), 3),
        }, blobs


class EncodedSentence:
    """A sentence encoded for a page. The names of its blobs begin with `prefix`."""

    def __init__(self, sentence: PageSentence, exam: Examination, prefix: str) -> None:
        self.sentence, self.prefix = sentence, prefix
        maps = sentence.pin.maps
        weights = sum(P.numel() for P in maps.values())
        sizes, sinks = sentence.pin.sizes, sentence.pin.sinks
        self.layers = [
            PageLayer(slot, P, weights, _closest(exam, slot), sizes.get(slot), sinks.get(slot, (0,)))
            for slot, P in maps.items()
            if P.numel()
        ]

    def contents(self, left_out: Collection[HeadId] = ()) -> tuple[dict[str, Any], dict[str, str]]:
        """The `Pin` of a page and its blobs, without the whole maps of the heads `left_out`."""
        pin, translation = self.sentence.pin, self.sentence.translation
        blobs = {f"{self.prefix}-small": pack(b"".join(layer.thumbnails for layer in self.layers), noisy=True)}
        slots: list[dict[str, Any]] = []
        for layer in self.layers:
            held = [head for head in range(len(layer.P)) if HeadId(layer.slot, head) not in left_out]
            slot, more = layer.contents(self.prefix, held)
            slots.append(slot)
            blobs |= more
        return {
            "tokens": list(pin.tokens),
            "target": None if pin.target is None else list(pin.target),
            "slots": slots,
            "thumbnails": f"{self.prefix}-small",
            "translation": None if translation is None else list(translation),
            "beam": None if self.sentence.beam is None else [dict(step) for step in self.sentence.beam],
        }, blobs


def _closest(exam: Examination, slot: Slot) -> PageForms | None:
    """The forms that are closest to the heads of a layer over the examination."""

    def values(name: str) -> LayerValues | None:
        rows = (reading.value for reading in exam.readings.of(name) if reading.kind == slot.kind)
        return next((value[slot.layer] for value in rows if slot.layer < len(value)), None)

    forms, shifts = values("structure.closest"), values("structure.shift")
    return PageForms(forms, shifts if isinstance(shifts, Tensor) else None) if isinstance(forms, tuple) else None


def fit_heads(H: Float[Tensor, "h i j"], kind: Kind, closest: PageForms | None) -> FittedForms:
    """Each head by the form and the offset that are closest to it over an examination, or else on this sentence."""
    names, H, causal = families_of(kind), H.float(), kind == "decoder"
    closest = closest if closest is not None and len(closest.forms) == len(H) else PageForms(("",) * len(H))
    forms = list(closest.forms)
    offsets = best_offset(H, FORGIVEN_ERROR) if "offset" in names else None
    if offsets is not None and closest.shifts is not None:
        offsets = torch.where(closest.shifts.isfinite(), closest.shifts.nan_to_num().long(), offsets)
    if unknown := [head for head, form in enumerate(forms) if form not in names]:
        duels = fit(H[unknown], names, eps=FORGIVEN_ERROR, causal=causal).duels
        for head, form in zip(unknown, closest_forms(duels, names).closest, strict=True):
            forms[head] = form
    P, errors = torch.zeros_like(H), H.new_zeros(len(H))
    for form in sorted(set(forms)):
        heads = [head for head, name in enumerate(forms) if name == form]
        offset = None if offsets is None else offsets[heads]
        nearest = fit(H[heads], (form,), eps=FORGIVEN_ERROR, causal=causal, offset=offset)
        P[heads], errors[heads] = nearest.form(form), nearest.error[:, 0]
    return FittedForms(tuple(forms), P, errors)
