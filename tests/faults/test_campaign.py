"""The short version of `make faults`: every kind of attack on every kind of file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults.campaign import BAD, Campaign
from tests.faults.kills import without_waiting

NAMES = ("model", "run", "history", "exam", "trace", "advice")


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
    assert sum(campaign.counts[NAMES[number], kind, "refused"] for kind in ("bytes", "JSON")) >= 12


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_special_files(campaign: Campaign, number: int) -> None:
    """A pipe, a device or a link where a file should be: an error in one line, or what was there before."""
    campaign.bad.clear()
    campaign.special_files(campaign.materials[number])
    assert not campaign.bad, "\n".join(campaign.bad)
    assert not any(campaign.counts[NAMES[number], "special", outcome] for outcome in BAD)
