"""The short version of `make faults`: every kind of attack on every kind of file."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attnworks.core.errors import FolderError
from attnworks.reshape.history import receipts
from attnworks.reshape.swapping.render import in_a_sentence
from tests.faults.campaign import BAD, Campaign
from tests.faults.kills import without_waiting
from tests.faults.material import Material

NAMES = ("model", "run", "history", "exam", "trace", "advice", "gguf", "torch", "shards")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with without_waiting():
        made = Campaign(tmp_path_factory.mktemp("campaign"), seed=1)
        assert tuple(material.name for material in made.materials) == NAMES
        yield made


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_mutants_and_forgeries(campaign: Campaign, number: int) -> None:
    campaign.bad.clear()
    campaign.mutants(campaign.materials[number], 36)
    assert not campaign.bad, "\n".join(campaign.bad)
    assert sum(campaign.counts[NAMES[number], kind, "refused"] for kind in ("bytes", "JSON", "header")) >= 12


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_special_files(campaign: Campaign, number: int) -> None:
    """A pipe, a device or a link where a file should be: an error in one line, or what was there before."""
    campaign.bad.clear()
    campaign.special_files(campaign.materials[number])
    assert not campaign.bad, "\n".join(campaign.bad)
    assert not any(campaign.counts[NAMES[number], "special", outcome] for outcome in BAD)


# The campaign itself --------------------------------------------------------------------------------------------------


def test_every_kind_of_receipt_is_attacked(campaign: Campaign) -> None:
    found = receipts(campaign.materials[NAMES.index("history")].home)
    assert [receipt.reshape for receipt in found] == ["prune", "grow", "swap"]
    assert {head for receipt in found for heads in receipt.heads.values() for head in heads.after} >= {None, 0}
    assert found[2].loss_at_length is not None and "attention_time_ratio_low" in found[2].facts


def test_advice_that_is_attacked_has_a_mix(campaign: Campaign) -> None:
    material = campaign.materials[NAMES.index("advice")]
    made: Any = material.read(material.home)
    assert "x faster (1.25 to 1.43)" in in_a_sentence(made)


def test_a_pipe_in_the_place_of_metrics_is_refused(campaign: Campaign, tmp_path: Path) -> None:
    material = campaign.materials[NAMES.index("run")]
    place = material.copy(tmp_path / "run")
    (place / "metrics.jsonl").unlink()
    os.mkfifo(place / "metrics.jsonl")
    with pytest.raises(FolderError, match="a regular file"):
        material.read(place)


def test_a_mutant_is_the_same_whatever_was_attacked_before(campaign: Campaign) -> None:
    model = campaign.materials[0]
    first = [campaign.mutant(model, turn) for turn in range(6)]
    campaign.mutants(model, 2)
    again = [campaign.mutant(model, turn) for turn in range(6)]
    assert first == again and len({*first}) == 6
    assert first[4].startswith("model/") and ", JSON, seed 1, turn 4: " in first[4] and ", now " in first[4]


def test_reading_that_hangs_is_counted_although_exceptions_are_caught(campaign: Campaign) -> None:
    """As the clock would: the signal is raised while code runs that catches every exception."""

    def read(place: Path) -> str:
        with suppress(Exception):
            signal.raise_signal(signal.SIGALRM)
        return "read on"

    material = Material("model", campaign.materials[0].home, read)
    campaign.bad.clear()
    campaign.mutant(material, 0)
    assert campaign.counts["model", "bytes", "hang"] == 1
    assert campaign.bad == [f"hang: {campaign.mutant(campaign.materials[0], 0)}"]
    del campaign.counts["model", "bytes", "hang"]
    campaign.bad.clear()


def test_what_is_executed_and_memory_that_is_taken_are_counted(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the reading refuses in the end."""

    def execute(place: Path) -> None:
        os.system("true")
        raise FolderError("a", "b", "c", "d")

    home, taken = campaign.materials[0].home, []
    campaign.mutant(Material("model", home, execute), 0)
    monkeypatch.setattr("tests.faults.campaign.MEGABYTES", 8)

    def take(place: Path) -> None:
        now = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        taken.append(b"x" * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - now + 32 * 2**20))
        raise FolderError("a", "b", "c", "d")

    campaign.mutant(Material("model", home, take), 0)
    for outcome in ("executed", "memory"):
        assert campaign.counts["model", "bytes", outcome] == 1
        del campaign.counts["model", "bytes", outcome]
    assert [line.partition(":")[0] for line in campaign.bad] == ["executed", "memory"]
    campaign.bad.clear()


def test_headers_are_damaged_in_every_format(campaign: Campaign) -> None:
    for name in ("gguf", "torch", "shards"):
        material = campaign.materials[NAMES.index(name)]
        turn = material.kinds.index("header")
        first = [campaign.mutant(material, turn + step * len(material.kinds)) for step in range(5)]
        assert len({*first}) == 5 and all(f"{name}/" in line and ", header, seed 1" in line for line in first)
