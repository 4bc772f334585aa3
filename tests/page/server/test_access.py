"""Who is let in: nothing but the own page, under the own name, with the token, within the limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnworks.page.html import policy
from attnworks.page.server.live import LiveModel
from attnworks.page.server.questions import MAX_CHANGES, MAX_QUESTION_BYTES
from tests.exam_helpers import LINES
from tests.page.server.server_helpers import JSON, TOKEN, Client, serving

ASKED = {"text": LINES[0], "changes": {"cut": [], "project": {}, "swap": {}}}


def test_page_with_closed_headers(client: Client) -> None:
    reply = client.get()
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    assert b'id="page"' in reply.body
    assert reply.headers["content-security-policy"] == f"{policy(live=True)}; frame-ancestors 'none'"
    assert "connect-src 'self'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in reply.headers


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", f"//{TOKEN}/", f"/%2e/{TOKEN}/", "/api/look", "/%C3%A9"]
)
def test_without_the_token_there_is_nothing(client: Client, path: str) -> None:
    for method in ("GET", "POST", "HEAD", "DELETE"):
        reply = client.send(method, path, headers=JSON)
        assert reply.status == 404
        assert method == "HEAD" or reply.json == {"error": "not found"}
        assert "content-security-policy" in reply.headers
        assert TOKEN not in str(reply)


def test_token_without_slash_leads_to_the_page(client: Client) -> None:
    reply = client.send("GET", f"/{TOKEN}")
    assert (reply.status, reply.headers["location"]) == (308, f"/{TOKEN}/")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""])
def test_foreign_host_is_refused(client: Client, host: str) -> None:
    reply = client.get(Host=host)
    assert reply.status == 421 and "error" in reply.json


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_own_hosts(client: Client, name: str) -> None:
    assert client.get(Host=f"{name}:{client.port}").status == 200


def test_two_hosts_are_refused(client: Client) -> None:
    own = f"127.0.0.1:{client.port}".encode()
    twice = b"GET /" + TOKEN.encode() + b"/ HTTP/1.1\r\nHost: " + own + b"\r\nHost: evil.example\r\n\r\n"
    assert client.raw(twice).split()[1] in (b"400", b"421")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_foreign_origin_is_refused(client: Client, origin: str) -> None:
    reply = client.post("api/look", ASKED, {**JSON, "Origin": origin.format(port=client.port)})
    assert reply.status == 403 and "error" in reply.json


def test_own_origin(client: Client) -> None:
    assert client.post("api/look", ASKED, {**JSON, "Origin": f"http://localhost:{client.port}"}).status == 200


def test_methods(client: Client) -> None:
    assert client.send("HEAD", f"/{TOKEN}/").status == 200
    for method, path in (("POST", ""), ("DELETE", ""), ("GET", "api/look"), ("PUT", "api/examine")):
        reply = client.send(method, f"/{TOKEN}/{path}", b"{}", JSON)
        assert reply.status == 405 and reply.json["error"] == "method not allowed"
    assert client.post("api/other", ASKED).status == 404


def test_only_json(client: Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"):
        assert client.post("api/look", ASKED, {"Content-Type": kind}).status == 415
    assert client.post("api/look", ASKED, {}).status == 415
    assert client.post("api/look", ASKED, {"Content-Type": "Application/JSON; charset=utf-8"}).status == 200


def test_large_bodies(client: Client) -> None:
    large = json.dumps({"text": "x" * MAX_QUESTION_BYTES}).encode()
    assert client.post("api/look", large).status == 413
    told = f"POST /{TOKEN}/api/look HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Type: application/json\r\n"
    reply = client.raw(f"{told}Content-Length: 99999999999\r\n\r\n".encode())
    assert b" 413 " in reply.splitlines()[0]


def test_chunked_bodies(client: Client) -> None:
    """Without a length told beforehand, what comes is counted."""
    parts = [json.dumps(ASKED).encode()[place : place + 7] for place in range(0, len(json.dumps(ASKED)), 7)]
    headers = {**JSON, "Transfer-Encoding": "chunked"}
    assert client.send("POST", f"/{TOKEN}/api/look", iter(parts), headers, chunked=True).status == 200
    head = f"POST /{TOKEN}/api/look HTTP/1.1\r\nHost: localhost:{client.port}\r\nContent-Type: application/json\r\n"
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    assert client.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk + b"1\r\nx").startswith(
        b"HTTP/1.1 413 "
    )


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[" * 60000, b'{"text": "\\ud800"}', b"9" * 9999, b'{"a":' * 10000]
)
def test_no_json(client: Client, body: bytes) -> None:
    reply = client.post("api/look", body)
    assert reply.status == 400
    assert "expected JSON in UTF-8" in reply.json["error"] and "\n" not in reply.json["error"]


@pytest.mark.parametrize(
    "asked",
    [
        [],
        {},
        None,
        {"text": 3},
        {"text": ["a"]},
        {"text": "a b", "more": 1},
        {"text": "a b", "changes": []},
        {"text": "a b", "changes": None},
        {"text": "a b", "changes": {"cut": "enc.0.0"}},
        {"text": "a b", "changes": {"cut": [0]}},
        {"text": "a b", "changes": {"swap": ["enc.0"]}},
        {"text": "a b", "changes": {"swap": {"enc.0": 1}}},
        {"text": "a b", "changes": {"project": {"enc.0.0": None}}},
        {"text": "a b", "changes": {"other": {}}},
        {"text": "a b", "changes": {"cut": [str(number) for number in range(MAX_CHANGES + 1)]}},
        {"text": ""},
        {"text": " \n\t "},
        {"text": "\0"},
        {"text": " ".join(["cat"] * 24)},
    ],
)
def test_unlike_questions(client: Client, asked: object) -> None:
    for path in ("api/look", "api/examine"):
        reply = client.post(path, asked)
        assert reply.status == 422
        assert "expected" in reply.json["error"] and "got" in reply.json["error"] and "\n" not in reply.json["error"]


def test_too_many_tokens_are_counted(client: Client) -> None:
    """Two of them are special."""
    assert client.post("api/look", {"text": " ".join(["cat"] * 21)}).status == 200
    reply = client.post("api/look", {"text": " ".join(["cat"] * 22)})
    assert reply.status == 422 and "at most 23 tokens, got 24" in reply.json["error"]


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"cut": ["enc.9.0"]}, "enc.0.0 to enc.0.2"),
        ({"cut": ["../../etc"]}, "enc.0.0 to enc.0.2"),
        ({"cut": ["enc.0.-1"]}, "enc.0.0 to enc.0.2"),
        ({"project": {"enc.0.0": "circle"}}, "auto, mix, previous"),
        ({"project": {"enc.0.0": "block9999999"}}, "auto, mix, previous"),
        ({"swap": {"enc.0": "magic"}}, "window:window=1, window:window=4"),
        ({"swap": {"enc.0": "window:window=1000000000000"}}, "window:window=1, window:window=4"),
        ({"swap": {"dec.0": "linear"}}, "enc.0, enc.1"),
    ],
)
def test_unknown_changes_list_the_known(client: Client, changes: dict[str, object], known: str) -> None:
    reply = client.post("api/look", {"text": LINES[0], "changes": changes})
    assert reply.status == 422 and known in reply.json["error"]


def test_errors_of_ours_stay_here(
    bert: LiveModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(question: object) -> None:
        raise RuntimeError("a secret\nin two lines")

    contents = bert.page()
    monkeypatch.setattr(bert, "inspect", broken)
    with serving(contents, bert) as client:
        reply = client.post("api/look", ASKED)
        assert reply.status == 500
        assert reply.json == {"error": "the server could not answer; its terminal says why"}
        assert client.get().status == 200
    told = capfd.readouterr()
    assert told.err == "attnworks: RuntimeError: a secret in two lines\n" and "Traceback" not in told.out


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["text", "changes", "cut", "swap", "project", "enc.0", "x"]), inner, max_size=4),
    max_leaves=9,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=99) | JUNK.map(lambda junk: json.dumps(junk).encode()))
def test_any_body_gets_a_plain_answer(client: Client, body: bytes) -> None:
    reply = client.post("api/look", body)
    assert reply.status in (200, 400, 422)
    assert reply.status == 200 or {*reply.json} == {"error"}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_gets_a_plain_answer(client: Client, text: str) -> None:
    reply = client.post("api/look", {"text": text})
    assert reply.status in (200, 422)
