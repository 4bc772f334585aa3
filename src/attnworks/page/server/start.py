"""From the name of a model to a server that runs."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from attnworks.core.errors import UsageError
from attnworks.core.folders import disk_errors
from attnworks.exam.folder import EXAM
from attnworks.page.server.addresses import check_local, listen, local_hosts, shown
from attnworks.page.server.app import application
from attnworks.page.server.browser import opened
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.page.server.running import run
from attnworks.reshape.history import receipts_of
from attnworks.traces.subject import open_examinee


def serve_page(
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    longest: int = 128,
    text: str | None = None,
    opens: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    tell: Callable[[str], object] = print,
    ends_process: bool = False,
) -> bool:
    """Serve the page of a model, live, until a signal comes; False if work still runs then.

    longest    most tokens of a sentence
    text       the sentence that is shown first
    opens      whether to open the page in the browser
    ends_process  whether the process ends afterwards: further signals are then ignored
    """
    host = check_local(host)
    _check_model(name)
    with listen(host, port) as place:
        number = place.getsockname()[1]
        model = open_live(name, longest=longest, text=text, device=device, dtype=dtype)
        token, worker = secrets.token_urlsafe(), Worker()
        app = application(model.page(), model, worker, hosts=local_hosts(host, number), token=token)
        url = f"http://{shown(host)}:{number}/{token}/"
        tell(f"Serving {name} at {url}")
        tell("Ctrl-C stops.")
        with opened(url) if opens else nullcontext():
            ended = run(app, worker, place, ends_process=ends_process)
        tell("Stopped.")
        return ended


def open_live(
    name: str, *, longest: int = 128, text: str | None = None, device: str = "cpu", dtype: str = "float32"
) -> LiveModel:
    """The model of this name, with the receipts of its folder."""
    examinee = open_examinee(name, device=device, dtype=dtype)
    return LiveModel(examinee, longest=longest, text=text, receipts=receipts_of(name))


def _check_model(name: str) -> None:
    """Refuse the folder of an examination: its page asks nothing, and `attnworks report` writes it."""
    with disk_errors(f"open {name}", remedy="check the path"):
        is_exam = (Path(name) / EXAM).is_file()
    if is_exam:
        raise UsageError(
            asked=f"serve {name}",
            expected="a model",
            got="the folder of an examination",
            remedy=shlex.join(["attnworks", "report", name, "--out", "report.html"]) + " writes its page",
        )
