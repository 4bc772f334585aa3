"""Settings of the tests of reshaping: short translations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def short_translations() -> Iterator[None]:
    """Models with random weights seldom end a sentence: for receipts they write five tokens at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnworks.traces.own.max_target_tokens", lambda _: 5)
        yield
