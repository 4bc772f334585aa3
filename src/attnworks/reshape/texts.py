"""Split text into sentences for calibration and healing, and held-out sentences for evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnworks.core.errors import UsageError
from attnworks.text.corpora import corpus_fingerprint, open_corpus
from attnworks.text.passages import Passage, from_file
from attnworks.text.sources import as_passages

CALIBRATION_PAIRS, HELD_OUT_SENTENCES = 10_000, 256
"""Training pairs to learn from, and test pairs to evaluate on."""
HELD_OUT_EVERY = 4
"""Of texts without a split of their own, every fourth is held out."""


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Passages to learn from, and passages to evaluate on.

    about    where they came from, so that they can be found again
    """

    learn: Sequence[Passage]
    held_out: Sequence[Passage]
    about: dict[str, Any]


def split_corpus(
    spec: str, *, pairs: int = CALIBRATION_PAIRS, held_out: int = HELD_OUT_SENTENCES, seed: int = 0
) -> TextSplit:
    """Training pairs to learn from, test pairs (or those for validation) to evaluate on."""
    corpus = open_corpus(spec, pairs=pairs, seed=seed)
    test = [*corpus.test, *corpus.valid][:held_out]
    about = {"corpus": spec, "pairs": pairs, "held_out": held_out, "seed": seed, "sha256": corpus_fingerprint(corpus)}
    return _checked(TextSplit(corpus.train, test, about))


def split_passages(passages: Sequence[Passage], about: dict[str, Any]) -> TextSplit:
    """Every fourth passage is held out; of those that read the same, one is taken."""
    learn = list({passage.source.text: passage for passage in passages}.values())
    held_out = learn[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    del learn[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return _checked(TextSplit(learn, held_out, about))


def split_file(path: Path, *, pairs: int = CALIBRATION_PAIRS, held_out: int = HELD_OUT_SENTENCES) -> TextSplit:
    """Lines of a file, every fourth held out; at most `pairs` to learn from and `held_out` others."""
    digest = hashlib.sha256()
    passages, _ = from_file(path, digest)
    about = {"file": str(path.resolve()), "pairs": pairs, "held_out": held_out, "sha256": digest.hexdigest()}
    texts = split_passages(passages, about)
    return replace(texts, learn=texts.learn[:pairs], held_out=texts.held_out[:held_out])


def texts_of_receipt(about: dict[str, Any]) -> TextSplit:
    """Read the texts of a receipt again; an error if they have changed."""
    sizes = {"pairs": about.get("pairs"), "held_out": about.get("held_out")}
    name, texts = about.get("corpus") or about.get("file"), None
    if isinstance(name, str) and all(type(size) is int for size in sizes.values()):
        if "file" in about:
            texts = split_file(Path(name), **sizes)  # pyright: ignore[reportArgumentType]
        elif type(about.get("seed")) is int:
            texts = split_corpus(name, **sizes, seed=about["seed"])  # pyright: ignore[reportArgumentType]
    if texts is None or texts.about["sha256"] != about.get("sha256"):
        got = "texts that were given in Python" if texts is None else f"{name}, which changed"
        expected = "a corpus by name or a file, as they were"
        raise UsageError("the same text again", expected, got, "reshape anew with text of your own")
    return texts


def split_texts(texts: Sequence[str] | Sequence[Passage]) -> TextSplit:
    """Texts in memory, every fourth held out."""
    given = as_passages(texts)
    return split_passages(given, {"texts": len(given)})


def _checked(texts: TextSplit) -> TextSplit:
    if not texts.learn or not texts.held_out:
        got = f"{len(texts.learn)} to fit the change on and {len(texts.held_out)} to evaluate it on"
        raise UsageError("the text", f"at least {HELD_OUT_EVERY} different sentences", got, "give more text")
    return texts
