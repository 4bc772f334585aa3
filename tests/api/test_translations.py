"""attnworks.translate by CTranslate2: the same translations as by the own engine, or a refusal that says why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnworks
from attnworks.api.translations import FEW_SENTENCES, Translator
from attnworks.core.errors import MissingExtraError, UsageError
from attnworks.models.build import PRESETS
from attnworks.models.ctranslate2 import CTranslate2Engine
from attnworks.text.corpora import open_corpus
from attnworks.training.run import Run
from tests.training.training_helpers import SMALL, recipe, write_pairs

ctranslate2: Any = pytest.importorskip("ctranslate2")

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"num_beams": 5},
    "n best": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 1.0},
}
REQUIRED: tuple[dict[str, Any], ...] = {"engine": "ctranslate2"}, {"precision": "int8"}
"""Options that only CTranslate2 can serve."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Runs that have learnt to translate, with norms after and before each part, and one without two of the heads."""
    home = tmp_path_factory.mktemp("runs")
    corpus = write_pairs(home / "pairs.tsv")
    presets = {"post": SMALL["small"], "pre": replace(SMALL["small"], norm="pre"), "lstm": SMALL["small-lstm"]}
    settings: dict[str, Any] = {"dropout": 0.0, "warmup": 10, "batch_tokens": 300, "accumulate": 1}
    with pytest.MonkeyPatch.context() as patch:
        for name, config in presets.items():
            patch.setitem(PRESETS, name, config)
            made = recipe(corpus, preset=name, steps=120, validate_every=120, score_sentences=0, **settings)
            Run.create(made, home / name).train()
        attnworks.prune(home / "post", heads="enc.0.1,cross.0.0", sentences=8, out=home / "pruned")
        yield {name: home / name for name in (*presets, "pruned")}


def texts_of(run: Path) -> list[str]:
    lines = (run.parent / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    return ["", *(line.partition("\t")[0] for line in lines), "a zebra sees Luca ."]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["post", "pre", "pruned"])
def test_same_translations(name: str, way: str, runs: dict[str, Path]) -> None:
    texts = texts_of(runs[name])
    own, fast = (
        attnworks.translate(runs[name], texts, engine=engine, **WAYS[way]) for engine in ("own", "ctranslate2")
    )
    assert fast == own and len({*own}) > 10
    for one, other in zip(fast, own, strict=True):
        assert one.alternatives == other.alternatives and one.finished == other.finished
        assert one.unknown == other.unknown and one.source == other.source
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_auto_translates_many_sentences_by_ctranslate2(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    convert = CTranslate2Engine.__init__

    def counted(self: CTranslate2Engine, *given: Any) -> None:
        made.append("converted")
        convert(self, *given)

    monkeypatch.setattr(CTranslate2Engine, "__init__", counted)
    texts = texts_of(runs["post"])[1:]
    few, many = (attnworks.translate(runs["post"], texts[:count]) for count in (FEW_SENTENCES - 1, FEW_SENTENCES))
    assert made == ["converted"] and many[:-1] == few
    made.clear()
    attnworks.translate(runs["post"], texts[:2], engine="ctranslate2", batch_size=1)
    assert made == ["converted"], "once for all batches"


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("post", {"do_sample": True}, "got do_sample; "),
        ("post", {"trace": "traces.json"}, "got trace; "),
        ("post", {"dtype": "bfloat16"}, "got a model in bfloat16 on cpu; "),
        ("lstm", {}, "got a Recurrent in place of a Transformer; "),
    ],
)
def test_what_the_own_engine_does(
    name: str, options: dict[str, Any], named: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    """auto chooses it, and ctranslate2 and int8 are refused."""
    if "trace" in options:
        options = {"trace": tmp_path / options["trace"]}
    texts = texts_of(runs["post"])[:FEW_SENTENCES]
    for asked in REQUIRED:
        with pytest.raises(UsageError) as caught:
            attnworks.translate(runs[name], texts, **options, **asked)
        assert named in str(caught.value)
    monkeypatch.setattr(CTranslate2Engine, "__init__", lambda *_: pytest.fail("converted"))
    assert attnworks.translate(runs[name], texts, **options) == attnworks.translate(
        runs[name], texts, **options, engine="own"
    )


def test_sentences_that_are_too_long_for_ctranslate2(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The own engine, whose sinusoidal positions never end, translates them."""
    monkeypatch.setattr("attnworks.models.ctranslate2.spec.STORED_POSITIONS", 6)
    texts = texts_of(runs["post"])[1:]
    own, fast = (
        attnworks.translate(runs["post"], texts, engine=engine, batch_size=1) for engine in ("own", "ctranslate2")
    )
    assert fast == own


def test_int8(runs: dict[str, Path]) -> None:
    texts = texts_of(runs["post"])
    own = attnworks.translate(runs["post"], texts, engine="own")
    rough = attnworks.translate(runs["post"], texts, precision="int8")
    assert sum(one == other for one, other in zip(own, rough, strict=True)) > len(texts) / 2
    assert any(one.logprob != pytest.approx(other.logprob, abs=1e-3) for one, other in zip(own, rough, strict=True))
    with pytest.raises(UsageError, match="got engine='own'"):
        attnworks.translate(runs["post"], texts, engine="own", precision="int8")


def test_names(runs: dict[str, Path]) -> None:
    wrong: tuple[dict[str, Any], ...] = {"engine": "fast"}, {"precision": "int4"}
    for options in wrong:
        with pytest.raises(LookupError, match="expected one of"):
            attnworks.translate(runs["post"], ["Luca"], **options)


def test_without_the_package(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.api.translations.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    texts = texts_of(runs["post"])[1 : 1 + FEW_SENTENCES]
    assert len(attnworks.translate(runs["post"], texts)) == FEW_SENTENCES
    for options in REQUIRED:
        with pytest.raises(MissingExtraError, match=r"pip install 'attnworks\[fast\]'"):
            attnworks.translate(runs["post"], texts, **options)
    with pytest.raises(MissingExtraError, match=r"attnworks\[fast\]"):
        attnworks.export(runs["post"], to="ctranslate2", out=runs["post"].parent / "fast")


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_thousand_sentences(norm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the grammar corpus, by a run and by the same run with half of its heads: equal token by token."""
    monkeypatch.setitem(PRESETS, "wanted", replace(PRESETS["tiny"], norm=norm))
    attnworks.train("wanted", steps=300, warmup=100, learning_rate=2e-3, score_sentences=0, out=tmp_path / "run")
    attnworks.prune(tmp_path / "run", keep=0.5, pairs=300, sentences=16, out=tmp_path / "pruned")
    corpus = open_corpus("grammar", pairs=1)
    texts = [passage.source.text for passage in (*corpus.test, *corpus.valid)][:1000]
    assert len(texts) == 1000
    for run in (tmp_path / "run", tmp_path / "pruned"):
        subject = attnworks.open(run)
        for options in WAYS.values():
            own, fast = ([*Translator(subject, engine=engine, **options)(texts)] for engine in ("own", "ctranslate2"))
            different = [(one, other) for one, other in zip(own, fast, strict=True)
                         if one.hypothesis.tokens != other.hypothesis.tokens
                         or one.alternatives != other.alternatives]  # fmt: skip
            assert different == []
            assert len({*own}) > 500
