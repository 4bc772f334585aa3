"""Examinations to make pages of, and what a page holds, read as a browser would."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import numpy as np
import torch

from attnworks.core.places import Slot
from attnworks.exam.examination import ExamFinding, Examination, Pin
from attnworks.exam.reading import Reading, Readings
from attnworks.page.blobs import Coding
from attnworks.page.sentences import PageSentence

LAYERS, HEADS, QUERIES, KEYS = 2, 3, 5, 7


def unpack(text: str) -> bytes:
    """The bytes that `pack` packed."""
    return gzip.decompress(base64.b64decode(text, validate=True))


def decode_map(data: bytes, coding: Coding) -> torch.Tensor:
    """The numbers that `encode_map` encoded, as the page decodes them, in one row."""
    if coding.type == "float16":
        return torch.from_numpy(np.frombuffer(data, "<f2").astype(np.float32))
    return torch.from_numpy(np.frombuffer(data, np.uint8).astype(np.float32) / coding.levels).square()


def softmax_maps(heads: int, i: int, j: int, *, seed: int = 3) -> torch.Tensor:
    """Random scores; some heads look at the first key, some at the one before."""
    S = 2 * torch.randn(heads, i, j, generator=torch.Generator().manual_seed(seed))
    S[: heads // 3, :, 0] += 6
    S[-1].diagonal(-1).add_(6)
    return S.softmax(-1)


def reading(name: str, values: Mapping[str, Any], axes: tuple[str, ...] = ("layer", "head"), text: str = "") -> Reading:
    return Reading(name=name, kind="encoder", axes=axes, description=f"words{text}", source=f"source{text}", **values)


def made_exam(text: str = "", **more: Any) -> Examination:
    """Two layers of three heads that read five tokens and wrote seven, with `text` in every text."""
    values = torch.rand(LAYERS, HEADS, generator=torch.Generator().manual_seed(5)).double()
    ends = tuple(values - 0.125), tuple(values + 0.125)
    certain = {"value": tuple(values), "spread": tuple(values / 8), "interval": ends}
    maps = {Slot("encoder", layer): softmax_maps(HEADS, QUERIES, QUERIES, seed=layer) for layer in range(LAYERS)}
    maps |= {Slot("cross", layer): softmax_maps(HEADS, KEYS, QUERIES, seed=7 + layer) for layer in range(LAYERS)}
    known: dict[str, Any] = {
        "model": {"name": f"model{text}", "kinds": ["encoder", "cross"], "layers": {"encoder": 2, "cross": 2}}
        | {"heads": {str(slot): HEADS for slot in maps}, "family": f"family{text}"},
        "corpus": {"name": f"corpus{text}", "sentences": 17},
        "readings": Readings(
            [
                reading("saturation.entropy", certain, text=text),
                reading("roles.label", {"value": ((f"previous{text}",) * HEADS,) * LAYERS}, text=text),
                reading("structure.form", {"value": (("offset", "none", "column"),) * LAYERS}, text=text),
                reading("structure.closest", {"value": (("offset", "band", "column"),) * LAYERS}, text=text),
                reading("structure.shift", {"value": tuple(torch.tensor([[-2.0, 1.0, 0.0]] * LAYERS))}, text=text),
                reading(
                    "structure.explained", {"value": tuple(torch.tensor([[0.75, 0.625, 0.5]] * LAYERS))}, text=text
                ),
            ]
        ),
        "findings": (ExamFinding(f"finding{text}", 0.5, ("roles.label",), (f"enc.0.1{text}",), f"group{text}"),),
        "notes": (f"note{text}",),
        "pins": (Pin.of(tokens(QUERIES, text), maps, tokens(KEYS, text)),),
    }
    return Examination(**(known | more))


def tokens(count: int, text: str = "") -> tuple[str, ...]:
    return tuple(f"{place}{text}" for place in range(count))


def translated(text: str = "") -> PageSentence:
    """The sentence of the examination with what was written for it."""
    one = {"parent": 0, "token": f"token{text}", "logprob": -0.5}
    return PageSentence(made_exam(text).pins[0], tokens(KEYS, text), [{"kept": [one, one], "ended": [one]}])


class Seen(HTMLParser):
    """What a browser finds in a file: elements in their order, attributes, and the text of each by id or by name."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.open = "outside"
        self.texts = {self.open: ""}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes.append(dict(attrs))
        self.open = dict(attrs).get("id") or tag
        self.texts[self.open] = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.open] += data

    def handle_endtag(self, tag: str) -> None:
        self.open = "outside"

    def handle_comment(self, data: str) -> None:
        self.elements.append("comment")

    def page(self) -> dict[str, Any]:
        return json.loads(unpack(self.texts["page"]))
