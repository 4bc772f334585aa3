"""The proof finds out layouts that are wrong on purpose, and what shows only with padding or a cache."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from attnworks.hf.cut.apply import apply_recipe
from attnworks.hf.cut.plan import Place, stored_recipe
from attnworks.hf.cut.proof import Proof, allowed_error, distance
from attnworks.hf.layout import AttentionLayout
from tests.hf.cut.cut_helpers import SOME_TYPES, assert_same, place_in, read, tiny

MUTANTS = ("output", "query", "key", "value")


def exchanged(layer: AttentionLayout, what: str) -> AttentionLayout | None:
    """The layout with the columns of the first two groups exchanged; None where these have the same columns."""
    others = {a: b for pair in zip(*layer.shares[:2], strict=True) for a, b in (pair, pair[::-1])}

    def swapped(reach: torch.Tensor) -> torch.Tensor:
        return reach[[others.get(head, head) for head in range(len(reach))]]

    if what == "output":
        assert layer.output_reach is not None
        return replace(layer, output_reach=swapped(layer.output_reach))
    sources = tuple(
        replace(source, reach=swapped(source.reach))
        if not source.is_parameter and {*source.roles} == {what}
        else source
        for source in layer.sources
    )
    same = all(torch.equal(a.reach, b.reach) for a, b in zip(sources, layer.sources, strict=True))
    return None if same else replace(layer, sources=sources)


def problem(place: Place, kept: list[int], proof: Proof) -> str | None:
    with ExitStack() as undo:
        apply_recipe(place.model, stored_recipe(place, kept), undo)
        return proof.problem(place.model)


@pytest.mark.parametrize("name", SOME_TYPES)
def test_wrong_layouts_are_found_out(name: str) -> None:
    """A group of heads is cut by a layout that takes it for another group."""
    place = place_in(tiny(name))
    gone = {*place.layer.shares[0]}
    kept = [head for head in range(place.layer.heads) if head not in gone]
    proof = Proof(place.model, {place.layer.path: gone})
    assert problem(place, kept, proof) is None and proof.effect > 1e-3
    mutants = {what: exchanged(place.layer, what) for what in MUTANTS}
    found = {what: mutant for what, mutant in mutants.items() if mutant is not None}
    assert "output" in found
    for what, mutant in found.items():
        layers = [mutant if layer is place.layer else layer for layer in place.layers]
        told = problem(Place(place.model, layers, mutant), kept, proof)
        assert told is not None and "differ by" in told, what


def test_two_columns_exchanged() -> None:
    place = place_in(tiny("llama"))
    reach = place.layer.output_reach
    assert reach is not None
    columns = [*range(reach.shape[1])]
    columns[0], columns[-1] = columns[-1], columns[0]
    mutant = replace(place.layer, output_reach=reach[:, columns])
    gone = {*place.layer.shares[0]}
    kept = [head for head in range(place.layer.heads) if head not in gone]
    proof = Proof(place.model, {place.layer.path: gone})
    assert problem(Place(place.model, [mutant, *place.layers[1:]], mutant), kept, proof) is not None


def test_the_model_stays_as_it_was() -> None:
    model = tiny("llama")
    before = read(model)
    Proof(model, {place_in(model).layer.path: [0, 1]})
    assert_same(read(model), before)


def test_what_shows_with_a_cache_alone() -> None:
    model = copy.deepcopy(tiny("llama"))
    proof = Proof(model, {})
    assert proof.problem(model) is None

    def after_the_first_token(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return (output[0] + 1.0, *output[1:]) if output[0].shape[1] == 1 else output

    model.model.layers[0].self_attn.register_forward_hook(after_the_first_token)
    assert "outputs with a cache that differ" in str(proof.problem(model))


def test_outputs_that_prove_nothing() -> None:
    """Those that are no numbers, or too large for a norm; and an effect that is infinite allows no error."""
    none, large = torch.full((2, 3), torch.nan), torch.full((2, 3), 1e30)
    assert distance(none, none) == distance(large, 2 * large) == torch.inf
    assert allowed_error(torch.inf, torch.float32) == allowed_error(0.0, torch.float32) < 1e-5
    model = copy.deepcopy(tiny("llama"))
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    assert "differ by inf" in str(Proof(model, {}).problem(model))


def test_what_shows_with_padding_alone() -> None:
    model = copy.deepcopy(tiny("bert"))
    proof = Proof(model, {})

    def without_mask(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args[:1], {}

    model.bert.encoder.layer[0].attention.self.register_forward_pre_hook(without_mask, with_kwargs=True)
    assert "differ by" in str(proof.problem(model))


def test_a_model_that_does_not_run() -> None:
    model = copy.deepcopy(tiny("bert"))
    proof = Proof(model, {})
    model.bert.encoder.layer[0].attention.self.query = nn.Linear(3, 3)
    assert proof.problem(model) == "a layer whose code does not run with fewer heads"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_in_other_types(name: str, dtype: torch.dtype) -> None:
    """Rounding is no difference, and a head less is one."""
    model = copy.deepcopy(tiny(name)).to(dtype)
    place = place_in(model)
    gone = {*place.layer.shares[0]}
    kept = [head for head in range(place.layer.heads) if head not in gone]
    proof = Proof(model, {place.layer.path: gone})
    assert problem(place, kept, proof) is None
    assert problem(place, kept[1:], proof) is not None
