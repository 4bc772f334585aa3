"""metrics.jsonl survives whatever a crash leaves in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnworks.core.errors import FolderError
from attnworks.training.events import Event, Metrics, Saved, StepDone, Validated, read_metrics


def step(number: int) -> StepDone:
    return StepDone(
        step=number, epoch=number / 7, loss=1 / number, learning_rate=1e-3, gradient_norm=0.5, tokens=9, seconds=0.1
    )


VALIDATED = Validated(step=2, loss=0.5, perplexity=1.6, bleu=None, chrf=None, best=True)


def test_one_line_for_each_step_and_validation(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, after=0)
    events: list[Event] = [step(1), step(2), VALIDATED, Saved(2, tmp_path), step(3)]
    for event in events:
        metrics(event)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("training", 1),
        ("training", 2),
        ("validation", 2),
        ("training", 3),
    ]
    assert lines[1] == {"kind": "training"} | step(2).__dict__
    assert lines[2] == {"kind": "validation"} | VALIDATED.__dict__


def test_lines_after_the_last_checkpoint_go(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, after=0)
    for event in (step(1), step(2), VALIDATED, step(3)):
        metrics(event)
    before = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    Metrics(tmp_path, after=2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(before[:3])


@pytest.mark.parametrize(
    "torn",
    [b'{"kind": "trai', b"\x00" * 40, b"\xff\xfe", b"5\n", b"null\n", b"[1]\n", b'{"kind": "training"}\n',
     b'{"step": "3"}\n', b"[" * 100_000, b'"step"\n'],
    ids=lambda torn: repr(torn[:20]),
)  # fmt: skip
def test_what_a_crash_left_behind_goes(torn: bytes, tmp_path: Path) -> None:
    Metrics(tmp_path, after=0)(step(1))
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(whole + torn)
    lines, damaged = read_metrics(tmp_path / "metrics.jsonl")
    assert len(lines) == 1 and damaged == [line for line in [torn[:-1]] if torn.endswith(b"\n")]
    Metrics(tmp_path, after=5)(step(2))
    lines, damaged = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2] and not damaged


def test_a_damaged_line_is_set_aside_and_all_others_stay(tmp_path: Path) -> None:
    metrics, path = Metrics(tmp_path, after=0), tmp_path / "metrics.jsonl"
    for number in range(1, 10):
        metrics(step(number))
    assert metrics.remark is None
    texts = path.read_bytes().splitlines()
    texts[4] = b"\x00" + texts[4][1:]
    path.write_bytes(b"\n".join(texts) + b"\n")
    remark = Metrics(tmp_path, after=9).remark
    assert remark is not None and "1 damaged line" in remark and "metrics.jsonl.damaged-1" in remark
    assert [line["step"] for line in read_metrics(path)[0]] == [1, 2, 3, 4, 6, 7, 8, 9]
    assert (tmp_path / "metrics.jsonl.damaged-1").read_bytes() == texts[4] + b"\n"
    assert Metrics(tmp_path, after=9).remark is None


def test_interrupted_repairs_lose_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged lines are copied before the file is written without them."""
    metrics, path = Metrics(tmp_path, after=0), tmp_path / "metrics.jsonl"
    metrics(step(1))
    path.write_bytes(damaged := b"\0bad\n" + path.read_bytes())
    written: list[Path] = []

    def write(place: Path, data: bytes) -> None:
        if place == path:
            raise KeyboardInterrupt
        written.append(place)
        place.write_bytes(data)

    monkeypatch.setattr("attnworks.training.events.write_file", write)
    with pytest.raises(KeyboardInterrupt):
        Metrics(tmp_path, after=1)
    assert path.read_bytes() == damaged and [one.read_bytes() for one in written] == [b"\0bad\n"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == ([], [])


def test_a_disk_that_is_full_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(tmp_path, after=0)
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    monkeypatch.setattr(metrics, "path", full)
    with pytest.raises(FolderError, match="No space left"):
        metrics(step(1))
