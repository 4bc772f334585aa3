"""A page in Chromium, and whatever it does besides showing: errors, dialogs, requests, broken rules of its policy."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Frame,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREEN: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
VIEWS = ("story", "head", "depth", "alignment", "reshape", "compare", "claims")
HARMLESS = ("data:", "blob:", "about:")
PATIENCE = 180_000
"""Milliseconds that anything may take on a busy machine; every wait ends as soon as it can."""
# Runs before the page and is no part of it: the policy binds the page as ever. Counts what is being unpacked.
LISTEN = """addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
{
    const { arrayBuffer } = Response.prototype;
    const ended = () => { window.__unpacking -= 1 };
    window.__unpacking = 0;
    Response.prototype.arrayBuffer = function () {
        window.__unpacking += 1;
        const bytes = arrayBuffer.call(this);
        bytes.then(ended, ended);
        return bytes;
    };
}"""
# Effects run after a frame, and may unpack a map, which is drawn by effects of its own.
SETTLE = """async () => {
    for (let quiet = 0; quiet < 3; quiet = window.__unpacking > 0 ? 0 : quiet + 1)
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}"""


def chromium() -> str | None:
    """Where the browser is, or None."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


class Shown:
    """A page that is open, with all that was noticed. `root` is where its elements are: the page itself, or a frame."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page, self.origin = page, origin
        self.root: Page | Frame = page
        self.noticed: list[str] = []
        self.asked: list[str] = []
        page.add_init_script(LISTEN)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.noticed.append(f"error: {error}"))
        page.on("dialog", self._refuse)
        page.on("popup", lambda popup: self.noticed.append(f"window: {popup.url}"))
        page.on("request", self._asked)

    def go(self, address: str) -> None:
        """Another view, by the part of the address behind #, until it is drawn."""
        self.root.evaluate("hash => { location.hash = hash }", address)
        self.drawn(address)

    def come_again(self, address: str) -> None:
        """A view as if the page were new: at its top, without focus, and with nothing noticed before."""
        self.check_silence()
        self.asked.clear()
        self.go(address)
        self.root.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0) }")

    def drawn(self, address: str = "") -> None:
        """Waits until the view of this address is there."""
        view = address.lstrip("#").partition("&")[0].partition("=")[0] or "story"
        self.root.locator("nav a[aria-current=page]", has_text=view.capitalize()).wait_for()
        self.root.locator("main h2").first.wait_for()
        self.settle()

    def settle(self) -> None:
        """What was begun is drawn: three frames in which nothing is being unpacked."""
        self.root.evaluate(SETTLE)

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until the condition holds, or as long as anything may take."""
        deadline = time.monotonic() + PATIENCE / 1000
        while not condition() and time.monotonic() < deadline:
            self.page.wait_for_timeout(20)

    def button(self, name: str, **options: Any) -> Locator:
        return self.root.get_by_role("button", name=name, **options)

    def check_silence(self) -> None:
        """Nothing ran that should not, nothing was complained of, and nothing left the page."""
        for frame in self.page.frames:
            assert frame.evaluate("() => window.__hit") is None, f"a string of the data was run in {frame.url[:80]}"
        strangers = [url for url in self.asked if not url.startswith((*HARMLESS, self.origin))]
        assert not strangers, f"the page asked others: {strangers}"
        assert not self.noticed, "\n".join(self.noticed)

    def check_accessibility(self) -> None:
        """No serious finding of axe-core."""
        if not self.root.evaluate("() => 'axe' in window"):
            self.root.evaluate(f"() => {{ {AXE.read_text()} }}")
        found = self.root.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")["violations"]
        grave = [
            f"{one['id']} ({one['impact']}): {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"][:3]
        ]
        assert not grave, "\n".join(grave)

    def choose(self, entry: str, figure: str = ".figure", place: int = 0) -> None:
        """Opens the menu of a figure and takes this entry."""
        self.root.locator(figure).nth(place).get_by_role("button", name="Menu of the figure").click()
        self.root.get_by_role("menuitem", name=entry, exact=True).click()

    def saved(self, entry: str, figure: str = ".figure", place: int = 0) -> tuple[str, bytes]:
        """The name and the contents of the file that an entry of the menu of a figure saves."""
        with self.page.expect_download() as download:
            self.choose(entry, figure, place)
        return download.value.suggested_filename, download.value.path().read_bytes()

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.noticed.append(f"console {message.type}: {message.text[:500]}")

    def _refuse(self, dialog: Dialog) -> None:
        self.noticed.append(f"dialog: {dialog.message[:200]}")
        dialog.dismiss()

    def _asked(self, request: Request) -> None:
        self.asked.append(request.url)


def views(shown: Shown) -> list[str]:
    """The views that the page offers, in their order."""
    links = shown.root.get_by_role("navigation", name="Views").get_by_role("link").all_inner_texts()
    return [view for view in VIEWS if view.capitalize() in links]


def show(browser: Browser, address: str, hash: str = "", *, framed: bool = False, **options: Any) -> Shown:
    """Opens an address in a context of its own, until its first view is drawn."""
    context = browser.new_context(**(SCREEN | options))
    context.set_default_timeout(PATIENCE)
    origin = address if address.startswith("file:") else "/".join(address.split("/", 3)[:3]) + "/"
    shown = Shown(context.new_page(), origin)
    shown.page.goto(address + ("" if framed else hash))
    if framed:
        frame = shown.page.locator("iframe").element_handle().content_frame()
        assert frame is not None
        shown.root = frame
    shown.root.locator("body[data-ready]").wait_for(state="attached")
    if framed and hash:
        shown.go(hash)
    shown.drawn(hash)
    return shown
