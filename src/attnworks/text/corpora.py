"""A spec such as `grammar` or `tsv:pairs.tsv.gz` -> training, validation and test pairs.

>>> corpus = open_corpus("grammar", pairs=100)
>>> len(corpus.train), len(corpus.valid), len(corpus.test)
(100, 1000, 1000)

Corpora of files are split by a stable hash of the source: about 90 % training, 5 % validation, 5 % test. Distinct
sources are sorted by a hash of seed and words. The first 5 % are for validation, the last 5 % for test (at least one
source each if there are three), up to 2,000 pairs each; everything else is for training. A source with several
translations goes to one split with all of them, so that no source occurs in two splits, and sentences that are added to
a corpus hardly move the others. Training pairs are shuffled by the seed: files are often sorted by length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from attnworks.core.checks import integer
from attnworks.core.errors import UsageError
from attnworks.core.registry import Registry
from attnworks.text.passages import Passage, ReadReport, ReadTally, Words

CORPORA: Registry[CorpusReader] = Registry("corpus")
READERS = ("attnworks.text.grammar", "attnworks.text.readers")
"""Modules that register corpora; the first corpus that is opened imports them."""
OF_FILES = ("tsv", "text")
"""Corpora that can be held out as a whole."""
MAX_HELD_OUT_PAIRS = 2_000
HELD_OUT_ONE_IN = 20


class CorpusLimits(NamedTuple):
    """The largest number of training pairs (None for all), the seed of splits and order, and which splits to make.

    whole    all pairs are one split, in the order of the file
    """

    pairs: int | None = None
    seed: int = 0
    valid: bool = True
    test: bool = True
    whole: bool = False


@dataclass(frozen=True)
class Corpus:
    """Pairs of texts, or texts without translations, in an order that depends on the spec, the data and the seed only.

    No source occurs in two splits, except in those from files of their own: `overlap` says how many of their pairs have
    a source that is also for training. The report counts what was read before any limit. `open_corpus` adds the spec.
    """

    train: Sequence[Passage]
    valid: Sequence[Passage]
    test: Sequence[Passage]
    report: ReadReport
    spec: str = ""
    overlap: dict[str, int] = field(default_factory=dict)

    def check_pairs(self, asked: str) -> None:
        """Refuse, for what is asked, a corpus of texts without translations."""
        if any(passage.target is None for passage in self.train[:1]):
            expected, remedy = "pairs of sentences", "choose a corpus of pairs, such as grammar or tsv:FILE"
            raise UsageError(asked, expected, f"the corpus {self.spec!r} of texts without translations", remedy)


CorpusReader = Callable[[str, CorpusLimits], Corpus]
"""(what follows the colon of `name:argument`, limits) -> corpus. Raises one-line errors only."""


def open_corpus(
    spec: str, *, pairs: int | None = None, seed: int = 0, valid: str | None = None, test: str | None = None
) -> Corpus:
    """The corpus that a spec `name` or `name:argument` describes.

    pairs          the largest number of training pairs; validation and test pairs stay the same
    seed           decides the splits and the order of the training pairs
    valid, test    corpora of files, all of whose pairs are held out; nothing of the first corpus is, in their place
    """
    if pairs is not None:
        integer("training pairs", pairs, 1)
    corpus = _read(spec, CorpusLimits(pairs, seed, valid is None, test is None))
    given = {name: _every_pair(name, other) for name, other in (("valid", valid), ("test", test)) if other is not None}
    if not given:
        return corpus
    sources = {pair.words[0] for pair in corpus.train}
    overlap = {name: sum(pair.words[0] in sources for pair in held) for name, held in given.items()}
    return replace(corpus, **given, overlap=overlap)


def _read(spec: str, limits: CorpusLimits) -> Corpus:
    corpus = corpus_reader(spec)(spec.partition(":")[2].strip(), limits)
    if not corpus.report.read:
        got = f"no usable pair ({corpus.report.left_out()})"
        raise UsageError(f"corpus {spec!r}", "pairs of sentences", got, "check the format")
    return replace(corpus, spec=spec)


def _every_pair(split: str, spec: str) -> list[Passage]:
    """All pairs of a corpus of files, in their order."""
    corpus_reader(spec)
    if spec.partition(":")[0].strip() not in OF_FILES:
        expected, remedy = "tsv:FILE or text:SRC,TGT", "write the pairs to a file"
        raise UsageError(f"{split} pairs from {spec!r}", expected, "a corpus that is split by itself", remedy)
    return list(_read(spec, CorpusLimits(whole=True)).train)


def corpus_reader(spec: str) -> CorpusReader:
    """The reader of a spec; an error that suggests the nearest name, or for a path what to write in front of it."""
    for module in READERS:
        import_module(module)
    name = spec.partition(":")[0].strip()
    if name not in CORPORA:
        paths = [Path(part.strip()).expanduser() for part in spec.split(",")]
        if all(path.is_file() or ".tsv" in path.suffixes for path in paths) and len(paths) <= 2:
            kind = "tsv" if len(paths) == 1 else "text"
            expected = f"a corpus by name, such as {kind}:{'FILE' if kind == 'tsv' else 'SRC,TGT'}"
            raise UsageError(f"corpus {spec!r}", expected, "a path", f"write {kind}:{spec}")
    return CORPORA[name]


def from_corpus(spec: str, passages: int, seed: int) -> tuple[list[Passage], ReadReport]:
    """At most `passages` pairs of a corpus: those for test first, then validation, then training.

    The report counts the passages that are returned, and what the corpus left out.
    """
    corpus = open_corpus(spec, pairs=integer("passages", passages, 1), seed=seed)
    taken = list(islice(chain(corpus.test, corpus.valid, corpus.train), passages))
    return taken, corpus.report.of_passages(len(taken))


def corpus_fingerprint(corpus: Corpus) -> str:
    """A hash of all training pairs or texts, in order."""
    digest = hashlib.sha256()
    for passage in corpus.train:
        line = passage.source.text if passage.target is None else "\t".join(map(" ".join, passage.words))
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def split_by_source(unit: str = "line") -> Callable[[Callable[[str, ReadTally], Iterable[Passage]]], CorpusReader]:
    """Turn a function that yields pairs, and counts the lines (rows, entries) it leaves out, into a corpus reader."""

    def decorate(read: Callable[[str, ReadTally], Iterable[Passage]]) -> CorpusReader:
        @wraps(read)
        def reader(argument: str, limits: CorpusLimits) -> Corpus:
            tally = ReadTally(unit)
            found = read(argument, tally)
            if limits.whole:
                return Corpus(list(found), [], [], tally.report())
            train, valid, test = split_corpus_pairs(found, limits.seed, valid=limits.valid, test=limits.test)
            return Corpus(train[: limits.pairs], valid, test, tally.report())

        return reader

    return decorate


def split_corpus_pairs(
    pairs: Iterable[Passage], seed: int = 0, *, valid: bool = True, test: bool = True
) -> tuple[list[Passage], list[Passage], list[Passage]]:
    """Training (shuffled), validation and test pairs; a split that is not wanted is empty."""
    translations: dict[Words, list[Passage]] = {}
    for pair in pairs:
        translations.setdefault(pair.words[0], []).append(pair)
    in_order = sorted(translations, key=lambda source: _hash(seed, source))
    quota = max(1, len(in_order) // HELD_OUT_ONE_IN) if len(in_order) >= 3 else 0
    for_valid = _hold_out(in_order[:quota], translations) if valid else []
    for_test = _hold_out(in_order[::-1][:quota], translations) if test else []
    train = list(chain.from_iterable(translations[source] for source in in_order if source in translations))
    Random(seed).shuffle(train)
    return train, for_valid, for_test


def _hold_out(sources: Sequence[Words], translations: dict[Words, list[Passage]]) -> list[Passage]:
    """Remove sources from the translations and return their pairs; a source that would exceed the limit stays."""
    held: list[Passage] = []
    for source in sources:
        if len(held) + len(translations[source]) <= MAX_HELD_OUT_PAIRS:
            held += translations.pop(source)
    return held


def _hash(seed: int, source: Words) -> bytes:
    return hashlib.blake2b(f"{seed}\0{' '.join(source)}".encode(), digest_size=8).digest()
