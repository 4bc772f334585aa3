"""Validation and test pairs from files of their own, and the longest sentence of training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnworks.core.errors import FolderError, UsageError
from attnworks.text.corpora import open_corpus
from attnworks.training.run import Run
from tests.training.training_helpers import StopAfter, recipe, state_of, write_pairs


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Three pairs of which two sources are also in training."""
    lines = ["Luca sees bread .\tLuca vede pane .", "the dog sees bread .\til cane vede pane ."]
    (tmp_path / "own.tsv").write_text("\n".join([*lines, lines[0]]) + "\n")
    return f"tsv:{tmp_path / 'own.tsv'}"


def test_own_files_are_held_out_as_a_whole(corpus: str, own: str) -> None:
    """In their order; nothing of the corpus is held out in their place."""
    split = open_corpus(corpus)
    assert (len(split.train), len(split.valid), len(split.test), split.overlap) == (41, 2, 2, {})
    found = open_corpus(corpus, valid=own)
    assert [pair.source.text for pair in found.valid] == [
        "Luca sees bread .",
        "the dog sees bread .",
        "Luca sees bread .",
    ]
    assert (len(found.train), len(found.test)) == (43, 2)
    both = open_corpus(corpus, valid=own, test=own, pairs=7)
    assert (len(both.train), len(both.valid), len(both.test)) == (7, 3, 3)
    everything = open_corpus(corpus, valid=own, test=own)
    assert len(everything.train) == 45 and everything.overlap == {"valid": 2, "test": 2}
    assert everything.train[:5] != sorted(everything.train[:5], key=lambda pair: pair.source.text), "still shuffled"


def test_corpora_that_are_split_by_themselves_are_refused(corpus: str, own: str) -> None:
    with pytest.raises(UsageError, match=r"valid pairs from 'grammar': expected tsv:FILE or text:SRC,TGT"):
        open_corpus(corpus, valid="grammar")
    with pytest.raises(UsageError, match="write tsv:"):
        open_corpus(corpus, test=own.removeprefix("tsv:"))


def test_a_run_with_own_files(corpus: str, own: str, tmp_path: Path) -> None:
    """The best weights are scored on the test pairs once, at the end; changed files are noticed."""
    run = Run.create(recipe(corpus, valid=own, test=own), tmp_path / "run")
    run.train(should_stop=StopAfter(3))
    again = Run.resume(tmp_path / "run")
    again.train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (tested,) = [line for line in lines if line["kind"] == "test"]
    assert tested["loss"] == pytest.approx(again.progress.best_loss), "the same pairs, by the best weights"
    path = Path(own.removeprefix("tsv:"))
    path.write_text(path.read_text().replace("cane", "gatto"))
    with pytest.raises(FolderError, match="other sentences"):
        Run.resume(tmp_path / "run")


def test_the_longest_sentence(tmp_path: Path) -> None:
    corpus = write_pairs(tmp_path / "pairs.tsv")
    run = Run.create(recipe(corpus, max_length=6), tmp_path / "run")
    lengths = [max(len(source), len(target)) - 1 for source, target in run.train_rows]
    assert max(lengths) <= 6 and run.too_long > 0 and len(lengths) + run.too_long == 41
    assert len(run.corpus.train) == len(lengths)
    run.train(should_stop=StopAfter(5))
    rest = Run.resume(tmp_path / "run")
    rest.train()
    whole = Run.create(recipe(corpus, max_length=6), tmp_path / "whole")
    whole.train()
    assert state_of(rest) == state_of(whole)
    with pytest.raises(UsageError, match="max_length=1: expected training pairs of at most 1 tokens, got none"):
        Run.create(recipe(corpus, max_length=1), tmp_path / "none")
    assert not (tmp_path / "none").exists()
