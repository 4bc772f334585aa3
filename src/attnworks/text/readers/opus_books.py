"""`opus_books`: English-Italian sentences from books, from the Hugging Face Hub or the cache of an earlier download.

Only data is downloaded; code from the Hub is never run. Without a network the cache is used. If the cache is empty, the
error comes within seconds, because a short request tests the Hub before `datasets` starts its long retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import ModuleType
from typing import Any

from attnworks.core.errors import MissingExtraError, UsageError
from attnworks.text.corpora import CORPORA, split_by_source
from attnworks.text.passages import Passage, ReadTally

DATASET, DATASET_CONFIG = "Helsinki-NLP/opus_books", "en-it"
HUB_TIMEOUT_SECONDS = 4.0


@CORPORA.register("opus_books")
@split_by_source("row")
def _books(argument: str, tally: ReadTally) -> Iterator[Passage]:
    if argument:
        raise UsageError(f"corpus 'opus_books:{argument}'", "opus_books", f"the argument {argument!r}", "leave it out")
    for number, row in enumerate(_rows(), start=1):
        match row:
            case {"translation": {"en": str(source), "it": str(target)}}:
                if pair := tally.pair(source, target, number):
                    yield pair
            case _:
                tally.leave_out("no translation", number)


def _rows() -> Any:
    try:
        import datasets
        import huggingface_hub
    except ImportError:
        remedy = "run pip install 'attnworks[data]'"
        raise MissingExtraError("corpus 'opus_books'", "the package datasets", "none", remedy) from None
    reachable = _answers(huggingface_hub)
    try:
        with _online(datasets, reachable):
            return datasets.load_dataset(DATASET, DATASET_CONFIG, split="train")
    except Exception as wrong:
        expected = "the Hugging Face Hub or an earlier download"
        got = str(wrong) if reachable else "no connection to the Hub, and nothing in the cache"
        remedy = "try again with a network, or choose grammar, tsv:FILE or gettext:"
        raise UsageError("corpus 'opus_books'", expected, got, remedy) from None


def _answers(hub: ModuleType) -> bool:
    """Whether the Hub answers in time. In a thread, because the lookup of a host name has no timeout."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            response = hub.get_session().head(hub.constants.ENDPOINT, timeout=HUB_TIMEOUT_SECONDS)
            answers.append(response.status_code < 400)
        except Exception:
            answers.append(False)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT_SECONDS)
    return answers == [True]


@contextmanager
def _online(datasets: ModuleType, reachable: bool) -> Iterator[None]:
    """Make `datasets` use only its cache, as HF_HUB_OFFLINE=1 does, if the Hub is out of reach."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not reachable
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
