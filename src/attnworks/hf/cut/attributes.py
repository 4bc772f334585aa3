"""Which attributes of modules have to follow a cut, learned by reading and trying in a model whose sizes all differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn

from attnworks.hf.cut.apply import ChangedConfig
from attnworks.hf.cut.recipe import Sizes
from attnworks.hf.cut.sizes import Size, absolute, relative

MOST_TRIES = 150
"""The most combinations of attributes that are tried for one layer."""


class Attribute(NamedTuple):
    """An attribute of a module, seen from the attention module, or an entry of its config."""

    module: str
    in_config: bool
    name: str


Meaning = Mapping[Attribute, tuple[str | None, ...]]
"""Attribute -> the name of the size that it counts; several for a tuple, with None for numbers that stay."""


@contextmanager
def reads_of(model: nn.Module, paths: Iterable[str]) -> Iterator[set[tuple[str, bool, str]]]:
    """Collects every whole number, or tuple of them, that these modules read as attributes or from their configs."""
    reads: set[tuple[str, bool, str]] = set()
    before: list[tuple[Any, str, Any]] = []
    try:
        for path in paths:
            module: Any = model.get_submodule(path)
            config = vars(module).get("config")
            before.append((module, "__class__", type(module)))
            module.__class__ = _recording(type(module), reads, path)
            if config is not None:
                before.append((module, "config", config))
                vars(module)["config"] = _RecordingConfig(config, reads, path)
        reads.clear()
        yield reads
    finally:
        for module, name, value in reversed(before):
            if name == "__class__":
                module.__class__ = value
            else:
                vars(module)[name] = value


def _recording(cls: Any, reads: set[tuple[str, bool, str]], path: str) -> type:
    def read(self: Any, name: str) -> Any:
        value = cls.__getattribute__(self, name)
        if not name.startswith("_") and _counts(value):
            reads.add((path, False, name))
        return value

    names = {"__getattribute__": read, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), names)


class _RecordingConfig(ChangedConfig):
    def __init__(self, config: Any, reads: set[tuple[str, bool, str]], path: str) -> None:
        super().__init__(config, {"attnworks_reads": (reads, path)})

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if not name.startswith("_") and _counts(value):
            reads, path = vars(self)["attnworks_reads"]
            reads.add((path, True, name))
        return value


def _counts(value: object) -> bool:
    if isinstance(value, tuple | list):
        return bool(value) and all(type(each) is int for each in value)
    return type(value) is int


def learn_attributes(
    model: nn.Module,
    attention: str,
    reads: Iterable[tuple[str, bool, str]],
    sizes: Mapping[str, Size],
    holds: Callable[[Sizes, Sizes], bool],
) -> Meaning | None:
    """The attributes that a cut model needs other values of, and what they count; None if no choice of them works.

    reads    attributes and entries of configs that the modules around a layer read
    holds    (attributes, entries of configs) -> whether the cut model computes what it should with these values
    """
    candidates: list[tuple[Attribute, list[tuple[str | None, ...] | None]]] = []
    for path, in_config, name in sorted(reads):
        module: Any = model.get_submodule(path)
        meanings = _meanings(getattr(module.config if in_config else module, name), sizes)
        if meanings:
            candidates.append((Attribute(relative(path, attention), in_config, name), [*meanings, None]))
    choices = itertools.islice(itertools.product(*(options for _, options in candidates)), 20 * MOST_TRIES)
    for choice in sorted(choices, key=lambda choice: choice.count(None))[:MOST_TRIES]:
        meaning = {attribute: each for (attribute, _), each in zip(candidates, choice, strict=True) if each is not None}
        if holds(*values_of(model, attention, meaning, sizes)):
            return _needed(model, attention, meaning, sizes, holds)
    return None


def _needed(
    model: nn.Module,
    attention: str,
    meaning: Meaning,
    sizes: Mapping[str, Size],
    holds: Callable[[Sizes, Sizes], bool],
) -> Meaning:
    """Without the attributes that make no difference: they may count something else."""
    for attribute in [*meaning]:
        fewer = {each: of for each, of in meaning.items() if each != attribute}
        if holds(*values_of(model, attention, fewer, sizes)):
            meaning = fewer
    return meaning


def _meanings(value: Any, sizes: Mapping[str, Size]) -> list[tuple[str | None, ...]]:
    """What the numbers of an attribute may count: one name for each new value that they could get."""
    numbers: Sequence[int] = [value] if type(value) is int else value
    options: list[list[str | None]] = []
    for number in numbers:
        by_new_value = {size.after: name for name, size in reversed([*sizes.items()]) if size.before == number}
        options.append([*by_new_value.values()] or [None])
    found = list(itertools.islice(itertools.product(*options), MOST_TRIES))
    return [names for names in found if any(name is not None for name in names)]


def values_of(model: nn.Module, attention: str, meaning: Meaning, sizes: Mapping[str, Size]) -> tuple[Sizes, Sizes]:
    """The values that these attributes get in a cut, of modules and of configs.

    ValueError where an attribute has another value before the cut than the size that it counts.
    """
    found: tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]] = ({}, {})
    for (place, in_config, name), names in meaning.items():
        path = absolute(place, attention)
        module: Any = model.get_submodule(path)
        value = getattr(module.config if in_config else module, name)
        numbers = [value] if type(value) is int else list(value)
        if len(numbers) != len(names):
            raise ValueError(f"{name} of {path} has {len(numbers)} numbers")
        new = [_new(number, of, sizes, f"{name} of {path}") for number, of in zip(numbers, names, strict=True)]
        if new != numbers:
            found[in_config].setdefault(path, {})[name] = new[0] if type(value) is int else new
    return found


def _new(number: int, name: str | None, sizes: Mapping[str, Size], attribute: str) -> int:
    if name is None or name not in sizes:
        return number
    if sizes[name].before != number:
        raise ValueError(f"{attribute} is {number}, not {sizes[name].before} {name}")
    return sizes[name].after
