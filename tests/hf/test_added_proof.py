"""The proof that columns can be added to a layer: it holds for all layouts, and fails where they would be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from attnworks.hf.added_columns import added_to
from attnworks.hf.added_proof import failed_proof
from attnworks.hf.layout import HeadColumns
from tests.hf.added_helpers import LAYOUTS, Grown, grown
from tests.model_helpers import the

pytest.importorskip("transformers")


def proof(some: Grown) -> str | None:
    return failed_proof(some.model, some.layout, some.layout.slots[0], some.run)


def number_of_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize(("name", "kind"), [*((name, "") for name in LAYOUTS if name != "doge"), ("t5", "decoder")])
def test_all_layouts_are_proven(name: str, kind: str) -> None:
    """The model is left as it was, bit for bit, and without new hooks."""
    some = grown(name, kind)
    before, hooks = some.run(), number_of_hooks(some.model)
    assert proof(some) is None
    assert torch.equal(some.run(), before) and added_to(some.attention) is None
    assert number_of_hooks(some.model) == hooks


def test_layers_that_attend_twice() -> None:
    """DiffLlama subtracts two maps, and uses the values of each head twice."""
    assert "a layer with no input, where added columns need an input of 11 queries" in the(proof(grown("diffllama")))


def test_values_that_the_layer_reads_again() -> None:
    """Doge also makes its masks from values."""
    assert proof(grown("doge")) == "a layer in which added values do not act like its own"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_wrong_layouts_are_found_out(name: str) -> None:
    """The rows of the output projection of another head, or the columns of the values of another one."""
    some = grown(name)
    output, value = the(some.layout.output), the(some.layout.value)
    for layout in (
        replace(some.layout, output=HeadColumns(output.path, output.index.roll(1, 0))),
        replace(some.layout, value=HeadColumns(value.path, value.index.roll(1, 1))),
    ):
        assert proof(some._replace(layout=layout)) == "a layer in which added values do not act like its own"
    assert proof(some) is None


def test_what_is_known_without_a_pass() -> None:
    some = grown("bert")
    assert "interface" in the(proof(some._replace(layout=replace(some.layout, interface=False))))
