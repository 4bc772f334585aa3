"""attnworks advise, as a user meets it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.exam_helpers import LINES, tiny_folder, tiny_run, write_lines
from tests.reshape.reshape_helpers import files_of
from tests.training.training_helpers import SMALL

from attnworks.cli import advise_display, main
from attnworks.models.presets import PRESETS
from attnworks.reshape.advising import Advice
from attnworks.reshape.swap_trials import Present, Trial

WINDOW, LINEAR = "window:window=2", "linear"
PRESENT = tuple(Present(slot, ("dense",) * 2, 0.004, 8_000_000) for slot in ("enc.0", "enc.1", "dec.0", "cross.0"))
NOT_ACROSS = "is not defined from one sequence to another"
TRIALS = (
    Trial("enc.0", WINDOW, 0.0123, 0.001, 1_000_000),
    Trial("enc.0", LINEAR, 0.456, 0.008, 500_000),
    Trial("enc.1", WINDOW, 0.0345, 0.001, 1_000_000),
    Trial("enc.1", LINEAR, 23.4, 0.008, 10_000_000),
    Trial("dec.0", WINDOW, 0.0, 0.002, 1_000_000),
    Trial("cross.0", WINDOW, reason=NOT_ACROSS),
    Trial("cross.0", "bigbird", reason=NOT_ACROSS),
)
ADVICE = Advice(
    length=4096, tried_at=512, present=PRESENT, trials=TRIALS, chosen={"enc.0": WINDOW, "dec.0": WINDOW},
    error=0.00615, loss=2.5, rise=0.01, time_ratio=0.6875, model_time_ratio=0.8, notes=("There are 512 positions.",),
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])


@pytest.fixture(scope="module")
def run() -> Path:
    return tiny_run()


def advise(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["advise", *map(str, arguments), "--threads", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def mistake(*arguments: object, code: int = 2) -> str:
    """The one line that a mistake is told in."""
    result = advise(*arguments)
    assert result.exit_code == code and result.stdout == "", result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith(("attnworks: ", "Error: ")) and "Traceback" not in result.stderr
    return last


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was asked for; the answer is ADVICE."""
    asked: dict[str, Any] = {}

    def answer(bench: Any, to: Any, **options: Any) -> Advice:
        asked.update(options, to=to, bench=bench)
        return ADVICE

    monkeypatch.setattr(advise_display, "advise", answer)
    return asked


def test_advice_on_a_run(run: Path) -> None:
    before = files_of(run)
    result = advise(run, "--to", WINDOW, "--to", LINEAR, "--n", 23, "--sentences", 12, "--max-error", 0.5, "--json")
    assert result.exit_code == 0 and result.stderr == "", result.output
    said = json.loads(result.stdout, parse_constant=lambda number: pytest.fail(f"{number} is no JSON"))
    assert set(said) == {"model", "max_error", "command", *Advice.__dataclass_fields__}
    assert said["length"] == 23 and 0 < said["tried_at"] <= 23 and said["max_error"] == 0.5
    slots = [layer["slot"] for layer in said["present"]]
    assert [(trial["slot"], trial["spec"]) for trial in said["trials"]] == [
        (slot, spec) for slot in slots for spec in (WINDOW, LINEAR)
    ]
    assert said["error"] <= 0.5 and (said["command"] is None) == (said["chosen"] == {})
    assert files_of(run) == before


def test_advice_on_a_model_of_hugging_face(tmp_path: Path) -> None:
    folder, lines = tiny_folder("bert"), write_lines(tmp_path / "lines.txt", LINES * 3)
    result = advise(folder, "--text", lines, "--to", WINDOW, "--max-error", 0)
    assert result.exit_code == 0, result.output
    assert "Encoder" in result.stdout and "enc.1" in result.stdout and WINDOW in result.stdout
    assert result.stdout.splitlines()[-1] == "Nothing saves time within an error of 0 %: keep what is there."
    assert "Do it" not in result.stdout and "trying mechanisms" in result.stderr


def test_the_tables(run: Path, told: dict[str, Any]) -> None:
    result = advise(run, "--n", 4096, "--max-error", 0.05, "--objective", "embedding")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["enc.0", WINDOW, "1.23", "%", "4x", "faster", "8x", "fewer", "*"] in rows
    assert [LINEAR, "45.6", "%", "2x", "slower", "16x", "fewer"] in rows
    assert ["enc.1", WINDOW, "3.45", "%", "4x", "faster", "8x", "fewer"] in rows
    assert [LINEAR, ">", "1000", "%", "2x", "slower", "1.25x", "more"] in rows
    assert ["dec.0", WINDOW, "0", "%", "2x", "faster", "8x", "fewer", "*"] in rows
    assert "Errors on texts of up to 512 tokens; times and FLOPs at 4,096 positions; * chosen." in result.stdout
    assert f"Not in cross.0: {WINDOW}, bigbird (it {NOT_ACROSS})." in result.stdout
    assert "There are 512 positions." in result.stdout
    flat = " ".join(result.stdout.split())
    assert (
        f"Take {WINDOW} in enc.0, dec.0: attention gets 1.45x faster, the whole model 1.25x faster, its error is "
        "0.615 % (root mean square over 4 layers), and the loss goes from 2.5 to 2.51." in flat
    )
    assert flat.endswith(
        f"Do it attnworks reshape swap {shlex.quote(str(run))} --layers 'enc.0={WINDOW} dec.0={WINDOW}' --n 4096 "
        "--objective embedding --out FOLDER"
    )
    tables = [line for line in result.stdout.splitlines() if line.startswith((" layer", " enc", " dec", "      "))]
    assert tables and all(len(line) <= 80 for line in tables)


def test_options_reach_the_advice(run: Path, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advise_display, "LEARN", 50)
    advise(run, "--to", "window:window=64", "--to", "linear", "--n", 99, "--sentences", 7, "--seed", 3)
    assert told["to"] == ("window:window=64", "linear") and told["length"] == 99 and told["max_error"] == 0.02
    bench = told["bench"]
    assert len(bench.looked_at.text.kept) == 7 and bench.seed == 3 and bench.looked_at.objective.name == "seq2seq"
    advise(run, "--corpus", "grammar", "--objective", "embedding")
    assert told["to"] == () and told["length"] is None and told["bench"].looked_at.objective.name == "embedding"


def test_the_picture(run: Path, told: dict[str, Any], tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    assert advise(run, "--plot", first).stdout.splitlines()[-1] == f"Picture {first}"
    advise(run, "--plot", second, "--json")
    drawn = first.read_text()
    assert drawn == second.read_text() and drawn.startswith("<?xml")
    assert "<!-- chosen -->" in drawn and "<!-- relative error of attention -->" in drawn
    assert f"<!-- {WINDOW} -->" in drawn and "<!-- times faster at 4,096 positions -->" in drawn


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to", "windw"), "did you mean 'window'?"),
        (("--to", "window:width=3"), "width"),
        (("--n", 1), "--n"),
        (("--max-error", 2), "--max-error"),
        (("--corpus", "grammar", "--text", "lines.txt"), "--corpus or --text, got both"),
        (("--objective", "mlm"), "mlm"),
    ],
    ids=str,
)
def test_mistakes(arguments: tuple[object, ...], told: str, run: Path) -> None:
    assert told in mistake(run, *arguments)


def test_what_cannot_be_done(run: Path, tmp_path: Path) -> None:
    assert "a file ending in .svg" in mistake(run, "--plot", "picture.png", code=1)
    assert "nothing" in mistake(tmp_path / "nowhere", code=1)


def test_help() -> None:
    text = advise("--help").stdout
    assert "attnworks advise runs/first --n 1024" in text and all(len(line) <= 100 for line in text.splitlines())
