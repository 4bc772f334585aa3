"""A spec such as `grammar` or `tsv:pairs.tsv.gz` -> training, validation and test pairs.

>>> corpus = open_corpus("grammar", pairs=100)
>>> len(corpus.train), len(corpus.valid), len(corpus.test)
(100, 1000, 1000)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from attnworks.core.errors import UsageError
from attnworks.text.lines import Report
from attnworks.text.pair import Pair
from attnworks.text.passages import Passage, PassageReport, check_number, from_pair
from attnworks.text.readers.contract import CORPORA, Bounds, Reader

__all__ = ["CORPORA", "Corpus", "Reader", "Report", "open_corpus"]


@dataclass(frozen=True)
class Corpus:
    """Pairs of texts, in an order that depends on the spec, the data and the seed only.

    No source occurs in two splits. The report tells what was read before any bound.
    """

    spec: str
    train: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair]
    report: Report


def open_corpus(spec: str, *, pairs: int | None = None, seed: int = 0) -> Corpus:
    """The corpus that a spec `name` or `name:argument` describes.

    pairs  most training pairs: the first of those without a bound. Validation and test stay as they are.
    seed   decides the splits and the order of the training pairs.
    """
    if pairs is not None and pairs < 1:
        raise UsageError(
            asked="training pairs", expected="one or more", got=str(pairs), remedy="ask for one pair at least"
        )
    name, _, argument = spec.partition(":")
    train, valid, test, report = CORPORA[name.strip()](argument.strip(), Bounds(pairs, seed))
    if not report.read:
        raise UsageError(
            asked=f"corpus {spec!r}",
            expected="pairs of a source and a target",
            got=f"no usable pair ({report.left_out()})",
            remedy="check the format of the corpus",
        )
    return Corpus(spec, train, valid, test, report)


def from_corpus(spec: str, passages: int, seed: int) -> tuple[list[Passage], PassageReport]:
    """At most `passages` pairs of a corpus: those for test first, then validation, then training.

    The report counts what is given as read, and as left out what the corpus left out.
    """
    check_number(passages)
    corpus = open_corpus(spec, pairs=passages, seed=seed)
    given = [from_pair(pair) for pair in islice(chain(corpus.test, corpus.valid, corpus.train), passages)]
    told = corpus.report
    return given, PassageReport(len(given), told.bad, told.reasons, told.first_lines, told.unit)


def corpus_fingerprint(corpus: Corpus) -> str:
    """A hash of all training pairs, in order."""
    digest = hashlib.sha256()
    for pair in corpus.train:
        digest.update(f"{' '.join(pair.source)}\t{' '.join(pair.target)}\n".encode())
    return digest.hexdigest()
