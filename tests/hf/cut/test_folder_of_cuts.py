"""Folders of cut models: what their recipes say is checked before anything is built by it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.places import Slot
from attnworks.hf.cut.keep import CUTS_ENTRY
from attnworks.hf.folder import save_hf
from attnworks.hf.open import open_model
from attnworks.reshape.surgery import keep_heads_by_layer
from tests.hf.cut.cut_helpers import assert_same, read, tiny
from tests.model_helpers import change_config

ATTENTION = "bert.encoder.layer.0.attention.self"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = copy.deepcopy(tiny("bert"))
    keep_heads_by_layer(model, {Slot("encoder", 0): [1, 3, 4]})
    (tmp_path / "cut").mkdir()
    save_hf(model, tmp_path / "cut")
    assert_same(read(open_model(str(tmp_path / "cut"), dtype="float64").model), read(model))
    return tmp_path / "cut"


def recipe() -> dict[str, Any]:
    model = copy.deepcopy(tiny("bert"))
    keep_heads_by_layer(model, {Slot("encoder", 0): [1, 3, 4]})
    (found,) = getattr(model.config, CUTS_ENTRY)
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"form": "other"},
        {"attention": "bert.encoder.layer.9.attention.self"},
        {"heads": "1,3"},
        {"heads": "1,3,5"},
        {"heads": "1,3,99999999"},
        {"outputs": {f"{ATTENTION}.query": "8-15,24-39,999999999"}},
        {"outputs": {f"{ATTENTION}.query": "8-15,24-31"}},
        {"outputs": {f"{ATTENTION}.query": "8-15,8-23,24-39"}},
        {"outputs": {"../../etc/passwd": "0"}},
        {"outputs": {"bert": "0"}},
        {"inputs": "0-999999999"},
        {"attributes": {ATTENTION: {"__class__": 1}}},
        {"attributes": {ATTENTION: {"num_attention_heads": 10**9}}},
        {"attributes": {"bert.embeddings.word_embeddings": {"num_embeddings": 10**12}}},
        {"parameters": {"cls.predictions.bias": [0, "0-3"]}},
        {"selects_positions": True},
        {"more": 1},
    ],
    ids=str,
)
def test_recipes_are_not_believed(folder: Path, change: dict[str, Any]) -> None:
    change_config(folder, attnworks_cuts=[{**recipe(), **change}])
    with pytest.raises(AttnworksError) as error:
        open_model(str(folder), dtype="float64")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cuts", [None, 3, "plain", {}, [None], [[]], [{}]], ids=str)
def test_lists_that_are_none(folder: Path, cuts: object) -> None:
    change_config(folder, attnworks_cuts=cuts)
    with pytest.raises(FolderError) as error:
        open_model(str(folder), dtype="float64")
    assert "\n" not in str(error.value)


def test_the_same_cut_twice(folder: Path) -> None:
    change_config(folder, attnworks_cuts=[recipe(), recipe()])
    with pytest.raises(FolderError):
        open_model(str(folder), dtype="float64")
