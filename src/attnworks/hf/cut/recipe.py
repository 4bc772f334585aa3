"""How heads are cut out of one attention module, as data that a config can hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

Form = Literal["plain", "stored", "unused"]
"""plain: the module runs with fewer columns. stored: columns are not stored, and zeros take their place.
unused: the same for columns of queries and keys that nothing reads; all heads stay, and their output projection."""
PLAIN: Form = "plain"
Sizes = Mapping[str, Mapping[str, int | list[int]]]
"""Path of a module -> its attribute -> the value to set."""
MOST_NUMBERS = 2**24
"""The largest number that a recipe may name."""
RANGES = re.compile(r"(\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*)?")


@dataclass(frozen=True)
class CutRecipe:
    """A cut of one attention module, which may serve several layers.

    attention    the path of the module
    heads        numbers of the heads that stay, of `of` heads
    outputs      projection -> columns of its output that stay
    parameters   path of another parameter -> its axis, and what stays along it
    output       the projection that reads the heads, and columns of its input that stay
    attributes   of modules, and the values that they get
    config       entries of the configs of modules, and the values that these modules read instead
    selects_positions   whether the module selects the slices of its heads of T5's position bias
    """

    attention: str
    form: Form
    of: int
    heads: tuple[int, ...]
    outputs: Mapping[str, tuple[int, ...]]
    output: str
    inputs: tuple[int, ...]
    parameters: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    attributes: Sizes = field(default_factory=dict)
    config: Sizes = field(default_factory=dict)
    selects_positions: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "heads": to_ranges(self.heads),
            "inputs": to_ranges(self.inputs),
            "outputs": {path: to_ranges(kept) for path, kept in self.outputs.items()},
            "parameters": {path: [axis, to_ranges(kept)] for path, (axis, kept) in self.parameters.items()},
        }

    @classmethod
    def from_json(cls, entry: object) -> CutRecipe:
        """The recipe with these entries; ValueError for anything else."""
        given = _mapping(entry)
        if {*given} != {each.name for each in fields(cls)}:
            raise ValueError(f"a cut with the entries {', '.join(given)}"[:100])
        if type(given["selects_positions"]) is not bool:
            raise ValueError(f"selects_positions = {given['selects_positions']!r:.20}")
        if given["form"] not in get_args(Form) or type(given["of"]) is not int:
            raise ValueError(f"a cut of the form {given['form']!r:.20} of {given['of']!r:.20} heads")
        heads = from_ranges(given["heads"])
        if heads and heads[-1] >= given["of"]:
            raise ValueError(f"head {heads[-1]} of {given['of']}")
        return cls(
            attention=_text(given["attention"]),
            form=given["form"],
            of=given["of"],
            heads=heads,
            outputs={path: from_ranges(kept) for path, kept in _mapping(given["outputs"]).items()},
            output=_text(given["output"]),
            inputs=from_ranges(given["inputs"]),
            parameters={path: _along_axis(kept) for path, kept in _mapping(given["parameters"]).items()},
            attributes=_sizes(given["attributes"]),
            config=_sizes(given["config"]),
            selects_positions=given["selects_positions"],
        )


def heads_left(recipes: Iterable[CutRecipe], attention: str) -> list[int]:
    """The original numbers of the heads that several cuts of one module leave, one after the other."""
    left: list[int] | None = None
    for recipe in recipes:
        if recipe.attention == attention:
            left = list(recipe.heads) if left is None else [left[head] for head in recipe.heads]
    return left or []


def to_ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def from_ranges(text: object) -> tuple[int, ...]:
    """The inverse; ValueError for a text that is none, or whose numbers do not rise."""
    if not isinstance(text, str) or not RANGES.fullmatch(text):
        raise ValueError(f"numbers {text!r:.40}")
    numbers: list[int] = []
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high >= MOST_NUMBERS or (numbers and low <= numbers[-1]):
            raise ValueError(f"numbers {text!r:.40}")
        numbers.extend(range(low, high + 1))
    return tuple(numbers)


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} in place of names with values")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the name {value!r:.40}")
    return value


def _along_axis(value: object) -> tuple[int, tuple[int, ...]]:
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        raise ValueError(f"a parameter with {value!r:.40}")
    return value[0], from_ranges(value[1])


def _sizes(value: object) -> Sizes:
    found = {path: _mapping(of_module) for path, of_module in _mapping(value).items()}
    for of_module in found.values():
        for name, size in of_module.items():
            numbers: Sequence[object] = size if isinstance(size, list) else [size]
            if not name.isidentifier() or name.startswith("_") or not all(_is_size(number) for number in numbers):
                raise ValueError(f"the attribute {name!r:.40} with {size!r:.40}")
    return found


def _is_size(number: object) -> bool:
    return type(number) is int and 0 < number < MOST_NUMBERS
