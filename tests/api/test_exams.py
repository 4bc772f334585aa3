"""attnworks.examine, view, compare and open as public functions: texts, tokenizers, half precision, pages."""

from __future__ import annotations

import json
import warnings
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import attnworks
from attnworks.api.exams import page_name
from attnworks.cli import main
from attnworks.core.errors import AttnworksError, FolderError, UnknownNameError, UsageError
from attnworks.page.html import PAGE_START
from tests.exam_helpers import LINES, save_tiny, tiny_folder, tiny_run, tiny_tokenizer
from tests.tiny_models import TINY


def told(error: type[AttnworksError], subject: Any, texts: Any, **options: Any) -> str:
    with pytest.raises(error) as caught:
        attnworks.examine(subject, texts, measures=["rank"], **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Texts and tokenizers -------------------------------------------------------------------------------------------------


def test_a_model_without_a_tokenizer_says_how_to_give_one(tmp_path: Path) -> None:
    model = TINY["bert"].build(dtype=torch.float32)
    line = told(UsageError, model, LINES)
    assert "expected a tokenizer beside the model, got none; pass tokenizer=..." in line
    exam = attnworks.examine(model, LINES, tokenizer=tiny_tokenizer("bert"), measures=["rank"])
    assert exam.corpus["sentences"] == len(LINES)
    own = attnworks.open(tiny_run())
    assert "got none; pass tokenizer=..." in told(UsageError, own.model, LINES)


def test_a_folder_without_a_tokenizer_takes_the_one_that_is_given(tmp_path: Path) -> None:
    folder = save_tiny("bert", tmp_path / "mute", tokenizer=False)
    assert "save one into the model's folder" in told(UsageError, folder, LINES)
    exam = attnworks.examine(folder, LINES, tokenizer=tiny_tokenizer("bert"), measures=["rank"])
    assert exam.corpus["sentences"] == len(LINES)


def test_one_string_that_is_no_file_and_no_corpus(tmp_path: Path) -> None:
    line = told(FolderError, tiny_folder("bert"), "the cat sees a bird .")
    assert "expected a list of texts, a text file, or a corpus" in line and "put texts into a list: [text]" in line


def test_a_subject_is_cut_to_the_length_that_is_given() -> None:
    subject = attnworks.open(tiny_folder("bert"))
    assert attnworks.examine(subject, LINES, measures=["rank"], max_length=6).corpus["longest"] == 6
    assert attnworks.examine(subject, LINES, measures=["rank"]).corpus["longest"] > 6, "the subject stays as it was"


# Half precision -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["float16", "bfloat16"])
def half(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    folder = save_tiny("bert", tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    halved = {name: tensor.to(getattr(torch, request.param)) for name, tensor in weights.items()}
    save_file(halved, folder / "model.safetensors", metadata={"format": "pt"})
    return request.param, folder


def test_half_precision_is_opened_in_float32_and_said_once(half: tuple[str, Path]) -> None:
    stored, folder = half
    said = f"the weights are stored in {stored} and were opened in float32"
    with pytest.warns(UserWarning, match=said) as warned:
        subject = attnworks.open(folder)
    assert len(warned) == 1 and {tensor.dtype for tensor in subject.model.parameters()} == {torch.float32}
    messages: list[str] = []
    exam = attnworks.examine(
        folder, LINES, measures=["rank"], progress=lambda stage, done, total: None if total else messages.append(stage)
    )
    assert messages == [said] and exam.notes.count(said) == 1 and exam.model["dtype"] == "float32"


def replay_two_steps(on: Path) -> None:
    """Two reshapes of a model in float32, again on this one."""
    text, first, second = (on.parent / name for name in ("lines.txt", "first", "second"))
    text.write_text("\n".join(LINES * 3))
    attnworks.project(tiny_folder("bert"), text, heads="0.0", out=first)
    attnworks.project(first, text, heads="0.1", out=second)
    assert len(attnworks.replay(second, on, on.parent / "again")) == 2


@pytest.mark.parametrize(
    "call",
    [
        attnworks.wrap,
        replay_two_steps,
        lambda folder: attnworks.trace(folder, LINES[0]),
        lambda folder: attnworks.examine(folder, LINES, measures=["rank"]),
        lambda folder: attnworks.claims("D6", on=folder, texts=LINES),
    ],
)
def test_without_progress_it_is_a_warning(half: tuple[str, Path], call: Callable[[Path], object]) -> None:
    stored, folder = half
    with pytest.warns(UserWarning, match=f"{folder}: the weights are stored in {stored}") as warned:
        call(folder)
    assert len(warned) == 1 and not warned[0].filename.startswith(str(Path(attnworks.__file__).parent))


def test_a_quiet_command_does_not_warn(half: tuple[str, Path]) -> None:
    _, folder = half
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(main, ["claims", "D6", "--on", str(folder), "--sentences", "2", "--json"])
    assert result.exit_code == 0 and result.stderr == "" and json.loads(result.stdout)


def test_a_type_of_torch(half: tuple[str, Path]) -> None:
    _, folder = half
    with warnings.catch_warnings(action="ignore"):
        subject = attnworks.open(folder, dtype=torch.float64)
    assert {tensor.dtype for tensor in subject.model.parameters()} == {torch.float64}
    with pytest.raises(UnknownNameError, match="'int8'"):
        attnworks.open(folder, dtype=torch.int8)


def test_a_type_that_is_asked_for_is_kept(half: tuple[str, Path]) -> None:
    stored, folder = half
    with warnings.catch_warnings():
        warnings.simplefilter("error" if stored == "bfloat16" else "ignore")
        subject = attnworks.open(folder, dtype="bfloat16")
    assert {tensor.dtype for tensor in subject.model.parameters()} == {torch.bfloat16}
    assert subject.remarks == (() if stored == "bfloat16" else subject.remarks[:1])


def test_float32_needs_no_remark() -> None:
    assert attnworks.open(tiny_folder("bert")).remarks == () == attnworks.open(tiny_run()).remarks


# Pages ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In an empty folder, with a display: the addresses that the browser was asked to open."""
    addresses: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setattr(webbrowser, "open", lambda url: addresses.append(url) or True)
    return addresses


def test_view_writes_the_page_and_opens_it(opened: list[str], tmp_path: Path) -> None:
    page = attnworks.view(tiny_folder("bert"), LINES, measures=["rank"])
    assert page.path == Path("bert.html") and (tmp_path / "bert.html").read_bytes().startswith(PAGE_START)
    assert page.opened and opened == [(tmp_path / "bert.html").as_uri()]
    again = attnworks.view(tiny_folder("bert"), LINES, measures=["rank"], open=False)
    assert not again.opened and len(opened) == 1, "a page is replaced by another"


@pytest.mark.parametrize("browser", ["none", "broken", "no display"])
def test_view_without_a_browser(browser: str, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    if browser == "no display":
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("sys.platform", "linux")
    else:
        monkeypatch.setattr(webbrowser, "open", fail if browser == "broken" else lambda url: False)
    page = attnworks.view(tiny_folder("bert"), LINES, measures=["rank"])
    assert not page.opened and page.path.is_file() and opened == []


def test_view_replaces_only_its_own_pages_and_says_so_before_any_work(opened: list[str], tmp_path: Path) -> None:
    (tmp_path / "bert.html").write_text("<!DOCTYPE html><title>mine</title>")
    with pytest.raises(FolderError, match="a file that is no page of attnworks"):
        attnworks.view(tiny_folder("bert"), "no texts are read")
    assert (tmp_path / "bert.html").read_text() == "<!DOCTYPE html><title>mine</title>"
    with pytest.raises(UnknownNameError, match="did you mean 'rank'"):
        attnworks.view(tmp_path / "nowhere", measures=["rankk"])


def test_view_of_an_examination(opened: list[str], tmp_path: Path) -> None:
    exam = attnworks.examine(tiny_folder("bert"), LINES, measures=["rank"], out=tmp_path / "exams" / "first")
    assert attnworks.view(exam).path == Path("bert.html")
    assert attnworks.view(tmp_path / "exams" / "first").path == Path("first.html")


@pytest.mark.parametrize(
    ("name", "file"),
    [("runs/first", "first"), ("pypi:a-b", "a-b"), ("google/bert x", "bert-x"), ("..", "model"), ("", "model")],
)
def test_names_of_pages(name: str, file: str) -> None:
    assert page_name(name) == Path(f"{file}.html")


def test_examine_writes_folder_and_page(tmp_path: Path) -> None:
    exam = attnworks.examine(
        tiny_folder("bert"), LINES, measures=["rank"], out=tmp_path / "exam", report=tmp_path / "page.html"
    )
    assert attnworks.open(tmp_path / "exam").to_json() == exam.to_json()
    assert (tmp_path / "page.html").read_bytes().startswith(PAGE_START)
    with pytest.raises(FolderError, match="no folder"):
        attnworks.examine(tmp_path / "nowhere", report=tmp_path / "none" / "page.html")


def test_a_written_page_is_a_path_and_a_link(tmp_path: Path) -> None:
    exam = attnworks.examine(tiny_folder("bert"), LINES, measures=["rank"])
    page = exam.report(tmp_path / "a <b>.html")
    assert Path(page).read_bytes().startswith(PAGE_START) and len(repr(page)) < 200
    assert "a &lt;b&gt;.html" in page._repr_html_() and page.to_json()["bytes"] == page.bytes


def test_compare_takes_folders_and_examinations(tmp_path: Path) -> None:
    exam = attnworks.examine(tiny_folder("bert"), LINES, measures=["rank"], out=tmp_path / "exam")
    found = attnworks.compare(exam, tmp_path / "exam", top=3)
    assert found.nothing_changed and found.names == ("bert", str(tmp_path / "exam")) and found.top == 3
    with pytest.raises(UsageError, match="top"):
        attnworks.compare(exam, exam, top=0)
