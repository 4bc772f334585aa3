"""Which measures an examination takes, and what that will cost."""

from __future__ import annotations

from collections.abc import Sequence

import attnworks.measures.all  # noqa: F401  (registers every measure)
from attnworks.errors import UsageError
from attnworks.measures.contract import MEASURES, Measure, Setting

EVERYTHING = "all"


def choose_measures(names: Sequence[str] | None, setting: Setting) -> list[Measure]:
    """The measures of these names; by default those that are cheap, with "all" every one."""
    if names is not None and not names:
        raise UsageError(
            asked="measures", expected="one name or more", got="none", remedy="--list-measures shows those there are"
        )
    if names is None:
        chosen = [name for name in MEASURES if MEASURES[name].default]
    elif EVERYTHING in names:
        chosen = list(MEASURES)
    else:
        chosen = list(dict.fromkeys(required for name in names for required in (name, *MEASURES[name].requires)))
    return [MEASURES[name](setting) for name in chosen]


def costs(measures: Sequence[Measure]) -> list[tuple[str, str]]:
    """What each measure beyond the default set costs, in words."""
    return [(measure.name, measure.cost) for measure in measures if not measure.default]
