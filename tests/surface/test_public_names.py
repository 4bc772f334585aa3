"""The public names: all there, documented with every argument, and light to import."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import resource
import statistics
import subprocess
import sys
import types
from typing import Any

import pytest

import attnworks

NAMES = [name for name in attnworks.__all__ if name != "__version__"]
HELP_SECONDS = 0.3
"""CPU seconds that `attnworks --help` may take over bare Python."""
ROUNDS = 5


def found(name: str) -> Any:
    """What a public name stands for; None if it cannot be imported, which a test reports."""
    try:
        return getattr(attnworks, name)
    except (ImportError, AttributeError):
        return None


FUNCTIONS = [name for name in NAMES if inspect.isfunction(found(name))]
CLASSES = [name for name in NAMES if inspect.isclass(found(name))]
METHODS = [
    f"{name}.{method}"
    for name in CLASSES
    for method, value in vars(found(name)).items()
    if inspect.isfunction(value) and not method.startswith("_") and "Args:" in (value.__doc__ or "")
]
"""Methods with a list of arguments; others say in a sentence what they do."""


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(attnworks, name)
    assert inspect.getdoc(value)
    assert isinstance(value, types.ModuleType) or callable(value)


def test_dir_lists_them() -> None:
    assert set(attnworks.__all__) <= set(dir(attnworks)) and len(set(attnworks.__all__)) == len(attnworks.__all__)


@pytest.mark.parametrize("missing", ["uvicorn", "starlette"])
def test_every_name_is_there_without_the_packages_of_the_server(missing: str) -> None:
    """The extra `serve` is needed when `attnworks.serve` is called, not to look at it."""
    code = f"""
import pydoc, sys
sys.modules[{missing!r}] = None
import attnworks
from attnworks import *
assert hasattr(attnworks, "serve") and "serve(" in pydoc.render_doc(attnworks)
try:
    attnworks.serve("anything")
except attnworks.core.errors.MissingExtraError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert told.stdout == (
        f"attnworks serve: expected {missing} installed, got no such package; pip install attnworks[serve]\n"
    ), told.stderr


def test_a_name_that_is_not_there_suggests_another() -> None:
    with pytest.raises(AttributeError, match="did you mean 'examine'"):
        attnworks.exmaine  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "argument", "told"),
    [
        ("examine", "text", "did you mean 'texts'?"),
        ("view", "measure", "did you mean 'measures'?"),
        ("train", "lr", "did you mean 'learning_rate'?"),
        ("undo", "nothing", "it has "),
    ],
)
def test_an_argument_that_is_not_there_suggests_another(name: str, argument: str, told: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(attnworks, name)(**{argument: 1})
    expected = f"{name}() got an unexpected keyword argument {argument!r}; {told}"
    assert str(caught.value).startswith(expected) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "examine",
            "examine(subject, texts) got 4 arguments without a name; give the others by name, such as tokenizer=",
        ),
        ("undo", "undo(path, out) got 4 arguments without a name; leave the others out"),
    ],
)
def test_too_many_arguments_without_a_name_say_what_to_write(name: str, told: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(attnworks, name)(1, 2, 3, 4)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pickled_by_name(name: str) -> None:
    function = getattr(attnworks, name)
    assert pickle.loads(pickle.dumps(function)) is function is getattr(attnworks, name)


def documented(doc: str) -> dict[str, str]:
    """Argument -> its description, in a section `Args:` of Google's style."""
    _, _, section = doc.partition("Args:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section.split("\n\n")[0], re.MULTILINE)
    return dict(entries)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_documented(name: str) -> None:
    """Name, meaning and default, in the order of the signature; and what is returned."""
    function = getattr(attnworks, name)
    parameters = inspect.signature(function).parameters
    doc = inspect.getdoc(function) or ""
    described = documented(doc)
    assert [*described] == [*parameters]
    for argument, parameter in parameters.items():
        text = described[argument]
        assert text.strip().endswith("."), argument
        if parameter.default is not inspect.Parameter.empty:
            assert "Default" in text, f"{argument} without its default"
    assert "Returns:" in doc or inspect.signature(function).return_annotation in (None, "None")


@pytest.mark.parametrize("name", METHODS)
def test_every_argument_of_a_method_is_documented(name: str) -> None:
    kind, _, method = name.partition(".")
    function = getattr(found(kind), method)
    assert [*documented(inspect.getdoc(function) or "")] == [*inspect.signature(function).parameters][1:]


def test_methods_that_take_options_list_them() -> None:
    assert {"Subject.edit", "Subject.logits", "Subject.save"} <= set(METHODS)


@pytest.mark.parametrize("name", CLASSES)
def test_every_part_of_a_result_is_documented(name: str) -> None:
    """The fields of a dataclass, each by name in the docstring of its class."""
    kind = getattr(attnworks, name)
    doc = inspect.getdoc(kind) or ""
    fields = [field for field in getattr(kind, "__dataclass_fields__", ()) if not field.startswith("_")]
    missing = [field for field in fields if field != "name" and not re.search(rf"\b{field}\b", doc)]
    assert missing == []


# What importing costs ------------------------------------------------------------------------------------------------

HEAVY = ("torch", "numpy", "scipy", "transformers", "rich", "pandas", "tokenizers", "safetensors")


def modules_after(script: str) -> set[str]:
    """Heavy modules that a script imports in a new process."""
    ends = f"\nimport json, sys; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script + ends], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_attnworks_imports_nothing_heavy() -> None:
    assert modules_after("import attnworks; dir(attnworks)") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["examine", "--help"], ["prune", "--help"]])
def test_help_imports_no_torch(arguments: list[str]) -> None:
    script = f"""
from attnworks.cli import main
try:
    main({arguments})
except SystemExit as left:
    assert not left.code, left.code"""
    assert modules_after(script) <= {"rich"}


def cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_quick() -> None:
    """Over bare Python, in seconds of the processor, so that other work on the machine counts little."""
    cpu_seconds("-m", "attnworks", "--help")  # compiles modules
    rounds = [cpu_seconds("-m", "attnworks", "--help") - cpu_seconds("-c", "") for _ in range(ROUNDS)]
    assert statistics.median(rounds) < HELP_SECONDS
