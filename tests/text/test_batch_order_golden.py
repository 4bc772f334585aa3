"""The batches of training, held fixed: which pairs stand in the batch of each step, and the tensors of the first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnworks.text import grammar
from attnworks.text.corpora import Corpus, corpus_fingerprint, open_corpus
from attnworks.text.tokenizers import read_pairs
from attnworks.text.tokens import BatchOrder, collate_pairs
from attnworks.text.vocabulary import EOS, Vocabulary

STEPS, TENSORS = 200, 5
GOLDEN = {
    "grammar": ("92ba29b659f6cda7", "3bc3c8bd0c78c9a6", "80f7db77b158ce77"),
    "tsv": ("93c01e522060bed9", "41ac914b6cf26c13", "4c0383a3c7555dfe"),
    "text": ("a640ae0fd6f5acf0", "2fbb34bcf641ed10", "70bbb6d497f32cef"),
}


def _lines() -> Iterator[tuple[str, str]]:
    for number in range(400):
        words = ["la", "casa", "è", "rossa", "oggi", "e", "l'amica", "dorme", "bene", "qui"]
        some = [words[(number * 7 + place * (number % 3 + 1)) % 10] for place in range(2 + number * 5 % 9)]
        yield f"No. {number}: " + "very " * (number * 3 % 11) + "red, isn't it?", " ".join(some)


def _open(name: str, folder: Path) -> Corpus:
    if name == "grammar":
        return open_corpus("grammar", pairs=1000, seed=4)
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in _lines()))
    for side, file in enumerate(("english.txt", "italian.txt")):
        (folder / file).write_text("".join(f"{line[side]}\n" for line in _lines()))
    files = {"tsv": "pairs.tsv", "text": f"english.txt,{folder}/italian.txt"}
    return open_corpus(f"{name}:{folder}/{files[name]}", seed=len(name))


def _digest(tensors: list[Tensor | None]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(b"none" if tensor is None else f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(b"" if tensor is None else tensor.to(torch.int64).numpy().tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", GOLDEN)
def test_batches_of_training_stay_what_they_were(name: str, tmp_path: Path) -> None:
    corpus = _open(name, tmp_path)
    english = Vocabulary.train("word", [pair.words[0] for pair in corpus.train])
    italian = Vocabulary.train("bpe", [pair.words[1] for pair in corpus.train], 200)
    pairs = read_pairs(corpus.train, english, italian)
    order = BatchOrder(pairs, 150, seed=3)
    steps = [order.rows(step) for step in range(STEPS)]
    tensors: list[Tensor | None] = []
    for rows in steps[:TENSORS]:
        batch = collate_pairs([pairs[row] for row in rows], rows)
        source, target = batch.source, batch.target
        assert target is not None
        tensors += [source.ids, source.mask, target.ids, batch.labels(EOS)[0], target.mask]
    rows = hashlib.sha256(repr(steps).encode()).hexdigest()[:16]
    assert (corpus_fingerprint(corpus)[:16], rows, _digest(tensors)) == GOLDEN[name]


def test_the_grammar_draws_the_same_pairs_and_the_same_structure() -> None:
    digest = hashlib.sha256()
    for split, number in (("train", 1400), ("valid", 300), ("test", 300)):
        for pair in grammar.pairs(number, 11, split):
            truth = pair.truth
            assert truth is not None
            assert pair.target is not None
            governors = (pair.source.governors, pair.target.governors)
            structure = (truth.alignment, *governors, truth.source_coreference, truth.target_coreference)
            digest.update(repr((*pair.words, structure)).encode())
    assert digest.hexdigest()[:16] == "1658055677874848"
