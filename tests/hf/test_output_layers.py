"""Output layers through every reshape: they stay as they are, in the folder, after opening it and after undo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnworks
from attnworks.hf.heads import MECHANISMS_ENTRY
from attnworks.models.folder import weights_fingerprint
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.tiny_models import TINY, transformers

OUTPUT = {
    "BertForMaskedLM": "cls",
    "BertForSequenceClassification": "classifier",
    "BertForTokenClassification": "classifier",
    "BertForQuestionAnswering": "qa_outputs",
}
RESHAPES: dict[str, Callable[..., Any]] = {
    "prune": lambda model, out: attnworks.prune(model, LINES, heads="0.1,1.2", out=out),
    "swap": lambda model, out: attnworks.swap(model, LINES, layers="enc.0=window:window=2", out=out),
    "project": lambda model, out: attnworks.project(model, LINES, heads="0.1", out=out),
    "grow": lambda model, out: attnworks.grow(model, LINES, add=2, objective=squares, out=out),
}


def squares(outputs: Any, batch: Any) -> Any:
    """A loss for any model: the mean square of the last residual stream at the first token of each sentence."""
    return (outputs.hidden[:, 0] - 1.0).square().mean(-1)


@pytest.mark.parametrize(("name", "verb"), [*zip(OUTPUT, RESHAPES, strict=True)])
def test_kept(name: str, verb: str, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "new"
    model = TINY["bert"]._replace(model=name).build(dtype=torch.float32)
    model.save_pretrained(source)
    tiny_tokenizer("bert").save_pretrained(source)
    opened = attnworks.open(source)
    assert type(opened.model) is type(model) and weights_fingerprint(opened.model) == weights_fingerprint(model)
    new, _ = RESHAPES[verb](str(source), out)
    again: Any = attnworks.open(out).model
    for changed in (new.model, again, getattr(transformers, name).from_pretrained(out)):
        assert type(changed) is type(model) and weights_fingerprint(changed) == weights_fingerprint(again)
        assert hasattr(changed.config, MECHANISMS_ENTRY)
        for path, weight in model.get_submodule(OUTPUT[name]).named_parameters():
            assert torch.equal(changed.get_submodule(OUTPUT[name]).get_parameter(path), weight), path
    attnworks.undo(out, tmp_path / "back")
    back = attnworks.open(tmp_path / "back").model
    assert type(back) is type(model) and weights_fingerprint(back) == weights_fingerprint(model)
