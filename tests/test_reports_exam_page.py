"""The page of an examination: pinned maps as pictures, nothing from elsewhere, nothing unescaped."""

from __future__ import annotations

import struct
import zlib

import torch

from attnworks.exam.examination import Examination, Pin
from attnworks.measures.reading import Readings
from attnworks.reports.exam_page import exam_page, grey_png
from attnworks.traces.layer import Slot


def test_a_picture_has_one_pixel_per_number() -> None:
    data = grey_png(torch.tensor([[0.0, 1.0, 0.5], [2.0, -1.0, 0.25]]))
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (3, 2)
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    assert zlib.decompress(data[start + 4 : start + 4 + length]) == bytes([0, 0, 255, 128, 0, 255, 0, 64])


def test_tokens_and_names_are_escaped_and_every_head_is_drawn() -> None:
    evil = "</script><img onerror=x>"
    pin = Pin.of((evil, "b"), {Slot("encoder", 0): torch.eye(2).expand(3, 2, 2)})
    exam = Examination(model={"name": evil}, corpus={}, readings=Readings([]), pins=(pin,))
    page = exam_page(exam, "<pre>summary</pre>", [evil])
    assert evil not in page and "<script" not in page and "http" not in page
    assert page.count("data:image/png;base64,") == 3 and "enc.0.2" in page
