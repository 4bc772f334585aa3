"""Questions of the page: a sentence and edits of the model, checked strictly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from attnworks.core.errors import UsageError

MAX_QUESTION_BYTES = 64 * 1024
MAX_CHANGES = 1024
_Pairs = tuple[tuple[str, str], ...]


class NotJSONError(UsageError):
    """Bytes that are no JSON."""


@dataclass(frozen=True)
class Changes:
    """Edits by name: heads to cut, forms of heads, mechanisms of layers; sorted, so that equal edits compare equal."""

    cut: tuple[str, ...] = ()
    project: _Pairs = ()
    swap: _Pairs = ()

    def __bool__(self) -> bool:
        return bool(self.cut or self.project or self.swap)


@dataclass(frozen=True)
class Question:
    text: str
    changes: Changes = Changes()


def read_question(body: bytes) -> Question:
    """The question in the body of a request; UsageError for anything else."""
    try:
        asked = json.loads(body)
        json.dumps(asked, ensure_ascii=False).encode()  # an error for lone surrogates
    except (ValueError, RecursionError) as error:
        got = f"{len(body):,} bytes of something else"
        remedy = 'send {"text": "a sentence", "changes": {"cut": [], "project": {}, "swap": {}}}'
        raise NotJSONError("a question", "JSON in UTF-8", got, remedy) from error
    _check_keys(asked, {"text"}, {"changes"}, "a question")
    text, changes = asked["text"], asked.get("changes", {})
    _check(isinstance(text, str), "the sentence", "text", text)
    _check_keys(changes, set(), {"cut", "project", "swap"}, "changes")
    cut = changes.get("cut", [])
    _check(isinstance(cut, list) and all(isinstance(head, str) for head in cut), "heads to cut", "a list of names", cut)
    project, swap = (_pairs(changes.get(name, {}), name) for name in ("project", "swap"))
    count = len(cut) + len(project) + len(swap)
    _check(count <= MAX_CHANGES, "changes", f"at most {MAX_CHANGES:,}", count)
    return Question(text, Changes(tuple(sorted({*cut})), project, swap))


def _check_keys(asked: Any, needed: set[str], more: set[str], what: str) -> None:
    _check(isinstance(asked, dict), what, "an object", asked)
    _check(needed <= {*asked} <= needed | more, what, f"the keys {', '.join(sorted(needed | more))}", sorted(asked))


def _pairs(asked: Any, name: str) -> _Pairs:
    fits = isinstance(asked, dict) and all(isinstance(value, str) for value in asked.values())
    _check(fits, name, "an object of texts", asked)
    return tuple(sorted(asked.items()))


def _check(fits: bool, what: str, expected: str, got: Any) -> None:
    if not fits:
        raise UsageError(what, expected, json.dumps(got)[:80], "see docs/page.md")
