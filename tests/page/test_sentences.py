"""A sentence of a page: thumbnails, whole maps, spectra and nearest structured maps, all in the order of heads."""

from __future__ import annotations

from typing import Any

import torch

from attnworks.core.places import HeadId, Slot
from attnworks.exam.examination import Pin
from attnworks.exam.measures.structure import FORGIVEN_ERROR
from attnworks.exam.structure.fits import fit
from attnworks.exam.structure.search import assignment, shift_map
from attnworks.page.blobs import Coding
from attnworks.page.sentences import MAX_SPECTRUM_TOKENS, EncodedSentence, PageForms, PageSentence, fit_heads
from tests.helpers import assert_close
from tests.page.page_helpers import (
    HEADS,
    KEYS,
    QUERIES,
    decode_map,
    made_exam,
    softmax_maps,
    tokens,
    translated,
    unpack,
)


def map_of(slot: dict[str, Any], blob: str, coding: Coding) -> torch.Tensor:
    return decode_map(unpack(blob), coding).view(len(slot["held"]), slot["rows"], slot["columns"])


def test_every_map_is_there_and_right() -> None:
    exam = made_exam()
    pin, blobs = EncodedSentence(PageSentence(exam.pins[0]), exam, "a").contents()
    assert [slot["name"] for slot in pin["slots"]] == ["enc.0", "enc.1", "cross.0", "cross.1"]
    for slot, P in zip(pin["slots"], exam.pins[0].maps.values(), strict=True):
        coding = Coding(**slot["coding"])
        again = map_of(slot, blobs[slot["blob"]], coding)
        assert slot["held"] == [0, 1, 2] and again.shape == P.shape
        assert ((again - P.float()).abs() <= 1 / coding.levels).all()
    sizes = [slot["heads"] * slot["thumb"][0] * slot["thumb"][1] for slot in pin["slots"]]
    assert len(unpack(blobs[pin["thumbnails"]])) == sum(sizes)
    assert pin["translation"] is None and pin["beam"] is None
    assert set(blobs) == {pin["thumbnails"]} | {slot["blob"] for slot in pin["slots"]} | {
        slot["fits"]["blob"] for slot in pin["slots"]
    }


def test_some_maps_can_be_left_out() -> None:
    exam = made_exam()
    first_layer, second_layer = Slot("encoder", 0), Slot("encoder", 1)
    gone = {HeadId(first_layer, 1), *(HeadId(second_layer, head) for head in range(HEADS))}
    pin, blobs = EncodedSentence(PageSentence(exam.pins[0]), exam, "a").contents(gone)
    first, second = pin["slots"][:2]
    assert first["held"] == [0, 2] and second["held"] == [] and second["blob"] is None
    assert second["fits"]["blob"] is None and "a-enc.1-maps" not in blobs
    P = exam.pins[0].maps[Slot("encoder", 0)].float()
    coding = Coding(**first["coding"])
    assert ((map_of(first, blobs[first["blob"]], coding) - P[[0, 2]]).abs() <= 1 / coding.levels).all()
    assert len(first["spectra"]) == len(first["fits"]["forms"]) == HEADS, "of all heads"


def test_spectra_are_singular_values() -> None:
    exam = made_exam()
    pin, _ = EncodedSentence(PageSentence(exam.pins[0]), exam, "a").contents()
    P = exam.pins[0].maps[Slot("cross", 1)].double()
    found = torch.tensor(pin["slots"][3]["spectra"], dtype=torch.float64)
    torch.testing.assert_close(found, torch.linalg.svdvals(P), rtol=1e-3, atol=1e-3)
    assert found.shape == (HEADS, min(QUERIES, KEYS))


def test_a_head_is_fitted_by_the_closest_form_of_the_examination() -> None:
    """offset: the diagonal of the examination, not the best of this one. none: what is closest on this sentence."""
    H = softmax_maps(3, 11, 11)
    fitted = fit_heads(H, "encoder", PageForms(("offset", "none", "column"), torch.tensor([3.0, torch.nan, -1.0])))
    assert (
        fitted.forms[0] == "offset" and fitted.forms[2] == "column" and fitted.forms[1] not in ("none", "zero", "map")
    )
    assert_close(fitted.P[0], assignment(shift_map(11, torch.tensor(3)), 11))
    assert_close(fit_heads(H[:1], "encoder", PageForms(("offset",))).P[0], fit(H[0], ("offset",)).form("offset"))
    assert_close(fitted.errors, ((H - fitted.P).abs() - FORGIVEN_ERROR).clamp_min(0).sum((1, 2)) / 11)


def test_a_perfect_form_has_no_error() -> None:
    """tau_i = i - 1 is a member of the family of offsets; its first row attends nothing."""
    P = assignment(shift_map(13, torch.tensor([-1])), 13)
    fitted = fit_heads(P, "encoder", None)
    assert fitted.forms == ("offset",) and fitted.errors.tolist() == [0.0]


def test_forms_of_another_number_of_heads_are_not_believed() -> None:
    H = softmax_maps(2, 11, 7)
    fitted = fit_heads(H, "cross", PageForms(("offset", "band", "offset")))
    assert set(fitted.forms) <= {"even", "column"}


def test_a_sentence_shows_the_forms_that_are_closest_over_the_examination() -> None:
    """Also of a head without a form; the offset is the one over all sentences."""
    exam = made_exam()
    pin, blobs = EncodedSentence(PageSentence(exam.pins[0]), exam, "a").contents()
    slot = pin["slots"][0]
    assert slot["fits"]["forms"] == ["offset", "band", "column"]
    found = map_of(slot, blobs[slot["fits"]["blob"]], Coding(**slot["coding"]))
    assert_close(found[0], assignment(shift_map(QUERIES, torch.tensor(-2)), QUERIES))


def test_long_maps_and_maps_that_are_no_weights_are_not_fitted() -> None:
    n = MAX_SPECTRUM_TOKENS + 1
    exam = made_exam(pins=(Pin.of(tokens(n), {Slot("encoder", 0): softmax_maps(1, n, n)}),))
    pin, _ = EncodedSentence(PageSentence(exam.pins[0]), exam, "a").contents()
    assert pin["slots"][0]["fits"] is None and pin["slots"][0]["spectra"] is None
    signed = made_exam(pins=(Pin.of(tokens(5), {Slot("encoder", 0): 3 * torch.randn(2, 5, 5)}),))
    pin, blobs = EncodedSentence(PageSentence(signed.pins[0]), signed, "a").contents()
    (slot,) = pin["slots"]
    assert slot["fits"] is None and slot["coding"] == {"type": "float16"} and slot["spectra"] is not None
    assert_close(map_of(slot, blobs[slot["blob"]], Coding("float16")), signed.pins[0].maps[Slot("encoder", 0)].float())


def test_numbers_that_overflow_are_drawn_as_the_largest() -> None:
    P = torch.tensor([[[float("inf"), float("nan")], [-float("inf"), 0.5]]])
    exam = made_exam(pins=(Pin.of(tokens(2), {Slot("encoder", 0): P}),))
    pin, blobs = EncodedSentence(PageSentence(exam.pins[0]), exam, "a").contents()
    found = map_of(pin["slots"][0], blobs["a-enc.0-maps"], Coding("float16"))
    assert found.flatten().tolist() == [65504.0, 0.0, -65504.0, 0.5]


def test_a_translation_keeps_its_words_and_its_search() -> None:
    pin, _ = EncodedSentence(translated(), made_exam(), "a").contents()
    assert pin["translation"] == list(tokens(KEYS)) and pin["beam"] is not None
    assert pin["beam"][0]["kept"][1] == {"parent": 0, "token": "token", "logprob": -0.5}
