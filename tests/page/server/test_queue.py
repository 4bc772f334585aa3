"""One thing after the other, few in the queue, none for those who have gone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import pytest

from attnworks.page.server.app import SECONDS_BEFORE_REFUSAL
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import MAX_OPEN_QUESTIONS, BusyError, Worker
from tests.exam_helpers import LINES
from tests.page.server.server_helpers import TOKEN, serving


def test_queue_is_as_long_as_patience() -> None:
    """Work of 0.1 s, patience of 0.35 s: three fit, waiting and running ones together."""
    worker, hold = Worker(patience=0.35), threading.Event()
    worker.submit("look", lambda: None).result()
    _until(lambda: not worker._open)
    worker._expected["look"] = 0.1
    taken = [worker.submit("look", hold.wait) for _ in range(3)]
    with pytest.raises(BusyError, match="3 questions before"):
        worker.submit("look", hold.wait)
    hold.set()
    assert all(future.result() for future in taken)
    worker.close()


def test_a_new_worker_does_not_take_a_crowd() -> None:
    """Nothing is known about the work, so that all but the first wait for what it will tell."""
    worker, hold = Worker(), threading.Event()
    taken = [worker.submit("look", hold.wait)]
    for _ in range(50):
        with pytest.raises(BusyError, match="1 question before"):
            worker.submit("look", hold.wait)
    hold.set()
    assert taken[0].result()
    worker.close()


def test_quick_work_has_a_queue_that_ends() -> None:
    worker, hold = Worker(), threading.Event()
    worker._expected["look"] = 0.0
    taken = [worker.submit("look", hold.wait) for _ in range(MAX_OPEN_QUESTIONS)]
    with pytest.raises(BusyError, match=f"{MAX_OPEN_QUESTIONS} questions before"):
        worker.submit("look", hold.wait)
    hold.set()
    assert all(future.result() for future in taken)
    worker.close()


def test_what_is_refused_says_nothing_about_the_time_of_answers() -> None:
    worker = Worker()
    worker._expected["look"] = 0.5
    for _ in range(9):
        with pytest.raises(ZeroDivisionError):
            worker.submit("look", lambda: 1 / 0).result()
        _until(lambda: not worker._open)
    assert worker._expected["look"] == 0.5
    worker.close()


def test_idle_worker_takes_any_work() -> None:
    worker = Worker(patience=0.0)
    worker.submit("examine", lambda: time.sleep(0.01)).result()
    _until(lambda: not worker._open)
    assert worker.submit("examine", lambda: 3).result() == 3
    worker.close()


def test_cancelled_work_is_not_begun_and_frees_its_place() -> None:
    worker, hold, begun = Worker(), threading.Event(), list[int]()
    worker._expected["look"] = 0.1
    running = worker.submit("look", hold.wait)
    waiting = worker.submit("look", lambda: begun.append(1))
    assert waiting.cancel() and len(worker._open) == 1
    hold.set()
    running.result()
    worker.close()
    assert not begun


def test_close_does_not_wait_for_work_that_does_not_end() -> None:
    worker, hold, began = Worker(), threading.Event(), threading.Event()
    running = worker.submit("look", lambda: (began.set(), hold.wait()))
    began.wait()
    assert not worker.close(0.0) and not running.done()
    hold.set()
    assert worker.close(180.0) and running.done()


def test_stop_finishes_what_runs_and_drops_what_waits() -> None:
    worker, hold, began = Worker(), threading.Event(), threading.Event()
    worker._expected["look"] = 0.1

    def work() -> int:
        began.set()
        hold.wait()
        return 3

    running, waiting = worker.submit("look", work), worker.submit("look", work)
    began.wait()
    worker.stop()
    with pytest.raises(BusyError, match="stops"):
        worker.submit("look", work)
    hold.set()
    assert running.result() == 3
    with pytest.raises(CancelledError):
        waiting.result()
    worker.close()


def test_full_server_says_so_after_a_moment_and_clients_that_leave_are_forgotten(
    bert: LiveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, hold, begun = Worker(patience=0.5), threading.Event(), list[str]()
    contents, look = bert.page(), bert.inspect

    def slow(question):
        begun.append(question.text)
        hold.wait()
        return look(question)

    monkeypatch.setattr(bert, "inspect", slow)
    worker._expected["look"] = 0.2
    with serving(contents, bert, worker) as client:
        first = threading.Thread(target=client.post, args=("api/look", {"text": LINES[0]}))
        first.start()
        _until(lambda: len(begun) == 1)
        body = f'{{"text": "{LINES[1]}"}}'.encode()
        head = f"POST /{TOKEN}/api/look HTTP/1.1\r\nHost: localhost:{client.port}\r\nContent-Type: application/json\r\n"
        import socket

        leaving = socket.create_connection(("127.0.0.1", client.port))
        leaving.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        _until(lambda: len(worker._open) == 2)
        asked = time.monotonic()
        refused = client.post("api/look", {"text": LINES[0]})
        assert time.monotonic() - asked >= SECONDS_BEFORE_REFUSAL
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "2 questions before" in refused.json["error"] and client.get().status == 200
        leaving.close()
        _until(lambda: len(worker._open) == 1)
        hold.set()
        first.join()
    assert begun == [LINES[0]]


def _until(so: object) -> None:
    deadline = time.monotonic() + 180
    while not so():  # pyright: ignore[reportCallIssue]
        assert time.monotonic() < deadline
        time.sleep(0.002)
