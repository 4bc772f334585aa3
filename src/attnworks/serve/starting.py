"""From the name of a model or of an examination to a server that runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from attnworks.errors import UsageError
from attnworks.exam.folder import EXAM, read_exam
from attnworks.reports.page.contents import Contents, Exam, page_contents
from attnworks.reshape.history import receipts_of
from attnworks.serve.addresses import check_local, listen, local_hosts, shown
from attnworks.serve.app import application
from attnworks.serve.browser import opened
from attnworks.serve.live import LiveModel
from attnworks.serve.running import run
from attnworks.serve.work import Worker
from attnworks.storage.disk import disk_errors
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
    """Serve the page of a model, live, or of an examination, until a signal comes; False if work still runs then.

    longest    most tokens of a sentence
    text       the sentence that is shown first
    opens      whether to open the page in the browser
    ends_process  whether the process ends afterwards: further signals are then ignored
    """
    host = check_local(host)
    with listen(host, port) as place:
        number = place.getsockname()[1]
        contents, model = _page(name, longest, text, device, dtype)
        token, worker = secrets.token_urlsafe(), Worker()
        app = application(contents, model, worker, hosts=local_hosts(host, number), token=token)
        url = f"http://{shown(host)}:{number}/{token}/"
        tell(f"Serving {name} at {url}")
        tell("Ctrl-C stops.")
        with opened(url) if opens else nullcontext():
            ended = run(app, worker, place, ends_process=ends_process)
        tell("Stopped.")
        return ended


def _page(name: str, longest: int, text: str | None, device: str, dtype: str) -> tuple[Contents, LiveModel | None]:
    """The page of a model that answers, or of an examination, which does not."""
    folder = Path(name)
    with disk_errors(f"open {name}", remedy="check the path"):
        is_exam = (folder / EXAM).is_file()
    if is_exam:
        if text is not None:
            raise UsageError(
                asked=f"the sentence {text[:40]!r}",
                expected="a model that can read it",
                got=f"an examination, {name}",
                remedy="leave --text out, or serve the model itself",
            )
        return page_contents([Exam(read_exam(folder), folder.resolve().name)], host="live"), None
    examinee = open_examinee(name, device=device, dtype=dtype)
    model = LiveModel(examinee, longest=longest, text=text, receipts=receipts_of(name))
    return model.page(), model
