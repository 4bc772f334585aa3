"""CTranslate2 writes what the own decoder writes, token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnworks.models.ctranslate2 import CTranslate2Engine
from attnworks.models.decoding.translate import max_target_tokens
from attnworks.text.vocabulary import BOS, EOS
from tests.models.ctranslate2.ctranslate2_helpers import CASES, assert_same_translations, model_of, sources

pytest.importorskip("ctranslate2")

SEARCHES: list[dict[str, Any]] = [
    {"beams": 1, "alpha": 0.0},
    {"beams": 2, "alpha": 0.6},
    {"beams": 5, "alpha": 0.6},
    {"beams": 5, "alpha": 0.0, "n_best": 2},
    {"beams": 5, "alpha": 1.0, "n_best": 5},
    {"beams": 3, "alpha": 3.0, "n_best": 3},
]


@pytest.mark.parametrize("name", CASES)
def test_same_translations(name: str) -> None:
    """Also where a translation never ends, and where several searches are needed."""
    model, vocabularies = model_of(name)
    engine = CTranslate2Engine(model, vocabularies)
    source, real = sources()
    for search in SEARCHES:
        found = assert_same_translations(model, engine, source, real, max_new_tokens=20, **search)
        assert len({best[0].tokens for best in found}) > 1


@pytest.mark.parametrize("longest", [1, 2, 5, 18])
def test_every_limit_of_the_length(longest: int) -> None:
    """With one token for the translation, and with fewer tokens than are expected."""
    model, vocabularies = model_of("post")
    engine = CTranslate2Engine(model, vocabularies)
    source, real = sources()
    finished = set()
    for search in SEARCHES:
        found = assert_same_translations(model, engine, source, real, max_new_tokens=longest, **search)
        finished |= {one.finished for best in found for one in best}
    assert finished == {True, False}


def test_a_batch_without_padding() -> None:
    model, vocabularies = model_of("pre")
    source, real = sources()
    same, longest = source[real.all(1)], max_target_tokens(source.shape[1])
    assert len(same) > 1
    engine = CTranslate2Engine(model, vocabularies)
    assert_same_translations(model, engine, same, None, beams=4, alpha=0.6, max_new_tokens=longest)


def test_searches_are_longer_where_the_result_could_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model, vocabularies = model_of("post")
    engine = CTranslate2Engine(model, vocabularies)
    lengths: list[int] = []
    search = engine._search

    def recorded(sentences: Any, beams: int, longest: int, *options: Any) -> Any:
        lengths.append(longest)
        return search(sentences, beams, longest, *options)

    monkeypatch.setattr(engine, "_search", recorded)
    source, real = sources()
    assert_same_translations(model, engine, source, real, beams=5, alpha=0.6, max_new_tokens=40)
    assert len({*lengths}) > 3 and max(lengths) == 40


@pytest.mark.parametrize(
    ("row", "beams", "longest", "taken"),
    [
        ([4, 5, EOS], 5, 16, True),
        ([BOS, EOS], 5, 14, False),
        ([EOS, EOS], 1, 14, False),
        ([4, EOS, 5, EOS], 1, 18, False),
        ([4, 5, EOS], 10, 16, False),
        ([4, 5, EOS], 1, 65, False),
    ],
)
def test_what_is_left_to_the_own_engine(row: list[int], beams: int, longest: int, taken: bool) -> None:
    """Special tokens in a text, more beams than CTranslate2 can begin with, and more positions than the model has."""
    engine = CTranslate2Engine(*model_of("learned positions"))
    source = torch.tensor([[4, 5, 6, EOS][-len(row) :], row])
    assert engine.takes(source, longest, beams) == taken


def test_special_tokens_alone_are_not_translated() -> None:
    """The reason for one of the conditions of `takes`."""
    source = torch.tensor([[BOS, EOS]])
    ((found,),) = CTranslate2Engine(*model_of("post")).beam(source, None, beams=1, alpha=0.0, max_new_tokens=14)
    assert found.tokens == () and found.logprob == 0


def test_int8_differs_a_little() -> None:
    model, vocabularies = model_of("post")
    source, real = sources()
    asked: dict[str, Any] = {"beams": 1, "alpha": 0.0, "max_new_tokens": 20}
    exact, rough = (
        CTranslate2Engine(model, vocabularies, precision).beam(source, real, **asked)
        for precision in ("float32", "int8")
    )
    pairs = [(one, other) for (one,), (other,) in zip(exact, rough, strict=True) if one.tokens == other.tokens]
    assert len(pairs) > len(source) / 4
    assert 1e-3 < max(abs(one.logprob - other.logprob) for one, other in pairs) < 5
