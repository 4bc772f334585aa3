"""Where the page of an examination is, and what is in it."""

from __future__ import annotations

from attnworks.cli.console import console, print_json, progress_console
from attnworks.reports.page.writing import Written


def show_written(written: Written, *, as_json: bool) -> None:
    """The file, its size and how to open it; what was left out goes to standard error."""
    held, heads = written.contents.heads
    remarks = written.contents.page["remarks"]
    if as_json:
        about = {"path": str(written.path), "bytes": written.bytes, "maps": heads, "maps_held": held}
        print_json({**about, "remarks": remarks})
        return
    for remark in remarks:
        progress_console().print(remark, markup=False, style="yellow")
    size = f"{written.bytes / 1e6:.1f} MB" if written.bytes >= 1e6 else f"{written.bytes / 1e3:.0f} kB"
    console().print(f"Report {written.path} ({size}); open it in a browser", markup=False, soft_wrap=True)
