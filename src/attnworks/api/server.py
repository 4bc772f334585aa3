"""`attnworks.serve`: the live page of a model. The packages of the server are imported when it is called."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from attnworks.api.subjects import as_subject
from attnworks.core.display import Progress
from attnworks.core.errors import UsageError
from attnworks.exam.folder import is_exam_folder


def _print_message(message: str, done: int, total: int) -> None:
    del done, total
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


def serve(
    subject: Any,
    *,
    tokenizer: Any = None,
    text: str | None = None,
    max_length: int = 128,
    host: str = "127.0.0.1",
    port: int = 0,
    open: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = _print_message,
    ends_process: bool = False,
) -> bool:
    """Serve the live page of a model: type a sentence, see every head; cut, swap and project heads by click.

    It runs until Ctrl-C or SIGTERM. The model on disk is never changed. Only this machine can reach the server, and
    only with the address that is printed, which is a new one each time. It needs the extra `serve`.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a model of attnworks.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        text: The sentence to show first. Default: None, one that suits the model.
        max_length: Longest sentence that the server accepts, in tokens. Default: 128.
        host: Loopback address to listen on. Default: "127.0.0.1".
        port: Port to listen on. Default: 0, any free port.
        open: Open the page in the browser, if there is a display. Default: False.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".
        progress: Called with (message, 0, 0) for the address, and when the server stops. Default: print the message.
        ends_process: The process ends afterwards, so that further signals are ignored. Default: False.

    Returns:
        Whether all work has ended; False if a thread still computes an answer, which nothing can stop.

    >>> attnworks.serve("runs/first")  # doctest: +SKIP
    """
    from attnworks.page.server import check_installed

    check_installed()
    from attnworks.page.server.access import check_local, listen
    from attnworks.page.server.start import live_model, run_server

    host = check_local(host)
    is_path = isinstance(subject, str | os.PathLike)
    if is_path and is_exam_folder(subject):
        remedy = shlex.join(["attnworks", "report", str(subject), "--out", "report.html"]) + " writes its page"
        raise UsageError(f"serve {subject}", "a model", "the folder of an examination", remedy)
    with listen(host, port) as place:
        remarks: list[str] = []  # they are printed after the address
        opened = as_subject(
            subject, tokenizer, device=device, dtype=dtype, progress=lambda remark, *_: remarks.append(remark)
        )
        model = live_model(opened, max_length=max_length, text=text)
        name = str(subject) if is_path else opened.name
        return run_server(
            model, name, place, host, remarks, open=open, progress=progress, ignore_later_signals=ends_process
        )
