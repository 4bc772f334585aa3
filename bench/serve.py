"""How quickly the live page is answered: one client that looks, then many at once.

    python bench/serve.py MODEL --looks 50 --clients 64 --seconds 10

Needs a quiet machine. The server is a process of its own, as `attnworks serve` starts it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

SENTENCE = (
    "The animal did not cross the street because it was too tired and the other animal , "
    "which had been sleeping all day long , was still not awake ."
)
"""32 tokens of a BERT."""


def ask(connection: http.client.HTTPConnection, path: str, text: str) -> tuple[int, float, float]:
    """Status, seconds from the question to the last byte of the answer, and seconds to wait before another."""
    began = time.perf_counter()
    connection.request("POST", f"{path}api/look", json.dumps({"text": text}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status, time.perf_counter() - began, float(answer.headers.get("Retry-After", 0))


def percentile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else float("nan")


def one_client(address: str, path: str, looks: int) -> list[float]:
    connection = http.client.HTTPConnection(address, timeout=60)
    ask(connection, path, SENTENCE)
    found = [ask(connection, path, SENTENCE) for _ in range(looks)]
    assert all(status == 200 for status, _, _ in found)
    return [seconds for _, seconds, _ in found]


def many_clients(
    address: str, path: str, clients: int, seconds: float, own_pause: float | None
) -> tuple[Counter[str], list[float]]:
    counts: Counter[str] = Counter()
    accepted: list[float] = []
    lock, end = threading.Lock(), time.perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        while time.perf_counter() < end:
            try:
                status, taken, pause = ask(connection, path, SENTENCE)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                with lock:
                    counts[type(error).__name__] += 1
                continue
            with lock:
                counts[str(status)] += 1
                if status == 200:
                    accepted.append(taken)
            time.sleep(own_pause if pause and own_pause is not None else pause)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts, accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--looks", type=int, default=50)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pause", type=float, help="seconds after a 503, instead of what Retry-After says")
    asked = parser.parse_args()
    command = [sys.executable, "-u", "-m", "attnworks", "serve", asked.model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the server did not start"
            url = urlsplit(found[0])
            times = one_client(url.netloc, url.path, asked.looks)
            counts, accepted = many_clients(url.netloc, url.path, asked.clients, asked.seconds, asked.pause)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    ms = {name: round(1000 * percentile(times, share), 1) for name, share in (("median_ms", 0.5), ("p99_ms", 0.99))}
    many = {
        "clients": asked.clients,
        "answers": dict(counts),
        "accepted_median_s": round(percentile(accepted, 0.5), 3),
        "accepted_p99_s": round(percentile(accepted, 0.99), 3),
    }
    print(json.dumps({"look": {"count": len(times), **ms}, "many": many, "exit_code": server.returncode}, indent=2))


if __name__ == "__main__":
    main()
