"""The data of a page: the `Page` of web/src/contract.ts, its blobs, and the files that all pages share.

A page that cannot hold the maps of all heads holds those of the most important heads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

from torch import Tensor

from attnworks import __version__
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.exam.attended import attended_to_json
from attnworks.exam.compare import compare_exams
from attnworks.exam.examination import Examination
from attnworks.exam.measures.structure import NO_FORM
from attnworks.exam.reading import ModelReadings, Reading
from attnworks.exam.story import model_name, story_of
from attnworks.exam.work import work_of
from attnworks.page.blobs import pack, rounded
from attnworks.page.sentences import EncodedSentence, PageSentence
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.swapping.advice import Advice

Host = Literal["file", "live", "notebook"]
SCRIPT_FILE, STYLE_FILE = "page.js", "page.css"
PAGE_FORMAT = 1
MAX_PAGE_BYTES = 9_700_000
"""Bytes of all that is not script and style, so that a file stays below 10 MB."""
MAX_READING_AXES = 3
"""Readings with more axes are not shown."""
NO_SENTENCE = "no sentence was kept: examine with --pin"
ABSOLUTE_PATH = re.compile(r"(?<!\S)(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\]+[/\\])+[^\s/\\]*")
IMPORTANCE_RULE = (
    "the heads that matter most to the loss, where that was examined; else those whose role is furthest above its "
    "baseline or whose structured form explains most"
)


@cache
def resource(name: str) -> bytes:
    return files("attnworks.page").joinpath(name).read_bytes()


def heads_by_importance(exam: Examination) -> dict[HeadId, float]:
    """Head -> its importance from 0 to 1; heads without any of the readings below are left out.

    The change of the loss without the head, or else the gradient of its gate, as a share of the largest of all heads.
    Without both, the larger of (score - baseline) / (1 - baseline) of its role and the share that its structured form
    explains.
    """
    for name in ("ablation.change", "importance.gradient"):
        if found := {head: abs(value) for head, value in _by_head(exam, name).items()}:
            largest = max(found.values()) or 1.0
            return {head: value / largest for head, value in found.items()}
    score, baselines = _by_head(exam, "roles.score"), _by_head(exam, "roles.baseline").items()
    roles = {head: (score[head] - base) / (1 - base) for head, base in baselines if head in score and base < 1}
    forms = ModelReadings(exam.readings).labels("structure.form")
    explained = _by_head(exam, "structure.explained").items()
    fits = {head: share for head, share in explained if forms.get(head, NO_FORM) != NO_FORM}
    return {head: max(roles.get(head, 0.0), fits.get(head, 0.0), 0.0) for head in roles | fits}


def _by_head(exam: Examination, name: str) -> dict[HeadId, float]:
    """Head -> its finite number in a reading; a reading with other axes than layer and head has none."""
    rows = [
        (Slot(reading.kind, layer), row)
        for reading in exam.readings.of(name)
        if reading.axes == ("layer", "head")
        for layer, row in enumerate(reading.value)
        if isinstance(row, Tensor) and row.dim() == 1
    ]
    numbers = ((HeadId(slot, head), value) for slot, row in rows for head, value in enumerate(row.tolist()))
    return {head: value for head, value in numbers if math.isfinite(value)}


@dataclass(frozen=True)
class PageExam:
    """An examination to show, its name, and sentences beyond its pins."""

    exam: Examination
    label: str
    sentences: tuple[PageSentence, ...] = ()

    @property
    def shown(self) -> list[PageSentence]:
        return [*map(PageSentence, self.exam.pins), *self.sentences]


@dataclass(frozen=True)
class Contents:
    """The page as JSON, and blobs by name."""

    page: dict[str, Any]
    blobs: dict[str, str] = field(repr=False)

    @cached_property
    def packed(self) -> str:
        """The page as a file holds it."""
        return pack(json.dumps(self.page, separators=(",", ":"), allow_nan=False).encode())

    @property
    def size(self) -> int:
        """Bytes in a file."""
        return len(self.packed) + sum(map(len, self.blobs.values()))

    @property
    def heads(self) -> tuple[int, int]:
        """The number of whole maps in the page, and of all maps."""
        slots = [slot for exam in self.page["exams"] for pin in exam["pins"] for slot in pin["slots"]]
        return sum(len(slot["held"]) for slot in slots), sum(slot["heads"] for slot in slots)


def page_contents(
    exams: Sequence[PageExam],
    *,
    host: Host = "file",
    advice: Advice | None = None,
    receipts: Iterable[Receipt] = (),
    live: Mapping[str, Any] | None = None,
    largest: float = MAX_PAGE_BYTES,
) -> Contents:
    """The page of one examination, or of two to be compared.

    If it would have more than `largest` bytes, it holds the whole maps of the most important heads only.
    """
    if not 1 <= len(exams) <= 2:
        raise UsageError("a page", "one examination, or two to be compared", str(len(exams)), "leave some out")
    if len({exam.label for exam in exams}) < len(exams):
        labels = (f"{exams[0].label} (before)", f"{exams[1].label} (after)")
        exams = [replace(exam, label=label) for exam, label in zip(exams, labels, strict=True)]
    encoded = [
        [EncodedSentence(sentence, exam.exam, f"exam{at}-{number}") for number, sentence in enumerate(exam.shown)]
        for at, exam in enumerate(exams)
    ]
    receipts = list(receipts)
    comparison = compare_exams(exams[0].exam, exams[1].exam, receipts).to_json() if len(exams) == 2 else None
    if comparison is not None:
        del comparison["format"]
    page = {
        "format": PAGE_FORMAT,
        "version": __version__,
        "host": host,
        "title": " against ".join(exam.label for exam in exams) if len(exams) > 1 else exam_label(exams[0].exam),
        "comparison": rounded(comparison),
        "advice": None if advice is None else rounded(without_folders(advice_contents(advice))),
        "receipts": rounded([receipt_contents(receipt) for receipt in receipts]),
        "live": live,
        "start": None,
        "remarks": [] if any(encoded) else [NO_SENTENCE],
    }

    def without_maps(left_out: Sequence[Collection[HeadId]]) -> Contents:
        """The page without the whole maps of these heads of each examination."""
        pins = [[sentence.contents(heads) for sentence in own] for own, heads in zip(encoded, left_out, strict=True)]
        shown = [exam_contents(exam, [pin for pin, _ in own]) for exam, own in zip(exams, pins, strict=True)]
        blobs = {name: blob for own in pins for _, more in own for name, blob in more.items()}
        return Contents({**page, "exams": shown}, blobs)

    contents = without_maps([()] * len(exams))
    return contents if contents.size <= largest else _fit_to_size(exams, encoded, contents, without_maps, largest)


def exam_contents(exam: PageExam, pins: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The `Exam` of a page, with these pins."""
    model, readings = exam.exam.model, exam.exam.readings
    slots = {str(slot): len(P) for sentence in exam.shown for slot, P in sentence.pin.maps.items()}
    known = {"name": exam.label, "kinds": readings.kinds(), "layers": {}, "heads": slots}
    work = work_of(ModelReadings(readings))
    return rounded(
        {
            "label": exam.label,
            "model": without_folders({**known, **model}),
            "corpus": without_folders(exam.exam.corpus),
            "headline": exam.exam.headline.to_json(),
            "story": without_folders([part.to_json() for part in story_of(exam.exam)]),
            "work": None if work is None else work.to_json(),
            "readings": {
                f"{reading.name}@{reading.kind}": _reading(reading)
                for reading in readings.values()
                if len(reading.axes) <= MAX_READING_AXES
            },
            "findings": [finding.to_json() for finding in exam.exam.findings],
            "notes": without_folders(exam.exam.notes),
            "pins": pins,
            "attended": None if exam.exam.attended is None else attended_to_json(exam.exam.attended),
        }
    )


def _reading(reading: Reading) -> dict[str, Any]:
    """A reading as the page shows it: the interval in fewer digits, and only of readings with at most two axes."""
    table = reading.to_json()
    del table["spread"], table["count"]
    return {**table, "interval": rounded(table["interval"], 4) if len(reading.axes) < MAX_READING_AXES else None}


def without_folders(told: Any) -> Any:
    """The same with the last part of every absolute path, so that a page which is shared names no folders."""
    if isinstance(told, str):
        return ABSOLUTE_PATH.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], told)
    if isinstance(told, Mapping):
        return {key: without_folders(value) for key, value in told.items()}
    return [without_folders(value) for value in told] if isinstance(told, list | tuple) else told


def receipt_contents(receipt: Receipt) -> dict[str, Any]:
    """The `Receipt` of a page."""
    table = asdict(receipt)
    keys = ("reshape", "objective", "done", "loss", "parameters", "flops", "bytes", "time", "scores", "facts")
    more = ("time_interval", "loss_at_length", "seconds", "length")
    return {"title": receipt.title, "warnings": receipt.concerns, **{key: table[key] for key in (*keys, *more)}}


def advice_contents(advice: Advice) -> dict[str, Any]:
    """The `Advice` of a page."""
    table = asdict(advice)
    for layer in table["present"]:
        layer["spec"] = ", ".join(dict.fromkeys(layer.pop("by_head")))
    return table


def exam_label(exam: Examination) -> str:
    """A name for an examination that is in no folder: that of its model, without pypi: and the folders above it."""
    return model_name(exam).removeprefix("pypi:")


def _fit_to_size(
    exams: Sequence[PageExam],
    encoded: Sequence[Sequence[EncodedSentence]],
    contents: Contents,
    without_maps: Callable[[Sequence[Collection[HeadId]]], Contents],
    largest: float,
) -> Contents:
    """The page with the whole maps of as many heads as fit, ranked by importance over all examinations."""
    ranked: list[tuple[float, int, HeadId]] = []
    for number, (exam, sentences) in enumerate(zip(exams, encoded, strict=True)):
        importance = heads_by_importance(exam.exam)
        layers = [layer for sentence in sentences for layer in sentence.layers]
        heads = {HeadId(layer.slot, head) for layer in layers for head in range(len(layer.P))}
        ranked += [(-importance.get(head, 0.0), number, head) for head in heads]
    ranked.sort()
    keep = len(ranked)
    while contents.size > largest and keep:
        keep = max(0, min(keep - 1, int(keep * largest / contents.size)))
        left_out = [{head for _, at, head in ranked[keep:] if at == number} for number in range(len(exams))]
        contents = without_maps(left_out)
    shown = f"too large for all maps: {keep} of {len(ranked)} heads are here whole, of others a thumbnail"
    remarks = [*contents.page["remarks"], f"{shown} ({IMPORTANCE_RULE})"]
    if contents.size > largest:
        remarks += [f"larger than 10 MB all the same ({contents.size / 1e6:.0f} MB): examine with fewer --pin"]
    return replace(contents, page={**contents.page, "remarks": remarks})
