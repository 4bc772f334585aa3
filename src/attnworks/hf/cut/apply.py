"""Cut a model as a recipe says, in place, in a way that can be undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.hf.cut.recipe import CutRecipe
from attnworks.hf.cut.stored import ALL_OUTPUTS, keep_heads_of, store_inputs, store_outputs
from attnworks.hf.head_modules import EMPTY_ATTRIBUTE, HeadsIn, HeadsOut, OutputBias, ZeroColumns
from attnworks.hf.linear import is_conv1d, matrix_of
from attnworks.hf.position_bias import has_position_bias, keep_positions

OUTPUT_COUNTS = ("out_features", "nf", "out_channels", "embedding_dim")
INPUT_COUNTS = ("in_features", "nx", "in_channels")
"""Attributes of modules with a matrix that say how many outputs or inputs it has."""


class ChangedConfig:
    """The config of a model with other values for one layer. All else is read from, and written to, the model's."""

    def __init__(self, config: Any, changes: dict[str, Any]) -> None:
        vars(self).update(of_model=config, **changes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "of_model":
            raise AttributeError(name)
        return getattr(self.of_model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:
            setattr(self.of_model, name, value)


def output_axis(module: nn.Module) -> int | None:
    """The axis of a module's weight that has the columns of its output; None for a module of another kind."""
    if (weight := _weight(module)) is None or (isinstance(module, nn.modules.conv._ConvNd) and module.groups > 1):
        return None
    return weight.dim() - 1 if isinstance(module, nn.Embedding) or is_conv1d(module) else 0


def input_axis(module: nn.Module) -> int | None:
    """The axis of a linear map's weight that has the columns of its input; None for a module of another kind."""
    weight = _weight(module)
    if weight is None or weight.dim() != 2 or isinstance(module, nn.Embedding):
        return None
    return 0 if is_conv1d(module) else 1


def _weight(module: nn.Module) -> Tensor | None:
    """The weight of a module that has no other parameters but a bias."""
    weight: Any = getattr(module, "weight", None)
    own = {name for name, _ in module.named_parameters()}
    plain = isinstance(weight, nn.Parameter) and own <= {"weight", "bias"} and weight.is_floating_point()
    return weight if plain and weight.dim() >= 2 and not isinstance(module, HeadsOut | HeadsIn) else None


@torch.no_grad()
def apply_recipe(model: nn.Module, recipe: CutRecipe, undo: ExitStack) -> None:
    """Cut the model, in place. The recipe must fit it (`check`). `undo` gets the steps that undo the cut."""
    for path, kept in recipe.outputs.items():
        module = model.get_submodule(path)
        if recipe.heads or kept or matrix_of(module) is None:
            _keep_outputs(module, kept, recipe, undo)
        else:
            _replace(model, module, ZeroColumns, undo)
    for path, (axis, kept) in recipe.parameters.items():
        holder, _, name = path.rpartition(".")
        _keep_along(model.get_submodule(holder), name, axis, kept, undo)
    if recipe.form == "unused":
        return
    output, attention = model.get_submodule(recipe.output), model.get_submodule(recipe.attention)
    if recipe.heads:
        _keep_inputs(output, recipe, undo)
    else:
        _replace(model, output, OutputBias, undo)
    for path, values in recipe.attributes.items():
        _set_sizes(model.get_submodule(path), values, undo)
    for path, values in recipe.config.items():
        _set_config(model.get_submodule(path), values, undo)
    if recipe.selects_positions:
        keep_positions(attention, recipe.heads, undo)
    if not recipe.heads:
        setattr(attention, EMPTY_ATTRIBUTE, True)
        undo.callback(delattr, attention, EMPTY_ATTRIBUTE)
    elif recipe.form == "stored":
        keep_heads_of(attention, recipe.heads, undo)


def check(model: nn.Module, recipe: CutRecipe) -> None:
    """ValueError unless the recipe names modules of the model, columns that they have, and sizes that get smaller."""
    attention = model.get_submodule(recipe.attention)
    if recipe.selects_positions and not has_position_bias(attention):
        raise ValueError(f"{recipe.attention} with a position bias")
    for path, kept in recipe.outputs.items():
        module = model.get_submodule(path)
        if recipe.heads or kept or matrix_of(module) is None:
            _check_columns(module, output_axis(module), kept, path)
    if recipe.form == "unused":
        return
    output = model.get_submodule(recipe.output)
    if recipe.heads:
        _check_columns(output, input_axis(output), recipe.inputs, recipe.output)
    elif matrix_of(output) is None:
        raise ValueError(f"{recipe.output} as an output projection")
    for path, (axis, kept) in recipe.parameters.items():
        shape = model.get_parameter(path).shape
        if not 0 <= axis < len(shape) or not _within(kept, shape[axis]):
            raise ValueError(f"entries of {path}")
    for path, values in recipe.attributes.items():
        _check_sizes(model.get_submodule(path), values, path)
    for path, values in recipe.config.items():
        _check_sizes(getattr(model.get_submodule(path), "config", None), values, path)


def _check_columns(module: nn.Module, axis: int | None, kept: Sequence[int], path: str) -> None:
    weight = _weight(module)
    if axis is None or weight is None or not _within(kept, weight.shape[axis]):
        raise ValueError(f"columns of {path}")


def _within(kept: Sequence[int], size: int) -> bool:
    return not kept or kept[-1] < size


def _check_sizes(holder: object, values: Mapping[str, int | list[int]], path: str) -> None:
    for name, value in values.items():
        now: Any = getattr(holder, name, None)
        old, new = (each if isinstance(each, tuple | list) else [each] for each in (now, value))
        fits = isinstance(now, tuple | list) == isinstance(value, list) and len(old) == len(new)
        if not fits or not all(type(size) is int and less <= size for size, less in zip(old, new, strict=True)):
            raise ValueError(f"the attribute {name} of {path}")


# --- steps ---


def _keep_outputs(module: Any, kept: Sequence[int], recipe: CutRecipe, undo: ExitStack) -> None:
    axis = output_axis(module)
    assert axis is not None
    columns = module.weight.shape[axis]
    _keep_along(module, "weight", axis, kept, undo)
    if module._parameters.get("bias") is not None:
        _keep_along(module, "bias", 0, kept, undo)
    _set_sizes(module, {name: len(kept) for name in OUTPUT_COUNTS if hasattr(module, name)}, undo)
    if recipe.form != "plain":
        store_outputs(module, torch.tensor(kept, dtype=torch.long), columns, undo)


def _keep_inputs(module: Any, recipe: CutRecipe, undo: ExitStack) -> None:
    axis, kept = input_axis(module), recipe.inputs
    assert axis is not None
    _keep_along(module, "weight", axis, kept, undo)
    _set_sizes(module, {name: len(kept) for name in INPUT_COUNTS if hasattr(module, name)}, undo)
    if recipe.form == "stored":
        store_inputs(module, torch.tensor(kept, dtype=torch.long), undo)


def _keep_along(module: nn.Module, name: str, axis: int, kept: Sequence[int], undo: ExitStack) -> None:
    old: nn.Parameter = getattr(module, name)
    numbers = torch.tensor(kept, dtype=torch.long, device=old.device)
    new = old.detach().index_select(axis, numbers).contiguous()
    setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))
    undo.callback(setattr, module, name, old)


def _replace(model: nn.Module, old: Any, new_class: type[ZeroColumns | OutputBias], undo: ExitStack) -> None:
    """Put a module without a weight in the place of a linear map, under every name that it has."""
    linear = matrix_of(old)
    assert linear is not None
    columns = getattr(old, ALL_OUTPUTS, linear.weight.shape[1])
    new = new_class(linear, columns).train(old.training)
    for name in [name for name, module in model.named_modules(remove_duplicate=False) if module is old]:
        model.set_submodule(name, new)
        undo.callback(model.set_submodule, name, old)


def _set_sizes(module: nn.Module, values: Mapping[str, Any], undo: ExitStack) -> None:
    for name, value in values.items():
        old = getattr(module, name)
        setattr(module, name, type(old)(value))
        undo.callback(setattr, module, name, old)


def _set_config(module: Any, values: Mapping[str, Any], undo: ExitStack) -> None:
    old = module.config
    module.config = ChangedConfig(old, {name: type(getattr(old, name))(value) for name, value in values.items()})
    undo.callback(setattr, module, "config", old)
