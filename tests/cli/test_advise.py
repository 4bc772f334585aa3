"""attnworks advise, as a user meets it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attnworks.api import mechanisms
from attnworks.cli import main
from attnworks.models.build import PRESETS
from attnworks.reshape.swapping.advice import Advice, RefusedMix
from attnworks.reshape.swapping.render import in_a_sentence
from attnworks.reshape.swapping.trials import Present, SwapTrial
from tests.exam_helpers import LINES, tiny_folder, tiny_run, write_lines
from tests.reshape.reshape_helpers import files_of
from tests.training.training_helpers import SMALL

WINDOW, LINEAR = "window:window=2", "linear"
PRESENT = tuple(Present(slot, ("dense",) * 2, 0.004, 8_000_000) for slot in ("enc.0", "enc.1", "dec.0", "cross.0"))
NOT_ACROSS = "is not defined from one sequence to another"
TRIALS = (
    SwapTrial("enc.0", WINDOW, 0.0123, 0.001, 1_000_000, time_interval=(0.2, 0.32)),
    SwapTrial("enc.0", LINEAR, 0.456, 0.008, 500_000, time_interval=(1.8, 2.5)),
    SwapTrial("enc.1", WINDOW, 0.0345, 0.001, 1_000_000, time_interval=(0.2, 0.32)),
    SwapTrial("enc.1", LINEAR, 23.4, 0.0038, 10_000_000, time_interval=(0.8, 1.25)),
    SwapTrial("dec.0", WINDOW, 0.0, 0.002, 1_000_000, time_interval=(0.4, 0.625)),
    SwapTrial("cross.0", WINDOW, reason=NOT_ACROSS),
    SwapTrial("cross.0", "bigbird", reason=NOT_ACROSS),
)
ADVICE = Advice(
    length=4096, tried_at=512, present=PRESENT, trials=TRIALS, chosen={"enc.0": WINDOW, "dec.0": WINDOW},
    error=0.00615, loss=2.5, rise=0.01, time_ratio=0.6875, time_interval=(0.64, 0.8), sentence_loss=2.25,
    sentence_rise=1e-8, model_time_ratio=0.8, model_time_interval=(0.75, 0.85), model_time_least=0.7,
    notes=("There are 512 positions.",),
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

    monkeypatch.setattr(mechanisms, "find_advice", answer)
    return asked


def test_advice_on_a_run(run: Path) -> None:
    before = files_of(run)
    result = advise(
        run, "--to", WINDOW, "--to", LINEAR, "--length", 23, "--sentences", 12, "--max-error", 0.5, "--json"
    )
    assert result.exit_code == 0 and result.stderr == "", result.output
    said = json.loads(result.stdout, parse_constant=lambda number: pytest.fail(f"{number} is no JSON"))
    assert set(said) == {"sha256", *Advice.__dataclass_fields__}
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
    assert (
        result.stdout.splitlines()[-1]
        == "Nothing is measurably faster within an error of 0 %: keep the model as it is."
    )
    assert "Command" not in result.stdout and "trying mechanisms" in result.stderr


def test_the_tables(run: Path, told: dict[str, Any]) -> None:
    result = advise(run, "--length", 4096, "--max-error", 0.05, "--objective", "embedding")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["enc.0", WINDOW, "1.23", "%", "4x", "faster", "(3.12-5)", "8x", "fewer", "*"] in rows
    assert [LINEAR, "45.6", "%", "2x", "slower", "(1.8-2.5)", "16x", "fewer"] in rows
    assert ["enc.1", WINDOW, "3.45", "%", "4x", "faster", "(3.12-5)", "8x", "fewer"] in rows
    assert [LINEAR, ">", "1000", "%", "no", "gain", "(0.8-1.25)", "1.25x", "more"] in rows
    assert ["dec.0", WINDOW, "0", "%", "2x", "faster", "(1.6-2.5)", "8x", "fewer", "*"] in rows
    assert f"Not in cross.0: {WINDOW}, bigbird (it {NOT_ACROSS})." in result.stdout
    assert "There are 512 positions." in result.stdout
    flat = " ".join(result.stdout.split())
    assert (
        "Errors on texts of up to 512 tokens; times and FLOPs at length 4,096; * chosen. In brackets 95 % intervals "
        "of times." in flat
    )
    assert (
        f"Take {WINDOW} in enc.0, dec.0. Attention: 1.45x faster (1.25 to 1.56); whole model: 1.25x faster (1.18 to "
        "1.33); in brackets 95 % intervals. The error of attention is 0.615 % (root mean square over 4 layers). On "
        "texts of up to 512 tokens the loss changes from 2.5 to 2.51 (+0.01); on single sentences from 2.25 to 2.25 "
        "(+1e-08)." in flat
    )
    assert flat.replace(" \\ ", " ").endswith(
        f"Command: attnworks swap {shlex.quote(str(run))} --layers 'enc.0={WINDOW} dec.0={WINDOW}' --length 4096 "
        "--objective embedding --out FOLDER"
    )
    tables = [line for line in result.stdout.splitlines() if line.startswith((" layer", " enc", " dec", "      "))]
    assert tables and all(len(line) <= 80 for line in tables)


def test_a_mix_that_does_not_pay_has_its_command_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(ADVICE, model_time_interval=(0.8, 1.04))
    monkeypatch.setattr(mechanisms, "find_advice", lambda bench, to, **options: slow)
    lines = advise(run, "--length", 4096).stdout.splitlines()
    assert lines[lines.index("Command, if you want it anyway:") + 1].startswith("attnworks swap ")


def test_a_gain_that_cannot_be_measured_is_not_told_as_one() -> None:
    told = in_a_sentence(replace(ADVICE, model_time_ratio=0.92, model_time_interval=(0.8, 1.04)))
    assert "whole model: no measurable gain (0.962 to 1.25 times as fast);" in told
    assert (
        told.startswith("Nothing makes the whole model measurably faster. Keep the model as it is")
        and "Take" not in told
    )
    assert f"The fastest mix is {WINDOW} in enc.0, dec.0. Attention: 1.45x faster" in told
    assert in_a_sentence(replace(ADVICE, model_time_interval=None)).startswith("Take"), "as it was not timed"
    told = in_a_sentence(replace(ADVICE, time_ratio=0.99, time_interval=(0.96, 1.0)))
    assert "Attention: no measurable gain (1 to 1.04 times as fast);" in told
    assert "slower (1.1 to 1.3)" in in_a_sentence(replace(ADVICE, time_ratio=1.2, time_interval=(1.1, 1.3)))


def test_a_model_that_saves_more_than_its_attention_is_told_by_its_interval() -> None:
    """Attention saves 1.3 % of the time, and the whole model seems to save 7.8 %."""
    doubted = replace(ADVICE, model_time_ratio=0.922, model_time_interval=(0.9, 0.96), model_time_least=0.987)
    told = in_a_sentence(doubted)
    assert "whole model: between 1.04 and 1.11 times as fast;" in told and "1.08x" not in told


def test_one_loss_where_there_are_no_longer_texts() -> None:
    told = in_a_sentence(replace(ADVICE, sentence_loss=None, sentence_rise=None, model_time_ratio=None))
    assert told.endswith("On texts of up to 512 tokens the loss changes from 2.5 to 2.51 (+0.01).")
    assert "whole model" not in told


def test_the_loss_that_refuses_a_mix_is_told_with_its_length() -> None:
    refused = replace(ADVICE, chosen={}, refused=RefusedMix(1022, 2.5, 2.75))
    assert in_a_sentence(refused) == (
        "Keep the model as it is: the fastest mix within an error of 2 % would raise the loss on texts of up to 1,022 "
        "tokens from 2.5 to 2.75, by more than that share."
    )


def test_options_reach_the_advice(run: Path, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "CALIBRATION_PAIRS", 50)
    advise(run, "--to", "window:window=64", "--to", "linear", "--length", 99, "--sentences", 7, "--seed", 3)
    assert told["to"] == ("window:window=64", "linear") and told["length"] == 99 and told["max_error"] == 0.02
    bench = told["bench"]
    assert len(bench.calibration.text.kept) == 7 and bench.seed == 3 and bench.calibration.objective.name == "seq2seq"
    advise(run, "--corpus", "grammar", "--objective", "embedding")
    assert told["to"] == () and told["length"] is None and told["bench"].calibration.objective.name == "embedding"


def test_the_picture(run: Path, told: dict[str, Any], tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    assert advise(run, "--plot", first).stdout.splitlines()[-1] == f"Picture {first}"
    advise(run, "--plot", second, "--json")
    drawn = first.read_text()
    assert drawn == second.read_text() and drawn.startswith("<?xml")
    assert "<!-- chosen -->" in drawn and "<!-- relative error of attention -->" in drawn
    assert f"<!-- {WINDOW} -->" in drawn and "<!-- times faster at length 4,096 -->" in drawn


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to", "windw"), "did you mean 'window'?"),
        (("--to", "window:width=3"), "width"),
        (("--length", 1), "--length"),
        (("--max-error", 2), "--max-error"),
        (("--corpus", "grammar", "--text", "lines.txt"), "--corpus or --text, got both"),
        (("--objective", "mlm"), "mlm"),
    ],
    ids=str,
)
def test_mistakes(arguments: tuple[object, ...], told: str, run: Path) -> None:
    assert told in mistake(run, *arguments)


def test_what_cannot_be_done(run: Path, tmp_path: Path) -> None:
    assert "a file ending in .svg" in mistake(run, "--plot", "picture.png")
    assert "nothing" in mistake(tmp_path / "nowhere")


def test_help() -> None:
    text = advise("--help").stdout
    assert "attnworks advise runs/first --length 1024" in text and all(len(line) <= 100 for line in text.splitlines())
