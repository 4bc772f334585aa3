"""A verb, its public function and its dataclass take the same arguments, with the same defaults."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import click
import pytest

import attnworks
from attnworks.cli import _COMMANDS
from attnworks.reshape import RESHAPES, Reshape

CONSOLE_ONLY = {
    "as_json": "results have to_json",
    "threads": "torch.set_num_threads",
    "text": "texts=, for a file",
    "corpus": "texts=, for a corpus",
}
"""Options that no function has, unless it has an argument of this name."""
PYTHON_ONLY = {
    "progress": "the command shows it",
    "texts": "--text or --corpus",
    "tokenizer": "of a model in memory; the command takes paths",
}
EXCEPTIONS = {
    ("advise", "plot"): "Advice.plot",
    ("claims", "explain"): "each element of CheckedClaims shows it",
    ("examine", "name"): "of a model in memory",
    ("examine", "receipts"): "of a model in memory",
    ("examine", "team"): "torchrun tells the command",
    ("serve", "ends_process"): "only the command ends the process",
    ("train", "config"): "a config in memory; the command takes sizes",
    ("train", "on_start"): "the command shows the run",
    ("train", "should_stop"): "Ctrl-C stops the command",
    ("train", "team"): "torchrun tells the command",
    ("train", "watchers"): "the command shows events",
}
"""(verb, argument) -> why only the command or only the function has it, beyond those that hold for all verbs."""
MODEL = {"model": ("subject", "path")}
"""Arguments of commands -> what functions call them, which take more than paths."""
REQUIRED_BY_THE_COMMAND = {"out": "the command keeps nothing in memory"}

VERBS = [verb for verb in _COMMANDS if verb in attnworks.__all__]
RESHAPING = [verb for verb in VERBS if verb in RESHAPES]


def command_of(verb: str) -> click.Command:
    return getattr(importlib.import_module(f"attnworks.cli.{verb}"), verb)


def options_of(verb: str) -> dict[str, Any]:
    """The arguments of a command with their defaults; `inspect.Parameter.empty` for those that are required."""
    command = command_of(verb)
    values = command.make_context(verb, [], resilient_parsing=True).params
    given = {
        parameter.name: parameter
        for parameter in command.params
        if parameter.name is not None and parameter.expose_value
    }
    return {
        name: inspect.Parameter.empty if parameter.required else values[name]
        for name, parameter in given.items()
        if (name not in CONSOLE_ONLY or name in parameters_of(verb)) and (verb, name) not in EXCEPTIONS
    }


def parameters_of(verb: str) -> dict[str, inspect.Parameter]:
    return {**inspect.signature(getattr(attnworks, verb)).parameters}


def arguments_of(verb: str) -> dict[str, Any]:
    """The arguments of a public function with their defaults, by the names of the command."""
    names = {new: old for old, several in MODEL.items() for new in several}
    return {
        names.get(name, name): () if parameter.kind is parameter.VAR_POSITIONAL else parameter.default
        for name, parameter in parameters_of(verb).items()
        if name not in PYTHON_ONLY and (verb, name) not in EXCEPTIONS
    }


def fields_of(verb: str) -> dict[str, Any]:
    kind: Any = RESHAPES[verb]
    missing = dataclasses.MISSING
    return {
        field.name: inspect.Parameter.empty if field.default is missing else field.default
        for field in dataclasses.fields(kind)
    }


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_the_arguments_of_its_function(verb: str) -> None:
    options, arguments = options_of(verb), arguments_of(verb)
    assert options.keys() == arguments.keys()
    same = options.keys() - REQUIRED_BY_THE_COMMAND.keys()
    assert {name: options[name] for name in same} == {name: arguments[name] for name in same}


@pytest.mark.parametrize("verb", RESHAPING)
def test_a_verb_that_reshapes_has_the_fields_of_its_dataclass(verb: str) -> None:
    shared = arguments_of("apply").keys()
    for own in (options_of(verb), arguments_of(verb)):
        assert {name: default for name, default in own.items() if name not in shared} == fields_of(verb)


@pytest.mark.parametrize("verb", RESHAPING)
def test_verbs_that_reshape_share_the_other_arguments(verb: str) -> None:
    shared = {name: default for name, default in arguments_of("apply").items() if name != "reshape"}
    own = arguments_of(verb)
    assert {name: own.get(name, "missing") for name in shared} == shared


def test_all_verbs_are_found() -> None:
    assert {"advise", "grow", "history", "project", "prune", "replay", "swap", "undo"} <= {*VERBS}
    assert RESHAPING == ["prune", "grow", "swap", "project"] and issubclass(RESHAPES["prune"], Reshape)
    assert {verb for verb, _ in EXCEPTIONS} <= {*VERBS}


@pytest.mark.parametrize("verb", [*VERBS, "apply"])
def test_every_argument_is_documented(verb: str) -> None:
    function = getattr(attnworks, verb)
    text = inspect.getdoc(function) or ""
    assert [name for name in inspect.signature(function).parameters if f"\n    {name}: " not in text] == []
    assert "\nReturns:\n" in text


@pytest.mark.parametrize("verb", VERBS)
def test_option_names_and_sentences(verb: str) -> None:
    """An option is its argument with dashes, and its help is a sentence."""
    command = command_of(verb)
    assert len(command.get_short_help_str(90)) <= 78
    for option in (option for option in command.params if isinstance(option, click.Option)):
        if option.name != "as_json":
            assert option.opts == [f"--{(option.name or '').replace('_', '-')}"]
        words = (option.help or "").partition("  [default")[0]
        assert words[:1].isupper() and words.endswith(".") and not option.hidden, option.name
