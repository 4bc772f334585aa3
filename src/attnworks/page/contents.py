"""What a page shows, as data: the `Page` of web/src/contract.ts, its blobs, and the files of every page.

The order of heads by how much they tell, for pages that cannot hold the maps of all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Literal

from torch import Tensor

from attnworks import __version__
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.exam.compare import compare_exams
from attnworks.exam.examination import Examination
from attnworks.exam.measures.structure import NO_FORM
from attnworks.exam.reading import Reading
from attnworks.page.blobs import pack, rounded
from attnworks.page.sentences import EncodedSentence, PageSentence
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.swapping.advice import Advice

_HEAD_AXES = ("layer", "head")

RULE = (
    "the heads that matter most to the loss, where that was examined; else those whose role is furthest above its "
    "baseline or whose structured form explains most"
)


def heads_by_importance(exam: Examination) -> dict[HeadId, float]:
    """Head -> how much it tells, from 0 to 1; heads that nothing is known of are not there.

    The change of the loss without the head, or else the gradient of its gate, as a share of the largest of all heads.
    Without both, the larger of (score - baseline) / (1 - baseline) of its role and the share that its structured form
    explains.
    """
    for name in ("ablation.change", "importance.gradient"):
        if found := {head: abs(value) for head, value in _heads(exam, name).items()}:
            largest = max(found.values()) or 1.0
            return {head: value / largest for head, value in found.items()}
    score, baseline = _heads(exam, "roles.score"), _heads(exam, "roles.baseline")
    gains = {
        head: (score[head] - least) / (1 - least) for head, least in baseline.items() if head in score and least < 1
    }
    formed = _with_form(exam)
    fits = {head: share for head, share in _heads(exam, "structure.explained").items() if head in formed}
    return {head: max(gains.get(head, 0.0), fits.get(head, 0.0), 0.0) for head in gains | fits}


def _with_form(exam: Examination) -> set[HeadId]:
    """Heads that have a structured form."""
    return {
        HeadId(Slot(reading.kind, layer), head)
        for reading in exam.readings.of("structure.form")
        for layer, row in enumerate(reading.value)
        if isinstance(row, tuple)
        for head, form in enumerate(row)
        if form != NO_FORM
    }


def _heads(exam: Examination, name: str) -> dict[HeadId, float]:
    return {head: value for reading in exam.readings.of(name) for head, value in _numbers(reading)}


def _numbers(reading: Reading) -> list[tuple[HeadId, float]]:
    if reading.axes != _HEAD_AXES:
        return []
    rows = [
        (Slot(reading.kind, layer), row)
        for layer, row in enumerate(reading.value)
        if isinstance(row, Tensor) and row.dim() == 1
    ]
    return [
        (HeadId(slot, head), value)
        for slot, row in rows
        for head, value in enumerate(row.tolist())
        if math.isfinite(value)
    ]


SCRIPT_FILE, STYLE_FILE, CLAIMS_FILE = "page.js", "page.css", "claims.json"

Host = Literal["file", "live", "notebook"]
PAGE_FORMAT = 1
MAX_PAGE_BYTES = 9_700_000
"""Bytes of all that is not script and style, so that a file stays below 10 MB."""
MAX_READING_AXES = 3
"""Readings with more axes are for other programs."""
NO_SENTENCE = "no sentence was kept: examine with --pin"


@cache
def resource(name: str) -> bytes:
    return files("attnworks.page").joinpath(name).read_bytes()


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
class PageAdvice:
    """Advice with what was asked, and the command that follows it."""

    model: str
    max_error: float
    advice: Advice
    command: str | None

    def to_json(self) -> dict[str, Any]:
        told = asdict(self.advice)
        present = [
            {
                "slot": now.slot,
                "spec": ", ".join(dict.fromkeys(now.by_head)),
                "seconds": now.seconds,
                "flops": now.flops,
            }
            for now in self.advice.present
        ]
        return {
            "model": self.model, "max_error": self.max_error, **told, "present": present, "command": self.command,
        }  # fmt: skip


@dataclass(frozen=True)
class Contents:
    """The page as JSON, and blobs by name."""

    page: dict[str, Any]
    blobs: dict[str, str] = field(repr=False)

    @cached_property
    def packed(self) -> str:
        """The page as it stands in a file."""
        return pack(json.dumps(self.page, separators=(",", ":"), allow_nan=False).encode())

    @property
    def size(self) -> int:
        """Bytes in a file."""
        return len(self.packed) + sum(map(len, self.blobs.values()))

    @property
    def heads(self) -> tuple[int, int]:
        """Maps that are there whole, and all maps."""
        slots = [slot for exam in self.page["exams"] for pin in exam["pins"] for slot in pin["slots"]]
        return sum(len(slot["held"]) for slot in slots), sum(slot["heads"] for slot in slots)


def page_contents(
    exams: Sequence[PageExam],
    *,
    host: Host = "file",
    advice: PageAdvice | None = None,
    receipts: Iterable[Receipt] = (),
    live: Mapping[str, Any] | None = None,
    largest: float = MAX_PAGE_BYTES,
) -> Contents:
    """The page of one examination, or of two to be compared. Above `largest` bytes the most telling maps stay."""
    if not 1 <= len(exams) <= 2:
        raise UsageError("a page", "one examination, or two to be compared", str(len(exams)), "leave some out")
    exams = _apart(exams)
    coded = [_coded_sentences(exam, f"exam{number}") for number, exam in enumerate(exams)]
    compared = compare_exams(exams[0].exam, exams[1].exam).to_json() if len(exams) == 2 else None
    page = {
        "format": PAGE_FORMAT,
        "version": __version__,
        "host": host,
        "title": " against ".join(exam.label for exam in exams),
        "comparison": None
        if compared is None
        else rounded({key: compared[key] for key in compared if key != "format"}),
        "advice": None if advice is None else rounded(advice.to_json()),
        "receipts": rounded([receipt_contents(receipt) for receipt in receipts]),
        "claims": "claims",
        "live": live,
        "remarks": [] if any(coded) else [NO_SENTENCE],
    }
    claims = pack(resource(CLAIMS_FILE))

    def with_maps(left_out: Sequence[Collection[HeadId]]) -> Contents:
        """Without the whole maps of these heads of each examination."""
        pins = [[sentence.contents(gone) for sentence in shown] for shown, gone in zip(coded, left_out, strict=True)]
        told = [exam_contents(exam, [pin for pin, _ in shown]) for exam, shown in zip(exams, pins, strict=True)]
        blobs = {name: blob for shown in pins for _, more in shown for name, blob in more.items()}
        return Contents({**page, "exams": told}, {"claims": claims, **blobs})

    contents = with_maps([()] * len(exams))
    return contents if contents.size <= largest else _most_telling(exams, coded, contents, with_maps, largest)


def _coded_sentences(exam: PageExam, prefix: str) -> list[EncodedSentence]:
    """Sentences ready for a page; their blobs are named PREFIX-0-enc.3-maps."""
    return [EncodedSentence(sentence, exam.exam, f"{prefix}-{number}") for number, sentence in enumerate(exam.shown)]


def exam_contents(exam: PageExam, pins: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The `Exam` of a page, with these pins."""
    model, readings = exam.exam.model, exam.exam.readings
    slots = {str(slot): len(P) for sentence in exam.shown for slot, P in sentence.pin.maps.items()}
    known = {"name": exam.label, "kinds": readings.kinds(), "layers": {}, "heads": slots}
    return rounded(
        {
            "label": exam.label,
            "model": {**known, **model},
            "corpus": exam.exam.corpus,
            "readings": {
                f"{reading.name}@{reading.kind}": _reading(reading)
                for reading in readings.values()
                if len(reading.axes) <= MAX_READING_AXES
            },
            "findings": [finding.to_json() for finding in exam.exam.findings],
            "notes": exam.exam.notes,
            "pins": pins,
        }
    )


def _reading(reading: Reading) -> dict[str, Any]:
    """What the page shows of it; the interval in fewer digits, and not of profiles along a third axis."""
    told = reading.to_json()
    del told["spread"], told["count"]
    return {**told, "interval": rounded(told["interval"], 4) if len(reading.axes) < MAX_READING_AXES else None}


def receipt_contents(receipt: Receipt) -> dict[str, Any]:
    """The `Receipt` of a page."""
    told = asdict(receipt)
    kept = ("reshape", "objective", "done", "loss", "parameters", "flops", "bytes", "time", "scores", "facts")
    more = ("time_interval", "loss_at_length", "seconds", "length")
    return {"title": receipt.title, **{key: told[key] for key in (*kept, *more)}}


def exam_label(exam: Examination) -> str:
    """A name for an examination that is in no folder: that of its model, without the way to it."""
    return PurePath(str(exam.model.get("name", ""))).name or "a model"


def _apart(exams: Sequence[PageExam]) -> list[PageExam]:
    """With labels that tell them apart."""
    if len({exam.label for exam in exams}) == len(exams):
        return list(exams)
    return [
        replace(exam, label=f"{exam.label} ({when})") for exam, when in zip(exams, ("before", "after"), strict=True)
    ]


def _most_telling(
    exams: Sequence[PageExam],
    coded: Sequence[Sequence[EncodedSentence]],
    contents: Contents,
    with_maps: Callable[[Sequence[Collection[HeadId]]], Contents],
    largest: float,
) -> Contents:
    """Whole maps of the most telling heads, as many as fit; heads of two examinations are ranked together."""
    ranked: list[tuple[float, int, HeadId]] = []
    for number, (exam, shown) in enumerate(zip(exams, coded, strict=True)):
        telling = heads_by_importance(exam.exam)
        layers = [layer for sentence in shown for layer in sentence.layers]
        heads = {HeadId(layer.slot, head) for layer in layers for head in range(len(layer.P))}
        ranked += [(-telling.get(head, 0.0), number, head) for head in heads]
    ranked.sort()
    keep = len(ranked)
    while contents.size > largest and keep:
        keep = max(0, min(keep - 1, int(keep * largest / contents.size)))
        contents = with_maps([{head for _, at, head in ranked[keep:] if at == number} for number in range(len(exams))])
    remark = f"too large for all maps: {keep} of {len(ranked)} heads are here whole, of others a thumbnail ({RULE})"
    too_large = [f"larger than 10 MB all the same ({contents.size / 1e6:.0f} MB): examine with fewer --pin"]
    remarks = [*contents.page["remarks"], remark, *(too_large if contents.size > largest else [])]
    return replace(contents, page={**contents.page, "remarks": remarks})
