"""Sentences to learn from, by looking at heads and by healing, and others to be judged by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnworks.core.errors import UsageError
from attnworks.text.corpora import corpus_fingerprint, open_corpus
from attnworks.text.passages import Passage, Side, from_file, from_pair

LEARN, HELD_OUT = 10_000, 256
"""Training pairs to learn from, and test pairs to judge by."""
HELD_OUT_OF = 4
"""Of texts without a split of their own, every fourth is held out."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Passages to learn from, and passages to judge by.

    about    where they came from, so that they can be found again
    """

    learn: Sequence[Passage]
    held_out: Sequence[Passage]
    about: dict[str, Any]


def from_corpus(spec: str, *, pairs: int = LEARN, held_out: int = HELD_OUT, seed: int = 0) -> Texts:
    """Training pairs to learn from, test pairs (or those for validation) to judge by."""
    corpus = open_corpus(spec, pairs=pairs, seed=seed)
    test = [*corpus.test, *corpus.valid][:held_out]
    about = {"corpus": spec, "pairs": pairs, "held_out": held_out, "seed": seed, "sha256": corpus_fingerprint(corpus)}
    return _checked(Texts([from_pair(pair) for pair in corpus.train], [from_pair(pair) for pair in test], about))


def from_passages(passages: Sequence[Passage], about: dict[str, Any]) -> Texts:
    """Every fourth passage is held out; of those that read the same, one is taken."""
    distinct = list({passage.source.text: passage for passage in passages}.values())
    held_out = distinct[HELD_OUT_OF - 1 :: HELD_OUT_OF]
    learn = [passage for number, passage in enumerate(distinct) if number % HELD_OUT_OF != HELD_OUT_OF - 1]
    return _checked(Texts(learn, held_out, about))


def from_lines(path: Path, *, pairs: int = LEARN, held_out: int = HELD_OUT) -> Texts:
    """Lines of a file, every fourth held out; at most `pairs` to learn from and `held_out` others."""
    digest = hashlib.sha256()
    passages, _ = from_file(path, digest)
    about = {"file": str(path.resolve()), "pairs": pairs, "held_out": held_out, "sha256": digest.hexdigest()}
    texts = from_passages(passages, about)
    return replace(texts, learn=texts.learn[:pairs], held_out=texts.held_out[:held_out])


def found_again(about: dict[str, Any]) -> Texts:
    """The texts of a receipt, if they are still what they were."""
    sizes = {"pairs": about.get("pairs"), "held_out": about.get("held_out")}
    name, texts = about.get("corpus") or about.get("file"), None
    if isinstance(name, str) and all(type(size) is int for size in sizes.values()):
        if "file" in about:
            texts = from_lines(Path(name), **sizes)  # pyright: ignore[reportArgumentType]
        elif type(about.get("seed")) is int:
            texts = from_corpus(name, **sizes, seed=about["seed"])  # pyright: ignore[reportArgumentType]
    if texts is None or texts.about["sha256"] != about.get("sha256"):
        raise UsageError(
            asked="the same text again",
            expected="a corpus by name or a file, as they were",
            got="texts that were given in Python" if texts is None else f"{name}, which changed",
            remedy="reshape anew with text of your own",
        )
    return texts


def from_texts(texts: Sequence[str] | Sequence[Passage]) -> Texts:
    """The same of texts in memory."""
    given = [text if isinstance(text, Passage) else Passage(Side(text)) for text in texts if text != ""]
    return from_passages(given, {"texts": len(given)})


def _checked(texts: Texts) -> Texts:
    if not texts.learn or not texts.held_out:
        raise UsageError(
            asked="text to learn from and text to judge by",
            expected=f"{HELD_OUT_OF} sentences or more",
            got=f"{len(texts.learn)} and {len(texts.held_out)}",
            remedy="give more text",
        )
    return texts
