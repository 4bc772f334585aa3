"""attnworks.train and attnworks.translate from Python."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnworks
from attnworks.core.errors import UsageError
from attnworks.models.build import PRESETS
from attnworks.training.events import Event, StepDone
from attnworks.training.recipe import Recipe
from attnworks.training.run_folder import read_recipe
from tests.training.training_helpers import SMALL, write_pairs

TEXTS = ["Luca sees bread .", "", "my friend wants a zebra ."]


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, config in SMALL.items():
        monkeypatch.setitem(PRESETS, name, config)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pairs(tmp_path / "pairs.tsv")


def test_every_setting_of_a_recipe_is_an_argument() -> None:
    arguments = inspect.signature(attnworks.train).parameters
    assert Recipe.__dataclass_fields__.keys() <= arguments.keys()
    told = attnworks.train.__doc__ or ""
    assert [name for name in arguments if f"        {name}: " not in told] == []
    told = attnworks.translate.__doc__ or ""
    assert [name for name in inspect.signature(attnworks.translate).parameters if f"        {name}: " not in told] == []


def test_train_and_translate(corpus: str, tmp_path: Path) -> None:
    seen: list[Event] = []
    subject = attnworks.train("small", corpus, steps=3, dropout=0.0, out=tmp_path / "run", watchers=[seen.append])
    assert subject.folder == tmp_path / "run"
    assert [event.step for event in seen if isinstance(event, StepDone)] == [1, 2, 3]
    first, empty, last = attnworks.translate(subject, TEXTS, num_beams=3, num_return_sequences=2)
    assert first.source == TEXTS[0] and isinstance(first, str) and first.unknown == ()
    assert empty == "" and empty.alternatives == ()
    assert last.unknown == ("zebra",) and len(last.alternatives) == 1
    assert last.score >= last.alternatives[0].score and last.logprob < 0
    assert attnworks.translate(tmp_path / "run", TEXTS, num_beams=3) == [first, empty, last]


def test_a_resumed_run_keeps_its_settings(corpus: str, tmp_path: Path) -> None:
    attnworks.train("small", corpus, steps=2, clip=0.5, out=tmp_path / "run")
    attnworks.train(resume=tmp_path / "run", steps=3, learning_rate=1e-4)
    recipe, _ = read_recipe(tmp_path / "run")
    assert (recipe.steps, recipe.clip, recipe.learning_rate) == (3, 0.5, 1e-4)
    with pytest.raises(UsageError, match="another batch_tokens"):
        attnworks.train(resume=tmp_path / "run", batch_tokens=9)


def test_training_stops_when_asked(corpus: str, tmp_path: Path) -> None:
    steps: list[Event] = []
    subject = attnworks.train(
        "small", corpus, out=tmp_path / "run", watchers=[steps.append], should_stop=lambda: len(steps) >= 2
    )
    assert [type(event) for event in steps[:2]] == [StepDone, StepDone] and subject.target is not None


def test_mistakes(corpus: str, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{}, {"preset": "small"}, {"preset": "small", "out": tmp_path, "resume": tmp_path}]
    for arguments in wrong:
        with pytest.raises(UsageError, match="expected preset and out, or resume"):
            attnworks.train(**arguments)
    subject = attnworks.train("small", corpus, steps=1, out=tmp_path / "run")
    with pytest.raises(UsageError, match="put it into a list"):
        attnworks.translate(subject, TEXTS[0])
    with pytest.raises(UsageError, match="at most num_beams=1"):
        attnworks.translate(subject, TEXTS, num_return_sequences=2)


def test_translations_can_be_pickled_and_copied(corpus: str, tmp_path: Path) -> None:
    run = attnworks.train("small", corpus, steps=2, out=tmp_path / "run")
    (made,) = attnworks.translate(run, TEXTS[:1], num_beams=2, num_return_sequences=2)
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert again == made and again.score == made.score and again.alternatives == made.alternatives


def test_edited_models_do_not_translate(corpus: str, tmp_path: Path) -> None:
    run = attnworks.train("small", corpus, steps=2, out=tmp_path / "run")
    with run.edit(off="enc.*"), pytest.raises(UsageError, match="edited heads"):
        attnworks.translate(run, TEXTS)


def test_a_config_instead_of_a_preset(corpus: str, tmp_path: Path) -> None:
    config = replace(SMALL["small"], norm="pre")
    made = attnworks.train(config=config, corpus=corpus, steps=2, out=tmp_path / "run")
    assert made.model.config.norm == "pre"
    assert read_recipe(tmp_path / "run")[0].preset == "custom"
    assert attnworks.train(resume=tmp_path / "run", steps=3).model.config == made.model.config
    wrongs: list[dict[str, Any]] = [{"preset": "small"}, {"d_model": 12}]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            attnworks.train(config=config, corpus=corpus, steps=2, out=tmp_path / "other", **wrong)
    assert not (tmp_path / "other").exists()
