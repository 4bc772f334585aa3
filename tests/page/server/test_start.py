"""The command: it says where it serves, ends when told to, and tells what is wrong in one line."""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import attnworks
from attnworks.cli import main
from attnworks.core.errors import UsageError
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.folder import write_exam
from attnworks.page.server import start
from attnworks.page.server.access import check_local, local_hosts
from attnworks.page.server.live import LiveModel
from attnworks.text.passages import from_texts
from tests.exam_helpers import LINES, tiny_folder, tiny_tokenizer

PATIENCE = 180.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/")


@contextmanager
def served(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a command that serves, and the address that it printed; it is ended in any case."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = ADDRESS.search(process.stdout.readline())
            assert found is not None, process.communicate()[1]
            assert process.stdout.readline() == "Ctrl-C stops.\n"
            yield process, found[0]
        finally:
            process.kill()


def check_stopped(process: subprocess.Popen[str]) -> None:
    """It ends by itself, says so, and has the exit code 0."""
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "Stopped.\n", "")


def test_serves_until_told_to_stop() -> None:
    """By SIGTERM; Ctrl-C is tested below."""
    command = [sys.executable, "-u", "-m", "attnworks", "serve", str(tiny_folder("bert")), "--text", LINES[0]]
    with served(command) as (process, address):
        with urllib.request.urlopen(address, timeout=PATIENCE) as page:
            assert page.status == 200 and b'id="page"' in page.read()
        asked = urllib.request.Request(f"{address}api/leak", b'{"text": "a b"}', {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked, timeout=PATIENCE)
        process.send_signal(signal.SIGTERM)
        check_stopped(process)


def test_stops_while_it_works_however_often_it_is_told() -> None:
    """After one more signal and another, the process still ends by itself, with exit code 0."""
    command = [sys.executable, "-u", "-m", "attnworks", "serve", str(tiny_folder("bert")), "--text", LINES[0]]
    with served(command) as (process, address):
        with urllib.request.urlopen(address, timeout=PATIENCE) as page:
            assert page.status == 200, "it answers, and so it also hears signals"
        url = urllib.parse.urlsplit(address)
        body = json.dumps({"text": LINES[0], "changes": {"project": {"enc.0.0": "auto", "enc.1.1": "auto"}}})
        connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE)
        connection.request("POST", f"{url.path}api/examine", body, {"Content-Type": "application/json"})
        for how in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            process.send_signal(how)
        check_stopped(process)


ENDLESS = """
import sys, time
import attnworks
from attnworks.cli import main
from attnworks.core.errors import UsageError
from attnworks.page.server.live import LiveModel

def inspect(self, question):
    print("working", flush=True)
    time.sleep(100_000)

LiveModel.inspect = inspect
main(sys.argv[1:])
"""


def test_ends_while_it_computes_what_never_ends() -> None:
    command = [sys.executable, "-u", "-c", ENDLESS, "serve", str(tiny_folder("bert")), "--text", LINES[0]]
    with served(command) as (process, address):
        url = urllib.parse.urlsplit(address)
        connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE)
        body = json.dumps({"text": LINES[0]})
        connection.request("POST", f"{url.path}api/look", body, {"Content-Type": "application/json"})
        assert process.stdout is not None and process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGTERM)
        check_stopped(process)


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(main, ["serve", str(tiny_folder("bert")), "--port", str(port)])
    assert result.exit_code == 2
    assert result.output.startswith(f"attnworks: serve at 127.0.0.1 port {port}: expected a port that is free")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1%lo", "192.168.0.1", "example.org", ""])
def test_only_this_machine(host: str) -> None:
    result = CliRunner().invoke(main, ["serve", str(tiny_folder("bert")), "--host", host])
    assert result.exit_code == 2 and "a local address" in result.output


def test_the_folder_of_an_examination_is_refused(bert: LiveModel, tmp_path: Path) -> None:
    folder = write_exam(run_examination(bert.base, from_texts(LINES)[0], ExamSettings(("rank",))), tmp_path / "exam")
    result = CliRunner().invoke(main, ["serve", str(folder)])
    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert result.output == (
        f"attnworks: serve {folder}: expected a model, got the folder of an examination; "
        f"attnworks report {folder} --out report.html writes its page\n"
    )


def test_names_of_this_machine() -> None:
    assert [check_local(host) for host in ("localhost", "127.0.0.1", "::1")] == ["127.0.0.1", "127.0.0.1", "::1"]
    assert local_hosts("::1", 7) == ["[::1]:7", "127.0.0.1:7", "localhost:7"]
    assert "localhost" in local_hosts("127.0.0.1", 80) and "localhost" not in local_hosts("127.0.0.1", 81)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    result = CliRunner().invoke(main, ["serve", "anything"])
    assert result.exit_code == 2 and "uvicorn" in result.output and "pip install attnworks[serve]" in result.output
    assert result.output.count("\n") == 1


def test_no_such_model(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", str(tmp_path / "nothing")])
    assert result.exit_code == 2 and result.output.count("\n") == 1


def test_a_model_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is served with its tokenizer; without one, the error says how to give it."""
    given: list[tuple[LiveModel, str]] = []
    monkeypatch.setattr(start, "run_server", lambda model, name, *_, **__: given.append((model, name)) or True)
    opened = attnworks.open(tiny_folder("bert"))
    assert attnworks.serve(opened.model, tokenizer=tiny_tokenizer("bert"), text=LINES[0])
    ((model, name),) = given
    assert name == type(opened.model).__name__ and model.base.model is opened.model
    with pytest.raises(UsageError, match="pass tokenizer="):
        attnworks.serve(opened.model)
    with pytest.raises(UsageError, match="got int"):
        attnworks.serve(3)
