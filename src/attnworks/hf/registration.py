"""Reshaped models under the methods of transformers by which all others are opened and saved.

Importing `attnworks.hf` calls `register_reshaped`. From then on `from_pretrained`, of the Auto classes and of the
classes of models, opens the folder of a reshaped model, and so do `pipeline` and sentence-transformers;
`save_pretrained` writes one. transformers is not imported for that: the rest happens when somebody imports it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODEL_TYPE_PREFIX = "attnworks-"
MARK = "knows_reshaped_models"
"""An attribute of the methods of transformers that open or save reshaped models too."""


def register_reshaped() -> None:
    """Register the model types and the methods, now or when transformers is imported. A second call changes nothing."""
    _after_import("transformers.models.auto.configuration_auto", _register_types)
    _after_import("transformers.modeling_utils", _register_methods)


class ReshapedConfig:
    """What transformers finds under the types attnworks-bert, attnworks-gpt2, ...: configs of bert, gpt2, ..."""

    @classmethod
    def from_dict(cls, config: dict[str, Any], **options: Any) -> Any:
        """The config of the model before it was reshaped, with the entries of attnworks. No code of a folder is run."""
        from transformers import CONFIG_MAPPING

        from attnworks.hf.config_file import harmless
        from attnworks.hf.heads import MECHANISMS_ENTRY

        if MECHANISMS_ENTRY not in config:
            raise ValueError(f"the config has the type {config['model_type']}, but no entry {MECHANISMS_ENTRY!r}")
        model_type = config["model_type"].removeprefix(MODEL_TYPE_PREFIX)
        return CONFIG_MAPPING[model_type].from_dict(harmless(config) | {"model_type": model_type}, **options)


def plain_types() -> list[str]:
    """The model types that transformers has without attnworks."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return [name for name in CONFIG_MAPPING if not name.startswith(MODEL_TYPE_PREFIX)]


def _register_types() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig

    for name in plain_types():
        AutoConfig.register(MODEL_TYPE_PREFIX + name, ReshapedConfig, exist_ok=True)  # pyright: ignore[reportArgumentType]


def _register_methods() -> None:
    from transformers.modeling_utils import PreTrainedModel

    opens, saves = vars(PreTrainedModel)["from_pretrained"].__func__, PreTrainedModel.save_pretrained
    if hasattr(opens, MARK):
        return

    @functools.wraps(opens)
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *model_args: Any, **options: Any) -> Any:
        from attnworks.hf.pretrained import from_reshaped, is_reshaped_source

        if is_reshaped_source(pretrained_model_name_or_path, options):
            return from_reshaped(cls, pretrained_model_name_or_path, *model_args, **options)
        return opens(cls, pretrained_model_name_or_path, *model_args, **options)

    @functools.wraps(saves)
    def save_pretrained(self: Any, save_directory: Any, *positional: Any, **options: Any) -> Any:
        from attnworks.hf.heads import MECHANISMS_ENTRY
        from attnworks.hf.pretrained import save_reshaped

        if hasattr(self.config, MECHANISMS_ENTRY):
            return save_reshaped(self, save_directory, *positional, **options)
        return saves(self, save_directory, *positional, **options)

    setattr(from_pretrained, MARK, True)
    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.save_pretrained = save_pretrained


def _after_import(module: str, then: Callable[[], None]) -> None:
    """Call a function after this module has been imported: now, if it has been already."""
    if module in sys.modules:
        then()
    elif not any(isinstance(finder, _Finder) and finder.module == module for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(module, then))


class _Finder(MetaPathFinder):
    """Finds one module as Python does, and calls a function after it has been executed for the first time."""

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self.module, self.then = module, then

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.then()

            loader.exec_module = exec_module
        return spec
