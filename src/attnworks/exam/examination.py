"""The result of an examination: readings, findings, and sentences with their attention maps."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.display import counted, data_frame
from attnworks.core.places import KINDS, HeadId, Kind, Slot
from attnworks.exam.attended import AttendedTokens
from attnworks.exam.reading import Reading, Readings
from attnworks.text.passages import Passage, Text, from_texts
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import maps_of
from attnworks.traces.rows import grams_of, sink_keys, value_sizes
from attnworks.traces.subject import LayerHook, Subject
from attnworks.traces.text import TokenizedText

if TYPE_CHECKING:
    from attnworks.exam.headline import Headline
    from attnworks.page.file import WrittenPage

EXAM_FORMAT = 4

PIN_EASY_TOKENS, PIN_MAX_TOKENS = 32, 128
"""By default a sentence of at most PIN_EASY_TOKENS is kept, or else the shortest, if it has at most PIN_MAX_TOKENS."""


@dataclass(frozen=True)
class ExamFinding:
    """One sentence about what stands out.

    weight     size of the effect, from 0 to 1; the findings of a group are sorted by it, the largest first
    readings   names of the readings that it follows from
    heads      heads that it describes, as enc.3.7
    group      heading under which it is shown
    command    what to run next, with MODEL for the model; "" where there is nothing to run
    """

    text: str
    weight: float
    readings: tuple[str, ...]
    heads: tuple[str, ...] = ()
    group: str = ""
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"readings": list(self.readings), "heads": list(self.heads)}


@dataclass(frozen=True, eq=False)
class Pin:
    """One sentence with the attention maps of every layer, for display: P [h i j] in float16.

    tokens    of the sentence (of the source, if there are two sides)
    target    tokens that the decoder reads, if they are not those of the source
    sizes     |v_j W_O| of every key, in float16: the factor of what its weights add to the stream (Kobayashi et al.
              2020); nothing for layers whose W_O is not known
    sinks     the keys of each layer at which attention rests: the first token and special tokens
    """

    tokens: tuple[str, ...]
    maps: Mapping[Slot, Float[Tensor, "h i j"]]
    target: tuple[str, ...] | None = None
    sizes: Mapping[Slot, Float[Tensor, "h j"]] = field(default_factory=dict)
    sinks: Mapping[Slot, tuple[int, ...]] = field(default_factory=dict)

    def sides(self, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens of rows (queries) and of columns (keys) of the maps of this kind."""
        target = self.tokens if self.target is None else self.target
        return self.tokens if kind == "encoder" else target, target if kind == "decoder" else self.tokens

    @classmethod
    def of(
        cls,
        tokens: tuple[str, ...],
        maps: Mapping[Slot, Float[Tensor, "h i j"]],
        target: tuple[str, ...] | None = None,
        sizes: Mapping[Slot, Float[Tensor, "h j"]] | None = None,
        sinks: Mapping[Slot, tuple[int, ...]] | None = None,
    ) -> Pin:
        """Maps and sizes of any dtype and device, rounded to float16."""

        def half(tables: Mapping[Slot, Tensor]) -> dict[Slot, Tensor]:
            largest = torch.finfo(torch.float16).max
            return {
                slot: one.detach().clamp(-largest, largest).to("cpu", torch.float16) for slot, one in tables.items()
            }

        return cls(tokens, half(maps), target, half(sizes or {}), dict(sinks or {}))


@dataclass(frozen=True, eq=False)
class Examination:
    """A model's attention on a corpus. Its folder and JSON are described in docs/exam.md.

    model       name, family, kinds, layers, heads of every slot, parameters, dtype; of a reshaped model its lineage
    corpus      where the text is from, sentences, tokens, the longest sentence, how many were dropped
    readings    every quantity that was measured
    findings    what stands out, group after group, in each the largest effect first
    notes       what could not be measured, and why
    pins        sentences with their attention maps
    attended    which tokens get the attention of each head, with examples; None where rows were not measured
    """

    model: Mapping[str, Any]
    corpus: Mapping[str, Any]
    readings: Readings
    findings: tuple[ExamFinding, ...] = ()
    notes: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = field(default=(), repr=False)
    attended: AttendedTokens | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Reading:
        return self.readings[name]

    def __contains__(self, name: object) -> bool:
        return name in self.readings

    @property
    def headline(self) -> Headline:
        """The two or three facts with the largest effect, in one sentence, with the figures behind it."""
        from attnworks.exam.headline import headline_of

        return headline_of(self.readings, self.first_token)

    @property
    def first_token(self) -> str:
        """What sentences call the first token: its name where it is always the same special one, such as [CLS]."""
        return str(self.model.get("first_token", "the first token"))

    def grouped_findings(self) -> dict[str, list[ExamFinding]]:
        """Heading -> its findings, in their order."""
        groups: dict[str, list[ExamFinding]] = {}
        for finding in self.findings:
            groups.setdefault(finding.group, []).append(finding)
        return groups

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.readings)

    def __repr__(self) -> str:
        parts = f"{len(self.readings)} readings, {len(self.findings)} findings, {counted(len(self.pins), 'pin')}"
        return f"<Examination of {self.model.get('name', 'a model')}: {parts}>"

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame. Its package must not be imported by this one, so it is found by name."""
        return importlib.import_module("attnworks.page").notebook_frame(self)

    def __rich__(self) -> Any:
        from attnworks.exam.render import ExamSummary

        return ExamSummary(self)

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per head.

        Its columns are `kind`, `layer`, `head`, `name` (enc.3.7), and every reading with one number or label per head.
        """
        heads = self._heads()
        columns: dict[str, list[Any]] = {
            "kind": [head.slot.kind for head in heads],
            "layer": [head.slot.layer for head in heads],
            "head": [head.head for head in heads],
            "name": [str(head) for head in heads],
        }
        for name in dict.fromkeys(reading.name for reading in self.readings.values()):
            found: dict[HeadId, Any] = {}
            for reading in self.readings.of(name):
                found |= _by_head(reading)
            if found:
                columns[name] = [found.get(head) for head in heads]
        return data_frame(columns)

    def _heads(self) -> list[HeadId]:
        """Every head, in the order of the model."""
        known = {head for reading in self.readings.values() for head in _by_head(reading)}
        slots = self.model.get("heads")
        for name, number in slots.items() if isinstance(slots, dict) else ():
            known |= {HeadId(Slot.parse(name), head) for head in range(number)}
        return sorted(known, key=lambda head: (KINDS.index(head.slot.kind), head.slot.layer, head.head))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the examination to a folder, which `attnworks.open` opens.

        Args:
            folder: The folder to write. An examination there is replaced; anything else is refused.
        """
        from attnworks.exam.folder import write_exam

        return write_exam(self, folder)

    def report(self, path: str | os.PathLike[str]) -> WrittenPage:
        """Write the interactive page as one HTML file, as `attnworks.report` does.

        Args:
            path: The file to write. A page of attnworks there is replaced; anything else is refused.

        Returns:
            A `WrittenPage`: where the file is, and how large.
        """
        return importlib.import_module("attnworks.page").report(self, path)

    def to_json(self) -> dict[str, Any]:
        """All but the pins, in nested lists."""
        return {
            "format": EXAM_FORMAT,
            "model": dict(self.model),
            "corpus": dict(self.corpus),
            "readings": {name: self.readings[name].to_json() for name in self.readings},
            "headline": self.headline.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }


def _by_head(reading: Reading) -> dict[HeadId, Any]:
    """Head -> its number or label; nothing for readings with other axes."""
    if reading.axes != ("layer", "head"):
        return {}
    return {
        HeadId(Slot(reading.kind, layer), head): value
        for layer, row in enumerate(reading.value)
        for head, value in enumerate(row if isinstance(row, tuple) else row.tolist())
    }


class KeepMapsHook(LayerHook):
    """Keeps the maps of the first sentence of a batch, its sinks, and |v_j W_O| of its keys."""

    def __init__(self) -> None:
        self.maps: dict[Slot, Tensor] = {}
        self.sizes: dict[Slot, Tensor] = {}
        self.sinks: dict[Slot, tuple[int, ...]] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        grams, maps, sizes = grams_of(trace), [], []
        for piece in maps_of(trace):
            if piece.sentences.start == 0:
                maps.append(piece.P[0])
                if grams is not None:
                    sizes.append(value_sizes(piece, grams)[0])
        self.maps[trace.slot] = torch.cat(maps)
        if sizes:
            self.sizes[trace.slot] = torch.cat(sizes)
        self.sinks[trace.slot] = tuple(sink_keys(trace.keys)[0].nonzero()[:, 0].tolist())
        return None


def pin_maps(subject: Subject, text: TokenizedText) -> Pin:
    """All attention maps of a text of one sentence."""
    batch, _ = text.batch(0)
    keep = KeepMapsHook()
    with torch.inference_mode():
        subject.run(batch.to(subject.device), keep)
    return pin_of(subject, text, keep)


def pin_of(subject: Subject, text: TokenizedText, keep: KeepMapsHook) -> Pin:
    """The maps in `keep`, with the tokens of the first sentence of the first batch."""
    tokens, target = subject.tokens_of(text)
    return Pin.of(tokens, keep.maps, target, keep.sizes, keep.sinks)


def pinned_text(subject: Subject, line: str, batch_tokens: int) -> TokenizedText:
    """A sentence to pin; where pairs are joined, a tab separates its two texts."""
    source, _, target = map(str.strip, line.partition("\t"))
    joins = source and target and subject.source is not None and subject.source.joins_pairs
    passages = [Passage(Text(source), Text(target))] if joins else from_texts([line])[0]
    text = subject.read(passages, batch_tokens=batch_tokens)
    text.check_whole("a pinned sentence")
    return text


def one_sentence(text: TokenizedText) -> list[TokenizedText]:
    """The longest sentence of at most PIN_EASY_TOKENS, or else the shortest; none above PIN_MAX_TOKENS."""
    lengths = [max(len(row) for row in rows) for rows in zip(*text.sides, strict=True)]
    easy = [length for length in lengths if length <= PIN_EASY_TOKENS]
    chosen = max(easy) if easy else min(lengths)
    return [replace(text, batches=[[lengths.index(chosen)]])] if chosen <= PIN_MAX_TOKENS else []
