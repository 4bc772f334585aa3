"""Receipts with numbers that no reshape can give are refused before anything is made of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from attnworks.core.errors import FolderError
from attnworks.core.folders import seal
from attnworks.core.json_records import parse
from attnworks.exam.lineage import HeadMap
from attnworks.reshape.history import receipts
from attnworks.reshape.receipt import Receipt
from tests.reshape.swapping.test_advice import RECEIPT

NAN, INFINITE = float("nan"), float("inf")
HEADS = {"enc.0": {"before": 4, "after": [3, None, 0]}}


def forged(**changes: Any) -> Receipt:
    """The receipt with other values; facts__error=1 changes one value of a dictionary."""
    made: dict[str, Any] = json.loads(json.dumps({**asdict(RECEIPT), "heads": HEADS}))
    for path, value in changes.items():
        *parents, last = path.split("__")
        inside = made
        for parent in parents:
            inside = inside[parent]
        inside[last] = value
    return parse(Receipt, made, "receipt")


@pytest.mark.parametrize(
    "change",
    [
        *({f"facts__{name}_time_ratio{end}": odd} for name in ("attention", "model") for end in ("", "_low", "_high")
          for odd in (0, -1.0, NAN, INFINITE)),
        {"facts__attention_time_ratio_low": 0.9},
        {"time": 0.0}, {"time": INFINITE}, {"time_interval": [-1.0, -2.0]}, {"time_interval": [0.0, 1.0]},
        {"time_interval": [1.2, 0.8]}, {"time_interval": [0.9, NAN]}, {"time_interval": [0.9, INFINITE]},
        {"healing__learning_rate": -1e-3}, {"healing__learning_rate": 0.0}, {"healing__learning_rate": NAN},
        {"healing__steps": -1},
        {"healing__batch_tokens": 10**400}, {"seconds": NAN}, {"length": -1},
        {"loss_at_length__tokens": -5}, {"loss_at_length__tokens": 10**400}, {"loss_at_length__after": NAN},
        {"loss__before": NAN}, {"loss__predicted": NAN}, {"loss__healed": NAN},
        {"loss__intervals": {"rise": [0.2, 0.1]}}, {"loss__intervals": {"healed_rise": [NAN, 0.1]}},
        {"loss_at_length__intervals": {"before": [1.0, NAN]}},
        *({f"{name}__{end}": odd} for name in ("parameters", "flops") for end in ("before", "after")
          for odd in (-1, 2**64, 10**400)),
        {"bytes": {"before": 1, "after": 10**400}}, {"facts__heads_cut": NAN}, {"facts__heads_before": -1},
        {"heads__enc.0__before": -1}, {"heads__enc.0__before": 10**7}, {"heads__enc.0__before": 3},
        {"heads__enc.0__after": [0, 0]}, {"heads__enc.0__after": [-1]}, {"heads__enc.0__after": [10**400]},
        {"heads__enc.0__after": [None] * (2**16 + 1)},
    ],
    ids=lambda change: " ".join(f"{name}={str(value)[:20]}" for name, value in change.items()),
)  # fmt: skip
def test_impossible_numbers(change: dict[str, Any]) -> None:
    (path,) = change
    name = path.removeprefix("facts__").split("__")[0].removesuffix("_low")
    told = forged(**change).out_of_range()
    assert told is not None and name in told and len(told) < 100


@pytest.mark.parametrize(
    "change",
    [
        {}, {"loss__after": INFINITE}, {"loss__intervals": None}, {"loss__intervals": {"rise": [-0.1, 0.2]}},
        {"loss_at_length": None}, {"time": None, "time_interval": None},
        {"facts": {"attention_time_ratio": 0.5, "loss_by_random": NAN}}, {"parameters__after": 0},
        {"time_interval": [1.0, 1.0]}, {"heads__enc.0__after": []}, {"heads__enc.0__after": [None, None]},
    ],
    ids=str,
)  # fmt: skip
def test_possible_numbers(change: dict[str, Any]) -> None:
    assert forged(**change).out_of_range() is None


def test_most_heads() -> None:
    assert HeadMap(before=2**16, after=tuple(range(2**16))).out_of_range() is None


def test_a_history_with_impossible_numbers(tmp_path: Path) -> None:
    step = tmp_path / "history" / "0"
    step.mkdir(parents=True)
    told = asdict(forged(**{"heads__enc.0__after": [0, 0]}))
    (step / "receipt.json").write_bytes(seal({"receipt": told, "files": {}, "checkpoint": "x"}))
    with pytest.raises(FolderError, match="the same head twice") as error:
        receipts(tmp_path)
    assert "copy the folder again" in str(error.value)
