"""Pictures of every view, in light and in dark, on a desk and on a phone, compared with those that are kept.

    REWRITE_PICTURES=1 python -m pytest tests/browser/test_page_pictures.py    # after a change that is meant

Text is drawn by the fonts of the machine, so pictures are compared only where these are the ones of Debian.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.browser.browser_helpers import VIEWS
from tests.browser.conftest import Open

Image = pytest.importorskip("PIL.Image")

KEPT = Path(__file__).parent / "pictures"
REWRITE = os.environ.get("REWRITE_PICTURES") == "1"
FONTS = {"system-ui": "DejaVuSans.ttf", "monospace": "DejaVuSansMono.ttf"}
SCREENS: dict[str, tuple[int, int]] = {"desk": (1280, 1500), "phone": (390, 1500)}
COLOURS = 96
FAINT = 56
"""Levels of a channel, of 255: pixels that differ by less are equal. Edges of letters differ between versions."""
MOST_PIXELS = 0.001
"""The share of pixels that may differ by more."""


def font_of(family: str) -> str:
    """The file of the font that the browser takes; "" where this is not known."""
    if shutil.which("fc-match") is None:
        return ""
    return subprocess.run(["fc-match", "--format=%{file|basename}", family], capture_output=True, text=True).stdout


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(font_of(family) != file for family, file in FONTS.items()), reason="the fonts are not Debian's DejaVu"
    ),
]


def pixels(picture: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(BytesIO(picture)).convert("RGB")).astype(np.int16)


def reduced(picture: bytes) -> bytes:
    """The picture with few colours: a quarter of its size."""
    written = BytesIO()
    few = Image.open(BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(written, "PNG", optimize=True)
    return written.getvalue()


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_looks_as_it_did(
    look: Open,
    file_page: str,
    two_sided_page: str,
    tmp_path: Path,
    view: str,
    colours: Literal["light", "dark"],
    screen: str,
) -> None:
    width, height = SCREENS[screen]
    page = two_sided_page if view in ("alignment", "compare") else file_page
    shown = look(page, f"#{view}", viewport={"width": width, "height": height}, color_scheme=colours)
    picture = shown.page.screenshot(animations="disabled", caret="hide")
    kept = KEPT / f"{view}_{screen}_{colours}.png"
    if REWRITE:
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(reduced(picture))
        return
    assert kept.is_file(), f"{kept.name} is not kept; REWRITE_PICTURES=1 writes it"
    before, now = pixels(kept.read_bytes()), pixels(picture)
    assert before.shape == now.shape
    differs = np.abs(before - now).max(-1) > FAINT
    if differs.mean() > MOST_PIXELS:
        (tmp_path / kept.name).write_bytes(picture)
        rows = np.flatnonzero(differs.any(1))
        where = f"between rows {rows[0]} and {rows[-1]}"
        pytest.fail(f"{differs.mean():.2%} of {kept.name} differ, {where}; now it is {tmp_path / kept.name}")
