"""opus_books, with stand-ins for the packages that would go to the network."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attnworks.core.errors import AttnworksError, MissingExtraError
from attnworks.text.corpora import open_corpus
from attnworks.text.readers import opus_books

ROWS = [{"id": str(n), "translation": {"en": f"Sentence {n}.", "it": f"Frase {n}."}} for n in range(40)]
ALTERNATIVES = "try again with a network, or choose grammar, tsv:FILE or gettext:"


class Hub:
    """Stand-ins for `datasets` and `huggingface_hub`, and what was asked of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.offline_while_loading: list[bool] = []
        self.head: Any = lambda url, timeout: SimpleNamespace(status_code=200)
        self.answer: Any = ROWS
        self.datasets: Any = ModuleType("datasets")
        self.datasets.config = SimpleNamespace(HF_HUB_OFFLINE=False)
        self.datasets.load_dataset = self.load_dataset
        self.hub: Any = ModuleType("huggingface_hub")
        self.hub.constants = SimpleNamespace(ENDPOINT="https://hub.invalid")
        self.hub.get_session = lambda: SimpleNamespace(head=self.head)

    def load_dataset(self, *args: Any, **options: Any) -> Any:
        self.asked.append((args, options))
        self.offline_while_loading.append(self.datasets.config.HF_HUB_OFFLINE)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub.datasets)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub.hub)
    monkeypatch.setattr(opus_books, "HUB_TIMEOUT_SECONDS", 180.0)
    return hub


def no_network(url: str, timeout: float) -> None:
    raise OSError("Name or service not known")


def error() -> str:
    with pytest.raises(AttnworksError) as caught:
        open_corpus("opus_books")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_become_pairs(hub: Hub) -> None:
    corpus = open_corpus("opus_books", pairs=30)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (30, 2, 2)
    assert corpus.train[0].words[0][0] == "Sentence"
    assert corpus.train[0].words[1][0] == "Frase"
    assert hub.offline_while_loading == [False]


def test_no_code_from_the_hub_is_trusted(hub: Hub) -> None:
    open_corpus("opus_books")
    assert hub.asked == [(("Helsinki-NLP/opus_books", "en-it"), {"split": "train"})]


def test_bad_rows_are_reported(hub: Hub) -> None:
    hub.answer = [*ROWS, {"translation": {"en": "x"}}, {"translation": {"en": "x", "it": " "}}, {"text": "x"}]
    assert open_corpus("opus_books").report.summary() == (
        "40 pairs; 3 rows left out: no translation (rows 41, 43), empty side (row 42)"
    )


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError) as caught:
        open_corpus("opus_books")
    assert str(caught.value) == (
        "corpus 'opus_books': expected the package datasets, got none; run pip install 'attnworks[data]'"
    )


def test_without_a_network_and_without_a_cache(hub: Hub) -> None:
    hub.head, hub.answer = no_network, ConnectionError("Couldn't reach it\non the Hub")
    assert error() == (
        "corpus 'opus_books': expected the Hugging Face Hub or an earlier download, "
        f"got no connection to the Hub, and nothing in the cache; {ALTERNATIVES}"
    )
    assert hub.offline_while_loading == [True]
    assert hub.datasets.config.HF_HUB_OFFLINE is False


def test_without_a_network_the_cache_serves(hub: Hub) -> None:
    hub.head = no_network
    assert open_corpus("opus_books").report.read == 40
    assert hub.offline_while_loading == [True]


@pytest.mark.parametrize("status", [403, 502])
def test_a_gateway_that_refuses_is_no_network(hub: Hub, status: int) -> None:
    hub.head = lambda url, timeout: SimpleNamespace(status_code=status)
    open_corpus("opus_books")
    assert hub.offline_while_loading == [True]


def test_a_silent_network_is_not_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opus_books, "HUB_TIMEOUT_SECONDS", 0.2)
    over, answered = threading.Event(), threading.Event()
    hub.head = lambda url, timeout: (over.wait(300), answered.set())
    hub.answer = ConnectionError("offline")
    try:
        assert "got no connection to the Hub" in error()
        assert not answered.is_set()
    finally:
        over.set()


def test_another_failure_is_passed_on_in_one_line(hub: Hub) -> None:
    hub.answer = RuntimeError("the file\nis gone")
    assert error() == (
        "corpus 'opus_books': expected the Hugging Face Hub or an earlier download, "
        f"got the file is gone; {ALTERNATIVES}"
    )


def test_no_argument() -> None:
    with pytest.raises(AttnworksError) as caught:
        open_corpus("opus_books:de")
    assert str(caught.value) == ("corpus 'opus_books:de': expected opus_books, got the argument 'de'; leave it out")
