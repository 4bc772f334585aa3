"""`pydoc`: English prose of the documentation that every Python brings along, without translations; needs no file.

It is the text of `help()` on topics of the language (`pydoc_data.topics`), and depends on the version of Python. A text
is one paragraph, by these rules:
- lines are joined; signs of bullets, emphasis and footnotes are dropped;
- paragraphs with fewer than 10 words, with signs of grammar rules, tables or prompts, without a capital letter at the
  beginning or the sign of a sentence at the end, or with less than 70 % plain words are left out: headings and code;
- a paragraph that occurs again is left out.

Topics that share a paragraph stay together, in one split: about 70 % of the text is for training, 10 % for validation
and 20 % for test. Paragraphs are in the order of their topics, and the same for every seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from importlib import import_module

from attnworks.core.errors import UsageError
from attnworks.text.corpora import CORPORA, Corpus, CorpusLimits
from attnworks.text.passages import Passage, ReadReport, Text

MIN_WORDS, PLAIN_SHARE = 10, 0.7
TEST_SHARE, VALID_SHARE = 0.2, 0.1
LARGEST_HELD_OUT = 0.1
"""Topics that stay together and have a larger share of the text than this are for training."""

_NO_PROSE = ("::=", ">>>", "|", "+--", "===", "***")
_MARK = re.compile(r"^(?:\*|\d+\.|\[\d+\]) +")
_EMPHASIS = re.compile(r'\*\*?([^*"\s][^*"]*?)\*\*?')
_FOOTNOTE = re.compile(r"\s*\[\d+\]")
_PLAIN = re.compile(r"[(“\"]?[A-Za-z][A-Za-z’'-]*[)”\"]?[.,;:?!]?\)?")


@CORPORA.register("pydoc")
def _pydoc(argument: str, limits: CorpusLimits) -> Corpus:
    if argument:
        raise UsageError(f"corpus 'pydoc:{argument}'", "pydoc", f"the argument {argument!r}", "leave it out")
    train, valid, test = _split(_groups(_topics()))
    report = ReadReport(len(train) + len(valid) + len(test), what="passage", unit="paragraph")
    return Corpus(train[: limits.pairs], valid, test, report)


def _topics() -> dict[str, list[str]]:
    """Topic -> its paragraphs of prose; a topic without any is left out."""
    try:
        topics = import_module("pydoc_data.topics").topics
    except ImportError:
        remedy = "install the standard library as a whole, or name another corpus"
        raise UsageError("corpus 'pydoc'", "the documentation of Python (pydoc_data)", "none", remedy) from None
    found = {name: [*_paragraphs(str(topics[name]))] for name in sorted(topics)}
    return {name: paragraphs for name, paragraphs in found.items() if paragraphs}


def _paragraphs(topic: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", topic):
        text = _FOOTNOTE.sub("", _EMPHASIS.sub(r"\1", _MARK.sub("", " ".join(block.split()))))
        if is_prose(text):
            yield text


def is_prose(text: str) -> bool:
    """Whether a paragraph is made of sentences.

    >>> is_prose("Return the sum of a start value and an iterable of numbers."), is_prose("x = [i for i in range(10)]")
    (True, False)
    """
    words = text.split()
    if len(words) < MIN_WORDS or any(sign in text for sign in _NO_PROSE):
        return False
    if not text.lstrip('"')[:1].isupper() or not text.rstrip('")').endswith((".", "?", "!")):
        return False
    return sum(_PLAIN.fullmatch(word) is not None for word in words) >= PLAIN_SHARE * len(words)


def _groups(topics: dict[str, list[str]]) -> list[list[str]]:
    """The paragraphs of all topics, each once; those of topics that share one are together, in the order of topics."""
    group_of: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for name, paragraphs in topics.items():
        joined = {name}.union(*(group_of[first[text]] for text in paragraphs if text in first))
        group_of |= dict.fromkeys(joined, joined)
        first = dict.fromkeys(paragraphs, name) | first
    groups = {min(group): sorted(group) for group in group_of.values()}
    return [[*dict.fromkeys(text for name in names for text in topics[name])] for names in groups.values()]


def _split(groups: list[list[str]]) -> tuple[list[Passage], list[Passage], list[Passage]]:
    """Training, validation and test; the hash of its first paragraph decides to which split a group goes."""
    sizes = {texts[0]: sum(map(len, texts)) for texts in groups}
    total = sum(sizes.values())
    split_of: dict[str, int] = {}
    held = [0, 0]
    for first in sorted(sizes, key=lambda first: blake2b(first.encode(), digest_size=8).digest()):
        quota = (TEST_SHARE * total, VALID_SHARE * total)
        small = sizes[first] <= LARGEST_HELD_OUT * total
        split_of[first] = next((part for part in (0, 1) if small and held[part] < quota[part]), 2)
        if split_of[first] < 2:
            held[split_of[first]] += sizes[first]
    test, valid, train = (
        [Passage(Text(text)) for texts in groups if split_of[texts[0]] == part for text in texts] for part in range(3)
    )
    return train, valid, test
