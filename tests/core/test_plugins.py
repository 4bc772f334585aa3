"""Plug-ins from outside the package: modules by name, entry points, and both on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnworks.core.errors import UsageError
from attnworks.core.plugins import load_entry_points, load_plugin, requested_plugins
from attnworks.core.registry import Registry
from tests.exam_helpers import LINES, tiny_run, write_lines

SRC = Path(__file__).parents[2] / "src"
MECHANISM = '''
from attnworks.attention import MECHANISMS
from attnworks.attention.window import WindowAttention

@MECHANISMS.register("mine")
class Mine(WindowAttention):
    """A window under another name."""
    name = "mine"
    def __init__(self, *, window: int = 8) -> None:
        super().__init__(window=window)
'''
MEASURE = """
from attnworks.exam.measure import BY_HEAD, MEASURES, Measure, ReadingSpec, Sample

@MEASURES.register("loudness")
class Loudness(Measure):
    name, description, cost = "loudness", "mean square of the values", "nothing"
    def declares(self):
        return (ReadingSpec("loudness.values", BY_HEAD, "mean square of V", "none"),)
    def layer(self, trace):
        return {"loudness.values": Sample(trace.V.square().mean((-2, -1)))}
"""
RESHAPE = '''
import copy
from dataclasses import dataclass
from attnworks.reshape import RESHAPES, Reshape
from attnworks.reshape.contract import ReshapeResult

@RESHAPES.register("quieter")
@dataclass(frozen=True)
class Quieter(Reshape):
    """Multiply the output maps of all encoder layers by a factor."""
    factor: float = 1.0
    name = "quieter"
    def make(self, context):
        model = copy.deepcopy(context.model)
        for name, parameter in model.named_parameters():
            if "W_O" in name:
                parameter.data.mul_(self.factor)
        return ReshapeResult(model, {"all": f"times {self.factor}"}, rise=0.0)
'''
BROKEN = {
    "no_syntax": ("def f(:\n", "SyntaxError"),
    "no_import": ("import a_module_that_is_not_there\n", "ModuleNotFoundError"),
    "no_luck": ("x = 1\nraise RuntimeError('first line\\nsecond line')\n", "RuntimeError: first line second line"),
    "no_return": ("import sys\nsys.exit(0)\n", "SystemExit"),
    "thief": (MECHANISM.replace('"mine"', '"dense"'), "register mechanism 'dense': expected a new name"),
    "measure_thief": (MEASURE.replace('"loudness"', '"bottleneck"'), "register measure 'bottleneck'"),
    "reshape_thief": (RESHAPE.replace('"quieter"', '"prune"'), "register reshape 'prune'"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with plug-ins, each a module."""
    modules = {name: text for name, (text, _) in BROKEN.items()}
    for name, text in {**modules, "mine": MECHANISM, "loud": MEASURE, "quiet": RESHAPE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def attnworks(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in this folder; `-P` keeps Python from looking for modules there."""
    path = os.pathsep.join(filter(None, (str(SRC), environment.pop("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, "-P", "-m", "attnworks", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )


def install(folder: Path, name: str, **groups: str) -> None:
    """The metadata of an installed package that declares entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[attnworks.{group}]\n{value}\n" for group, value in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


# --- modules by name --------------------------------------------------------------------------------------------------


def test_a_module_of_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plug_in_of_a_test.py").write_text("import late_import_of_a_test as late\nanswer = 42\n")
    (tmp_path / "late_import_of_a_test.py").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "plug_in_of_a_test.py").write_text("answer = 41\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere"), *(entry for entry in sys.path if entry)])
    assert load_plugin("plug_in_of_a_test").answer == 42
    assert sys.path[-1] == str(tmp_path) and sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize("name", BROKEN)
def test_whatever_goes_wrong_is_one_line(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UsageError) as caught:
        load_plugin(name)
    assert f"plug-in '{name}': expected a module that can be imported, got " in str(caught.value)
    assert BROKEN[name][1] in str(caught.value) and f"{name}.py" in str(caught.value)
    assert "\n" not in str(caught.value) and "correct the module" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not_there", "change to its folder, or install it"),
        ("mine.py", "write mine, in the folder of the file"),
        ("some/where/mine.py", "got a path; write mine"),
        ("", "write it as in import"),
        ("a..b", "write it as in import"),
    ],
)
def test_a_name_that_is_none(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_plugin(name)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_requested_plugins_come_from_the_environment_and_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNWORKS_PLUGINS", "one, two,,one")
    assert requested_plugins(("three", "two")) == ["one", "two", "three"]
    monkeypatch.delenv("ATTNWORKS_PLUGINS")
    assert requested_plugins() == []


# --- registries -------------------------------------------------------------------------------------------------------


def _version(of: str, module: str) -> type:
    return type(of, (), {"__module__": module, "__qualname__": of})


def test_a_class_replaces_its_own_former_version_and_no_other() -> None:
    registry = Registry[type]("thing")
    registry.register("mine")(_version("Mine", "notebook"))
    second = registry.register("mine")(_version("Mine", "notebook"))
    assert registry["mine"] is second
    for other in (_version("Yours", "notebook"), _version("Mine", "elsewhere")):
        with pytest.raises(UsageError, match="a new name"):
            registry.register("mine")(other)


def test_entry_points_are_loaded_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    registry = Registry[str]("colour", "some.group")
    registry.register("red")("#f00")

    def load(groups: tuple[str, ...]) -> list[str]:
        loaded.extend(groups)
        registry.register("blue")("#00f")
        return []

    monkeypatch.setattr("attnworks.core.registry.load_entry_points", load)
    assert registry["red"] == "#f00" and "red" in registry and loaded == []
    assert registry["blue"] == "#00f" and list(registry) == ["blue", "red"] and len(registry) == 2
    assert loaded == ["some.group"]


def test_a_broken_entry_point_is_one_message_and_the_others_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "bad-package", mechanisms="bad = bad_entry_of_a_test")
    install(tmp_path, "good-package", mechanisms="good = good_entry_of_a_test", measures="none = none_entry_of_a_test")
    (tmp_path / "bad_entry_of_a_test.py").write_text("raise ValueError('not today')")
    (tmp_path / "good_entry_of_a_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    messages = load_entry_points()
    assert "good_entry_of_a_test" in sys.modules and len(messages) == 2
    assert "plug-in 'bad' of the package bad-package" in messages[0] and "ValueError: not today" in messages[0]
    assert "none_entry_of_a_test" in messages[1] and "\n" not in "".join(messages)
    assert "bad_entry_of_a_test.py, line 1)" in messages[0] and "importlib" not in "".join(messages)
    assert load_entry_points(("attnworks.reshapes",)) == []


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_mechanism_of_a_plugin_is_counted_by_name(folder: Path) -> None:
    got, want = (
        attnworks(folder, *plugin, "count", "--mechanism", spec, "--length", 64, "--json")
        for plugin, spec in ((("--plugin", "mine"), "mine:window=3"), ((), "window:window=3"))
    )
    assert (got.returncode, got.stderr) == (0, "")
    assert json.loads(got.stdout)["cost"] == json.loads(want.stdout)["cost"]
    unknown = attnworks(folder, "count", "--mechanism", "mine", "--length", 64)
    assert unknown.returncode == 2 and "unknown name" in unknown.stderr


def test_a_measure_of_a_plugin_works_by_name(folder: Path) -> None:
    run, text = tiny_run(), write_lines(folder / "text.txt", LINES)
    plugins = {"ATTNWORKS_PLUGINS": "loud,quiet"}
    listed = attnworks(folder, "examine", "--list-measures", **plugins)
    assert listed.returncode == 0 and "loudness" in listed.stdout
    examined = attnworks(folder, "examine", run, "--text", text, "--measures", "loudness", "--json", **plugins)
    assert examined.returncode == 0, examined.stderr
    assert "loudness.values" in examined.stdout


def test_a_reshape_of_a_plugin_is_a_verb(folder: Path) -> None:
    run, text = tiny_run(), write_lines(folder / "text.txt", LINES)
    plugins = {"ATTNWORKS_PLUGINS": "loud,quiet"}
    done = attnworks(folder, "quieter", run, "--factor", 0.5, "--text", text, "--out", "quieter", "--json", **plugins)
    assert done.returncode == 0, done.stderr
    receipt = json.loads(done.stdout)
    assert receipt["reshape"] == "quieter" and receipt["asked"] == {"factor": 0.5}
    shown = attnworks(folder, "quieter", "--help", **plugins)
    assert shown.returncode == 0 and "--factor" in shown.stdout and "by a factor" in shown.stdout
    told = attnworks(folder, "history", "quieter")
    assert told.returncode == 0 and told.stdout.startswith("1. Changed 1 place by quieter: loss ")
    again = ("replay", "quieter", "--on", run, "--out", "again")
    assert "bit for bit" in attnworks(folder, *again, **plugins).stdout
    without = attnworks(folder, *again[:-1], "other")
    assert without.returncode == 2 and "'quieter'" in without.stderr and "Traceback" not in without.stderr
    unknown = attnworks(folder, "quietr", run, **plugins)
    assert unknown.returncode == 2 and "No such command" in unknown.stderr


@pytest.mark.parametrize("name", ["no_syntax", "no_import", "no_luck", "thief"])
def test_a_broken_plugin_is_one_line_and_exit_code_two(name: str, folder: Path) -> None:
    result = attnworks(folder, "--plugin", name, "count", "base")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"attnworks: plug-in '{name}'") and result.stderr.count("\n") == 1


def test_a_broken_plugin_of_the_environment_is_left_out(folder: Path) -> None:
    """With one line of warning, also where a command of a plug-in is looked for; the others are loaded."""
    told = {"ATTNWORKS_PLUGINS": "no_luck,mine,quiet"}
    for arguments in (("count", "--mechanism", "mine", "--length", 64), ("quieter", "none", "--factor", 2)):
        result = attnworks(folder, *arguments, **told)
        warning, *rest = result.stderr.splitlines()
        assert warning.startswith("attnworks: plug-in 'no_luck'") and "no_luck" not in "".join(rest), result.stderr
        assert (result.returncode == 0) is (arguments[0] == "count")
    assert attnworks(folder, "--plugin", "no_luck", "count", "base", **told).returncode == 2


FIELDS = {
    "factor: Missing = 1.0": ("fields whose types Python can look up", "NameError"),
    "factor: int | str = 1": ("an int, float, str or bool", "int | str"),
    "factor: float = field(default_factory=lambda: 1 / 0)": ("fields that can be options", "ZeroDivisionError"),
    "out: float = 1.0": ("of a name that no other option has", "an option of every reshape"),
}


@pytest.mark.parametrize("line", FIELDS)
def test_a_reshape_whose_fields_cannot_be_options(line: str, folder: Path) -> None:
    text = RESHAPE.replace("factor: float = 1.0", line).replace("import dataclass", "import dataclass, field")
    (folder / "odd.py").write_text(f"from __future__ import annotations\n{text}")
    result = attnworks(folder, "--plugin", "odd", "quieter", "anything")
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
    assert all(words in result.stderr for words in FIELDS[line])


def test_a_reshape_that_refuses_its_options(folder: Path) -> None:
    check = "    def __post_init__(self):\n        float('x' * int(self.factor))\n    name ="
    (folder / "odd.py").write_text(RESHAPE.replace("    name =", check))
    result = attnworks(folder, "--plugin", "odd", "quieter", "anything", "--factor", 2, "--out", "new")
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
    assert "reshape quieter: expected options that it accepts, got ValueError: could not convert" in result.stderr


def test_the_option_after_the_command_says_where_it_belongs(folder: Path) -> None:
    result = attnworks(folder, "count", "base", "--plugin", "mine")
    assert result.returncode == 2 and "Write it before the command: attnworks --plugin ..." in result.stderr


def test_help_works_with_a_broken_plugin(folder: Path) -> None:
    for arguments in (("--help",), ("train", "--help"), ("--version",)):
        result = attnworks(folder, "--plugin", "no_luck", *arguments, ATTNWORKS_PLUGINS="no_syntax")
        assert (result.returncode, result.stderr) == (0, ""), arguments
    assert "--plugin" in attnworks(folder, "--help").stdout


def test_entry_points_on_the_command_line(folder: Path) -> None:
    """A good one works by name, a broken one is one line of warning, and help asks for neither."""
    install(folder, "good-package", mechanisms="mine = mine")
    install(folder, "bad-package", mechanisms="bad = no_luck")
    here = {"PYTHONPATH": str(folder)}
    result = attnworks(folder, "count", "--mechanism", "mine:window=3", "--length", 64, "--json", **here)
    assert result.returncode == 0 and json.loads(result.stdout)["cost"]["edges"] > 0
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("attnworks: plug-in 'bad'")
    assert attnworks(folder, "--help", **here).stderr == ""
