"""Opening corpora: specs, reports, splits, order and bounds."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from attnworks.core.errors import AttnworksError, UnknownNameError, UsageError
from attnworks.text import grammar, readers
from attnworks.text.corpora import CORPORA, MAX_HELD_OUT_PAIRS, READERS, Corpus, open_corpus, split_corpus_pairs
from attnworks.text.passages import Passage, ReadReport


def sentences(count: int, translations: int = 1) -> list[Passage]:
    return [
        Passage.of_words(("sentence", str(n)), ("frase", str(n), str(k)))
        for n in range(count)
        for k in range(translations)
    ]


def sources(pairs: object) -> set[tuple[str, ...]]:
    assert isinstance(pairs, list)
    return {pair.words[0] for pair in pairs}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"sentence {n}\tfrase {n}\n" for n in range(400)), encoding="utf-8")
    return path


def error_of(spec: str, **bounds: Any) -> str:
    with pytest.raises(AttnworksError) as caught:
        open_corpus(spec, **bounds)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_corpus_is_registered() -> None:
    assert list(CORPORA) == ["gettext", "grammar", "opus_books", "pydoc", "text", "tsv"], (
        "importing readers registers them"
    )
    assert readers.__name__ in READERS


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError) as caught:
        open_corpus("grammer")
    assert str(caught.value) == (
        "corpus 'grammer': expected one of gettext, grammar, opus_books, pydoc, text, tsv, "
        "got an unknown name; did you mean 'grammar'?"
    )


def test_no_training_pairs_cannot_be_asked_for() -> None:
    assert error_of("grammar", pairs=0) == (
        "training pairs=0: expected a whole number from 1, got 0; choose a value in that range"
    )


def test_no_usable_pair_tells_why(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("one\ntwo\n\t\n")
    assert error_of(f"tsv:{path}") == (
        f"corpus 'tsv:{path}': expected pairs of sentences, got no usable pair "
        "(3 lines left out: no tab (lines 1, 2), empty side (line 3)); check the format"
    )


def test_blank_lines_only_is_no_usable_pair(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("\n  \n\r\n")
    assert "got no usable pair (nothing but blank lines)" in error_of(f"tsv:{path}")


def test_the_same_seed_gives_the_same_corpus(file: Path) -> None:
    assert open_corpus(f"tsv:{file}", seed=3) == open_corpus(f"tsv:{file}", seed=3)


def test_another_seed_gives_other_splits_and_another_order(file: Path) -> None:
    first, second = open_corpus(f"tsv:{file}", seed=3), open_corpus(f"tsv:{file}", seed=4)
    assert first.valid != second.valid
    assert first.test != second.test
    assert first.train[:20] != second.train[:20]


def test_a_bound_takes_the_first_training_pairs_and_leaves_the_rest(file: Path) -> None:
    whole, bounded = open_corpus(f"tsv:{file}"), open_corpus(f"tsv:{file}", pairs=7)
    assert bounded.train == whole.train[:7]
    assert (bounded.valid, bounded.test, bounded.report) == (whole.valid, whole.test, whole.report)


def test_a_bound_beyond_the_data_takes_all(file: Path) -> None:
    corpus = open_corpus(f"tsv:{file}", pairs=10**9)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (360, 20, 20)


def test_training_pairs_are_shuffled(file: Path) -> None:
    numbers = [int(pair.words[0][1]) for pair in open_corpus(f"tsv:{file}").train]
    assert numbers != sorted(numbers)


@pytest.mark.parametrize("translations", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 1_009])
def test_splits_share_no_source_and_lose_no_pair(count: int, translations: int) -> None:
    pairs = sentences(count, translations)
    train, valid, test = split_corpus_pairs(pairs, seed=5)
    assert sorted(map(str, [*train, *valid, *test])) == sorted(map(str, pairs))
    assert not sources(train) & sources(valid)
    assert not sources(train) & sources(test)
    assert not sources(valid) & sources(test)
    assert train
    assert bool(valid) == bool(test) == (count >= 3)


def test_held_out_splits_are_capped() -> None:
    train, valid, test = split_corpus_pairs(sentences(14_000, 3))
    assert MAX_HELD_OUT_PAIRS - 3 < len(valid) <= MAX_HELD_OUT_PAIRS
    assert MAX_HELD_OUT_PAIRS - 3 < len(test) <= MAX_HELD_OUT_PAIRS
    assert len(train) + len(valid) + len(test) == 42_000


def test_a_source_with_too_many_translations_is_never_held_out() -> None:
    crowd = sentences(1, MAX_HELD_OUT_PAIRS + 1)
    for seed in range(5):
        train, valid, test = split_corpus_pairs(
            [*crowd, Passage.of_words(("a",), ("b",)), Passage.of_words(("c",), ("d",))], seed
        )
        assert len(train) >= len(crowd)
        assert len(valid) + len(test) <= 2


def test_added_pairs_hardly_move_the_others() -> None:
    _, before, _ = split_corpus_pairs(sentences(2_000))
    _, after, _ = split_corpus_pairs(sentences(2_020))
    assert len(sources(before) & sources(after)) > 90


def test_splits_follow_a_hash_that_is_the_same_in_every_process() -> None:
    def place(n: int) -> bytes:
        return blake2b(f"1\0sentence {n}".encode(), digest_size=8).digest()

    _, valid, test = split_corpus_pairs(sentences(60), seed=1)
    in_order = [str(n) for n in sorted(range(60), key=place)]
    assert [pair.words[0][1] for pair in valid] == in_order[:3]
    assert [pair.words[0][1] for pair in test] == in_order[:-4:-1]


def test_the_embedded_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.text.grammar.HELD_OUT_PAIRS", 5)
    corpus = open_corpus("grammar", pairs=20, seed=7)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (20, 5, 5)
    assert corpus.report.summary() == "30 pairs"
    assert all(pair.truth for pair in corpus.train)
    assert same_pairs(corpus, open_corpus("grammar:7", pairs=20))
    assert not same_pairs(corpus, open_corpus("grammar", pairs=20))


def same_pairs(first: Corpus, second: Corpus) -> bool:
    return (first.train, first.valid, first.test) == (second.train, second.valid, second.test)


def test_the_embedded_corpus_has_thirty_thousand_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, str]] = []

    def pairs(n: int, seed: int, split: str) -> list[Passage]:
        asked.append((n, seed, split))
        return [Passage.of_words(("a",), ("b",))]

    monkeypatch.setattr("attnworks.text.grammar.pairs", pairs)
    grammar._held_out.cache_clear()
    try:
        open_corpus("grammar")
        assert asked == [(30_000, 0, "train"), (1_000, 0, "valid"), (1_000, 0, "test")]
        open_corpus("grammar")
        assert asked[3:] == [(30_000, 0, "train")], "pairs that are held out are drawn once"
    finally:
        grammar._held_out.cache_clear()


def test_a_seed_of_the_embedded_corpus_is_a_number() -> None:
    assert error_of("grammar:seven") == (
        "corpus 'grammar:seven': expected grammar or grammar:SEED, got 'seven'; write for example grammar:7"
    )


@pytest.mark.parametrize(
    ("report", "summary"),
    [
        (ReadReport(0), "0 pairs"),
        (ReadReport(1), "1 pair"),
        (ReadReport(151_089), "151,089 pairs"),
        (
            ReadReport(151_089, 3, {"no tab": 2, "empty side": 1}, {"no tab": (7, 19), "empty side": (40,)}),
            "151,089 pairs; 3 lines left out: no tab (lines 7, 19), empty side (line 40)",
        ),
        (
            ReadReport(9, 1_202, {"no tab": 1_202}, {"no tab": (1, 2, 3)}),
            "9 pairs; 1,202 lines left out: no tab (lines 1, 2, 3 and 1,199 more)",
        ),
        (ReadReport(9, 1, {"repeated": 1}, unit="entry"), "9 pairs; 1 entry left out: repeated (1)"),
        (ReadReport(9, 1_000, {"repeated": 1_000}, unit="entry"), "9 pairs; 1,000 entries left out: repeated (1,000)"),
    ],
)
def test_a_report_speaks_to_people(report: ReadReport, summary: str) -> None:
    assert report.summary() == summary


def test_a_usage_error_is_a_value_error() -> None:
    with pytest.raises(UsageError):
        open_corpus("tsv:")
