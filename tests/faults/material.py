"""What is attacked: folders and files of every kind that attnworks writes, how each is read, and what is made of it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner
from rich.console import Console
from torch import Tensor, nn

from attnworks.cli import main
from attnworks.exam.folder import read_exam, write_exam
from attnworks.exam.lineage import lineage_of
from attnworks.models import AttentionConfig, PureConfig, build, load_model, save_model
from attnworks.page.contents import PageExam, page_contents
from attnworks.page.inputs import read_advice, read_trace
from attnworks.reshape.growth.grow import Grow
from attnworks.reshape.history import ModelFolder, receipts, undo, write_outcome
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.render import receipt_shown
from attnworks.reshape.run import run_reshape
from attnworks.reshape.swapping.advice import Advice, RefusedMix
from attnworks.reshape.swapping.render import in_a_sentence
from attnworks.reshape.swapping.swap import Swap
from attnworks.reshape.swapping.trials import Present, SwapTrial
from attnworks.reshape.texts import split_corpus
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import open_subject
from attnworks.training.events import Metrics
from attnworks.training.run import Run
from tests.browser.pages import tiny_exam
from tests.exam_helpers import tiny_run
from tests.faults.formats import gguf_folder, read_model, shards_folder, torch_folder
from tests.page.page_helpers import made_exam
from tests.training.training_helpers import state_of

NOT_HASHED = ("metrics.jsonl",)
"""Files that a user may edit: other content is read without an error, and nothing else is made of it."""


@dataclass(frozen=True)
class Material:
    """One kind of folder or file.

    home    the folder in which it is whole
    read    everything that a user gets when it is opened
    use     what commands show of it
    kinds   attacks that mutants take in turn
    hashed  whether other content must be refused
    """

    name: str
    home: Path
    read: Callable[[Path], object]
    use: Callable[[Any], object] = lambda made: None
    kinds: tuple[str, ...] = ("bytes", "JSON", "forgery")
    hashed: bool = True

    def files(self) -> list[str]:
        found = sorted(path for path in self.home.rglob("*") if path.is_file())
        return [str(path.relative_to(self.home)) for path in found]

    def copy(self, place: Path) -> Path:
        return Path(shutil.copytree(self.home, place))


def materials(home: Path, names: Sequence[str] = ()) -> list[Material]:
    """Every kind, or those with these names, made small in a folder."""
    return [make(home) for name, make in MATERIALS.items() if name in (names or MATERIALS)]


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
    save_model(build(PureConfig(d_e=5, layers=1, attention=attention, skip=True), seed=7), home / "model")
    return Material("model", home / "model", lambda place: (load_model(place).config, load_model(place)))


def _run(home: Path) -> Material:
    shutil.copytree(tiny_run(), home / "run")

    def read(place: Path) -> object:
        trained, resumed = OwnSubject.open(str(place)), Run.resume(place)
        words = [vocabulary.tokenizer.to_str() for vocabulary in trained.vocabularies]
        metrics = Metrics(place, after=resumed.progress.step).path.read_bytes()
        return trained.model, words, resumed.recipe, resumed.progress, state_of(resumed), metrics

    return Material("run", home / "run", read)


def _history(home: Path) -> Material:
    """A head cut, a head added, and a layer swapped at a length: receipts with every field."""
    given = split_corpus(f"tsv:{tiny_run().parent / 'pairs.tsv'}", pairs=50, held_out=5, seed=11)
    steps = (
        Prune(heads="dec.0.1"),
        Grow(where="enc.0:heads=1"),
        Swap(to=("window:window=2",), layers="dec.0", length=40),
    )
    place = tiny_run()
    for number, step in enumerate(steps):
        out = home / f"history {number}"
        model, receipt = run_reshape(step, open_subject(str(place)), given)
        write_outcome(model, receipt, ModelFolder.of(str(place)), out)
        place = out

    def read(place: Path) -> object:
        done, out = receipts(place), place.with_name("undone")
        shutil.rmtree(out, ignore_errors=True)
        undo(str(place), out)
        files = {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}
        return done, files

    def use(made: Any) -> None:
        for number, receipt in enumerate(made[0]):
            Console(file=io.StringIO()).print(receipt_shown(receipt, number))
        lineage_of(made[0], {"enc.0": 3, "dec.0": 1})
        page_contents([PageExam(made_exam(), "exam")], receipts=made[0])

    return Material("history", place, read, use)


def _exam(home: Path) -> Material:
    write_exam(tiny_exam(home / "bert", "bert"), home / "exam")
    return Material("exam", home / "exam", read_exam, lambda made: page_contents([PageExam(made, "exam")]))


def _trace(home: Path) -> Material:
    file = home / "trace" / "trace.json"
    file.parent.mkdir()
    line = ["translate", str(tiny_run()), "Luca sees bread .", "--num-beams", "2", "--trace", str(file)]
    assert CliRunner().invoke(main, line).exit_code == 0

    def use(made: Any) -> None:
        page_contents([PageExam(made_exam(), "exam", tuple(made.sentences))])

    return Material("trace", file.parent, lambda place: read_trace(place / file.name), use)


def advised_mix() -> Advice:
    """Advice with a mix to take, times with intervals, and a faster mix whose loss rose too much."""
    trials = (
        SwapTrial("enc.0", "window:window=4", 0.01, 0.125, 7, time_interval=(0.45, 0.55)),
        SwapTrial("dec.0", "window:window=4", 0.5, 0.24, 17, time_interval=(0.9, 1.1)),
        SwapTrial("dec.0", "linear", reason="is of no use"),
    )
    present = tuple(Present(slot, ("dense", "dense"), 0.25, 19) for slot in ("enc.0", "dec.0"))
    return Advice(
        length=11, tried_at=7, present=present, trials=trials,
        chosen={"enc.0": "window:window=4"}, error=0.007, loss=2.0, rise=-0.01, time_ratio=0.75,
        time_interval=(0.7, 0.8), sentence_loss=1.5, sentence_rise=0.01, model_time_ratio=0.8,
        model_time_interval=(0.75, 0.85), model_time_least=0.7, refused=RefusedMix(7, 2.0, 3.0), notes=("Two layers.",),
        model="model", command="attnworks swap model --layers enc.0=window:window=4 --out FOLDER",
    )  # fmt: skip


def _advice(home: Path) -> Material:
    made = advised_mix()
    file = home / "advice" / "advice.json"
    file.parent.mkdir()
    file.write_text(json.dumps(made.to_json(), indent=2))

    def use(made: Any) -> None:
        in_a_sentence(made)
        page_contents([PageExam(made_exam(), "exam")], advice=made)

    return Material("advice", file.parent, lambda place: read_advice(place / file.name), use)


def _foreign(name: str, make: Callable[[Path], Path], kinds: tuple[str, ...]) -> Callable[[Path], Material]:
    """A model in files that others write, which have no hashes."""
    return lambda home: Material(name, make(home), read_model, kinds=kinds, hashed=False)


MATERIALS: dict[str, Callable[[Path], Material]] = {
    "model": _model,
    "run": _run,
    "history": _history,
    "exam": _exam,
    "trace": _trace,
    "advice": _advice,
    "gguf": _foreign("gguf", gguf_folder, ("bytes", "header")),
    "torch": _foreign("torch", torch_folder, ("bytes", "header")),
    "shards": _foreign("shards", shards_folder, ("bytes", "JSON", "header")),
}
