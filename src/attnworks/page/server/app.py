"""The server as an ASGI application: the page, and answers to its questions."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from attnworks.core.errors import AttnworksError, printable
from attnworks.page.contents import Contents
from attnworks.page.html import page_html, policy
from attnworks.page.server.access import Guard, refusal
from attnworks.page.server.live import LiveModel
from attnworks.page.server.questions import MAX_QUESTION_BYTES, NotJSONError, Question, read_question
from attnworks.page.server.queue import BusyError, Worker

SECONDS_TO_SEND = 10.0
"""Time limit for the body of a question."""
RETRY_AFTER = {"Retry-After": "1"}
SECONDS_BEFORE_REFUSAL = 1.0
"""Delay of a refusal, so that clients that ask again at once do not slow answers down."""


def application(contents: Contents, model: LiveModel, worker: Worker, *, hosts: Collection[str], token: str) -> ASGIApp:
    """The page under /TOKEN/, and its questions under /TOKEN/api/."""
    html = page_html(contents).encode()

    async def page(request: Request) -> Response:
        del request
        return Response(html, media_type="text/html")

    routes = [Route("/", page)]
    for name, answer in (("look", model.inspect), ("examine", model.examine)):
        routes.append(Route(f"/api/{name}", _endpoint(name, answer, worker), methods=["POST"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse, Exception: _fail})
    app.router.redirect_slashes = False
    return Guard(app, hosts=hosts, token=token, policy=policy(live=True))


def _endpoint(name: str, answer: Callable[[Question], dict[str, Any]], worker: Worker):
    def work(question: Question) -> bytes:
        return json.dumps(answer(question), separators=(",", ":"), allow_nan=False).encode()

    async def endpoint(request: Request) -> Response:
        try:
            question = read_question(await _body(request))
            kind = f"{name}, changed" if question.changes else name
            future = await _submit(worker, kind, lambda: work(question))
            disconnected = asyncio.create_task(_disconnected(request))
            done = asyncio.wrap_future(future)
            try:
                await asyncio.wait((done, disconnected), return_when=asyncio.FIRST_COMPLETED)
                if not done.done():
                    future.cancel()
                    return Response(status_code=499)
                return Response(await done, media_type="application/json")
            finally:
                disconnected.cancel()
                done.cancel()
        except (BusyError, asyncio.CancelledError, CancelledError) as error:
            return refusal(503, str(error) if isinstance(error, BusyError) else "the server stops", RETRY_AFTER)
        except NotJSONError as error:
            return refusal(400, str(error))
        except AttnworksError as error:
            return refusal(422, str(error))
        except ClientDisconnect:
            return Response(status_code=499)

    return endpoint


async def _submit(worker: Worker, kind: str, work: Callable[[], bytes]) -> Future[bytes]:
    """The future result; a busy server raises BusyError after a delay."""
    try:
        return worker.submit(kind, work)
    except BusyError:
        await asyncio.sleep(SECONDS_BEFORE_REFUSAL)
        raise


async def _disconnected(request: Request) -> None:
    """Ends when the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    """The body of a question, at most MAX_QUESTION_BYTES of it."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "a question is sent as application/json")
    length = request.headers.get("content-length", "0")
    body = bytearray()
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_TO_SEND):
            if length.isdigit() and int(length[:20]) <= MAX_QUESTION_BYTES:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_QUESTION_BYTES:
                        break
                else:
                    return bytes(body)
            raise HTTPException(413, f"a question has at most {MAX_QUESTION_BYTES:,} bytes")
    raise HTTPException(408, "the question did not come to its end")


async def _refuse(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code in (408, 413):
        headers["Connection"] = "close"
    return refusal(error.status_code, error.detail.lower(), headers)


async def _fail(request: Request, error: Exception) -> Response:
    """Print the error in one line on the terminal; the client gets no details."""
    del request
    sys.stderr.write(f"attnworks: {type(error).__name__}: {printable(' '.join(str(error).split())[:500])}\n")
    return refusal(500, "the server could not answer; its terminal says why")
