"""`opus_books`: English-Italian sentences from books, from the Hugging Face Hub or the cache of an earlier download.

Only data is fetched; code from the Hub is never run. Without network the cache is used, and if it has nothing the error
comes within seconds: the Hub is asked for a sign of life before anything that would retry for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import ModuleType
from typing import Any

from attnworks.core.errors import MissingExtraError, UsageError
from attnworks.text.lines import Tally
from attnworks.text.pair import Pair
from attnworks.text.readers.contract import CORPORA, split_by_source

DATASET, CONFIG = "Helsinki-NLP/opus_books", "en-it"
PATIENCE_IN_SECONDS = 4.0


@CORPORA.register("opus_books")
@split_by_source("row")
def books(argument: str, tally: Tally) -> Iterator[Pair]:
    if argument:
        raise UsageError(
            asked=f"corpus 'opus_books:{argument}'",
            expected="opus_books",
            got=f"the argument {argument!r}",
            remedy="leave it out; the languages are English and Italian",
        )
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
        raise MissingExtraError(
            asked="corpus 'opus_books'",
            expected="the package datasets",
            got="none",
            remedy="run pip install 'attnworks[data]'",
        ) from None
    reachable = _answers(huggingface_hub)
    try:
        with _online(datasets, reachable):
            return datasets.load_dataset(DATASET, CONFIG, split="train")
    except Exception as wrong:
        raise UsageError(
            asked="corpus 'opus_books'",
            expected="the Hugging Face Hub or an earlier download",
            got=str(wrong) if reachable else "no connection to the Hub, and nothing in the cache",
            remedy="try again with a network, or choose grammar, tsv:FILE or gettext:",
        ) from None


def _answers(hub: ModuleType) -> bool:
    """Whether the Hub gives a sign of life. A thread, because looking up a name obeys no timeout."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            answers.append(
                hub.get_session().head(hub.constants.ENDPOINT, timeout=PATIENCE_IN_SECONDS).status_code < 400
            )
        except Exception:
            answers.append(False)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_IN_SECONDS)
    return answers == [True]


@contextmanager
def _online(datasets: ModuleType, reachable: bool) -> Iterator[None]:
    """Let `datasets` use its cache only, as HF_HUB_OFFLINE=1 would, while the Hub is out of reach."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not reachable
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
