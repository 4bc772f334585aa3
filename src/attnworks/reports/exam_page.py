"""An examination as one HTML file: the summary, every table that was asked for, and the maps of pinned sentences."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.examination import Examination, Pin

STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:80em;background:#fff;color:#222}pre{line-height:1.25}"
    "img{image-rendering:pixelated;width:7em;height:7em;border:1px solid #ccc;margin:2px}"
    "figure{display:inline-block;margin:2px;text-align:center}figcaption{font-size:.75em;color:#666}"
)


def exam_page(exam: Examination, summary: str, tables: Sequence[str]) -> str:
    """No script, nothing from elsewhere. `summary` is HTML; all other text is escaped."""
    title = html.escape(f"Examination of {exam.model.get('name', 'a model')}")
    parts = [f"<h1>{title}</h1>", summary]
    parts += [f"<pre>{html.escape(table)}</pre>" for table in tables]
    parts += [_pinned(pin) for pin in exam.pins]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"<!DOCTYPE html>\n<html><head>{head}</head>\n<body>{''.join(parts)}</body></html>\n"


def _pinned(pin: Pin) -> str:
    """Rows of a map belong to queries, columns to keys; the darker, the more attention."""
    words = " ".join(pin.tokens) + (f"  →  {' '.join(pin.target)}" if pin.target else "")
    maps = "".join(
        f"<div>{''.join(_figure(f'{slot}.{head}', P) for head, P in enumerate(heads))}</div>"
        for slot, heads in pin.maps.items()
    )
    return f"<h2>{html.escape(words)}</h2>{maps}"


def _figure(name: str, P: Float[Tensor, "i j"]) -> str:
    data = base64.b64encode(grey_png(1 - P.float())).decode()
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"><figcaption>{name}</figcaption></figure>'


def grey_png(brightness: Float[Tensor, "i j"]) -> bytes:
    """A grey picture of numbers from 0 (black) to 1 (white), one pixel each."""
    pixels = (brightness.clamp(0, 1) * 255).round().to(torch.uint8)
    rows, columns = pixels.shape
    raw = b"".join(b"\0" + bytes(row.tolist()) for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
