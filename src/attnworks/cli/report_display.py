"""Where the page of an examination is, and what is in it."""

from __future__ import annotations

from attnworks.cli.console import console, print_json, progress_console
from attnworks.page.file import WrittenPage


def show_written(written: WrittenPage, *, as_json: bool) -> None:
    """The file, its size and how to open it."""
    held, heads = written.contents.heads
    show_remarks(written)
    if as_json:
        about = {"path": str(written.path), "bytes": written.bytes, "maps": heads, "maps_held": held}
        print_json({**about, "remarks": written.contents.page["remarks"]})
        return
    size = f"{written.bytes / 1e6:.1f} MB" if written.bytes >= 1e6 else f"{written.bytes / 1e3:.0f} kB"
    console().print(f"Report {written.path} ({size}); open it in a browser", markup=False, soft_wrap=True)


def show_remarks(written: WrittenPage) -> None:
    """What was left out, to standard error."""
    for remark in written.contents.page["remarks"]:
        progress_console().print(remark, markup=False, style="yellow")
