"""Every statement of the five documents with a verdict, and a check where there is something to compute."""

from attnworks.core.errors import UsageError
from attnworks.theory import claims  # noqa: F401
from attnworks.theory.contract import CLAIMS, Claim, Finding, Verdict, in_order, matching

__all__ = ["CLAIMS", "Claim", "Finding", "Verdict", "claim", "in_order", "matching"]


def claim(id: str) -> Claim:
    """The statement with this id.

    >>> claim("S0.3").check(seed=3).holds
    True
    """
    found = matching(id)
    if len(found) > 1:
        raise UsageError(
            asked=f"claim {id!r}", expected="the id of one", got=f"{len(found)} of them", remedy=f"matching({id!r})"
        )
    return found[0]
