"""`attnworks.claims`: which statements of the five source documents hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

from attnworks.api.subjects import as_subject
from attnworks.core.checks import choice
from attnworks.core.display import Progress, silent
from attnworks.core.errors import UsageError
from attnworks.text.sources import SourceText, Texts, read_texts
from attnworks.theory import Verdict, find_claims
from attnworks.theory.laws import LAYER_LAWS, STACK_LAWS
from attnworks.theory.on_model import LawTallies, check_on_model
from attnworks.theory.report import CheckedClaims, check_claims
from attnworks.traces.subject import Subject

LAW_SENTENCES = 16
_VERDICTS = {verdict.name.lower().replace("_", "-"): verdict for verdict in Verdict}


@overload
def claims(
    *ids: str, verdict: str | Iterable[str] = (), seed: int = 0, progress: Progress = silent
) -> CheckedClaims: ...
@overload
def claims(
    *ids: str,
    on: Any,
    texts: Texts = None,
    sentences: int = LAW_SENTENCES,
    max_length: int | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = silent,
) -> LawTallies: ...
def claims(
    *ids: str,
    verdict: str | Iterable[str] = (),
    on: Any = None,
    texts: Texts = None,
    sentences: int = LAW_SENTENCES,
    max_length: int | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = silent,
) -> CheckedClaims | LawTallies:
    """Check the statements of the five source documents by computing both of their sides.

    Args:
        ids: Ids of docs/claims.md such as "S0.17"; "S2" for all of a document, "D" for the results derived in
            attnworks, "S4.1*" for all ids that begin so. Default: none, check all of them.
        verdict: Check only claims with this verdict, or one of these: "holds", "condition", "typo", "false",
            "not-checkable". Default: (), any.
        on: Check the claims that apply to a model on this one: a path, a `Subject`, a Hugging Face model, or a model
            of attnworks. Default: None, check the claims themselves.
        texts: With `on`, a list of texts, a text file, or a corpus such as "grammar". Default: None, "grammar".
        sentences: With `on`, read at most this number of sentences of a file or corpus. Default: 16.
        max_length: With `on`, cut texts after this number of tokens. Default: None, split texts that do not fit.
        seed: Random seed of the numbers that checks draw, and of the sentences of a corpus. Default: 0.
        tokenizer: With `on`, the tokenizer or vocabulary of a model in memory. Default: None.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of the weights of a model that is opened from a path; the checks compute in float64. Default:
            "float32".
        progress: Called with (stage, steps done, steps in all). A total of 0 marks a message. Default: silent.

    Returns:
        `CheckedClaims`, a list: `.confirmed` says whether every check agrees with the verdict of its claim, and each
        element shows both sides, correction, numbers and code. With `on`, `LawTallies`, a list with the number of
        places where each claim was computed and held, and how tight its bound is. Both have `to_json()`.

    >>> attnworks.claims("S0.17")[0].result.stated.holds
    False
    >>> attnworks.claims("D6", on="runs/first").held  # doctest: +SKIP
    """
    if on is not None:
        if verdict:
            raise UsageError("claims on a model", "on=MODEL, with ids or without", "a verdict too", "leave one out")
        wanted = _laws(ids)
        subject = as_subject(on, tokenizer, device=device, dtype=dtype, max_length=max_length, progress=progress)
        return _on_model(subject, wanted, read_texts(texts, sentences=sentences, seed=seed), progress)
    unused = {"texts": texts, "max_length": max_length, "tokenizer": tokenizer}
    unused["sentences"] = None if sentences == LAW_SENTENCES else sentences
    for name in (name for name, value in unused.items() if value is not None):
        raise UsageError(f"claims with {name}", "a model that reads text: on=MODEL", "no model", "leave it out")
    names = [verdict] if isinstance(verdict, str) else list(verdict)
    verdicts = [_VERDICTS[choice("verdict", name, _VERDICTS)] for name in names]
    chosen = [claim for claim in find_claims(*ids) if not verdicts or claim.verdict in verdicts]
    if not chosen:
        asked = " ".join(("claims", *ids))
        raise UsageError(asked, f"some with verdict {' or '.join(verdicts)}", "none", "leave it out")
    found = CheckedClaims()
    for checked in check_claims(chosen, seed):
        found.append(checked)
        progress("checking", len(found), len(chosen))
    return found


def _laws(ids: tuple[str, ...]) -> set[str]:
    """The ids among these of claims that can be checked on a model."""
    known = {*LAYER_LAWS, *STACK_LAWS}
    wanted = {claim.id for claim in find_claims(*ids)} & known
    if not wanted:
        expected = f"some of {', '.join(sorted(known))}"
        raise UsageError(f"{' '.join(ids)} on a model", expected, "none of these", "choose some of them")
    return wanted


def _on_model(subject: Subject, wanted: set[str], source: SourceText, progress: Progress) -> LawTallies:
    if source.remark is not None:
        progress(source.remark, 0, 0)
    done, total = 0, len(source.passages)

    def advance(number: int) -> None:
        nonlocal done
        done += number
        progress(f"checking on {subject.name}", min(done, total), total)  # a long text is split into several

    tallies = check_on_model(subject, source.passages, advance, wanted)
    return LawTallies(tallies, subject.name, total, source.about["name"])
