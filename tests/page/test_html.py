"""A page as a file: one script that the policy names, and texts that never leave their place."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time

import pytest
import torch

from attnworks.core.places import Slot
from attnworks.exam.examination import Examination, Pin
from attnworks.exam.reading import Readings
from attnworks.page import notebook_frame, page_contents, page_html, policy
from attnworks.page.contents import SCRIPT_FILE, STYLE_FILE, PageExam, resource
from tests.page.page_helpers import Seen, made_exam, reading, softmax_maps, tokens, translated

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "]]></style></title><img src=x onerror=alert(1)>",
    '" onload="alert(1)" x="',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "&lt;b&gt;&amp;#60;",
    "\u2028\u2029\0\ud800",
    "\u202eevil\u202c",
    "{{constructor.constructor('alert(1)')()}}",
)


def page(text: str = "") -> str:
    return page_html(page_contents([PageExam(made_exam(text), f"label{text}", (translated(text),))]))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_where_they_belong(text: str) -> None:
    """Every text field of the examination holds it; the elements are those of a page without it."""
    plain, seen = Seen(page()), Seen(page(text))
    assert seen.elements == plain.elements
    assert [sorted(attributes) for attributes in seen.attributes] == [sorted(found) for found in plain.attributes]
    exam = seen.page()["exams"][0]
    assert exam["pins"][0]["tokens"][0] == f"0{text}" and exam["model"]["name"] == f"model{text}"
    assert exam["readings"]["roles.label@encoder"]["value"][0][0] == f"previous{text}"
    assert json.dumps(seen.page()).count(json.dumps(text)[1:-1]) > 40
    seen.texts["title"].encode()


def test_only_what_the_policy_names_runs() -> None:
    seen = Seen(page())
    scripts = [found for tag, found in zip(seen.elements, seen.attributes, strict=True) if tag == "script"]
    assert all(found.get("type") == "text/plain" for found in scripts[:-1]) and scripts[-1] == {}
    for name, text in (("script-src", seen.texts["script"]), ("style-src", seen.texts["style"])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy(live=False)
    meta = next(found for found in seen.attributes if found.get("http-equiv") == "Content-Security-Policy")
    assert meta["content"] == policy(live=False)
    for part in ("default-src 'none'", "connect-src 'none'", "require-trusted-types-for 'script'", "base-uri 'none'"):
        assert part in policy(live=False)
    assert "unsafe" not in policy(live=True) and "connect-src 'self'" in policy(live=True)


def test_the_file_needs_nothing_from_elsewhere() -> None:
    seen = Seen(page())
    for attributes in seen.attributes:
        assert not attributes.keys() & {"src", "href", "style", "onload", "srcset"}
    assert seen.attributes[0] == {"lang": "en"} and "noscript" in seen.elements


@pytest.mark.parametrize("name", [SCRIPT_FILE, STYLE_FILE])
def test_script_and_style_cannot_end_early(name: str) -> None:
    text = resource(name).decode().lower()
    assert "</script" not in text and "</style" not in text and "<!--" not in text and "\r" not in text


def test_a_page_is_the_same_twice() -> None:
    assert page() == page()


def test_a_notebook_shows_the_page_in_a_frame_that_reaches_nothing() -> None:
    exam = made_exam('"><script>alert(1)</script>')
    seen = Seen(exam._repr_html_())
    assert seen.elements == ["iframe"]
    frame = seen.attributes[0]
    assert frame["sandbox"] == "allow-scripts allow-downloads" and (frame["title"] or "").startswith("Examination of")
    inside = Seen(frame["srcdoc"] or "")
    assert inside.page()["host"] == "notebook" and inside.page()["exams"][0]["pins"][0]["tokens"][0].startswith("0")
    assert notebook_frame(exam) == exam._repr_html_()
    assert html.escape("<") not in (frame["srcdoc"] or "")[:100]


def large_exam(n: int) -> Examination:
    """12 x 12 heads on n tokens, with twenty readings of every head."""
    maps = {Slot("encoder", layer): softmax_maps(12, n, n, seed=layer) for layer in range(12)}
    source = torch.Generator().manual_seed(1)
    parts = [[torch.rand(12, generator=source) for _ in range(12)] for _ in range(4)]
    values = {"value": tuple(parts[0]), "spread": tuple(parts[1]), "interval": (tuple(parts[2]), tuple(parts[3]))}
    readings = Readings([reading(f"made.up{number}", values) for number in range(20)])
    return made_exam(readings=readings, pins=(Pin.of(tokens(n), maps),))


def test_144_heads_on_128_tokens_make_a_small_file_in_little_time() -> None:
    exam = large_exam(128)
    began = time.process_time()
    text = page_html(page_contents([PageExam(exam, "large")]))
    assert time.process_time() - began < 15, "2 s on an idle machine"
    assert len(text) <= 1_500_000


@pytest.mark.slow
def test_512_tokens_stay_below_ten_million_bytes() -> None:
    contents = page_contents([PageExam(large_exam(512), "large")])
    held, heads = contents.heads
    assert 9_000_000 < len(page_html(contents)) < 10_000_000 and 50 < held < heads == 144


def test_the_script_is_small() -> None:
    """It is part of every page."""
    assert len(resource(SCRIPT_FILE)) <= 200 * 1024
