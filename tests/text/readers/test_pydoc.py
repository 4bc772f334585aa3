"""The documentation of Python as a corpus: prose alone, and held-out topics that share nothing with the others."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from attnworks import train
from attnworks.core.errors import UsageError
from attnworks.text.corpora import corpus_fingerprint, open_corpus
from attnworks.text.passages import Passage, Text
from attnworks.text.readers import pydoc
from attnworks.text.readers.pydoc import is_prose
from attnworks.text.sources import read_texts


def topics(**texts: str) -> Any:
    module: Any = ModuleType("pydoc_data.topics")
    module.topics = texts
    return module


def sentence(number: int) -> str:
    return f"Sentence number {number} has exactly these words and they are plain enough for prose."


def test_prose_of_this_python() -> None:
    corpus = open_corpus("pydoc")
    splits = [[passage.source.text for passage in split] for split in (corpus.train, corpus.valid, corpus.test)]
    sizes = [sum(map(len, split)) for split in splits]
    assert sum(sizes) > 100_000 and [round(size / sum(sizes), 1) for size in sizes] == [0.7, 0.1, 0.2]
    texts = [text for split in splits for text in split]
    assert len({*texts}) == len(texts) == corpus.report.read
    assert all(passage.target is None for passage in corpus.train)
    assert not any("\n" in text or "  " in text or "::=" in text for text in texts)
    assert open_corpus("pydoc", seed=5).test == corpus.test
    assert open_corpus("pydoc", pairs=3).train == corpus.train[:3]


def test_code_headings_and_tables_are_no_prose() -> None:
    prose = 'An "assert" statement is a convenient way to insert debugging assertions into a program.'
    assert is_prose(prose)
    for other in (
        "Coroutine function definition",
        prose.lower(),
        prose[:-1],
        f"| {prose}",
        f">>> {prose}",
        "Def f(x): y = x + 1; z = [i ** 2 for i in range(10)]; return {a: b for a, b in z}.",
        "if_stmt ::= An assignment expression and a suite and then another one of them follows here.",
    ):
        assert not is_prose(other), other


def test_topics_with_a_common_paragraph_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        f"t{number}": f"Heading\n*******\n\n{sentence(number)}\n\n   {sentence(number + 1)}" for number in (0, 1, 7)
    }
    texts |= {f"u{number}": f"* {sentence(number)}" for number in range(20, 60)}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", topics(**texts))
    groups = pydoc._groups(pydoc._topics())
    assert groups[0] == [sentence(0), sentence(1), sentence(2)] and groups[1] == [sentence(7), sentence(8)]
    corpus = open_corpus("pydoc")
    for split in (corpus.train, corpus.valid, corpus.test):
        held = {passage.source.text for passage in split}
        assert not held & {*groups[0]} or {*groups[0]} <= held
    assert len(corpus.valid) >= 4 and len(corpus.test) >= 8


def test_signs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '* The **kind** of *a\n  thing* is "*args" here, and more of these words follow until the end [3].'
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", topics(one=text))
    (found,) = pydoc._topics()["one"]
    assert found == 'The kind of a thing is "*args" here, and more of these words follow until the end.'


def test_a_python_without_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UsageError, match=r"corpus 'pydoc': expected the documentation of Python"):
        open_corpus("pydoc")
    with pytest.raises(UsageError, match="leave it out"):
        open_corpus("pydoc:3")


def test_texts_without_translations_are_read_but_not_trained_on() -> None:
    source = read_texts("pydoc", sentences=7)
    assert source.passages == [*open_corpus("pydoc").test[:7]]
    with pytest.raises(UsageError, match=r"training: expected pairs of sentences, got the corpus 'pydoc'"):
        train("tiny", corpus="pydoc", steps=1, out="never")


def test_the_fingerprint_is_that_of_the_texts() -> None:
    corpus = open_corpus("pydoc", pairs=2)
    changed = [*corpus.train[:1], Passage(Text("Another text ."))]
    assert corpus_fingerprint(corpus) == corpus_fingerprint(open_corpus("pydoc", pairs=2))
    assert corpus_fingerprint(corpus) != corpus_fingerprint(type(corpus)(changed, [], [], corpus.report))
