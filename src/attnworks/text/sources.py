"""Texts as the public functions take them: a list, a corpus by name, a file, or nothing for the embedded corpus."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from attnworks.core.errors import FolderError, UsageError
from attnworks.text.conllu import attach, read_parses
from attnworks.text.corpora import CORPORA, READERS, corpus_reader, from_corpus
from attnworks.text.passages import Passage, Text, from_file, from_texts

Texts = Sequence[str] | Sequence[Passage] | str | os.PathLike[str] | None
DEFAULT_CORPUS, PROSE_CORPUS = "grammar", "pydoc"
"""The embedded corpora: sentences whose syntax is known, and prose for language models."""


class SourceText(NamedTuple):
    """Passages, where they are from, and a remark on what was left out of a file or corpus."""

    passages: list[Passage]
    about: dict[str, Any]
    remark: str | None = None


def read_texts(
    texts: Texts, *, sentences: int, seed: int = 0, parses: str | os.PathLike[str] | None = None
) -> SourceText:
    """At most `sentences` passages.

    texts     a list of texts, a corpus ("grammar", "tsv:FILE"), a text file, or None for the embedded corpus
    parses    a CoNLL-U file: text with its syntax if `texts` is None, else the syntax of `texts`
    """
    if texts is None and parses is not None:
        return SourceText(read_parses(Path(parses))[:sentences], {"name": str(parses)})
    source = _read(DEFAULT_CORPUS if texts is None else texts, sentences, seed)
    if parses is None:
        return source
    passages, unparsed = attach(source.passages, read_parses(Path(parses)))
    return SourceText(passages, {**source.about, "without_parses": unparsed}, source.remark)


def _read(texts: Sequence[str] | Sequence[Passage] | os.PathLike[str], sentences: int, seed: int) -> SourceText:
    if isinstance(texts, str) and is_corpus(texts):
        if texts == DEFAULT_CORPUS:
            from attnworks.text.grammar import grammar_passages

            return SourceText(grammar_passages(sentences), {"name": texts})
        passages, report = from_corpus(texts, sentences, seed)
        return SourceText(passages, {"name": texts}, report.summary() if report.bad else None)
    if isinstance(texts, str | os.PathLike):
        passages, report = from_file(text_file(texts))
        return SourceText(passages[:sentences], {"name": str(texts)}, report.summary() if report.bad else None)
    return SourceText(as_passages(texts), {"name": "texts"})


def is_corpus(spec: str) -> bool:
    """Whether a string names a corpus: "grammar", or "tsv:FILE" and the like."""
    for module in READERS:
        import_module(module)
    return spec.partition(":")[0].strip() in CORPORA


def check_corpus(spec: str) -> None:
    """Raise an error with the nearest name for a string that names no corpus."""
    corpus_reader(spec)


def text_file(texts: str | os.PathLike[str]) -> Path:
    """The path of a text file; an error for a string that names neither a file nor a corpus."""
    if isinstance(texts, str) and texts != "-" and not os.path.exists(texts):
        known = ", ".join(sorted(CORPORA))
        expected = f"a list of texts, a text file, or a corpus ({known})"
        asked = f"texts {texts[:60]!r}"
        raise FolderError(asked, expected, "a string that is neither", "put texts into a list: [text]")
    return Path(texts)


def as_passages(texts: Sequence[str] | Sequence[Passage]) -> list[Passage]:
    """Texts in memory as passages; empty texts are left out."""
    if not isinstance(texts, Iterable):
        raise UsageError(
            "texts", "a list of texts, a text file or a corpus", type(texts).__name__, "pass a list of strings"
        )
    given: list[str | Passage] = list(texts)
    if wrong := [text for text in given if not isinstance(text, str | Passage)]:
        raise UsageError("texts", "strings or Passages", type(wrong[0]).__name__, "pass a list of strings")
    passages = [text if isinstance(text, Passage) else Passage(Text(text)) for text in given if text != ""]
    return passages or from_texts([])[0]
