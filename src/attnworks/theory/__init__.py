"""The statements of five documents on attention: each has a verdict, and a check if there is something to compute."""

from attnworks.core.errors import UsageError
from attnworks.theory import claims  # noqa: F401
from attnworks.theory.contract import CLAIMS, Claim, ClaimResult, Verdict, all_claims, find_claims

__all__ = ["CLAIMS", "Claim", "ClaimResult", "Verdict", "all_claims", "claim", "find_claims"]


def claim(id: str) -> Claim:
    """The statement with this id.

    >>> claim("S0.3").check(seed=3).holds
    True
    """
    found = find_claims(id)
    if len(found) > 1:
        raise UsageError(f"claim {id!r}", "the id of one", f"{len(found)} of them", f"find_claims({id!r})")
    return found[0]
