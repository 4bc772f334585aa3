"""What is attacked: folders and files of every kind that attnworks writes, how each is read, and what is made of it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner
from rich.console import Console
from tests.browser.pages import tiny_exam
from tests.exam_helpers import tiny_run
from tests.reports.page_helpers import made_exam
from tests.reports.test_page_contents import advised
from tests.reshape.reshape_helpers import project_folder
from tests.training.training_helpers import SMALL, state_of
from torch import Tensor, nn

from attnworks.cli import main
from attnworks.cli.advise_display import in_a_sentence
from attnworks.cli.receipt_display import receipt_shown
from attnworks.exam.folder import read_exam, write_exam
from attnworks.models import AttentionConfig, PureConfig, build, load, save
from attnworks.models.presets import PRESETS
from attnworks.reports.page.contents import Exam, page_contents
from attnworks.reports.page.given import read_advice, read_trace
from attnworks.reshape.history import receipts, undo
from attnworks.storage.sealed import with_sha256
from attnworks.training.run import Run
from attnworks.training.trained import open_run

NOT_HASHED = ("metrics.jsonl",)
"""Files that a user may edit: nothing else is made of them."""


@dataclass(frozen=True)
class Material:
    """One kind of folder or file.

    home    the folder in which it is whole
    read    everything that a user gets when it is opened
    use     what commands show of it
    """

    name: str
    home: Path
    read: Callable[[Path], object]
    use: Callable[[Any], object] = lambda made: None

    def files(self) -> list[str]:
        found = sorted(path for path in self.home.rglob("*") if path.is_file())
        return [str(path.relative_to(self.home)) for path in found]

    def copy(self, place: Path) -> Path:
        return Path(shutil.copytree(self.home, place))


def materials(home: Path) -> list[Material]:
    """Every kind, made small in a folder."""
    for name, config in SMALL.items():
        PRESETS.setdefault(name, config)
    return [_model(home), _run(home), _history(home), _exam(home), _trace(home), _advice(home)]


def digest(made: object) -> str:
    """A hash of everything in a value: tensors by their bytes, numbers by their digits."""
    return hashlib.sha256(repr(_plain(made)).encode("utf-8", "surrogatepass")).hexdigest()


def _plain(made: Any) -> Any:
    if isinstance(made, Tensor):
        whole = made.detach().contiguous()
        return str(whole.dtype), tuple(whole.shape), whole.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(made, nn.Module):
        return [(name, _plain(tensor)) for name, tensor in made.state_dict().items()]
    if dataclasses.is_dataclass(made) and not isinstance(made, type):
        return [_plain(getattr(made, field.name)) for field in dataclasses.fields(made)]
    if isinstance(made, Mapping):
        return [(str(key), _plain(made[key])) for key in made]
    return [_plain(item) for item in made] if isinstance(made, list | tuple) else made


# The kinds ------------------------------------------------------------------------------------------------------------


def _model(home: Path) -> Material:
    attention = AttentionConfig(heads=2, d_k=3, d_v=1, mechanism=("dense", "luong-multiplicative"))
    save(build(PureConfig(d_e=5, layers=1, attention=attention, skip=True), seed=7), home / "model")
    return Material("model", home / "model", lambda place: (load(place).config, load(place)))


def _run(home: Path) -> Material:
    shutil.copytree(tiny_run(), home / "run")

    def read(place: Path) -> object:
        trained, resumed = open_run(place), Run.resume(place)
        words = [vocabulary.tokenizer.to_str() for vocabulary in (trained.source, trained.target)]
        return trained.model, words, resumed.recipe, resumed.progress, state_of(resumed)

    return Material("run", home / "run", read)


def _history(home: Path) -> Material:
    run, first, second = tiny_run(), home / "first", home / "history"
    shutil.copy(run.parent / "pairs.tsv", home / "pairs.tsv")
    project_folder(run, "enc.*", first)
    project_folder(first, "dec.0.1", second)

    def read(place: Path) -> object:
        done, out = receipts(place), place.with_name("undone")
        shutil.rmtree(out, ignore_errors=True)
        undo(str(place), out)
        files = {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}
        return done, files

    def use(made: Any) -> None:
        for number, receipt in enumerate(made[0]):
            Console(file=io.StringIO()).print(receipt_shown(receipt, number))
        page_contents([Exam(made_exam(), "exam")], receipts=made[0])

    return Material("history", second, read, use)


def _exam(home: Path) -> Material:
    write_exam(tiny_exam(home / "bert", "bert"), home / "exam")
    return Material("exam", home / "exam", read_exam, lambda made: page_contents([Exam(made, "exam")]))


def _trace(home: Path) -> Material:
    file = home / "trace" / "trace.json"
    file.parent.mkdir()
    line = ["translate", str(tiny_run()), "Luca sees bread .", "--beam", "2", "--trace", str(file)]
    assert CliRunner().invoke(main, line).exit_code == 0

    def use(made: Any) -> None:
        page_contents([Exam(made_exam(), "exam", tuple(made.sentences))])

    return Material("trace", file.parent, lambda place: read_trace(place / file.name), use)


def _advice(home: Path) -> Material:
    made = advised()
    file = home / "advice" / "advice.json"
    file.parent.mkdir()
    told = {"model": made.model, "max_error": made.max_error, **asdict(made.advice), "command": made.command}
    file.write_text(json.dumps(with_sha256(told), indent=2))

    def use(made: Any) -> None:
        in_a_sentence(made.advice, made.max_error)
        page_contents([Exam(made_exam(), "exam")], advice=made)

    return Material("advice", file.parent, lambda place: read_advice(place / file.name), use)
